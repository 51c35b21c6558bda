"""``longwire check --engine`` as it is typed: what is printed where, and the exit code."""

from __future__ import annotations

import json
import sys

import pytest

from longwire.cli import examination
from longwire.cli.abilities import ASKED, YES, Judgement, ability, fill
from longwire.cli.asking import Asker
from longwire.cli.examination import PLAIN_EVERY_S, QUIET_S, Progress, suggestion
from longwire.words.settings import EngineSettings

from .conftest import AdminStandIn, Run

ARENA = ("--arena-bytes", "1MiB")
ENGINE = EngineSettings(name="a", url="http://a:8000")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Address and model of every examination, none of which is made."""
    seen: list[tuple[str, str]] = []

    def interview(asker: Asker, model: str, tell: object) -> Judgement:
        seen.append((repr(asker), model))
        rows = fill({"usage in stream": ability("usage in stream", YES, "in the last event")}, "not asked")
        return Judgement(True, model or "m1", rows, "vllm", "it looks like vllm")

    monkeypatch.setattr(examination, "interview", interview)
    return seen


def test_the_table_comes_after_that_of_the_machine(run: Run, admin: AdminStandIn, asked: list[tuple[str, str]]) -> None:
    admin.plan("GET /v1/models", {"data": [{"id": "m1"}]})
    result = run("check", "--engine", f"a={admin.url}", "--model", "m2", *ARENA)
    assert result.exit_code == 0
    assert [model for _, model in asked] == ["m2"]
    lines = result.stdout.splitlines()
    assert lines[0].startswith("CHECK")
    assert lines.index("a, model m2") > [line.startswith("engine a ") for line in lines].index(True)
    assert any(line.startswith("usage in stream") and " yes " in line for line in lines)
    assert lines[-5:-2] == ["[[engines]]", f'url = "{admin.url}"', 'kind = "vllm"']
    assert "at most 64 requests, 30 s each, 240 s in all" in result.stderr
    assert "\x1b" not in result.output


def test_json_holds_both(run: Run, admin: AdminStandIn, asked: list[tuple[str, str]]) -> None:
    admin.plan("GET /v1/models", {"data": [{"id": "m1"}]})
    content = json.loads(run("check", "--json", "--engine", admin.url, "--engine", "sim", *ARENA).stdout)
    assert {row["check"] for row in content["checks"]} >= {"memfd", "memory"}
    (engine,) = content["engines"]
    assert (engine["url"], engine["model"], engine["kind"], engine["answers"]) == (admin.url, "m1", "vllm", True)
    assert [row["ability"] for row in engine["abilities"]] == list(ASKED)


def test_an_engine_that_answers_without_listing_models_is_no_failure(
    run: Run, admin: AdminStandIn, asked: list[tuple[str, str]]
) -> None:
    result = run("check", "--engine", admin.url, *ARENA)
    assert any(line.startswith("engine ") and " fail " in line for line in result.stdout.splitlines())
    assert result.exit_code == 0


def test_an_engine_that_is_not_there(run: Run, closed_url: str) -> None:
    result = run("check", "--engine", closed_url, *ARENA)
    assert result.exit_code == 1
    assert "nothing listens there: start it, or mend the URL" in result.stdout
    assert "Nothing follows for [[engines]]: it does not answer." in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--model", "m1"), "name it with --engine URL"),
        (("--api-key-env", "KEY"), "name it with --engine URL"),
        (("--engine", "http://a:1", "--api-key-env", "NO_SUCH_KEY"), "The variable NO_SUCH_KEY is not set"),
    ],
)
def test_a_wrong_command_line(run: Run, args: tuple[str, ...], says: str) -> None:
    result = run("check", *args)
    assert (result.exit_code, says in result.stderr) == (2, True)


def test_the_key_comes_from_a_variable_and_is_never_shown(run: Run, closed_url: str) -> None:
    result = run("check", "--engine", closed_url, "--api-key-env", "LLM_KEY", *ARENA, env={"LLM_KEY": "s3cret-key"})
    assert result.exit_code == 1
    assert "s3cret-key" not in result.output


def test_what_to_write_into_the_file() -> None:
    rows = fill({}, "")
    told = suggestion(ENGINE, Judgement(True, "m", rows, "llamacpp", "it looks like it"))
    assert told[-1] == "# its load is read at /slots"
    assert suggestion(ENGINE, Judgement(True, "m", rows, "openai", "because"))[-1] == "# its load is not read"
    assert suggestion(ENGINE, Judgement(False, "", rows, "", "it is away")) == [
        "Nothing follows for [[engines]]: it is away."
    ]


# Progress


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress(lambda: now[0])
    for at_s, stage in ((0, "one"), (QUIET_S, "two"), (QUIET_S + 1, "three"), (QUIET_S + PLAIN_EVERY_S, "four")):
        now[0] = at_s
        progress.tell(stage)
    progress.clear()
    assert capsys.readouterr().err == "  two\n  four\n"


def test_progress_in_a_terminal_is_one_line_that_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    now = [0.0]
    progress = Progress(lambda: now[0])
    progress.clear()
    now[0] = QUIET_S
    progress.tell("two")
    progress.clear()
    assert capsys.readouterr().err == "\r\x1b[K  two\r\x1b[K"
