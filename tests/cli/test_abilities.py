"""What is said of streams, usage and token ids, and which kind follows."""

from __future__ import annotations

import pytest

from longwire.cli.abilities import (
    ASKED,
    NO,
    UNKNOWN,
    WAYS,
    YES,
    Verdict,
    fill,
    judge_continuous,
    judge_ids,
    judge_stream,
    judge_usage,
    suggest_kind,
)
from longwire.engines.kinds import KINDS, Continues

FINAL, PREFILL = WAYS[Continues.FINAL_MESSAGE], WAYS[Continues.PREFILL]


def test_streams() -> None:
    assert judge_stream("text/event-stream", 50, is_ended=True)[1:3] == (YES, "50 events and data: [DONE]")
    assert judge_stream("text/event-stream", 50, is_ended=False).verdict == NO
    assert judge_stream("application/json", 0, is_ended=False).found.startswith("answers application/json")
    assert "without a content type" in judge_stream("", 0, is_ended=False).found


@pytest.mark.parametrize(
    ("unasked", "refused", "asked", "verdict", "found"),
    [
        (False, "", True, YES, "in the last event"),
        (True, "", True, YES, "in the last event, also unasked"),
        (False, "", False, NO, "include_usage is ignored"),
        (False, "400 no", False, NO, "include_usage is refused: 400 no"),
        (True, "400 no", False, YES, "unasked; include_usage is refused: 400 no"),
    ],
)
def test_usage(unasked: bool, refused: str, asked: bool, verdict: str, found: str) -> None:
    assert judge_usage(unasked=unasked, refused=refused, asked=asked)[1:3] == (verdict, found)


def test_usage_in_every_event() -> None:
    assert judge_continuous(refused="", usages=49, events=50).verdict == YES
    assert judge_continuous(refused="", usages=1, events=2).found == "ignored"
    assert judge_continuous(refused="400 no", usages=0, events=0).found == "refused: 400 no"


@pytest.mark.parametrize(
    ("given", "refused", "exact", "cuts", "verdict"),
    [(0, "", 0, 0, NO), (48, "400 no", 0, 4, NO), (48, "", 4, 4, YES), (48, "", 3, 4, NO), (48, "", 0, 0, UNKNOWN)],
)
def test_token_ids(given: int, refused: str, exact: int, cuts: int, verdict: str) -> None:
    assert judge_ids(given=given, refused=refused, exact=exact, cuts=cuts).verdict == verdict


@pytest.mark.parametrize(
    ("looks_like", "verdicts", "kind"),
    [
        ("vllm", {FINAL: YES, "token ids": YES}, "vllm"),
        ("vllm", {FINAL: YES, "token ids": NO}, "vllm"),
        ("vllm", {FINAL: NO, PREFILL: YES}, "openai"),
        ("vllm", {}, "openai"),
        ("llamacpp", {FINAL: NO, PREFILL: YES}, "llamacpp"),
        ("llamacpp", {PREFILL: NO}, "openai"),
        ("sim", {FINAL: YES}, "sim"),
        ("tgi", {FINAL: NO}, "tgi"),
        ("", {FINAL: YES, "token ids": YES}, "vllm"),
        ("", {FINAL: YES, PREFILL: YES}, "sglang"),
        ("", {FINAL: NO, PREFILL: YES}, "llamacpp"),
        ("", {FINAL: NO, PREFILL: NO}, "openai"),
    ],
)
def test_which_kind_follows(looks_like: str, verdicts: dict[str, Verdict], kind: str) -> None:
    suggested, why = suggest_kind(looks_like, verdicts)
    assert suggested == kind
    assert why


@pytest.mark.parametrize("looks_like", ["", *KINDS])
@pytest.mark.parametrize("final", [YES, NO, UNKNOWN])
@pytest.mark.parametrize("prefill", [YES, NO, UNKNOWN])
def test_no_kind_that_promises_a_continuation_that_was_not_seen(
    looks_like: str, final: Verdict, prefill: Verdict
) -> None:
    verdicts = {FINAL: final, PREFILL: prefill}
    row = WAYS.get(KINDS[suggest_kind(looks_like, verdicts)[0]].continues)
    assert row is None or verdicts[row] == YES


def test_what_was_not_come_to_is_unknown() -> None:
    rows = fill({"streams": judge_stream("text/event-stream", 1, is_ended=True)}, "no time was left")
    assert [row.ability for row in rows] == list(ASKED)
    assert {row.verdict for row in rows} == {YES, UNKNOWN}
    assert all(row.found == "no time was left" for row in rows if row.ability != "streams")
