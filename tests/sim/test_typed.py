"""The responses and the messages API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.server import SimServer
from longwire.wire.sse import parse_event

TEXT = answer_text(3, 5)


def ask(server: SimServer, path: str, **body: Any) -> Played:
    return play(server, encode_request({"model": "sim", "input": "hello there", **body}, path))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_each_event_is_named_twice_and_none_is_done(server: SimServer, path: str) -> None:
    played = ask(server, path, stream=True)
    names = [parse_event(block).event for block in played.blocks]
    assert names == [frame["type"].encode() for frame in played.frames]
    assert b"[DONE]" not in played.data


def test_a_response_as_a_stream(server: SimServer) -> None:
    frames = ask(server, "/v1/responses", stream=True).frames
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames][:2] == ["response.created", "response.in_progress"]
    deltas = [frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta"]
    assert "".join(deltas) == TEXT
    assert frames[-1]["type"] == "response.completed"
    assert frames[-1]["response"]["output"][0]["content"][0]["text"] == TEXT
    assert frames[-1]["response"]["usage"]["output_tokens"] == 5


def test_a_response_that_was_cut_short_says_so(server: SimServer) -> None:
    last = ask(server, "/v1/responses", stream=True, max_output_tokens=2).frames[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_whole_response(server: SimServer) -> None:
    answer = ask(server, "/v1/responses", custom=1).json
    assert answer["output"][0]["content"][0]["text"] == TEXT
    assert answer["sim_echo"] == {"custom": 1}


def test_a_message_as_a_stream(server: SimServer) -> None:
    frames = ask(server, "/v1/messages", stream=True, max_tokens=99).frames
    types = [frame["type"] for frame in frames]
    assert types == [
        "message_start", "content_block_start", "ping", *["content_block_delta"] * 5,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(frame["delta"]["text"] for frame in frames[3:8]) == TEXT
    assert frames[0]["message"]["usage"] == {"input_tokens": 2, "output_tokens": 0}
    assert frames[-2]["usage"] == {"output_tokens": 5}
    assert frames[-2]["delta"]["stop_reason"] == "end_turn"


def test_a_whole_message(server: SimServer) -> None:
    answer = ask(server, "/v1/messages", max_tokens=2).json
    assert answer["content"] == [{"type": "text", "text": answer_text(3, 2)}]
    assert answer["stop_reason"] == "max_tokens"


def test_messages_are_continued_too(server: SimServer) -> None:
    partial = [{"role": "user", "content": "x"}, {"role": "assistant", "content": TEXT[:10]}]
    assert ask(server, "/v1/messages", messages=partial).json["content"][0]["text"] == TEXT[10:]
