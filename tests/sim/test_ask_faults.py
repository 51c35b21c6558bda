"""Faults in what is asked, as they are seen on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Line, Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.ask_faults import INVENTED_FINISH
from longwire.sim.reply import Ending
from longwire.sim.server import SimServer


def ask(server: SimServer, fault: str, **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "messages": [], **body, "sim": {"fault": fault}}))


@pytest.mark.parametrize(
    ("fault", "seconds"), [("retry_after", b"1"), ("retry-after=30", b"30"), ("retry_after=0", b"0")]
)
def test_retry_after(server: SimServer, fault: str, seconds: bytes) -> None:
    played = ask(server, fault)
    assert (played.head.status, played.head.get(b"retry-after")) == (429, seconds)
    assert played.json["error"]["code"] == "rate_limit_exceeded"
    assert ask(server, "status=429").head.get(b"retry-after") is None


@pytest.mark.parametrize("stream", [True, False])
def test_error_body(server: SimServer, stream: bool) -> None:
    played = ask(server, "error_body", stream=stream)
    assert (played.head.status, played.head.get(b"content-type")) == (200, b"application/json")
    assert list(played.json) == ["error"]
    assert played.ending is Ending.DONE


def test_prompt_too_long(server: SimServer) -> None:
    messages = [{"role": "user", "content": "one two three four"}]
    assert ask(server, "prompt_too_long=4", messages=messages).head.status == 200
    played = ask(server, "prompt_too_long=3", messages=messages)
    assert played.head.status == 500
    error = played.json["error"]
    assert error["message"].startswith("The decoder prompt (length 4) is longer than the maximum model length of 3.")
    assert (error["type"], error["code"]) == ("InternalServerError", 500)
    assert ask(server, "prompt_too_long", messages=messages).head.status == 500


def test_invented_finish(server: SimServer) -> None:
    played = ask(server, "invented_finish")
    assert played.text == answer_text(3, 5)
    assert played.frames[-1]["choices"][0]["finish_reason"] == INVENTED_FINISH
    assert ask(server, "invented_finish", stream=False).json["choices"][0]["finish_reason"] == INVENTED_FINISH


def test_slow_tokens(server: SimServer) -> None:
    assert ask(server, "slow_tokens").pauses == [0.05] + [60.0] * 5
    assert ask(server, "slow_tokens=10000").pauses == [0.05] + [10.0] * 5


def test_tokens_per_s_comes_in_groups_that_the_wheel_can_tell(server: SimServer) -> None:
    played = ask(server, "tokens_per_s", max_tokens=None)
    assert set(played.pauses[1:]) == {0.0}, "an answer of 5 tokens is shorter than a millisecond"
    request = {"stream": True, "sim": {"tokens": 5000, "fault": "tokens_per_s", "ttft_ms": 0}}
    played = play(server, encode_request(request))
    assert played.waited_s == pytest.approx(5000 / 50_000)
    assert max(played.pauses) == pytest.approx(0.001)


def test_50_000_tokens_a_second_on_the_clock(line: Line) -> None:
    line.send(encode_request({"stream": True, "sim": {"tokens": 10**6, "fault": "tokens_per_s", "ttft_ms": 0}}))
    before = line.transport.sent.count(b"data: ")
    line.clock.advance(0.1)
    assert line.transport.sent.count(b"data: ") - before == pytest.approx(5000, abs=51)
