"""``longwire streams`` before an admin port of the tests' own, whose connections break where the test says."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from longwire.cli.admin_port import MAX_FAILURES, AdminPort, Block, Interrupted, follow, read_blocks
from longwire.cli.streams import answer_text, shown_age
from longwire.cli.terminal import Failure

from .conftest import AdminStandIn, Run

ID = "lw_" + "4f" * 17
OTHER = "lw_" + "4e" * 17


@pytest.fixture
def streams(run: Run, admin: AdminStandIn) -> Callable[..., Any]:
    return lambda *args: run("streams", *args, env={"LONGWIRE_ADMIN_URL": admin.url})


def state(**fields: object) -> dict[str, object]:
    return {
        "id": ID,
        "object": "stream",
        "status": "live",
        "close_reason": None,
        "model": "m",
        "engine": "e",
        "tenant": "t",
        "events": 12,
        "readers": 1,
        "created_at": time.time() - 5,
        "first_token_ms": 41.7,
    } | fields


def delta(seq: int, text: str) -> str:
    return f"id: 1-{seq}\ndata: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n"


# ls and show


def test_ls_is_a_table_with_the_newest_first_and_whole_ids(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    old = state(id=OTHER, close_reason="completed", created_at=time.time() - 7300, first_token_ms=None)
    admin.plan("GET /v1/streams", {"object": "list", "data": [old, state()]})
    lines = streams("ls").output.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "AGE", "EVENTS", "READERS", "TTFT", "MODEL", "ENGINE", "TENANT"]
    assert lines[1].split() == [ID, "live", "5", "s", "12", "1", "42", "ms", "m", "e", "t"]
    assert lines[2].split() == [OTHER, "completed", "2", "h", "12", "1", "m", "e", "t"]
    assert all(line == line.rstrip() for line in lines)


def test_ls_leaves_out_readers_that_nobody_knows(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan("GET /v1/streams", {"object": "list", "data": [state(readers=None), state(id=OTHER, readers=None)]})
    lines = streams("ls").output.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "AGE", "EVENTS", "TTFT", "MODEL", "ENGINE", "TENANT"]
    assert all(line.split()[1:] == ["live", "5", "s", "12", "42", "ms", "m", "e", "t"] for line in lines[1:])


def test_ls_shows_readers_where_those_of_one_are_known(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan("GET /v1/streams", {"object": "list", "data": [state(readers=0), state(id=OTHER, readers=None)]})
    assert "READERS" in streams("ls").output.splitlines()[0]


def test_ls_json_is_the_list_for_scripts(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan("GET /v1/streams", {"object": "list", "data": [state()]})
    assert [stream["id"] for stream in json.loads(streams("ls", "--json").output)] == [ID]


def test_ls_of_nothing(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan("GET /v1/streams", {"object": "list", "data": []})
    assert streams("ls").output == "No streams.\n"


def test_show_prints_what_is_known(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan(f"GET /v1/streams/{ID}", state(usage={"total_tokens": 3}, created_at=1_700_000_000))
    printed = dict(line.split(maxsplit=1) for line in streams("show", ID).output.splitlines())
    assert printed["status"] == "live"
    assert printed["usage"] == '{"total_tokens": 3}'
    assert printed["created_at"] == "2023-11-14 22:13:20+00:00"
    assert "close_reason" not in printed
    assert json.loads(streams("show", ID, "--json").output)["close_reason"] is None


def test_the_start_of_an_id_is_enough_where_it_is_the_only_one(
    streams: Callable[..., Any], admin: AdminStandIn
) -> None:
    admin.plan("GET /v1/streams", {"object": "list", "data": [state(), state(id=OTHER)]})
    admin.plan(f"GET /v1/streams/{ID}", state())
    assert streams("show", "lw_4f").exit_code == 0
    assert streams("show", "4f").exit_code == 0
    assert "2 streams start with 'lw_4'" in streams("show", "lw_4").stderr
    assert "No stream starts with '9'" in streams("show", "9").stderr


def test_cancel_stops_and_says_how_far_it_got(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan(f"DELETE /v1/streams/{ID}", state(status="ended", close_reason="cancelled"))
    assert streams("cancel", ID).output == f"{ID}: cancelled after 12 events\n"


# Failures


def test_tail_of_no_gateway_fails_at_once(run: Run, closed_url: str) -> None:
    result = run("streams", "tail", ID, "--url", closed_url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "longwire serve" in result.stderr


def test_tail_of_a_gateway_that_went_away_says_where_to_go_on(
    streams: Callable[..., Any], admin: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "__defaults__", (lambda seconds: None,))
    admin.plan_events(f"GET /v1/streams/{ID}", delta(0, "One"))
    admin.plan_events(f"GET /v1/streams/{ID}?after=1-0", status=503)
    result = streams("tail", ID)
    assert (result.exit_code, result.stdout) == (1, "One\n")
    assert f"go on later with: longwire streams tail {ID} --after 1-0" in result.stderr


def test_no_gateway_is_one_sentence_that_says_what_to_do(run: Run, closed_url: str) -> None:
    result = run("streams", "ls", "--url", closed_url)
    assert result.exit_code == 1
    assert "longwire serve" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_gateways_own_words_are_printed(streams: Callable[..., Any]) -> None:
    result = streams("show", ID)
    assert (result.exit_code, result.stderr) == (1, "longwire: Not there.\n")


@pytest.mark.parametrize(
    "command", [("streams", "ls"), ("streams", "tail", ID), ("top", "--once"), ("reload",), ("drain",)]
)
def test_the_public_port_is_told_from_the_admin_port(run: Run, admin: AdminStandIn, command: tuple[str, ...]) -> None:
    admin.plan("GET /readyz", {"ready": False, "reason": "no_engine_ready"}, status=503)
    result = run(*command, "--url", admin.url)
    assert result.exit_code == 1
    assert "is the gateway's public port: name its admin port with --url (http://127.0.0.1:8081 unless" in result.stderr


def test_an_admin_port_s_refusal_stays_its_own(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan("GET /readyz", {"status": "ready"})
    assert streams("show", ID).stderr == "longwire: Not there.\n"


@pytest.mark.parametrize("command", [("streams", "ls"), ("top", "--once"), ("reload",), ("drain",)])
def test_a_host_that_nobody_knows(run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    result = run(*command, "--url", "http://gatewy:8081")
    assert result.exit_code == 1
    assert "no host 'gatewy' is known here (Name or service not known); check the address." in result.stderr


@pytest.mark.parametrize("body", [[1], {"data": 5}])
def test_another_server_behind_the_url(streams: Callable[..., Any], admin: AdminStandIn, body: object) -> None:
    admin.plan("GET /v1/streams", body)
    assert "admin port of a Longwire gateway" in streams("ls").stderr


def test_html_behind_the_url(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.answers["GET /v1/streams"] = [(200, "text/html", b"<html>")]
    assert "answered 200 without JSON" in streams("ls").stderr


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x", "http://[::1", f"{'a' * 64}.x", "http://a..b", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(Failure, match="no address of an admin port"):
        AdminPort(url)


def test_an_address_may_lack_its_scheme_and_have_a_path() -> None:
    assert AdminPort("h:1/lw/").url == "http://h:1/lw"


# tail


def test_tail_prints_the_text_and_resumes_where_it_was_cut(
    streams: Callable[..., Any], admin: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "__defaults__", (lambda seconds: None,))
    admin.plan_events(f"GET /v1/streams/{ID}", delta(0, "One, "), delta(1, "two, "), "id: 1-2\ndata: {cut")
    admin.plan_events(f"GET /v1/streams/{ID}?after=1-1", delta(2, "three."), "id: 1-3\ndata: [DONE]\n\n")
    result = streams("tail", ID)
    assert (result.exit_code, result.output) == (0, "One, two, three.\n")
    assert admin.requests == [f"GET /v1/streams/{ID}", f"GET /v1/streams/{ID}?after=1-1"]


def test_tail_from_a_cursor_of_a_finished_stream_is_empty(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    admin.plan_events(f"GET /v1/streams/{ID}?after=1-9", status=204)
    result = streams("tail", ID, "--after", "1-9")
    assert (result.exit_code, result.output) == (0, "")


def test_tail_raw_prints_the_blocks_as_they_are(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    blocks = (": beat\n\n", delta(0, "é"), "event: x\ndata: a\ndata: b\n\n", "id: 1-1\ndata: [DONE]\n\n")
    admin.plan_events(f"GET /v1/streams/{ID}", *blocks)
    assert streams("tail", ID, "--raw").output == "".join(blocks)


def test_tail_of_a_stream_that_failed_prints_its_text_and_fails(
    streams: Callable[..., Any], admin: AdminStandIn
) -> None:
    error = {"error": {"message": "The engine's connection broke.", "code": "upstream_reset"}}
    admin.plan_events(f"GET /v1/streams/{ID}", delta(0, "One"), f"data: {json.dumps(error)}\n\n", "data: [DONE]\n\n")
    result = streams("tail", ID)
    assert (result.exit_code, result.stdout) == (1, "One\n")
    assert result.stderr == "longwire: The engine's connection broke.\n"


def test_tail_stops_where_the_admin_port_cannot_go_on(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    error = {"error": {"message": "It was evicted.", "code": "stream_evicted"}}
    admin.plan_events(f"GET /v1/streams/{ID}", delta(0, "One"), f"data: {json.dumps(error)}\n\n")
    result = streams("tail", ID)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "One\n", "longwire: It was evicted.\n")
    assert len(admin.requests) == 1


def test_tail_refuses_a_bad_cursor_before_it_asks(streams: Callable[..., Any], admin: AdminStandIn) -> None:
    result = streams("tail", ID, "--after", "x")
    assert (result.exit_code, admin.requests) == (2, [])


# Following, without a socket


class Script:
    """One planned connection after the other: a list of lines, an error, or None for 204."""

    def __init__(self, *connections: list[str] | Exception | None) -> None:
        self.connections = list(connections)
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.closed = 0

    def __call__(self, after: str) -> Script.Lines | None:
        self.asked.append(after)
        planned = self.connections.pop(0) if len(self.connections) > 1 else self.connections[0]
        if isinstance(planned, Exception):
            raise planned
        return None if planned is None else Script.Lines(self, planned)

    def follow(self, after: str = "") -> list[str | None]:
        return [block.data for block in follow(self, after, self.pauses.append)]

    class Lines:
        def __init__(self, script: Script, lines: list[str]) -> None:
            self.script = script
            self.lines = lines

        def __iter__(self) -> Iterator[bytes]:
            for line in self.lines:
                if line == "TIMEOUT":
                    raise TimeoutError
                if line == "RESET":
                    raise ConnectionResetError
                yield line.encode()

        def close(self) -> None:
            self.script.closed += 1


def event(seq: int) -> list[str]:
    return [f"id: 1-{seq}\n", f"data: {seq}\n", "\n"]


def test_every_connection_is_asked_for_what_is_missing_and_closed() -> None:
    script = Script(
        [*event(0), "RESET"],
        http.client.IncompleteRead(b""),
        [*event(1), *event(2), "id: 1-3\n", "RESET"],
        [*event(3)],
        None,
    )
    assert script.follow() == ["0", "1", "2", "3"]
    assert script.asked == ["", "1-0", "1-0", "1-2", "1-3"]
    assert script.closed == 3


def test_silence_is_no_failure() -> None:
    script = Script(*[["TIMEOUT"]] * 50, [*event(0), "data: [DONE]\n", "\n"])
    assert script.follow() == ["0", "[DONE]"]
    assert script.pauses == []


def test_pauses_grow_and_start_anew_after_an_event() -> None:
    script = Script(event(0), *[ConnectionRefusedError()] * 2, event(1), ConnectionRefusedError(), None)
    assert script.follow() == ["0", "1"]
    assert script.pauses == [0.2, 0.4, 0.8, 0.2, 0.4]


def test_a_draining_gateway_says_how_long_to_wait() -> None:
    script = Script(["retry: 3000\n", "\n"], None)
    script.follow()
    assert script.pauses == [3.0]


def test_it_gives_up_after_failures_in_a_row_and_says_where_it_was() -> None:
    script = Script(event(7), ConnectionRefusedError())
    with pytest.raises(Interrupted) as caught:
        script.follow()
    assert caught.value.after == "1-7"
    assert len(script.asked) == MAX_FAILURES


def test_blocks_of_any_line_end_and_never_a_cut_one() -> None:
    lines = [b"data:a\r\n", b"\r\n", b"\n", b": beat\n", b"\n", b"retry: x\n", b"data: b\n", b"\n", b"data: c\n"]
    assert [block.data for block in read_blocks(iter(lines))] == ["a", None, "b"]
    assert [str(block) for block in read_blocks(iter([b"id: 1\n", b"data: b\n", b"\n"]))] == ["id: 1\ndata: b\n\n"]
    assert Block().retry_ms is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ('{"choices":[{"index":0,"delta":{"content":"a"}}]}', ("a", "")),
        ('{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}', ("", "")),
        ('{"choices":[{"index":0,"delta":{"reasoning_content":"r"}}]}', ("r", "")),
        ('{"choices":[{"index":0,"text":"t"}]}', ("t", "")),
        ('{"choices":[{"index":1,"delta":{"content":"second"}}]}', ("", "")),
        ('{"choices":[]}', ("", "")),
        ('{"choices":5}', ("", "")),
        ('{"choices":[5]}', ("", "")),
        ('{"error":{"message":"m"}}', ("", "m")),
        ('{"error":{}}', ("", "The stream ended in an error.")),
        ("[DONE]", ("", "")),
        ("{broken", ("", "")),
        ("[1]", ("", "")),
    ],
)
def test_what_a_person_reads_of_an_event(data: str, text: tuple[str, str]) -> None:
    assert answer_text(data) == text


def test_ages() -> None:
    assert [shown_age(seconds) for seconds in (-1, 5, 119, 150, 9000, 200_000)] == [
        "0 s",
        "5 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]
