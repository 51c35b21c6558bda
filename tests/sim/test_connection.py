"""One connection: requests in, writes at their time, and what happens when the client leaves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Line, encode_request

from longwire.sim.answer import answer_text
from longwire.sim.connection import MAX_AHEAD_BYTES, STEPS_PER_TURN


def stream(**sim: Any) -> bytes:
    return encode_request({"stream": True, "sim": sim})


def events(line: Line) -> int:
    return line.transport.sent.count(b"data: ")


def test_events_come_at_their_time(line: Line) -> None:
    line.send(stream())
    assert line.transport.sent.endswith(b"\r\n\r\n") and events(line) == 0
    line.clock.advance(0.0501)
    assert events(line) == 2  # the role frame and the first token
    for tokens in range(2, 6):
        line.clock.advance(0.02)
        assert events(line) == tokens + 1
    line.clock.advance(0.02)
    assert line.transport.sent.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert line.server.statistics()["answered"] == 1


def test_pace_is_kept_over_many_events(line: Line) -> None:
    """Each pause counts from when the last one should have ended, so that rounding does not add up."""
    line.send(stream(tokens=1000, itl_ms=3.3, ttft_ms=0))
    line.clock.advance(3.3 * 0.999 + 0.001)
    assert events(line) == 1 + 1000
    line.clock.advance(0.01)
    assert events(line) == 1000 + 3


def test_a_request_in_pieces(line: Line) -> None:
    for byte in stream():
        line.send(bytes([byte]))
    line.clock.advance(1)
    assert line.server.answered == 1


def test_kept_alive_and_pipelined(line: Line) -> None:
    line.send(stream() + encode_request(path="/v1/models", method="GET") + stream())
    line.clock.advance(1)
    assert line.transport.sent.count(b"HTTP/1.1 200 OK") == 3
    assert not line.transport.closed
    line.send(stream())
    line.clock.advance(1)
    assert line.server.answered == 3


def test_connection_close_is_honoured(line: Line) -> None:
    line.send(encode_request({"stream": True}, headers={"connection": "close"}))
    line.clock.advance(1)
    assert b"connection: close" in line.transport.sent
    assert line.transport.closed


def test_the_client_hangs_up(line: Line) -> None:
    line.send(stream())
    line.clock.advance(0.06)
    seen = line.transport.sent
    line.connection.connection_lost(None)
    line.clock.advance(1)
    assert line.transport.sent == seen
    assert line.server.cancelled == 1
    assert line.server.open_streams == line.server.statistics()["open_connections"] == 0


def test_a_fin_counts_as_leaving_even_in_silence(line: Line) -> None:
    for fault in ("hang", "headers_then_stall", "stall_after=3", "slow_headers=60000"):
        line.transport, line.connection = line.connect()
        line.send(stream(fault=fault))
        before = line.server.cancelled
        assert line.connection.eof_received() is False
        assert line.server.cancelled == before + 1
        line.connection.connection_lost(None)
    assert line.server.cancelled == 4
    assert line.server.statistics()["held_tokens"] == 0


def test_leaving_between_requests_cancels_nothing(line: Line) -> None:
    line.send(stream())
    line.clock.advance(1)
    line.connection.eof_received()
    line.connection.connection_lost(None)
    assert line.server.cancelled == 0


def test_a_whole_answer_is_cancelled_too(line: Line) -> None:
    line.send(encode_request({}))
    line.connection.connection_lost(ConnectionResetError())
    line.clock.advance(1)
    assert (line.server.cancelled, line.transport.writes) == (1, [])


def test_a_full_socket_pauses_and_the_answer_goes_on_where_it_was(line: Line) -> None:
    line.transport.room = 3
    line.send(stream())
    line.clock.advance(1)
    assert len(line.transport.writes) == 3
    line.transport.room = None
    line.connection.resume_writing()
    line.clock.advance(0)
    assert line.transport.sent.endswith(b"0\r\n\r\n")
    assert events(line) == 8


def test_a_socket_that_fills_up_and_empties_between_two_events(line: Line) -> None:
    line.transport.room = 2
    line.send(stream(ttft_ms=0))
    line.transport.room = None
    line.connection.resume_writing()
    line.clock.advance(1)
    assert events(line) == 8


def test_a_fast_stream_lets_others_have_their_turn(line: Line) -> None:
    line.connection.data_received(stream(tokens=1000, itl_ms=0, ttft_ms=0))
    assert len(line.transport.writes) == STEPS_PER_TURN
    line.clock.advance(0)
    assert line.server.answered == 1
    assert len(line.transport.writes) == 1000 + 5


def test_one_byte_takes_a_turn_each(line: Line) -> None:
    line.connection.data_received(stream(fault="one_byte", ttft_ms=0))
    assert line.transport.writes == [b"H"]
    line.clock.advance(1)
    assert {len(write) for write in line.transport.writes} == {1}
    assert line.server.answered == 1


@pytest.mark.parametrize(
    ("fault", "closed", "aborted"),
    [("reset_after=2", False, True), ("close_after=2", True, False), ("garbage", True, False)],
)
def test_endings_of_the_connection(line: Line, fault: str, closed: bool, aborted: bool) -> None:
    line.send(stream(fault=fault))
    line.clock.advance(1)
    assert (line.transport.closed, line.transport.aborted) == (closed, aborted)
    assert line.server.open_streams == 0


def test_die_idle_closes_as_the_next_request_arrives(line: Line) -> None:
    line.send(stream(fault="die_idle"))
    line.clock.advance(1)
    before = (line.transport.closed, line.transport.sent)
    line.send(stream())
    assert (line.transport.closed, line.transport.sent) == (True, before[1])
    assert before[0] is False


def test_expectations_are_met(line: Line) -> None:
    head, _, body = encode_request({"stream": True}, headers={"expect": "100-continue"}).partition(b"\r\n\r\n")
    line.send(head + b"\r\n\r\n")
    assert line.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.send(body)
    line.clock.advance(1)
    assert line.server.answered == 1


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\n\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/9.9\r\nhost: x\r\n\r\n"]
)
def test_what_is_no_http_is_answered_and_closed(line: Line, data: bytes) -> None:
    line.send(data)
    assert line.transport.sent.startswith((b"HTTP/1.1 400", b"HTTP/1.1 505"))
    assert line.transport.closed


def test_a_client_that_sends_on_and_on_is_cut(line: Line) -> None:
    line.send(stream())
    line.send(b"x" * (MAX_AHEAD_BYTES + 1))
    assert line.transport.closed


def test_streams_of_one_server_do_not_mix(line: Line) -> None:
    lines = [line.connect() for _ in range(20)]
    for seed, (_, connection) in enumerate(lines):
        connection.data_received(stream(seed=seed))
    line.clock.advance(1)
    for seed, (transport, _) in enumerate(lines):
        assert all(
            token.encode() in transport.sent
            for token in answer_text(seed, 5).replace('"', '\\"').split()
            if token.isalnum()
        )
    assert line.server.answered == 20
    assert "idle" in repr(line.connection)
