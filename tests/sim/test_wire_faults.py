"""Faults in how a reply travels; the older ones are in test_faults.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Line, Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.reply import Ending
from longwire.sim.server import SimServer
from longwire.wire.chunked import ChunkedDecoder, ChunkedError
from longwire.wire.http1 import Http1Error


def ask(server: SimServer, *faults: str, **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "messages": [], "sim": {"fault": list(faults)}, **body}))


def head_and_body(played: Played) -> tuple[list[bytes], bytes]:
    """The head's lines and the body, however little they agree."""
    head, _, body = played.raw.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


@pytest.mark.parametrize(("fault", "ending"), [("reset", Ending.RESET), ("close", Ending.CLOSE)])
def test_an_end_instead_of_an_answer(server: SimServer, fault: str, ending: Ending) -> None:
    played = ask(server, fault)
    assert (played.raw, played.ending) == (b"", ending)


def test_it_recovers_from_refusing(line: Line) -> None:
    request = encode_request({"stream": True, "sim": {"fault": "reset,first=1"}})
    line.send(request)
    assert (line.transport.sent, line.transport.aborted) == (b"", True)
    transport, connection = line.connect()
    connection.data_received(request)
    line.clock.advance(1)
    assert b"[DONE]" in transport.sent


def test_slow_head(server: SimServer) -> None:
    played = ask(server, "slow_head")
    head = len(played.raw.partition(b"\r\n\r\n")[0]) + 4
    assert [len(write) for write in played.writes[:head]] == [1] * head
    assert played.pauses[:head] == [1.0] * head
    assert played.text == answer_text(3, 5)
    assert ask(server, "slow_head=20").pauses[:head] == [0.02] * head


def test_a_slow_head_on_the_clock(line: Line) -> None:
    line.send(encode_request({"stream": True, "sim": {"fault": "slow_head"}}))
    assert line.transport.sent == b"H"
    line.clock.advance(3)
    assert line.transport.sent == b"HTTP"


def test_short_length(server: SimServer) -> None:
    lines, body = head_and_body(ask(server, "short_length=7", stream=False))
    assert b"content-length: %d" % (len(body) - 7) in lines
    assert b"content-length: 0" in head_and_body(ask(server, "short_length=1000000"))[0]


def test_both_lengths(server: SimServer) -> None:
    played = ask(server, "both_lengths")
    lines, body = head_and_body(played)
    assert b"transfer-encoding: chunked" in lines and b"content-length: 10" in lines
    assert body.endswith(b"0\r\n\r\n")
    with pytest.raises(Http1Error):
        _ = played.head


def test_odd_transfer_encoding(server: SimServer) -> None:
    played = ask(server, "odd_transfer_encoding")
    assert b"transfer-encoding: x-sim, chunked" in head_and_body(played)[0]
    with pytest.raises(Http1Error):
        _ = played.head


def test_not_chunked(server: SimServer) -> None:
    played = ask(server, "not_chunked")
    lines, body = head_and_body(played)
    assert b"transfer-encoding: chunked" in lines
    assert played.ending is Ending.CLOSE
    with pytest.raises(ChunkedError):
        ChunkedDecoder().feed(body)
