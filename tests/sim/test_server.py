"""Counters, memory of requests, and waiting without polling."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.sim.playing import Line, encode_request, play

from longwire.sim import FaultError, SimServer, run
from longwire.sim.server import MAX_SEEN_REQUESTS
from longwire.words.settings import SimSettings


def test_the_settings_faults_befall_generations_only() -> None:
    server = SimServer(SimSettings(fault=["status=503"]))
    assert play(server, encode_request({})).head.status == 503
    assert play(server, encode_request(path="/v1/models", method="GET")).head.status == 200
    assert play(server, encode_request({"sim": {"fault": "none"}})).head.status == 200
    assert play(server, encode_request({"sim": {"fault": "status=418"}})).head.status == 418


def test_the_header_and_the_body_add_up() -> None:
    server = SimServer(SimSettings())
    request = encode_request({"stream": True, "sim": {"fault": "no_done"}}, headers={"x-sim-fault": "crlf"})
    body = play(server, request).body
    assert b"\r\n\r\n" in body and b"[DONE]" not in body


def test_a_wrong_fault_in_the_settings_is_found_at_the_start() -> None:
    with pytest.raises(FaultError, match="no_such"):
        SimServer(SimSettings(fault=["no_such"]))


def test_a_taken_port_is_one_sentence_with_the_flag_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(SimSettings(port=port)) == 1
    said = capsys.readouterr().err
    assert said == (
        f"longwire sim: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with --port "
        "(--port 0 takes a free one).\n"
    )


def test_fail_next_lines_faults_up(server: SimServer) -> None:
    server.fail_next("status=500")
    server.fail_next("status=502", "slow_headers=9")
    statuses = [play(server, encode_request({})).head.status for _ in range(3)]
    assert statuses == [500, 502, 200]
    with pytest.raises(FaultError):
        server.fail_next("nonsense")


def test_requests_are_remembered_as_they_came(server: SimServer) -> None:
    play(server, encode_request({"x": 1}, headers={"X-Trace": "t"}))
    seen = server.requests[-1]
    assert (seen.method, seen.target, seen.body) == ("POST", b"/v1/chat/completions", b'{"x": 1}')
    assert seen.get(b"x-trace") == b"t"
    assert seen.get(b"absent") is None


def test_memory_of_requests_is_bounded_by_number_and_bytes(server: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(MAX_SEEN_REQUESTS + 5):
        play(server, encode_request({}))
    assert len(server.requests) == MAX_SEEN_REQUESTS
    monkeypatch.setattr("longwire.sim.server.MAX_SEEN_BYTES", 5000)
    for _ in range(10):
        play(server, encode_request({"pad": "x" * 1000}))
    assert sum(len(request.body) for request in server.requests) <= 5000
    assert server._seen_bytes == sum(len(request.body) for request in server.requests)


def test_waiting_ends_when_the_condition_holds(line: Line) -> None:
    async def scenario() -> None:
        waiting = [
            asyncio.ensure_future(line.server.wait_requests(1)),
            asyncio.ensure_future(line.server.wait_open(1)),
            asyncio.ensure_future(line.server.wait_cancelled(1)),
        ]
        await asyncio.sleep(0)
        line.send(encode_request({"stream": True}))
        await asyncio.gather(*waiting[:2])
        assert not waiting[2].done()
        line.connection.connection_lost(None)
        await waiting[2]
        await line.server.wait_open(0)

    asyncio.run(scenario())


def test_one_who_gives_up_waiting_is_forgotten(line: Line) -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.server.wait_cancelled(1), 0)
        line.send(encode_request({"stream": True}))
        assert line.server._waiting == []

    asyncio.run(scenario())


def test_it_says_what_it_is_doing(line: Line) -> None:
    line.send(encode_request({"stream": True}))
    assert repr(line.server).endswith("1 streams, 1 connections>")
    assert line.server.statistics()["held_tokens"] == 5
