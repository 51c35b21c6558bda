"""Log lines: one record is one line of JSON, and some things never get into it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from longwire.observe.jsonlog import MAX_CAUSES, MAX_FIELD_CHARS, JsonHandler, configure_logging
from longwire.words.errors import LocalError


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """What logging is told to leave out, as it was afterwards."""
    names = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks")
    before = {name: getattr(logging, name) for name in names if hasattr(logging, name)}
    yield
    for name, value in before.items():
        setattr(logging, name, value)


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """Configured logging into a string; the process's logging as it was afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("longwire")
    before = list(root.handlers), root.level, ours.level
    stream = io.StringIO()
    configure_logging("info", stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    text = output.getvalue()
    assert text.isascii()
    return [json.loads(line) for line in text.splitlines()]


log = logging.getLogger("longwire.test")


def test_a_record_has_time_level_event_fields_and_logger(output: io.StringIO) -> None:
    log.info("started", extra={"fields": {"port": 8080}})
    (line,) = lines(output)
    assert line.pop("ts").endswith("Z")
    assert line == {"level": "info", "event": "started", "port": 8080, "logger": "longwire.test"}


@pytest.mark.parametrize(
    "nasty", ['a\n{"level":"error"}', "\r\n", "\u2028x\u2029", "\x1b[31m", "\x00", "\ud800", "\x85", '"}']
)
def test_whatever_is_in_a_field_stays_in_one_line(output: io.StringIO, nasty: str) -> None:
    log.info(nasty, extra={"fields": {"model": nasty}})
    (line,) = lines(output)
    assert line["model"] == line["event"] == nasty
    assert output.getvalue().count("\n") == 1
    assert "\x1b" not in output.getvalue()


def test_fields_cannot_pose_as_ours(output: io.StringIO) -> None:
    log.warning("x", extra={"fields": {"level": "info", "event": "y", "ts": "z"}})
    (line,) = lines(output)
    assert (line["level"], line["event"]) == ("warning", "x")


def test_long_text_is_cut(output: io.StringIO) -> None:
    log.info("e" * 10**6, extra={"fields": {"model": "m" * 10**6}})
    (line,) = lines(output)
    assert len(line["event"]) == len(line["model"]) == MAX_FIELD_CHARS


def test_ids_tokens_and_unknown_objects_are_kept_out(output: io.StringIO) -> None:
    id = "lw_" + "0123456789abcdef" * 2 + "00"
    log.info("read %s with Authorization: Bearer %s", id, "s3cret", extra={"fields": {"path": f"/{id}", "o": object()}})
    text = output.getvalue()
    assert id not in text
    assert "s3cret" not in text
    (line,) = lines(output)
    assert line["path"] == "/lw_***"
    assert line["o"] == "<object>"


def raise_chain() -> None:
    try:
        try:
            json.loads("{secret prompt")
        except ValueError as error:
            raise KeyError("secret key") from error
    except KeyError as error:
        raise LocalError("The row is torn.") from error


def test_an_exception_says_where_but_not_what_a_client_sent(output: io.StringIO) -> None:
    try:
        raise_chain()
    except LocalError:
        log.exception("failed")
    (line,) = lines(output)
    assert [(shown["type"], shown["message"]) for shown in line["exception"]] == [
        ("LocalError", "The row is torn."),
        ("KeyError", ""),
        ("JSONDecodeError", ""),
    ]
    assert any("raise_chain" in frame for frame in line["exception"][0]["at"])
    assert "secret" not in output.getvalue()


def test_an_error_of_the_system_keeps_its_words(output: io.StringIO) -> None:
    log.error("failed", exc_info=OSError(24, "Too many open files", "/secret"))
    (line,) = lines(output)
    assert line["exception"] == [{"type": "OSError", "message": "errno 24: Too many open files", "at": []}]


def test_a_circle_of_causes_ends(output: io.StringIO) -> None:
    first, second = ValueError(), TypeError()
    first.__cause__, second.__cause__ = second, first
    log.error("failed", exc_info=first)
    (line,) = lines(output)
    assert len(line["exception"]) == MAX_CAUSES
    first.__cause__ = None  # leave no cycle behind


def test_levels_hold_for_ours_and_others(output: io.StringIO) -> None:
    log.debug("too fine")
    logging.getLogger("httpx").info("GET https://…")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert [line["logger"] for line in lines(output)] == ["asyncio"]


def test_configuring_again_replaces(output: io.StringIO) -> None:
    again = io.StringIO()
    configure_logging("error", again)
    log.warning("not shown")
    log.error("shown once")
    assert output.getvalue() == ""
    assert [line["event"] for line in lines(again)] == ["shown once"]
    assert sum(isinstance(handler, JsonHandler) for handler in logging.getLogger().handlers) == 1


@pytest.mark.parametrize("ms", [0, 1, 122, 123, 500, 999])
def test_the_time_is_that_of_the_record_to_the_millisecond(output: io.StringIO, ms: int) -> None:
    record = logging.makeLogRecord({"name": "longwire", "levelno": logging.INFO, "levelname": "INFO", "msg": "x"})
    record.created = 1_767_225_600 + ms / 1000
    logging.getLogger("longwire").handle(record)
    assert lines(output)[-1]["ts"] == f"2026-01-01T00:00:00.{ms:03d}Z"
