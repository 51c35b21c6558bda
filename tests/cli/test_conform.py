"""``longwire conform``: its words, its files and its exit codes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from longwire.cli.conform import CouldNotRun, command
from longwire.conform.rows import ROWS


def invoke(*arguments: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    return (result.return_value if result.exception is None else -1), result.output, result.exception


def test_all_rows_are_listed() -> None:
    code, said, _ = invoke("--list")
    assert code == 0
    assert all(row.name in said for row in ROWS)


def test_a_group_is_listed_by_its_name() -> None:
    _, said, _ = invoke("--list", "--only", "requests")
    assert "two-lengths" in said and "crlf" not in said


def test_a_row_is_explained() -> None:
    code, said, _ = invoke("--explain", "split-code-points")
    assert code == 0
    assert "api7/aisix#111" in said and "U+FFFD" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--explain", "split-code-point"], "did you mean split-code-points?"),
        (["--only", "nothing"], "There is no row 'nothing'"),
        ([], "either --start COMMAND, or --url URL"),
        (["--url", "http://x", "--start", "y"], "either --start COMMAND, or --url URL"),
        (["--url", "http://x"], "--url needs --upstream-port"),
        (["--start", "x {upstream}"], "--start needs {port}"),
        (["--start", "x {Port} {upstream}", "--upstream-port", "1"], "--start needs {port}"),
        (["--start", "x {port}"], "--start needs {upstream}"),
        (["--start", "x {port} {upstream}", "--header", "no colon"], "is not NAME: VALUE"),
        (["--start", "x {port} {upstream}", "--header", "a: \udcff"], "is no UTF-8"),
        (["--start", "x {port} {upstream}", "--model", "\udcff"], "is no UTF-8"),
        (["--start", "x {port} '{upstream}"], "(No closing quotation): close every quote"),
        (["--start", "x {port} {upstream} \\"], "(No escaped character): close every quote"),
        (["--url", "http://x", "--upstream-port", "65536"], "0<=x<=65535"),
        (["--start", "x {port} {upstream}", "--json", "nowhere/a.json"], "'nowhere' is no directory"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(arguments: list[str], words: str) -> None:
    _, _, error = invoke(*arguments)
    assert error is not None and words in str(getattr(error, "message", error))
    assert isinstance(error, click.UsageError) and error.exit_code == 2


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("no-such-program {port} {upstream}", "No such file"),
        (f"{sys.executable} -c 'print(4711)' {{port}} {{upstream}}", "the gateway has ended; it said: 4711"),
    ],
)
def test_what_could_not_be_run_is_no_verdict(start: str, words: str) -> None:
    _, _, error = invoke("--start", start, "--only", "crlf")
    assert isinstance(error, CouldNotRun) and words in error.message
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x:99999", "is no URL that can be connected to"),
        ("http://[::1", "it looks like http://127.0.0.1:4000."),
        ("https://x", "is no http:// URL"),
        ("notaurl", "no host 'notaurl' is known here (Name or service not known); check the address."),
    ],
)
def test_an_address_at_which_nothing_can_be_is_not_waited_for(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    _, _, error = invoke("--url", url, "--upstream-port", "0", "--only", "crlf", "--ready-s", "0.1")
    assert isinstance(error, CouldNotRun) and error.exit_code == 2 and words in error.message


def test_a_gateway_that_knows_its_engine_from_a_file_is_given_no_url() -> None:
    _, _, error = invoke("--start", "no-such-program {port}", "--upstream-port", "0", "--only", "crlf")
    assert isinstance(error, CouldNotRun) and "No such file" in error.message


@pytest.mark.parametrize("url", ["http://h:x", "http://h:65536", "http://[::1", "http://a..b"])
def test_a_url_that_nobody_could_connect_to_is_refused(url: str) -> None:
    _, _, error = invoke("--url", url, "--upstream-port", "0")
    assert isinstance(error, CouldNotRun) and "no URL that can be connected to" in error.message


def test_https_is_refused_with_the_way_out() -> None:
    _, _, error = invoke("--url", "https://x", "--upstream-port", "0")
    assert isinstance(error, CouldNotRun) and "end TLS before it" in error.message


def test_results_go_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longwire.conform.playing import Result
    from longwire.conform.row import cases

    async def hold(plan: object, rows: list[object], tell: object) -> tuple[list[Result], float]:
        return [Result(case, "failed", "nothing", "no answer", 0.1) for case in cases(rows)], 1.0  # type: ignore[arg-type]

    monkeypatch.setattr("longwire.conform.session.hold", hold)
    junit, as_json = tmp_path / "a.xml", tmp_path / "a.json"
    code, said, _ = invoke(
        "--start", "x {port} {upstream}", "--only", "crlf", "--junit", str(junit), "--json", str(as_json)
    )
    assert code == 1
    assert "2 failed" in said
    assert "<failure" in junit.read_text() and '"no answer"' in as_json.read_text()
