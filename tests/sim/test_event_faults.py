"""Faults in events and where they end, as they are seen on the wire; the older ones are in test_faults.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.sim.playing import Line, Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.event_faults import NO_UTF8
from longwire.sim.reply import TURN, Ending, Preempt
from longwire.sim.server import SimServer
from longwire.wire.chunked import LAST_CHUNK

TEXT = answer_text(3, 5)


def ask(server: SimServer, *faults: str, **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "messages": [], "sim": {"fault": list(faults)}, **body}))


@pytest.mark.parametrize(
    ("name", "ending"), [("stall_inside", Ending.STALL), ("reset_inside", Ending.RESET), ("close_inside", Ending.CLOSE)]
)
@pytest.mark.parametrize("after", [0, 1, 4, 7])
def test_an_end_inside_an_event(server: SimServer, name: str, ending: Ending, after: int) -> None:
    sound, played = ask(server).body, ask(server, f"{name}={after}")
    assert played.ending is ending
    assert len(played.data) == after
    half = played.body[len(b"".join(played.blocks)) :]
    assert half.startswith(b"data: ") and b"\n" not in half
    assert len(played.body) < len(sound)
    assert LAST_CHUNK not in played.raw


@pytest.mark.parametrize("after", [0, 3, 100])
def test_half_close_after(server: SimServer, after: int) -> None:
    played = ask(server, f"half_close_after={after}")
    assert (len(played.data), played.ending) == (min(after, 8), Ending.HALF_CLOSE)


def test_a_half_closed_connection_stays_until_the_client_closes_it(line: Line) -> None:
    line.send(encode_request({"stream": True, "sim": {"fault": "half_close_after=2"}}))
    line.clock.advance(60)
    assert (line.transport.half_closed, line.transport.closed, line.transport.aborted) == (True, False, False)
    assert line.server.open_streams == 1
    line.connection.eof_received()
    assert (line.server.open_streams, line.server.cancelled) == (0, 1)


def test_stall_last(server: SimServer) -> None:
    played = ask(server, "stall_last")
    assert played.text == TEXT
    assert b"[DONE]" not in played.body
    assert played.ending is Ending.STALL
    assert ask(server, "stall_last", stream=False).body == b""


def test_stay_open(server: SimServer) -> None:
    played = ask(server, "stay_open")
    assert played.data[-1] == b"[DONE]"
    assert played.raw.endswith(b"[DONE]\n\n\r\n")
    assert played.ending is Ending.STALL


@pytest.mark.parametrize("after", [1, 50])
def test_stalls_far_into_an_answer(server: SimServer, after: int) -> None:
    body = {"stream": True, "sim": {"tokens": 60, "fault": f"stall_after={after}"}}
    assert len(play(server, encode_request(body)).data) == after


def test_a_10_mb_event(server: SimServer) -> None:
    assert len(ask(server, "big_event=10000000").blocks[1]) == 10_000_000


# Text.


def extra(played: Played, events: int) -> list[bytes]:
    """The extra events behind the first content event, all others being sound."""
    data = played.data
    assert len(data) == 8 + events
    kept = data[:2] + data[2 + events :]
    text = "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in kept[:-1])
    assert text == TEXT
    return data[2 : 2 + events]


def test_invalid_utf8(server: SimServer) -> None:
    (data,) = extra(ask(server, "invalid_utf8"), 1)
    assert NO_UTF8 in data
    with pytest.raises(UnicodeDecodeError):
        data.decode()


def test_lone_surrogate(server: SimServer) -> None:
    (data,) = extra(ask(server, "lone_surrogate"), 1)
    assert json.loads(data)["choices"][0]["delta"]["content"] == "\ud83d"


def test_split_surrogates(server: SimServer) -> None:
    halves = [json.loads(data)["choices"][0]["delta"]["content"] for data in extra(ask(server, "split_surrogates"), 2)]
    assert "".join(halves).encode("utf-16", "surrogatepass").decode("utf-16") == "🚀"


def test_torn_code_point(server: SimServer) -> None:
    halves = extra(ask(server, "torn_code_point"), 2)
    for half in halves:
        with pytest.raises(UnicodeDecodeError):
            half.decode()
    contents = [half.partition(b'"content":"')[2].partition(b'"')[0] for half in halves]
    assert b"".join(contents).decode() == "🚀"


def test_split_code_points(server: SimServer) -> None:
    sound, played = ask(server), ask(server, "split_code_points")
    assert played.text == sound.text
    wide = sum(not block.isascii() for block in sound.blocks)
    assert wide and len(played.writes) == len(sound.writes) + wide
    assert played.pauses.count(TURN) == wide
    torn = [write for write in played.writes[1:] if not write.isascii() and _is_torn(write)]
    assert len(torn) == 2 * wide


def _is_torn(write: bytes) -> bool:
    try:
        write.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_preempt_is_an_order_behind_the_first_token(server: SimServer) -> None:
    played = ask(server, "preempt=250")
    assert played.orders == [Preempt(0.25)]
    assert played.text == TEXT
