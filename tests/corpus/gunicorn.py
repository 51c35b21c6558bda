"""Gunicorn's corpus of requests: where it lies, how its text stands for bytes, and what gunicorn expects of each file.

A ``.http`` file is text: its own line ends mean nothing; ``\\r\\n``, ``\\n``, ``\\t``, ``\\0`` and ``\\xHH`` stand for bytes.
The ``.py`` beside a valid one says what it reads as. The corpus is fetched by ``make test`` and not kept here.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from longwire.wire.http1 import NEED_DATA, PAUSED, Http1Error, RequestHead, RequestReader
from longwire.wire.proxy import parse_proxy_header
from longwire.words.errors import BadHttp
from longwire.words.settings import Settings

CORPUS = Path(__file__).parents[2] / ".venv" / "corpus" / "gunicorn"
INVALID_FILES, VALID_FILES = 81, 62

_ESCAPES = {b"\\r\\n": b"\r\n", b"\\n": b"\n", b"\\t": b"\t", b"\\0": b"\0"}
_ESCAPE = re.compile(rb"\\r\\n|\\n|\\t|\\0|\\x[0-9A-Fa-f]{2}")
_PROXY_STARTS = (b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n")


def need_corpus() -> None:
    """Skip where it has not been fetched; fail where that must not be."""
    if CORPUS.is_dir():
        return
    if os.environ.get("CI"):
        pytest.fail(f"the corpus is not at {CORPUS}, and in CI it has to be: make .venv/corpus.stamp")
    pytest.skip("the corpus has not been fetched: make .venv/corpus.stamp")


def names(kind: str) -> list[str]:
    """The files of a kind (``valid``, ``invalid``), without their suffix; without a corpus, one that every test will miss."""
    return sorted(path.stem for path in (CORPUS / kind).glob("*.http")) or ["not fetched"]


def read_wire(kind: str, name: str) -> bytes:
    """The bytes that a file stands for."""
    return decode((CORPUS / kind / f"{name}.http").read_bytes())


def decode(text: bytes) -> bytes:
    wire = _ESCAPE.sub(
        lambda match: _ESCAPES.get(match[0]) or bytes.fromhex(match[0][2:].decode()), text.replace(b"\n", b"")
    )
    assert b"\\" not in wire, "an escape that gunicorn does not know either"
    return wire


class Read(NamedTuple):
    """One request as it was understood."""

    method: str
    target: str
    minor: int
    headers: list[tuple[str, str]]
    trailers: list[tuple[str, str]]
    body: bytes


class Outcome(NamedTuple):
    requests: list[Read]
    verdict: str
    """``read``, ``unfinished`` where a request was begun and did not end, or ``refused``."""
    status: int = 0


def read_connection(pieces: list[bytes]) -> Outcome:
    """What a connection that sends the pieces and no more comes to, with the bounds that are ours by default."""
    wire = b"".join(pieces)
    if wire.startswith(_PROXY_STARTS):
        try:
            header = parse_proxy_header(wire)
        except BadHttp as exc:
            return Outcome([], "refused", exc.status)
        assert header is not NEED_DATA
        pieces = [wire[header.length :]]
    settings = Settings()
    reader = RequestReader(settings.max_head_bytes, settings.max_body_bytes)
    requests: list[Read] = []
    head: RequestHead | None = None
    try:
        for piece in pieces:
            reader.receive_data(piece)
            while (event := reader.next_event()) is not NEED_DATA:
                if isinstance(event, RequestHead):
                    head = event
                elif isinstance(event, bytes):
                    assert head is not None
                    requests.append(_as_gunicorn_writes(head, event))
                elif head is not None and not head.keep_alive:
                    return Outcome(requests, "read")
                else:
                    assert event is PAUSED
                    reader.start_next_cycle()
    except Http1Error as exc:
        return Outcome(requests, "refused", exc.status)
    return Outcome(requests, "read" if reader.is_between_requests else "unfinished")


def _as_gunicorn_writes(head: RequestHead, body: bytes) -> Read:
    headers = [(name.decode("latin-1").upper(), value.decode("latin-1")) for name, value in head.headers]
    return Read(head.method, head.target.decode("ascii"), head.minor, headers, [], body)


def expected(name: str) -> list[Read]:
    """What gunicorn reads a valid file as. Its ``.py`` is taken apart, so that nothing of gunicorn need be installed."""
    module = ast.parse((CORPUS / "valid" / f"{name}.py").read_bytes())
    values: dict[str, Any] = {"uri": lambda target: target}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id != "cfg":
            values[node.targets[0].id] = eval(compile(ast.Expression(node.value), name, "eval"), values)
    request = values["request"]
    return [
        Read(
            each["method"],
            each["uri"],
            each["version"][1],
            each["headers"],
            each.get("trailers", []),
            each["body"] or b"",
        )
        for each in (request if isinstance(request, list) else [request])
    ]


def with_paths(requests: list[Read]) -> list[Read]:
    """The same with targets in absolute form reduced to their path."""
    return [request._replace(target=_path_of(request.target)) for request in requests]


def _path_of(target: str) -> str:
    return urlsplit(target)._replace(scheme="", netloc="").geturl() if "://" in target else target


def with_hosts(wire: bytes) -> bytes:
    """The same requests, each with a Host where HTTP/1.1 wants one."""
    return wire.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: corpus\r\n")


def without_hosts(requests: list[Read]) -> list[Read]:
    """The same without what :func:`with_hosts` added."""
    return [
        request._replace(headers=[field for field in request.headers if field != ("HOST", "corpus")])
        for request in requests
    ]
