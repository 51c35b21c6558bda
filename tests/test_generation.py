"""The stages of failover, as a client sees them: one answer, byte for byte what an engine that never fails would have said."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.house import Answer, TestHouse, chat, open_house, until

from longwire import generation, secondpart
from longwire.sim.answer import expected_reasoning, expected_text
from longwire.streams.terms import MAX_REREAD_BYTES
from longwire.words.errors import Overloaded
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


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_its_usage_is_told_as_far_as_it_is_known(is_wanted: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if is_wanted else {}
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("no_finish", "continuous_usage", "close_after=13")
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS, **options))
        assert answer.text == expected_text(SEED, TOKENS) and answer.is_marked_done and asked(house) == (1, 0)
        assert (answer.frames[-1]["choices"] == []) == is_wanted
        state = await house.state(answer.stream_id)
        assert state["usage"]["completion_tokens"] == TOKENS and not state["usage_estimated"]


async def test_the_last_of_many_counts_holds_where_the_engine_leaves_behind_its_finish() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with open_house() as house:
        house.sim.fail_next(f"close_after={TOKENS + 2}")  # a role, all tokens, and the finish
        answer = await house.ask(chat(tokens=TOKENS, stream_options=options))
        assert answer.is_marked_done and all(frame["choices"] for frame in answer.frames)
        state = await house.state(answer.stream_id)
        assert state["usage"]["completion_tokens"] == TOKENS and not state["usage_estimated"]


@pytest.mark.parametrize("is_told_all_along", [True, False])
async def test_a_usage_that_was_told_is_not_told_again(is_told_all_along: bool) -> None:
    """Some clients add up what they get."""
    options = {"include_usage": True, "continuous_usage_stats": is_told_all_along}
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("no_finish")
        answer = await house.ask(chat(tokens=TOKENS, max_tokens=TOKENS, stream_options=options))
        assert answer.is_marked_done and asked(house) == (1, 0)
        bills = [frame["usage"]["completion_tokens"] for frame in answer.frames if frame["choices"] == []]
        assert bills == [TOKENS]


@pytest.mark.parametrize(("path", "events"), [("/v1/chat/completions", TOKENS + 1), ("/v1/completions", TOKENS)])
async def test_its_usage_is_told_where_the_prompt_s_ids_were(path: str, events: int) -> None:
    """No engine has told its usage, and none is asked again; but the tokens of both can be counted."""
    body = {"prompt": "hi", **chat(tokens=TOKENS, max_tokens=TOKENS), "stream_options": {"include_usage": True}}
    async with open_house(has_twin=True) as house:
        whole = await house.ask({**body, "return_token_ids": True}, path=path)
        house.sim.fail_next(f"reset_after={events}")
        answer = await house.ask({**body, "return_token_ids": True}, path=path)
        assert answer.text == expected_text(SEED, TOKENS) and answer.is_marked_done and asked(house) == (2, 0)
        told = [frame["usage"] for frame in answer.frames if frame.get("usage")]
        known = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert told == [{name: whole.frames[-1]["usage"][name] for name in known}]
        state = await house.state(answer.stream_id)
        assert state["usage"] == told[0] and not state["usage_estimated"]
        house.sim.fail_next(f"reset_after={events}")
        assert all(frame["choices"] for frame in (await house.ask(body, path=path)).frames), "nothing is made up"


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
        ({"n": 2}, ""),
        ({"response_format": {"type": "json_object"}}, "structure"),
        ({"logprobs": True}, "probabilities"),
    ],
)
async def test_what_cannot_be_gone_on_with_exactly_ends_with_its_reason(
    body: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What has several choices is not even looked at, so that nothing is said of it in the log."""
    caplog.set_level(logging.INFO, "longwire.failover")
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS, **body))
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        assert asked(house) == (1, 0)
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET)
        told = [record.__dict__["fields"]["why"] for record in caplog.records if record.msg == "not_continued"]
        assert len(told) == bool(why) and all(why in each for each in told)


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


# The rest on request.


async def cut(house: TestHouse, how: str, **fields: Any) -> tuple[str, str]:
    """An answer that has ended before it was whole: its stream's id and what it has said."""
    house.sim.fail_next("reset_after=5" if how == "reset" else "stall_after=5")
    if how == "reset":
        answer = await house.ask(chat(tokens=TOKENS, **fields))
        return answer.stream_id, answer.text
    client = await house.connect()
    client.post(chat(tokens=TOKENS, **fields))
    head = await client.head()
    await until(lambda: house.stream(head.stream_id).log.event_count == 5, "it stalls")
    await house.call("DELETE", f"/v1/streams/{head.stream_id}", None)
    answer = await client.rest()
    return answer.stream_id, answer.text


@pytest.mark.parametrize("how", ["reset", "cancelled"])
async def test_a_cut_answer_is_gone_on_with_when_its_client_asks(how: str) -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, said = await cut(house, how, max_tokens=TOKENS)
        rest = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert rest.status == 200 and rest.is_marked_done and rest.in_band_error is None
        assert said + rest.text == expected_text(SEED, TOKENS) and said and rest.text
        assert rest.stream_id != stream_id
        state = await house.state(rest.stream_id)
        assert state["close_reason"] == "completed" and state["model"] == "sim"
        assert (await house.replay(rest.stream_id)).text == rest.text
        again = await house.call("POST", f"/v1/streams/{rest.stream_id}/continue", None)
        assert (again.status, again.error["code"]) == (409, "conflict"), "it is whole"


async def test_the_rest_can_break_too_and_be_gone_on_with_again() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, said = await cut(house, "reset")
        house.sim.fail_next("reset_after=3")
        second = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert second.in_band_error is not None
        third = await house.call("POST", f"/v1/streams/{second.stream_id}/continue", None)
        assert said + second.text + third.text == expected_text(SEED, TOKENS) and third.is_marked_done


async def test_the_rest_is_failed_over_like_any_answer() -> None:
    async with open_house(has_twin=True) as house:
        house.gateway.directory.upstreams[2].is_up = False
        house.gateway.directory.upstreams[0].is_up = False
        stream_id, said = await cut(house, "cancelled")
        for upstream in house.gateway.directory.upstreams:
            upstream.is_up = True
        for fault in ("reset", "status=500", "reset_after=3"):
            house.sim.fail_next(fault)
            rest = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
            assert said + rest.text == expected_text(SEED, TOKENS) and rest.is_marked_done, fault


async def test_what_cannot_be_gone_on_with_says_why() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        whole = await house.ask(chat(tokens=TOKENS))
        refused = await house.call("POST", f"/v1/streams/{whole.stream_id}/continue", None)
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert refused.error["message"] == "This answer is whole."
        assert (await house.call("POST", "/v1/streams/lw_nothing/continue", None)).status == 404
        stream_id, _ = await cut(house, "reset", response_format={"type": "json_object"})
        refused = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert (refused.status, refused.error["code"]) == (409, "cannot_continue")
        assert "structure" in refused.error["message"]


async def test_before_an_engine_of_no_kind_the_kind_is_the_one_cause() -> None:
    async with open_house() as house:
        stream_id, _ = await cut(house, "reset")
        refused = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert (
            refused.error["message"].startswith("Its engine is of no kind") and "whole" not in refused.error["message"]
        )


async def test_the_rest_is_asked_for_in_the_name_of_its_own_request() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS), {"x-request-id": "first"})
        house.sim.fail_next("reset_after=3")
        rest = await house.call("POST", f"/v1/streams/{answer.stream_id}/continue", None, {"x-request-id": "second"})
        last = await house.call("POST", f"/v1/streams/{rest.stream_id}/continue", None, {"x-request-id": "third"})
        assert [each.header("x-request-id") for each in (answer, rest, last)] == ["first", "second", "third"]
        asked = [*house.sim.requests, *house.twin.requests]
        assert sorted(each.get(b"x-request-id") for each in asked) == [b"first", b"second", b"third"]
        assert all([name for name, _ in each.headers].count(b"x-request-id") == 1 for each in asked)


async def test_the_same_key_starts_the_rest_once() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, _ = await cut(house, "reset")
        asked = len(house.sim.requests)
        answers = [
            await house.call("POST", f"/v1/streams/{stream_id}/continue", None, {"idempotency-key": "k"})
            for _ in range(2)
        ]
        assert answers[0].data == answers[1].data and len(house.sim.requests) + len(house.twin.requests) == asked + 1
        assert house.metric("longwire_idempotent_hits_total") == 1


@pytest.mark.parametrize("most", [1, 3])
async def test_the_attempts_at_the_rest_have_an_end_too(most: int) -> None:
    async with open_house(has_twin=True, max_attempts=most) as house:
        stream_id, _ = await cut(house, "cancelled")
        before = sum(asked(house))
        for _ in range(most + 1):
            house.sim.fail_next("reset")
            house.twin.fail_next("reset")
        refused = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert refused.status == 502 and sum(asked(house)) - before == most


async def test_a_large_request_is_asked_of_another_engine_but_not_read_again() -> None:
    async with open_house(has_twin=True, arena_bytes=64 << 20) as house:
        body = chat(tokens=TOKENS, max_tokens=TOKENS) | {
            "messages": [{"role": "user", "content": "x" * (MAX_REREAD_BYTES + 1)}]
        }
        house.sim.fail_next("reset")
        check_whole(await house.ask(body))
        house.sim.fail_next("reset_after=4")
        answer = await house.ask(body)
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        assert answer.in_band_error["continuable"] is False and house.gateway.arena.statistics()["request"] == 0
        refused = await house.call("POST", f"/v1/streams/{answer.stream_id}/continue", None)
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert refused.error["message"] == "Its request is too large to be read again."


async def test_a_fault_of_ours_between_two_engines_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(has_twin=True) as house:
        monkeypatch.setattr(generation, "check_request", lambda *_: 1 / 0)
        house.sim.fail_next("reset_after=4")
        answer = await house.ask(chat(tokens=TOKENS))
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"


# One name, two models.


def offer_two_models_by_one_name(house: TestHouse) -> None:
    for place, own in ((0, "sim"), (2, "another")):
        upstream = house.gateway.directory.upstreams[place]
        upstream._offers, upstream.models = {"chat": own}, (own,)


async def test_no_answer_is_made_of_two_models_where_the_first_is_not_to_be_had_any_more() -> None:
    async with open_house(has_twin=True, breaker_faults=1) as house:
        offer_two_models_by_one_name(house)
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS) | {"model": "chat"})
        assert answer.in_band_error is not None and asked(house) == (1, 0)
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET)


async def test_the_rest_is_asked_of_the_model_that_has_begun() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        offer_two_models_by_one_name(house)
        house.sim.fail_next("reset_after=5")
        answer = await house.ask(chat(tokens=TOKENS) | {"model": "chat"})
        house.gateway.directory.upstreams[0].weight = 0
        house.gateway.directory.upstreams[2].weight = 100
        rest = await house.call("POST", f"/v1/streams/{answer.stream_id}/continue", None)
        assert answer.text + rest.text == expected_text(SEED, TOKENS) and asked(house) == (2, 0)
        house.gateway.directory.upstreams[0].is_up = False
        rest = await house.call("POST", f"/v1/streams/{answer.stream_id}/continue", None)
        assert (rest.status, rest.error["code"]) == (409, "cannot_continue") and asked(house) == (2, 0)


async def test_the_rest_is_asked_for_as_often_as_any_answer() -> None:
    async with open_house(has_twin=True, failover="off", max_attempts=1) as house:
        stream_id, _ = await cut(house, "reset")
        before = sum(asked(house))
        house.sim.fail_next("status=500")
        house.twin.fail_next("status=500")
        assert (await house.call("POST", f"/v1/streams/{stream_id}/continue", None)).status == 502
        assert sum(asked(house)) == before + 1


async def test_a_stream_may_be_forgotten_for_the_sake_of_its_rest() -> None:
    async with open_house(has_twin=True, failover="off", max_streams=1) as house:
        stream_id, said = await cut(house, "reset")
        rest = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
        assert rest.status == 200 and said + rest.text == expected_text(SEED, TOKENS) and rest.is_marked_done
        assert (await house.replay(stream_id)).status == 410


async def test_a_stream_may_be_forgotten_while_it_is_read_for_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, said = await cut(house, "reset")
        monkeypatch.setattr(secondpart, "EVENTS_AT_ONCE", 1)
        client = await house.connect()
        client.request("POST", f"/v1/streams/{stream_id}/continue")
        await until(lambda: len(house.streams) == 2, "the rest is asked for")
        house.gateway.registry.evict(house.stream(stream_id))
        rest = await client.answer()
        assert rest.status == 200 and said + rest.text == expected_text(SEED, TOKENS)


async def test_a_rest_that_is_not_wanted_before_it_is_begun_holds_nothing() -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, _ = await cut(house, "reset")
        log = house.stream(stream_id).log
        client = await house.connect()
        client.request("POST", f"/v1/streams/{stream_id}/continue")
        await until(lambda: len(house.streams) == 2, "the rest is asked for")
        house.streams[1].stop(Reason.CANCELLED, "")
        await client.answer()
        await until(lambda: not log.is_read, "nobody holds it")


async def test_the_rest_is_not_tried_again_where_nothing_is() -> None:
    for failover, status in (("off", 502), ("retry", 200)):
        async with open_house(has_twin=True, failover=failover) as house:
            stream_id, _ = await cut(house, "reset")
            house.sim.fail_next("status=500")
            rest = await house.call("POST", f"/v1/streams/{stream_id}/continue", None)
            assert rest.status == status, failover


async def test_a_rest_that_is_refused_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(has_twin=True, failover="off") as house:
        stream_id, _ = await cut(house, "reset")

        def refuse(*_: object) -> None:
            raise Overloaded("There is no room.", retry_after_s=2)

        monkeypatch.setattr(house.gateway.registry, "open", refuse)
        assert (await house.call("POST", f"/v1/streams/{stream_id}/continue", None)).status == 503
        assert not house.stream(stream_id).log.is_read


async def test_a_request_of_very_many_small_parts_is_not_read_again() -> None:
    async with open_house(has_twin=True) as house:
        house.sim.fail_next("reset_after=4")
        body = chat(tokens=TOKENS) | {"messages": [{"role": "user", "content": "x"}] * 5_000}
        answer = await house.ask(body)
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_reset"
        refused = await house.call("POST", f"/v1/streams/{answer.stream_id}/continue", None)
        assert refused.status == 409 and sum(asked(house)) == 1
