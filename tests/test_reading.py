"""Large bodies are read by a process that is there before they are, is replaced when it dies, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.garbage import let_go

from longwire import reading as module
from longwire.dialects.openai_chat import read_request
from longwire.reading import ANSWER_S, ANSWER_S_PER_MIB, LIVED_S, MAX_PAUSE_S, ReadingProcess
from longwire.words.clock import VirtualClock
from longwire.words.errors import BadJson
from longwire.words.settings import MIB

WITHIN_S = 20.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def reader(clock: VirtualClock) -> Iterator[ReadingProcess]:
    reader = ReadingProcess(clock)
    yield reader
    reader.shutdown(cancel_futures=True)
    assert reader.pid is None


def is_child(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_it_is_started_when_it_is_first_needed_or_before(reader: ReadingProcess) -> None:
    assert reader.pid is None and "not started" in repr(reader)
    reader.prepare()
    pid = reader.submit(os.getpid).result(WITHIN_S)
    assert pid == reader.pid != os.getpid() and "longwire.processes.reading" in command_of(pid)
    reader.prepare()
    assert reader.submit(os.getpid).result(WITHIN_S) == pid and repr(reader) == f"<ReadingProcess {pid}, asked 3 times>"


def test_bodies_of_any_size_and_faults_come_back_as_they_are(reader: ReadingProcess) -> None:
    body = json.dumps({"model": "m", "stream": True, "messages": [], "pad": "\u00e9" * (3 << 20)}).encode()
    assert reader.submit(read_request, body).result(WITHIN_S) == read_request(body)
    with pytest.raises(BadJson):
        reader.submit(read_request, body[:-1]).result(WITHIN_S)
    with pytest.raises(TypeError):
        reader.submit(read_request, body, nothing=True).result(WITHIN_S)


def test_one_that_has_died_at_work_is_replaced(reader: ReadingProcess) -> None:
    first = reader.submit(os.getpid).result(WITHIN_S)
    with pytest.raises(BrokenExecutor):
        reader.submit(os._exit, 3).result(WITHIN_S)
    assert reader.submit(os.getpid).result(WITHIN_S) not in {first, os.getpid()}
    assert not is_child(first)


def test_one_that_has_died_at_rest_is_replaced_before_it_is_needed(reader: ReadingProcess) -> None:
    first = reader.submit(os.getpid).result(WITHIN_S)
    process = reader._process
    assert process is not None
    os.kill(first, signal.SIGKILL)
    process.wait(WITHIN_S)
    reader.prepare()
    assert reader.submit(os.getpid).result(WITHIN_S) != first


@pytest.mark.parametrize("size", [0, 8 << 20])
def test_one_that_hangs_is_ended_when_its_answer_is_overdue(
    reader: ReadingProcess, clock: VirtualClock, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped, it does not die: whoever asked would wait for ever, and all others behind it. A large question does not even fit
    into its pipe."""
    first = reader.submit(os.getpid).result(WITHIN_S)
    os.kill(first, signal.SIGSTOP)
    asking, behind = reader.submit(len, b"x" * size), reader.submit(os.getpid)
    while reader._asked < 2:  # it is asked by a thread
        os.sched_yield()
    clock.advance(ANSWER_S + ANSWER_S_PER_MIB * size / MIB)
    reader.prepare()
    assert is_child(first) and not asking.done(), "it has its time"
    clock.advance(1)
    reader.prepare()
    reader.prepare()
    with pytest.raises(BrokenExecutor):
        asking.result(WITHIN_S)
    assert behind.result(WITHIN_S) != first and not is_child(first)
    (line,) = caplog.records
    assert line.fields == {"status": -signal.SIGKILL, "problem": "no answer in time"}  # type: ignore[attr-defined]
    clock.advance(3600)
    reader.prepare()
    assert reader.submit(os.getpid).result(WITHIN_S) == behind.result(), "nothing is overdue where nothing was asked"


def test_it_is_deaf_to_what_a_terminal_sends(reader: ReadingProcess) -> None:
    pid = reader.submit(os.getpid).result(WITHIN_S)
    os.kill(pid, signal.SIGINT)
    assert reader.submit(os.getpid).result(WITHIN_S) == pid


def test_what_is_printed_is_no_answer(reader: ReadingProcess, capfd: pytest.CaptureFixture[str]) -> None:
    reader.submit(print, "a word", flush=True).result(WITHIN_S)
    assert reader.submit(os.getpid).result(WITHIN_S) == reader.pid
    assert "a word" in capfd.readouterr().err


def test_where_none_can_be_started_whoever_asks_is_told(
    reader: ReadingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMAND", ("/nonexistent/python",))
    with pytest.raises(BrokenExecutor, match="No process can be started"):
        reader.submit(os.getpid).result(WITHIN_S)
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", "print()"))
    with pytest.raises(BrokenExecutor, match="has died"):
        reader.submit(os.getpid).result(WITHIN_S)


def asked(reader: ReadingProcess) -> bool:
    """Whether there is an answer; all that goes wrong must look alike to whoever asks."""
    try:
        return reader.submit(os.getpid).result(WITHIN_S) > 0
    except BrokenExecutor:
        return False


def a_process_that(does: str) -> tuple[str, ...]:
    return (sys.executable, "-c", does)


def test_one_that_cannot_live_is_told_once_and_started_ever_more_rarely(
    reader: ReadingProcess, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COMMAND", a_process_that("import sys; sys.exit(7)"))
    births = []
    for second in range(300):  # as by the clock of lifecycle
        before = reader._asked
        reader.prepare()
        assert not asked(reader)
        births += [second] * (reader._asked - before)
        clock.advance(1)
    assert births == [0, 0, 2, 6, 14, 30, 62, 122, 182, 242]
    (line,) = caplog.records
    assert line.getMessage() == "reading_process_died" and line.fields["status"] == 7  # type: ignore[attr-defined]
    monkeypatch.undo()
    clock.advance(MAX_PAUSE_S)
    assert asked(reader)


def test_one_that_has_lived_is_told_of_and_replaced_at_once(
    reader: ReadingProcess, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert asked(reader)
        clock.advance(LIVED_S + 1)
        with pytest.raises(BrokenExecutor):
            reader.submit(os._exit, 3).result(WITHIN_S)
    assert [line.fields["status"] for line in caplog.records] == [3, 3, 3]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        b"c__main__\nNoSuchThing\n.",  # AttributeError
        b"cno_such_room\nthing\n.",  # ImportError
        b"0.",  # IndexError
        b"I1x\n.",  # ValueError
        b"N.",  # TypeError: no pair
        b"\x8d" + b"\x7f" * 8 + b".",  # EOFError or MemoryError: a text of exabytes
        b"(I00\nI00\nt.",  # no exception where one must be
        b"\xff.",  # UnpicklingError
    ],
)
def test_an_answer_that_is_none_leads_to_the_same_as_a_death(
    reader: ReadingProcess, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying = f"import sys; sys.stdout.buffer.write({answer!r}); sys.stdout.flush(); sys.stdin.buffer.read(1)"
    monkeypatch.setattr(module, "COMMAND", a_process_that(saying))
    with pytest.raises(BrokenExecutor):
        reader.submit(os.getpid).result(WITHIN_S)
    monkeypatch.undo()
    assert asked(reader), "nothing of it is left in the pipe"


def test_nothing_is_left_when_it_is_shut_down() -> None:
    let_go()
    before = set(Path("/proc/self/fd").iterdir())
    reader = ReadingProcess(VirtualClock())
    pid = reader.submit(os.getpid).result(WITHIN_S)
    reading: Future[Any] = reader.submit(signal.pause)
    waiting = reader.submit(os.getpid)
    while reader._asked < 2:  # it is asked by a thread
        os.sched_yield()
    reader.shutdown(cancel_futures=True)
    with pytest.raises(BrokenExecutor):
        reading.result(WITHIN_S)
    with suppress(BrokenExecutor):
        assert waiting.cancelled() or waiting.result(WITHIN_S)
    assert not is_child(pid)
    reader.prepare()
    with pytest.raises(RuntimeError):
        reader.submit(os.getpid)
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_shut_down_in_order_it_finishes_what_it_is_doing() -> None:
    reader = ReadingProcess(VirtualClock())
    answers = [reader.submit(read_request, b'{"model":"m"}') for _ in range(3)]
    reader.shutdown()
    assert [answer.result(0).model for answer in answers] == ["m"] * 3 and reader.pid is None


def test_it_ends_with_the_process_that_has_started_it() -> None:
    """Even by SIGKILL, and while somebody else holds the other ends of its pipes."""
    program = (
        "import os, sys, signal\nfrom longwire.reading import ReadingProcess\nfrom longwire.words.clock import VirtualClock\n"
        "reader = ReadingProcess(VirtualClock())\nprint(reader.submit(os.getpid).result(), flush=True)\nsignal.pause()"
    )
    ours, its = os.pipe()
    held = os.fork()
    if not held:
        os.dup2(its, 1)
        os.execv(sys.executable, [sys.executable, "-c", program])
    os.close(its)
    with os.fdopen(ours) as told:
        pid = int(told.readline())
    stdin = os.open(f"/proc/{pid}/fd/0", os.O_WRONLY | os.O_NONBLOCK)  # as a guardian has it
    os.kill(held, signal.SIGKILL)
    os.waitpid(held, 0)
    give_up = time.monotonic() + WITHIN_S
    while is_child(pid) and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < give_up, "left behind"
        os.sched_yield()
    os.close(stdin)
