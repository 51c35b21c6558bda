"""Help that teaches, errors of one sentence, exit codes, and a fast start."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import click
import pytest

from longwire.cli import program as program_module
from longwire.cli.program import SECTIONS, program
from longwire.cli.terminal import Failure
from longwire.words.errors import LocalError, SettingsError

from .conftest import Run

COMMANDS = [name for names in SECTIONS.values() for name in names]


def test_help_lists_every_command_in_its_section_with_one_sentence(run: Run) -> None:
    result = run("--help", terminal_width=200)
    assert result.exit_code == 0
    assert [line[:-1] for line in result.output.splitlines() if line.rstrip(":") in SECTIONS] == list(SECTIONS)
    context = click.Context(program)
    for name in COMMANDS:
        command = program.get_command(context, name)
        assert command is not None and command.help is not None
        assert command.help.endswith(".") and "\n\n" not in command.help
    assert "Examples:\n  longwire serve" in result.output


def test_no_command_is_help(run: Run) -> None:
    assert run().output == run("--help").output
    assert run("streams").output == run("streams", "--help").output
    assert run("streams").exit_code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_examples(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"  longwire {name}" in result.output.partition("Examples:")[2]


def test_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert run("--version").output == "longwire 1.2.3\n"


def test_version_of_a_tree_that_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert run("--version").output == "longwire 0+source\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["srve"], "There is no command 'srve' (did you mean serve?); see longwire --help."),
        (["config", "shwo"], "There is no command 'shwo' (did you mean show?); see longwire config --help."),
        (["zzz"], "There is no command 'zzz'; see longwire --help."),
        (["serve", "--prot", "1"], "There is no option --prot (did you mean --port?); see longwire serve --help."),
        (["streams", "show"], "Missing argument 'ID'; see longwire streams show --help."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(run: Run, args: list[str], message: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"longwire: {message}\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("Mend it.", where="f:1"), 2),
        (LocalError("Mend it."), 1),
        (Failure("Mend it."), 1),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(SECTIONS["Run"], "serve", "longwire.cli.serve")
    monkeypatch.setattr("longwire.cli.serve.command", click.Command("serve", callback=fail))
    result = run("serve")
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1 or code == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_each_shell(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_LONGWIRE_COMPLETE" in result.output


def test_completion_offers_commands(run: Run) -> None:
    result = run(env={"_LONGWIRE_COMPLETE": "bash_complete", "COMP_WORDS": "longwire ser", "COMP_CWORD": "1"})
    assert result.output == "plain,serve\n"


def test_help_imports_nothing_that_a_gateway_needs() -> None:
    """Fast because of what it does not import; times would depend on the machine."""
    code = (
        "import sys\n"
        "from longwire.cli.program import program\n"
        "program(['--help'], standalone_mode=False)\n"
        "print(*sorted(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    loaded = set(printed.splitlines()[-1].split())
    assert "longwire.words.settings" in loaded
    assert not loaded & {"asyncio", "rich", "uvloop", "httptools", "tomllib", "prometheus_client", "starlette"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("longwire.")}
    assert rooms == {"cli", "words"}


def test_main_runs_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from longwire.cli import main

    monkeypatch.setattr(sys, "argv", ["longwire", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"longwire {program_module.version()}\n"
