"""Stop strings: where an answer ends, and what is held back before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import answer_text, expected_text, token_text
from longwire.sim.server import SimServer
from longwire.sim.stops import MAX_SEARCHED_TOKENS, MAX_STOPS, Told, release, tell
from longwire.words.settings import SimSettings

TOKENS = 24
WHOLE = answer_text(3, TOKENS)
INSIDE = token_text(3, 7)[1:4]
ACROSS = token_text(3, 7)[-2:] + token_text(3, 8) + token_text(3, 9)[:3]
"""It begins in one token, holds the next and ends in the one after it."""


@pytest.fixture
def server() -> SimServer:
    return SimServer(SimSettings(tokens=TOKENS, itl_ms=1, ttft_ms=0, seed=3))


def ask(server: SimServer, path: str = "/v1/chat/completions", **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "messages": [], **body}, path))


def contents(played: Played) -> list[str]:
    deltas = [choice["delta"] for frame in played.frames for choice in frame["choices"]]
    return [delta["content"] for delta in deltas if delta.get("content")]


@pytest.mark.parametrize("stop", [INSIDE, ACROSS, [ACROSS], ["never said", ACROSS, WHOLE[-4:]], " "])
def test_an_answer_ends_before_the_stop_string(server: SimServer, stop: str | list[str]) -> None:
    played = ask(server, stop=stop, stream_options={"include_usage": True})
    assert played.text == expected_text(3, TOKENS, stop) != WHOLE
    finish = played.frames[-2]["choices"][0]
    assert finish["finish_reason"] == "stop"
    assert finish["stop_reason"] in stop
    whole = ask(server, stop=stop, stream=False).json
    assert whole["choices"][0]["message"]["content"] == played.text
    assert whole["choices"][0]["stop_reason"] == finish["stop_reason"]
    assert whole["usage"] == played.frames[-1]["usage"]


def test_tokens_are_billed_up_to_the_one_that_completes_it(server: SimServer) -> None:
    bill = ask(server, stop=ACROSS, stream_options={"include_usage": True}).frames[-1]["usage"]
    assert bill["completion_tokens"] == 10


def test_a_string_that_never_comes_changes_nothing(server: SimServer) -> None:
    played = ask(server, stop=["never said"])
    assert played.text == WHOLE
    assert "stop_reason" not in played.frames[-1]["choices"][0]
    assert ask(server, stop=["x" * 9], max_tokens=2).frames[-1]["choices"][0]["finish_reason"] == "length"


def test_what_may_be_its_beginning_is_held_back(server: SimServer) -> None:
    told = contents(ask(server, stop=ACROSS))
    assert told[7] == token_text(3, 7)[:-2], "its last two characters may be the beginning"
    assert len(told) == 8, "nothing comes while that is open"


def test_a_false_alarm_is_sent_once_it_is_known(server: SimServer) -> None:
    alarm = token_text(3, 7)[-2:] + token_text(3, 8) + "?"
    told = contents(ask(server, stop=alarm))
    assert told[7:9] == [token_text(3, 7)[:-2], token_text(3, 7)[-2:] + token_text(3, 8) + token_text(3, 9)]
    assert "".join(told) == WHOLE


def test_what_is_held_back_at_the_end_is_sent(server: SimServer) -> None:
    assert ask(server, stop=WHOLE[-2:] + "?").text == WHOLE


def test_without_holding_back_its_beginning_is_sent(server: SimServer) -> None:
    """As no engine does; whoever goes on after that must still stop at a string that spans the seam."""
    played = ask(server, stop=ACROSS, sim={"fault": "no_hold_back"})
    assert contents(played) == [token_text(3, index) for index in range(9)]
    assert played.text.endswith(ACROSS[:-3])
    assert played.frames[-1]["choices"][0]["stop_reason"] == ACROSS
    assert ask(server, stop=INSIDE, sim={"fault": "no_hold_back"}).text == expected_text(3, TOKENS, INSIDE)


def test_only_what_a_request_generates_is_looked_through(server: SimServer) -> None:
    message = {"role": "assistant", "content": answer_text(3, 8)}
    fields: dict[str, Any] = {"messages": [message], "continue_final_message": True, "add_generation_prompt": False}
    assert ask(server, stop=ACROSS, **fields).text == answer_text(3, TOKENS - 8, 8)
    assert ask(server, stop=token_text(3, 12), **fields).text == answer_text(3, 4, 8)


def test_each_choice_ends_by_itself(server: SimServer) -> None:
    stop = token_text(4, 2)
    played = ask(server, stop=stop, n=2)
    texts, finishes = ["", ""], {}
    for frame in played.frames:
        choice = frame["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            finishes[choice["index"]] = choice.get("stop_reason")
    assert texts == [expected_text(seed, TOKENS, stop) for seed in (3, 4)]
    assert finishes == {0: None, 1: stop}
    assert [each["message"]["content"] for each in ask(server, stop=stop, n=2, stream=False).json["choices"]] == texts


def test_ids_come_with_their_tokens_also_where_text_is_held_back(server: SimServer) -> None:
    played = ask(server, stop=ACROSS, return_token_ids=True)
    told = [frame["choices"][0] for frame in played.frames if "token_ids" in frame["choices"][0]]
    assert len(told) == 10
    assert [choice["delta"]["content"] for choice in told[8:]] == ["", ""]


def test_reasoning_is_not_looked_through_and_usage_counts_on(server: SimServer) -> None:
    options = {"continuous_usage_stats": True}
    played = ask(server, stop=token_text(3, 2), reasoning=True, stream_options=options)
    assert [frame["usage"]["completion_tokens"] for frame in played.frames[1:-1]] == list(range(1, 19))
    assert played.text == answer_text(3, 2)


def test_text_completions_and_messages_stop_too(server: SimServer) -> None:
    played = play(server, encode_request({"prompt": "x", "stream": True, "stop": ACROSS}, "/v1/completions"))
    assert "".join(frame["choices"][0]["text"] for frame in played.frames) == expected_text(3, TOKENS, ACROSS)
    body = {"messages": [], "stop_sequences": [ACROSS]}
    frames = play(server, encode_request({**body, "stream": True}, "/v1/messages")).frames
    texts = [frame["delta"]["text"] for frame in frames if frame["type"] == "content_block_delta"]
    assert "".join(texts) == expected_text(3, TOKENS, ACROSS)
    assert frames[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": ACROSS}
    whole = play(server, encode_request(body, "/v1/messages")).json
    assert (whole["content"][0]["text"], whole["stop_sequence"]) == ("".join(texts), ACROSS)


@pytest.mark.parametrize("stop", [3, [3], [""], "", {"a": 1}, ["x"] * (MAX_STOPS + 1)])
def test_odd_stop_strings_are_refused(server: SimServer, stop: Any) -> None:
    assert ask(server, stop=stop).head.status == 400


def test_too_long_an_answer_is_not_looked_through(server: SimServer) -> None:
    request = {"stream": True, "stop": INSIDE, "sim": {"tokens": MAX_SEARCHED_TOKENS + 1}}
    played = play(server, encode_request(request), most_steps=40)
    assert played.text.startswith(answer_text(3, 12))


def test_the_earliest_string_wins_and_matches_may_lie_anywhere() -> None:
    texts = ["ab", "cd", "ef"]
    assert tell("", texts, ["ef", "cde"]) == Told(3, 2, "cde")
    assert tell("xy", texts, ["ya"]) == Told(1, 1, "ya")
    assert tell("xy", texts, ["xy"]) == Told(0, 0, "xy")
    assert tell("", texts, ["zz"]) == Told(3, 6)
    assert list(release(texts, Told(3, 6), ["de"], holds_back=True)) == ["ab", "c", "def"]
    assert list(release(["a", "b"], Told(2, 0, "ab"), ["ab"], holds_back=False)) == ["a", ""]
