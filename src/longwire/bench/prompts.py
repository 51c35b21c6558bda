"""The requests' bytes.

What lives here: prompts made of words or read from a file, bodies and heads. What must not: sending them.

No two made prompts begin alike: an engine that keeps prefixes would answer the second from its cache, and be measured at that.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from ..sim.answer import WORDS
from ..wire.http1 import Headers, encode_request_head
from ..words.errors import SettingsError
from .doors import DOORS
from .job import Job

MAX_PROMPTS_BYTES = 256 * 1024 * 1024
"""Of a file of prompts: each process holds it."""

_PLAIN = [word for word in WORDS if word.isascii() and word.isalpha()]


def made_prompt(words: int, seed: int, number: int) -> str:
    """``words`` words; the first says which prompt it is. A full stop ends it: the stand-in takes a prompt that ends like the
    beginning of its answer for an answer that is to be gone on with."""
    chance = random.Random(seed << 32 | number)
    return " ".join([f"{seed}-{number}", *chance.choices(_PLAIN, k=words - 1)]) + "."


def read_prompts(path: str) -> list[Any]:
    """Prompts (texts) or messages (lists) of a file, a line each.

    Raises:
        SettingsError: it cannot be read, or is empty, or a line that looks like JSON is none.
    """
    try:
        text = Path(path).read_bytes()[:MAX_PROMPTS_BYTES].decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"The prompts in {path} cannot be read: {exc}.") from exc
    found = [_read_line(line, path, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found:
        raise SettingsError(f"There are no prompts in {path}.")
    return found


def _read_line(line: str, path: str, number: int) -> Any:
    if line[0] not in '{"[':
        return line
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        if line[0] == "{":
            raise SettingsError(f"Line {number} of {path} is no JSON object.") from None
        return line
    if isinstance(value, dict):
        value = value.get("messages", value.get("prompt"))
    if not isinstance(value, (str, list)):
        raise SettingsError(f"Line {number} of {path} has neither prompt nor messages.")
    return value


class Requests:
    """Makes each request whole, head and body."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._prompts = read_prompts(job.prompts) if job.prompts else []
        self._is_chat = not job.path.endswith("/completions") or job.path.endswith("/chat/completions")
        self._same = {
            "model": job.model,
            "stream": True,
            "max_tokens": job.tokens,
            "stream_options": {"include_usage": True},
            **job.extra,
        }
        self._headers = headers_of(job)

    def __repr__(self) -> str:
        return f"<Requests for {self._job.model}>"

    def post(self, number: int) -> bytes:
        """The request that starts an answer."""
        body = json.dumps({**self._same, **self._asked(number)}, ensure_ascii=False).encode()
        headers = [
            *self._headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        return encode_request_head(b"POST", self._job.path.encode(), headers) + body

    def resume(self, target: bytes, seq: int) -> bytes:
        """The request that goes on behind event ``seq``."""
        headers = [*self._headers, (b"last-event-id", b"0-%d" % seq)]
        return encode_request_head(b"GET", target, headers)

    def _asked(self, number: int) -> dict[str, Any]:
        prompt: Any
        if self._prompts:
            prompt = self._prompts[number % len(self._prompts)]
        else:
            prompt = made_prompt(self._job.prompt_tokens, self._job.seed, number)
        if not self._is_chat:
            return {"prompt": prompt}
        return {"messages": prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]}


def headers_of(job: Job) -> Headers:
    """The fields of every request."""
    host = job.host if ":" not in job.host else f"[{job.host}]"
    door = DOORS[job.door]
    given: Headers = [(name.lower().encode(), value.encode()) for name, value in job.headers]
    return [(b"host", f"{host}:{job.port}".encode()), (b"accept", door.accept), *given]


def read_headers(texts: list[str]) -> list[tuple[str, str]]:
    """``NAME: VALUE`` as pairs.

    Raises:
        SettingsError: one is something else.
    """
    found = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not (name + value).isascii() or {"\r", "\n"} & set(text):
            raise SettingsError(f"A header is written as 'NAME: VALUE', and not {text!r}.")
        found.append((name.strip(), value.strip()))
    return found


def read_extra(text: str) -> dict[str, Any]:
    """The fields of ``--body``.

    Raises:
        SettingsError: it is no JSON object.
    """
    try:
        extra = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise SettingsError(f"--body takes a JSON object, as in '{{\"temperature\": 0}}', and not {text!r}.")
    return extra
