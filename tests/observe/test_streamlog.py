"""The line that a stream leaves: what is in it, and that nothing in it can be turned back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from longwire.observe.jsonlog import JsonFormatter
from longwire.observe.streamlog import MAX_REQUEST_ID_CHARS, StreamEnd, StreamLog, sanitise_request_id
from longwire.words.ids import format_stream_id
from longwire.words.reasons import CloseReason

KEY = b"k" * 32
RAW_ID = bytes(range(17))

END = StreamEnd(
    stream_id=RAW_ID,
    tenant="acme",
    model="tiny",
    engine="local",
    close_reason=CloseReason.COMPLETED,
    status=200,
    events=12,
    bytes=3456,
    prompt_tokens=5,
    completion_tokens=10,
    tokens_estimated=False,
    ttfb_ms=1.26,
    ttft_ms=None,
    total_ms=99.94,
    readers=2,
    resumes=1,
    prompt_hash="00ff",
    request_id="req-1",
)


class Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def collected() -> Iterator[Collected]:
    handler = Collected()
    yield handler
    handler.close()


@pytest.fixture
def log(collected: Collected) -> StreamLog:
    logger = logging.Logger("longwire.streams", logging.INFO)  # noqa: LOG001 - not the process's own, on purpose
    logger.addHandler(collected)
    return StreamLog(KEY, logger)


def only(collected: Collected) -> dict[str, Any]:
    (line,) = collected.lines
    return json.loads(line)  # type: ignore[no-any-return]


def test_one_line_tells_the_stream(log: StreamLog, collected: Collected) -> None:
    log.write(END)
    line = only(collected)
    assert line.pop("ts")
    assert line == {
        "level": "info",
        "event": "stream_end",
        "stream": log.hash_id(RAW_ID),
        "tenant": "acme",
        "model": "tiny",
        "engine": "local",
        "close_reason": "completed",
        "status": 200,
        "events": 12,
        "bytes": 3456,
        "prompt_tokens": 5,
        "completion_tokens": 10,
        "tokens_estimated": False,
        "ttfb_ms": 1.3,
        "ttft_ms": None,
        "total_ms": 99.9,
        "readers": 2,
        "resumes": 1,
        "prompt_hash": "00ff",
        "request_id": "req-1",
        "logger": "longwire.streams",
    }
    assert set(StreamEnd._fields) - {"stream_id"} < set(line)
    assert log.statistics() == {"lines": 1}


def test_the_raw_id_is_nowhere_even_if_a_client_repeats_it(log: StreamLog, collected: Collected) -> None:
    shown = format_stream_id(RAW_ID)
    log.write(END._replace(request_id=shown, model=shown))
    assert RAW_ID.hex() not in collected.lines[0]


@pytest.mark.parametrize("nasty", ['x\n{"event":"stream_end"}', "\u2028", "\x1b[2J", '","tenant":"root', "\ud800"])
def test_what_a_client_chose_cannot_break_out(log: StreamLog, collected: Collected, nasty: str) -> None:
    log.write(END._replace(model=nasty, request_id=nasty))
    line = only(collected)
    assert "\n" not in collected.lines[0]
    assert line["model"] == nasty
    assert line["tenant"] == "acme"
    assert set(line["request_id"]) <= set(sanitise_request_id(nasty))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("a b\r\nc", "a_b__c"),
        ("é<script>", "__script_"),
        ("", ""),
        ("x" * 500, "x" * MAX_REQUEST_ID_CHARS),
    ],
)
def test_request_ids_are_sanitised(text: str, shown: str) -> None:
    assert sanitise_request_id(text) == shown


@pytest.mark.parametrize(
    ("reason", "level"),
    [
        (CloseReason.COMPLETED, "info"),
        (CloseReason.CLIENT_LEFT, "info"),
        (CloseReason.UPSTREAM_REFUSED, "info"),
        (CloseReason.UPSTREAM_RESET, "warning"),
        (CloseReason.INTERNAL_ERROR, "error"),
    ],
)
def test_the_level_says_whose_fault_it_was(
    log: StreamLog, collected: Collected, reason: CloseReason, level: str
) -> None:
    log.write(END._replace(close_reason=reason))
    line = only(collected)
    assert (line["level"], line["close_reason"]) == (level, reason.value)


# Hashes.


def test_hashes_depend_on_the_key_and_on_what_is_hashed() -> None:
    log, other = StreamLog(KEY), StreamLog(b"o" * 32)
    assert log.hash_id(b"hello") == StreamLog(KEY).hash_id(b"hello")
    assert log.hash_id(b"hello") != other.hash_id(b"hello")
    assert len(log.hash_id(b"")) == 32


def test_each_process_has_its_own_key_unless_told() -> None:
    assert StreamLog().hash_id(b"x") != StreamLog().hash_id(b"x")


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_a_bad_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="hash key"):
        StreamLog(key)


def test_the_repr_shows_no_key() -> None:
    assert "kkk" not in repr(StreamLog(KEY))
