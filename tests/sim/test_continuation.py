"""Answers that an earlier request has begun: by message, by text, by token ids, and in each engine's manner."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import REASONING_SEED, answer_text, expected_reasoning, expected_text, token_id, token_ids
from longwire.sim.continuation import MAX_CANDIDATES
from longwire.sim.server import SimServer
from longwire.words.settings import SimSettings

HELLO = [{"role": "user", "content": "hello there world"}]
ASKED: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
TOKENS = 24
WHOLE = answer_text(3, TOKENS)
USAGE: dict[str, Any] = {"include_usage": True}


@pytest.fixture
def server() -> SimServer:
    return SimServer(SimSettings(tokens=TOKENS, itl_ms=1, ttft_ms=0, seed=3))


def chat(server: SimServer, *, said: Any = None, thought: str | None = None, **body: Any) -> Played:
    message = {"role": "assistant", "content": said}
    if thought is not None:
        message["reasoning_content"] = thought
    messages = HELLO if said is None and thought is None else [*HELLO, message]
    return play(server, encode_request({"stream": True, "messages": messages, **body}))


def complete(server: SimServer, prompt: Any, **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "prompt": prompt, **body}, "/v1/completions"))


def completed(played: Played) -> str:
    return "".join(choice["text"] for frame in played.frames for choice in frame["choices"])


# By message.


@pytest.mark.parametrize("fields", [ASKED, {"sim": {"continues": "prefill"}}], ids=["as vLLM", "as llama.cpp"])
def test_a_partial_message_is_continued_wherever_it_is_cut(server: SimServer, fields: dict[str, Any]) -> None:
    for cut in range(1, len(WHOLE) + 1):
        if not WHOLE[cut - 1].isspace():
            assert chat(server, said=WHOLE[:cut], **fields).text == WHOLE[cut:]
            whole = chat(server, said=WHOLE[:cut], stream=False, **fields).json
            assert whole["choices"][0]["message"]["content"] == WHOLE[cut:]


@pytest.mark.parametrize("fields", [ASKED, {"sim": {"continues": "prefill"}}], ids=["as vLLM", "as llama.cpp"])
def test_trailing_white_space_comes_twice(server: SimServer, fields: dict[str, Any]) -> None:
    """So a gateway that does not cut before it is found out."""
    cuts = [cut for cut in range(1, len(WHOLE) + 1) if WHOLE[cut - 1].isspace()]
    assert len(cuts) >= TOKENS
    for cut in cuts:
        prefix = WHOLE[:cut]
        assert chat(server, said=prefix, **fields).text == WHOLE[len(prefix.rstrip()) :] != WHOLE[cut:]


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"continue_final_message": False}, {"add_generation_prompt": True}, {"add_generation_prompt": False},
        {"sim": {"continues": "prefill"}, "continue_final_message": False}, {**ASKED, "sim": {"continues": "never"}},
    ],
)  # fmt: skip
def test_who_does_not_ask_gets_a_new_answer(server: SimServer, fields: dict[str, Any]) -> None:
    """As vLLM closes the message then: the text would come twice."""
    assert chat(server, said=WHOLE[:10], **fields).text == WHOLE


@pytest.mark.parametrize("generation_prompt", [{}, {"add_generation_prompt": True}])
def test_to_continue_and_to_begin_at_once_is_refused(server: SimServer, generation_prompt: dict[str, Any]) -> None:
    played = chat(server, said=WHOLE[:10], continue_final_message=True, **generation_prompt)
    assert played.head.status == 400
    assert "`continue_final_message` and `add_generation_prompt`" in played.json["error"]["message"]


def test_the_setting_decides_and_a_wrong_mode_is_refused(server: SimServer) -> None:
    llamacpp = SimServer(SimSettings(tokens=TOKENS, seed=3, continues="prefill"))
    assert chat(llamacpp, said=WHOLE[:9]).text == WHOLE[9:]
    assert chat(server, sim={"continues": "perhaps"}).head.status == 400


def test_foreign_text_begins_a_new_answer_and_is_billed_by_words(server: SimServer) -> None:
    played = chat(server, said="Something else", stream_options=USAGE, **ASKED)
    assert played.text == WHOLE
    assert played.frames[-1]["usage"]["prompt_tokens"] == 5


def test_parts_are_text_too(server: SimServer) -> None:
    parts = [{"type": "text", "text": WHOLE[:5]}, {"type": "text", "text": WHOLE[5:12]}]
    assert chat(server, said=parts, **ASKED).text == WHOLE[12:]


@pytest.mark.parametrize("given", range(1, TOKENS + 1))
def test_usage_is_the_prompt_and_what_was_given_then_the_rest(server: SimServer, given: int) -> None:
    """Words are no measure here: some tokens are two (" line⏎7")."""
    for played in (
        chat(server, said=answer_text(3, given), stream_options=USAGE, **ASKED),
        complete(server, "hello there world" + answer_text(3, given), stream_options=USAGE),
        complete(server, [7, 8, 9, *token_ids(3, given)], stream_options=USAGE),
    ):
        bill = played.frames[-1]["usage"]
        assert (bill["prompt_tokens"], bill["completion_tokens"]) == (3 + given, TOKENS - given)


def test_the_limit_is_for_what_this_request_generates(server: SimServer) -> None:
    played = chat(server, said=answer_text(3, 4), max_tokens=3, **ASKED)
    assert played.text == answer_text(3, 3, start=4)
    assert played.frames[-1]["choices"][0]["finish_reason"] == "length"
    played = chat(server, said=answer_text(3, 4), max_tokens=TOKENS - 4, **ASKED)
    assert (played.text, played.frames[-1]["choices"][0]["finish_reason"]) == (answer_text(3, TOKENS - 4, 4), "stop")


def test_an_answer_that_was_whole_already_ends_at_once(server: SimServer) -> None:
    played = chat(server, said=WHOLE, **ASKED)
    assert (played.text, played.frames[-1]["choices"][0]["finish_reason"]) == ("", "stop")


# Reasoning.


def reasoned(played: Played) -> tuple[str, str]:
    deltas = [choice["delta"] for frame in played.frames for choice in frame["choices"]]
    return (
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
    )


THOUGHT = expected_reasoning(3, TOKENS)


def test_reasoning_goes_on_as_reasoning_then_comes_the_content(server: SimServer) -> None:
    for cut in range(1, len(THOUGHT) + 1):
        if not THOUGHT[cut - 1].isspace():
            played = chat(server, said="", thought=THOUGHT[:cut], reasoning=True, **ASKED)
            assert reasoned(played) == (THOUGHT[cut:], WHOLE)
            message = chat(server, said=None, thought=THOUGHT[:cut], reasoning=True, stream=False, **ASKED).json
            assert message["choices"][0]["message"].get("reasoning_content", "") == THOUGHT[cut:]


def test_after_whole_reasoning_the_content_goes_on_alone(server: SimServer) -> None:
    played = chat(server, said=WHOLE[:18], thought=THOUGHT, reasoning=True, stream_options=USAGE, **ASKED)
    assert reasoned(played) == ("", WHOLE[18:])


def test_whoever_forgets_the_reasoning_has_it_again(server: SimServer) -> None:
    assert reasoned(chat(server, said=WHOLE[:18], reasoning=True, **ASKED)) == (THOUGHT, WHOLE[18:])
    half = THOUGHT[:12]
    assert reasoned(chat(server, said=WHOLE[:18], thought=half, reasoning=True, **ASKED)) == (THOUGHT, WHOLE)


def test_reasoning_counts_against_the_limit_and_in_the_prompt(server: SimServer) -> None:
    seed = 3 + REASONING_SEED
    played = chat(
        server, said="", thought=answer_text(seed, 4), reasoning=True, max_tokens=14, stream_options=USAGE, **ASKED
    )
    assert reasoned(played) == (answer_text(seed, 12, 4), answer_text(3, 2))
    assert played.frames[-2]["choices"][0]["finish_reason"] == "length"
    bill = played.frames[-1]["usage"]
    assert (bill["prompt_tokens"], bill["completion_tokens"]) == (3 + 4, 14)


# By text and by ids.


@pytest.mark.parametrize("prompt", ["Say it:", "", "Once upon a time there was", f"Not this: {answer_text(3, 3)} But:"])
def test_a_prompt_that_ends_in_the_answers_beginning_goes_on_after_it(server: SimServer, prompt: str) -> None:
    for cut in range(3, len(WHOLE) + 1):
        if not WHOLE[cut - 1].isspace():
            assert completed(complete(server, prompt + WHOLE[:cut])) == WHOLE[cut:]


def test_any_other_prompt_begins_a_new_answer(server: SimServer) -> None:
    for prompt in ("Say it:", "Say it: s", WHOLE + " and so on", WHOLE[1:], "", ["one", "two"], WHOLE[:2], " "):
        assert completed(complete(server, prompt)) == WHOLE


def test_a_prompts_trailing_white_space_comes_twice(server: SimServer) -> None:
    assert completed(complete(server, "Say it:" + answer_text(3, 4) + " ")) == answer_text(3, TOKENS - 4, 4)


def test_an_answer_within_the_prompt_is_looked_for_at_few_places_only(server: SimServer) -> None:
    assert (
        completed(complete(server, answer_text(3, 1) * (MAX_CANDIDATES - 1) + answer_text(3, 2)))
        == WHOLE[len(answer_text(3, 2)) :]
    )
    assert completed(complete(server, answer_text(3, 1) * (2 * MAX_CANDIDATES) + answer_text(3, 2))) == WHOLE


def test_ids_are_told_and_taken(server: SimServer) -> None:
    played = complete(server, "hello there", return_token_ids=True)
    choices = [frame["choices"][0] for frame in played.frames]
    ids = [id for choice in choices for id in choice.get("token_ids", ())]
    assert ids == token_ids(3, TOKENS)
    assert [len(choice["prompt_token_ids"]) for choice in choices if "prompt_token_ids" in choice] == [2]
    prompt = choices[0]["prompt_token_ids"]
    for given in range(TOKENS + 1):
        assert completed(complete(server, prompt + ids[:given])) == answer_text(3, TOKENS - given, given)
        assert completed(complete(server, [prompt + ids[:given]])) == answer_text(3, TOKENS - given, given)
    again = complete(server, prompt + ids[:5], return_token_ids=True)
    assert again.frames[0]["choices"][0]["prompt_token_ids"] == prompt + ids[:5]


def test_foreign_ids_begin_a_new_answer(server: SimServer) -> None:
    for prompt in ([1, 2, 3], token_ids(4, 3), [*token_ids(3, 3), 5], token_ids(3, 4, start=1), [True, None, "x"]):
        assert completed(complete(server, prompt)) == WHOLE


def test_ids_are_stable_and_differ() -> None:
    assert [token_id(0, index) for index in range(4)] == token_ids(0, 4)
    assert len(set(token_ids(0, 1000))) > 980
    assert token_ids(0, 3) != token_ids(1, 3)


def test_chat_tells_ids_as_vllm_does(server: SimServer) -> None:
    played = chat(server, said=answer_text(3, 2), return_token_ids=True, **ASKED)
    assert len(played.frames[0]["prompt_token_ids"]) == 3 + 2
    assert played.frames[0]["prompt_token_ids"][3:] == token_ids(3, 2)
    told = [id for frame in played.frames for id in frame["choices"][0].get("token_ids", ())]
    assert told == token_ids(3, TOKENS - 2, 2)
    whole = chat(server, stream=False, return_token_ids=True).json
    assert whole["choices"][0]["token_ids"] == token_ids(3, TOKENS)
    assert len(whole["prompt_token_ids"]) == 3


def test_two_halves_are_one_answer_whatever_the_door(server: SimServer) -> None:
    first = chat(server, sim={"fault": "reset_after=8"}).text
    assert first + chat(server, said=first, **ASKED).text == expected_text(3, TOKENS)
