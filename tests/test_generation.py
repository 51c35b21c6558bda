"""The stages of failover, as a client sees them: one answer, byte for byte what an engine that never fails would have said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.house import Answer, TestHouse, chat, open_house

from longwire.sim.answer import expected_reasoning, expected_text
from longwire.words.reasons import CloseReason as Reason

SEED = 3
TOKENS = 12

BEFORE_CONTENT = (
    "reset", "close", "garbage", "half_head", "empty", "status=500", "status=503", "retry_after=3", "html", "reset_after=1",
    "close_after=1", "error_event=0", "reset_inside=0", "wrong_type", "gzip",
)  # fmt: skip
"""Nothing but a role has come. All of them but ``retry_after`` are the engine's own fault."""

AFTER_CONTENT = (
    "reset_after=4", "close_after=5", "half_close_after=6", "reset_inside=7", "close_inside=3", "error_event=5",
    "vllm_error_event=6", "garbage_after=4", "reset_after=2",
)  # fmt: skip


def check_whole(answer: Answer, tokens: int = TOKENS) -> None:
    """One answer with one beginning, one end and one identity."""
    assert answer.status == 200 and answer.in_band_error is None
    assert answer.text == expected_text(SEED, tokens)
    assert answer.is_marked_done
    frames = [frame for frame in answer.frames if frame.get("choices")]
    assert [frame["choices"][0]["delta"].get("role") for frame in frames].count("assistant") == 1
    assert len({(frame["id"], frame["created"], frame["model"]) for frame in answer.frames}) == 1
    assert [frame["choices"][0]["finish_reason"] for frame in frames if frame["choices"][0]["finish_reason"]] == [
        "stop"
    ]


def asked(house: TestHouse) -> tuple[int, int]:
    return len(house.sim.requests), len(house.twin.requests)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", BEFORE_CONTENT)
async def test_before_the_first_content_another_engine_answers_and_nobody_notices(fault: str, stream: bool) -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next(fault)
        answer = await house.ask(chat(stream, tokens=TOKENS, max_tokens=TOKENS))
        if stream:
            check_whole(answer)
        elif fault == "wrong_type" or "_event" in fault or "_after" in fault or "_inside" in fault:
            assert answer.status == 200  # of an answer in one piece some of them are no fault
            return
        else:
            assert answer.json["choices"][0]["message"]["content"] == expected_text(SEED, TOKENS)
        assert asked(house) == (1, 1)
        state = await house.state(answer.stream_id)
        assert (state["engine"], state["epoch"], state["seams"], state["close_reason"]) == ("twin", 1, [], "completed")
        assert house.metric("longwire_failovers_total") == 1 and house.metric("longwire_continuations_total") == 0


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("fault", AFTER_CONTENT)
async def test_after_it_another_engine_goes_on_where_the_first_has_broken_off(fault: str, usage: bool) -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next(fault)
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS, **options))
        check_whole(answer)
        assert asked(house) == (1, 1)
        told = [frame["usage"] for frame in answer.frames if frame.get("usage")]
        whole = {"prompt_tokens": 1, "completion_tokens": TOKENS, "total_tokens": TOKENS + 1}
        assert [{name: each[name] for name in whole} for each in told] == ([whole] if usage else [])
        state = await house.state(answer.stream_id)
        assert (state["engine"], state["epoch"], len(state["seams"])) == ("twin", 2, 1)
        assert state["usage"]["completion_tokens"] == TOKENS and not state["usage_estimated"]
        assert house.metric("longwire_continuations_total") == 1 and house.metric("longwire_failovers_total") == 0
        rest = json.loads(house.twin.requests[-1].body)
        assert rest["messages"][-1]["role"] == "assistant" and rest["max_tokens"] < TOKENS
        replayed = await house.replay(answer.stream_id)
        assert replayed.text == answer.text and len(replayed.data) == len(answer.data)


async def test_an_answer_that_lacks_only_its_end_gets_it() -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("no_finish")
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS))
        assert answer.text == expected_text(SEED, TOKENS) and answer.is_marked_done and asked(house) == (1, 0)
        assert answer.frames[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_finished_answer_is_whole_though_an_error_follows() -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next(f"error_event={1 + TOKENS + 1}")
        check_whole(await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS)))
        assert asked(house) == (1, 0)


async def test_ids_go_on_and_the_epoch_rises_at_the_seam() -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS))
        (seam,) = (await house.state(answer.stream_id))["seams"]
        assert seam == 5
        replayed = await house.replay(answer.stream_id)
        ids = [block.split(b"\n")[0] for block in replayed.blocks if block.startswith(b"id: ")]
        assert ids == [b"id: %d-%d" % (1 if seq < seam else 2, seq) for seq in range(len(ids))]
        for cursor in (f"1-{seam - 1}", f"2-{seam}", f"1-{seam - 2}"):
            rest = await house.replay(answer.stream_id, cursor)
            first = int(cursor[2:]) + 1
            assert rest.data == replayed.data[first:], cursor
        assert (await house.replay(answer.stream_id, "3-4")).status == 400, "there was no third epoch"


async def test_reasoning_goes_on_as_reasoning() -> None:
    async with open_house(has_twin=True) as house:
        for at in (3, 8):
            house.sim.fail_next(f"reset_after={at}")
            answer = await house.ask(chat(tokens=4, reasoning=True, sim={"tokens": 4, "reasoning": True}))
            frames = [frame["choices"][0]["delta"] for frame in answer.frames if frame.get("choices")]
            thought = "".join(frame.get("reasoning_content") or "" for frame in frames)
            assert (thought, answer.text) == (expected_reasoning(SEED, 4), expected_text(SEED, 4)), at
            assert answer.is_marked_done


@pytest.mark.parametrize("at", range(2, 6))
async def test_a_stop_string_over_the_seam_stops(at: int) -> None:
    text = expected_text(SEED, TOKENS)
    middle = text[20:32]
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("no_hold_back", f"reset_after={at}")
        answer = await house.ask(chat(tokens=TOKENS, stop=[middle]))
        sent = expected_text(SEED, at - 1)  # what had been sent of it cannot be taken back
        assert answer.text == max(text[:20], sent, key=len) and answer.is_marked_done
        finishes = [frame["choices"][0]["finish_reason"] for frame in answer.frames if frame.get("choices")]
        assert finishes[-1] == "stop" and finishes.count("stop") == 1


async def test_an_answer_can_break_more_than_once() -> None:
    async with open_house(has_twin=True, max_attempts=5) as house:
        house.sim.fail_next("reset_after=3")
        house.twin.fail_next("reset_after=4")
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS))
        check_whole(answer)
        state = await house.state(answer.stream_id)
        assert state["epoch"] == 3 and len(state["seams"]) == 2


async def test_no_other_model_of_the_same_alias_goes_on_where_the_first_engine_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_house(has_twin=True, breaker_faults=1) as house:
        (twin,) = (each for each in house.gateway.directory.upstreams if each.name == "twin")
        monkeypatch.setattr(twin, "_offers", {"sim": "other"})
        monkeypatch.setattr(twin, "_known", {"other"})
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS))
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        assert asked(house) == (1, 0)


async def test_attempts_have_an_end() -> None:
    async with open_house(has_twin=True, max_attempts=3) as house:
        for _ in range(3):
            house.sim.fail_next("reset")
            house.twin.fail_next("reset")
        answer = await house.ask(chat(tokens=TOKENS))
        assert answer.status == 502 and sum(asked(house)) <= 3


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"n": 2}, "choices"),
        ({"response_format": {"type": "json_object"}}, "structure"),
        ({"logprobs": True}, "probabilities"),
    ],
)
async def test_what_cannot_be_gone_on_with_exactly_ends_with_its_reason(body: dict[str, Any], why: str) -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS, **body))
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        assert asked(house) == (1, 0)
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET)


@pytest.mark.parametrize(
    ("failover", "status", "is_whole"), [("off", 502, False), ("retry", 200, False), ("continue", 200, True)]
)
async def test_the_setting_says_what_is_tried(failover: str, status: int, is_whole: bool) -> None:
    async with open_house(has_twin=True, failover=failover) as house:
        house.sim.fail_next("reset")
        assert (await house.ask(chat(tokens=TOKENS))).status == status
        house.sim.fail_next("reset_after=4")
        answer = await house.ask(chat(tokens=TOKENS))
        assert (answer.in_band_error is None) == is_whole


async def test_retries_are_bounded_by_a_budget() -> None:
    async with open_house(has_twin=True, retry_budget_floor=2, retry_budget_percent=0, breaker_faults=1000) as house:
        statuses = []
        for _ in range(5):
            house.sim.fail_next("reset")
            statuses.append((await house.ask(chat())).status)
        assert statuses == [200, 200, 502, 502, 502]
        assert house.metric("longwire_retries_refused_total") == 3


async def test_a_client_s_own_mistakes_are_not_tried_again() -> None:
    async with open_house(has_twin=True) as house:
        for status in (400, 401, 404, 413, 422):
            house.sim.fail_next(f"status={status}")
            assert (await house.ask(chat())).status == status
        assert asked(house) == (5, 0)


async def test_text_completions_are_gone_on_with_by_token_ids() -> None:
    async with open_house(has_twin=True) as house:
        for options in ({}, {"return_token_ids": True}):
            house.sim.fail_next("reset_after=5")
            body = {
                "model": "sim",
                "prompt": "hi",
                "stream": True,
                "max_tokens": TOKENS,
                "sim": {"tokens": TOKENS},
                **options,
            }
            answer = await house.ask(body, path="/v1/completions")
            assert answer.text == expected_text(SEED, TOKENS) and answer.is_marked_done, options
