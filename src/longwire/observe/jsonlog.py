"""How a log record becomes one line of JSON.

What lives here: the formatter, the set-up of logging, and what is kept out of every line.
What must not: what is worth logging (the rooms know), the line of a stream's end (streamlog.py).

Three promises, whatever a record holds: it is one line; it is ASCII, so that neither a terminal escape nor a Unicode
line separator gets through; and it shows no raw stream id, no bearer token and no text of an exception that is not ours
(a parser's message may quote the prompt that it stumbled over).
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, TextIO

from ..words.errors import LongwireError

OUR_LOGGER: Final = "longwire"
MAX_FIELD_CHARS: Final = 1024
"""Longest text in one field: log pipelines cut or drop lines somewhere above 16 KiB, and a cut line is no JSON."""
MAX_FRAMES: Final = 20
"""Innermost frames that are shown of a traceback."""
MAX_CAUSES: Final = 4
"""Exceptions that are shown of a chain of causes."""

_RESERVED: Final = frozenset({"ts", "level", "event", "logger", "exception"})
_STREAM_ID: Final = re.compile(r"lw_[0-9a-f]{34}")
_BEARER: Final = re.compile(r"(?i)(bearer )[^\s\"\\]+")


def redact(text: str) -> str:
    """The text without raw stream ids and bearer tokens."""
    return _BEARER.sub(r"\1***", _STREAM_ID.sub("lw_***", text))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_FIELD_CHARS else text[: MAX_FIELD_CHARS - 3] + "..."


def _frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _words_of(error: BaseException) -> str:
    """What an error may say in a log: our own messages and the system's, no other's."""
    if isinstance(error, LongwireError):
        return _shorten(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return f"errno {error.errno}: {_shorten(str(error.strerror))}"
    return ""


def describe_exception(error: BaseException) -> list[dict[str, object]]:
    """An exception and its causes, outermost first: type, where, and the message only where it is safe."""
    chain: list[dict[str, object]] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < MAX_CAUSES:
        where = _frames(seen.__traceback__)
        chain.append({"type": type(seen).__qualname__, "message": _words_of(seen), "at": where})
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return chain


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ts, level, event (the message), the record's ``fields``, logger and exception."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "ts": _timestamp(record.created),
            "level": record.levelname.lower(),
            "event": _shorten(record.getMessage()),
        }
        fields: dict[str, Any] = getattr(record, "fields", {})
        for name, value in fields.items():
            if name not in _RESERVED:
                shown[name] = _shorten(value) if isinstance(value, str) else value
        shown["logger"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            shown["exception"] = describe_exception(record.exc_info[1])
        return redact(_encode(shown))


def _timestamp(seconds: float) -> str:
    second, ms = divmod(int(seconds * 1000), 1000)
    return f"{_second(second)}.{ms:03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    """What all lines of one second have in common."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _refuse(value: object) -> str:
    """For what JSON does not know: its type. A ``repr`` could hold anything."""
    return f"<{type(value).__name__}>"


_encode = json.JSONEncoder(separators=(",", ":"), default=_refuse).encode


class JsonHandler(logging.StreamHandler[TextIO]):
    """Writes JSON lines. The write blocks while the reader of a full pipe does not read: keep lines few and short (one
    per stream, none per event), and let stderr go to a file, to journald or to a collector that drains it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter())


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send all logging of this process to ``stream`` (stderr) as JSON lines: ours from ``level``, others' from warning on.

    Calling it again replaces what the last call did.
    """
    # No line shows where in the code it was written, or by which thread: looking for that takes longer than the line itself.
    logging._srcfile = None
    for what in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):  # the last from Python 3.12 on
        setattr(logging, what, False)
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, JsonHandler):
            root.removeHandler(handler)
    root.addHandler(JsonHandler(stream if stream is not None else sys.stderr))
    root.setLevel(logging.WARNING)
    logging.getLogger(OUR_LOGGER).setLevel(level.upper())
