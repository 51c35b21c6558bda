"""Chat and text completions, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import REASONING_SEED, answer_text
from longwire.sim.reply import Ending
from longwire.sim.server import SimServer

HELLO = [{"role": "user", "content": "hello there world"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}


def ask(server: SimServer, path: str = "/v1/chat/completions", **body: Any) -> Played:
    return play(server, encode_request({"model": "sim", "messages": HELLO, **body}, path))


def test_a_stream_has_role_content_finish_and_end(server: SimServer) -> None:
    played = ask(server, stream=True)
    assert played.head.status == 200
    assert played.head.get(b"content-type") == b"text/event-stream; charset=utf-8"
    deltas = [frame["choices"][0]["delta"] for frame in played.frames]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert played.text == answer_text(3, 5)
    assert [frame["choices"][0]["finish_reason"] for frame in played.frames] == [None] * 6 + ["stop"]
    assert played.data[-1] == b"[DONE]"
    assert played.ending is Ending.DONE


def test_each_event_is_one_write_and_one_http_chunk(server: SimServer) -> None:
    played = ask(server, stream=True)
    _, *events, last = played.writes
    assert last == b"0\r\n\r\n"
    assert len(events) == len(played.blocks) == 8
    assert all(
        write == b"%x\r\n%b\r\n" % (len(block), block) for write, block in zip(events, played.blocks, strict=True)
    )


def test_the_head_comes_at_once_and_tokens_at_their_pace(server: SimServer) -> None:
    played = ask(server, stream=True)
    assert played.pauses == [0.05] + [0.02] * 5


def test_a_whole_answer_takes_as_long_as_a_stream(server: SimServer) -> None:
    assert ask(server).waited_s == pytest.approx(ask(server, stream=True).waited_s)


def test_a_whole_answer_says_the_same(server: SimServer) -> None:
    answer = ask(server).json
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": answer_text(3, 5)}
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def test_usage_comes_only_when_asked_for_and_in_a_frame_of_its_own(server: SimServer) -> None:
    assert not any("usage" in frame for frame in ask(server, stream=True).frames)
    played = ask(server, stream=True, stream_options={"include_usage": True})
    last = played.frames[-1]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def test_continuous_usage_counts_up(server: SimServer) -> None:
    played = ask(server, stream=True, stream_options={"continuous_usage_stats": True})
    assert [frame["usage"]["completion_tokens"] for frame in played.frames[1:-1]] == [1, 2, 3, 4, 5]
    assert played.text == answer_text(3, 5)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_token_limit_ends_with_length(server: SimServer, field: str) -> None:
    body: dict[str, Any] = {field: 2}
    played = ask(server, stream=True, **body)
    assert played.text == answer_text(3, 2)
    assert played.frames[-1]["choices"][0]["finish_reason"] == "length"
    body[field] = 5
    assert ask(server, **body).json["choices"][0]["finish_reason"] == "stop"


def test_choices_differ_and_are_told_apart_by_index(server: SimServer) -> None:
    played = ask(server, stream=True, n=3)
    texts = ["", "", ""]
    for frame in played.frames:
        choice = frame["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [answer_text(3 + choice, 5) for choice in range(3)]
    assert [choice["message"]["content"] for choice in ask(server, n=3).json["choices"]] == texts


def test_reasoning_comes_first(server: SimServer) -> None:
    played = ask(server, stream=True, reasoning=True)
    deltas = [frame["choices"][0]["delta"] for frame in played.frames]
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert thought == answer_text(3 + REASONING_SEED, 5)
    assert "reasoning_content" in deltas[1] and "content" in deltas[6]
    message = ask(server, reasoning=True).json["choices"][0]["message"]
    assert message["reasoning_content"] == thought


def test_tools_are_called_in_pieces(server: SimServer) -> None:
    played = ask(server, stream=True, tools=[TOOL, TOOL], tool_choice="auto", parallel_tool_calls=True)
    calls: dict[int, dict[str, str]] = {}
    for frame in played.frames:
        for delta in frame["choices"][0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            call.update({key: delta[key] for key in ("id",) if key in delta})
            call["arguments"] += delta["function"]["arguments"]
    assert [call["id"] for call in calls.values()] == ["call_3_0", "call_3_1"]
    assert [json.loads(call["arguments"]) for call in calls.values()] == [{"text": answer_text(3, 5)}] * 2
    assert played.frames[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_whole_tool_call_says_the_same(server: SimServer) -> None:
    choice = ask(server, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}}).json[
        "choices"
    ][0]
    call = choice["message"]["tool_calls"][0]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"text": answer_text(3, 5)}


def test_tools_without_a_choice_are_not_called(server: SimServer) -> None:
    assert ask(server, stream=True, tools=[TOOL]).text == answer_text(3, 5)
    assert ask(server, stream=True, tools=[TOOL], tool_choice="none").text == answer_text(3, 5)


def test_the_requests_seed_beats_the_settings_and_the_override_beats_both(server: SimServer) -> None:
    assert ask(server, stream=True, seed=8).text == answer_text(8, 5)
    assert ask(server, stream=True, seed=8, sim={"seed": 9}).text == answer_text(9, 5)


def test_overrides_change_length_and_pace(server: SimServer) -> None:
    played = ask(server, stream=True, sim={"tokens": 2, "itl_ms": 7, "ttft_ms": 0})
    assert played.text == answer_text(3, 2)
    assert played.pauses == [0.0, 0.007, 0.007]


def test_jitter_varies_the_pace_within_its_share_and_always_alike(server: SimServer) -> None:
    pauses = ask(server, stream=True, sim={"tokens": 200, "itl_ms": 100, "jitter": 0.5}).pauses[1:]
    assert all(0.05 <= pause <= 0.15 for pause in pauses)
    assert len(set(pauses)) > 150
    assert sum(pauses) / len(pauses) == pytest.approx(0.1, rel=0.1)
    assert ask(server, stream=True, sim={"tokens": 200, "itl_ms": 100, "jitter": 0.5}).pauses[1:] == pauses


def test_stamped_events_say_when_they_were_made(server: SimServer) -> None:
    played = ask(server, stream=True, sim={"stamp": True})
    stamps = [frame["sim_ns"] for frame in played.frames if "sim_ns" in frame]
    assert len(stamps) == 5
    assert stamps == sorted(stamps)


def test_unknown_fields_are_echoed_in_whole_answers(server: SimServer) -> None:
    answer = ask(server, nvext={"a": [1, None]}, cache_salt="ü", temperature=0.5).json
    assert answer["sim_echo"] == {"nvext": {"a": [1, None]}, "cache_salt": "ü"}


def test_text_completions(server: SimServer) -> None:
    body = {"prompt": "one two", "stream": True, "stream_options": {"include_usage": True}}
    played = play(server, encode_request(body, "/v1/completions"))
    assert "".join(choice["text"] for frame in played.frames for choice in frame["choices"]) == answer_text(3, 5)
    assert played.frames[-1]["usage"]["prompt_tokens"] == 2
    whole = play(server, encode_request({"prompt": "one two"}, "/v1/completions")).json
    assert whole["choices"][0]["text"] == answer_text(3, 5)
    assert whole["object"] == "text_completion"


def test_long_streams_take_the_uncached_way_too(server: SimServer) -> None:
    assert ask(server, stream=True, sim={"tokens": 4200}).text == answer_text(3, 4200)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"n": 0},
        {"n": 1000},
        {"n": "2"},
        {"sim": 3},
        {"sim": {"tokens": -1}},
        {"sim": {"itl_ms": "fast"}},
        {"sim": {"fault": "no_such_fault"}},
        {"sim": {"fault": "stall_after"}},
        {"stream_options": 3},
        {"seed": 1.5e300},
    ],
)
def test_bad_requests_are_refused_with_a_sentence(server: SimServer, body: dict[str, Any]) -> None:
    played = ask(server, **body)
    assert played.head.status == 400
    assert played.json["error"]["type"] == "invalid_request_error"
    assert played.json["error"]["message"].endswith(".")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'{"a": 1} x'])
def test_what_is_not_one_json_object_is_refused(server: SimServer, body: bytes) -> None:
    assert play(server, encode_request(body)).head.status == 400


@pytest.mark.parametrize(
    "body", [{"messages": 3}, {"messages": [3]}, {"messages": None}, {"tools": [3], "tool_choice": "auto"}]
)
def test_odd_shapes_are_answered_anyhow(server: SimServer, body: dict[str, Any]) -> None:
    assert ask(server, **body).head.status == 200
