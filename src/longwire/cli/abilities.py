"""What an engine can do, as rows of ``longwire check --engine``, and which kind of engine follows from them.

What lives here: the shape of a row, and the judgement of stream, usage, token ids and kind over what was seen.
What must not: requests (asking.py), their order (interview.py), seams (seams.py), load (gauges.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from longwire.engines.kinds import KINDS, Continues

Verdict = Literal["yes", "no", "unknown"]
YES: Verdict = "yes"
NO: Verdict = "no"
UNKNOWN: Verdict = "unknown"


class Ability(NamedTuple):
    """One row: what was asked about, the verdict, what was found, and by which means."""

    ability: str
    verdict: Verdict
    found: str
    how: str


class Judgement(NamedTuple):
    """All that was found out about one engine and one model."""

    answers: bool
    model: str
    abilities: list[Ability]
    kind: str
    why: str


ASKED: Mapping[str, str] = {
    "answers": "GET /v1/models",
    "streams": "a greedy answer with stream: true",
    "usage in stream": "stream_options.include_usage",
    "usage in every event": "stream_options.continuous_usage_stats",
    "same answer twice": "temperature 0 and a fixed seed, asked twice",
    "continues, final_message": "cut answer last, continue_final_message: true, add_generation_prompt: false",
    "continues, prefill": "cut answer last, and nothing else",
    "continues, completions": "/v1/completions, the prompt and the cut answer",
    "token ids": "return_token_ids, then /v1/completions with ids as its prompt",
    "stops when left": "a long answer, left after a few events, watched by the engine's own metrics",
    "metrics": "GET /metrics and /slots",
}
"""Every row, in the order in which they are shown, and how it is found out."""

WAYS: Mapping[Continues, str] = {
    Continues.FINAL_MESSAGE: "continues, final_message",
    Continues.PREFILL: "continues, prefill",
}
"""The rows that a kind declares something about."""


def ability(name: str, verdict: Verdict, found: str) -> Ability:
    """The row of that name."""
    return Ability(name, verdict, found, ASKED[name])


def fill(found: Mapping[str, Ability], why: str) -> list[Ability]:
    """All rows in their order; what was not come to is unknown, and says why."""
    return [found.get(name) or ability(name, UNKNOWN, why) for name in ASKED]


# Streams and usage.


def judge_stream(content_type: str, events: int, *, is_ended: bool) -> Ability:
    """Whether an answer came as server-sent events with the end marker behind them."""
    if not content_type.startswith("text/event-stream"):
        return ability(
            "streams", NO, f"answers {content_type or 'without a content type'} instead of text/event-stream"
        )
    if not is_ended:
        return ability("streams", NO, f"{events} events, and no data: [DONE] at the end")
    return ability("streams", YES, f"{events} events and data: [DONE]")


def judge_usage(*, unasked: bool, refused: str, asked: bool) -> Ability:
    """``unasked``: a plain stream had it. ``refused``: the engine's words where it refuses to be asked for it."""
    name = "usage in stream"
    if asked:
        return ability(name, YES, "in the last event" + (", also unasked" if unasked else ""))
    if refused:
        return ability(
            name, YES if unasked else NO, f"{'unasked; ' if unasked else ''}include_usage is refused: {refused}"
        )
    return ability(name, NO, "include_usage is ignored")


def judge_continuous(*, refused: str, usages: int, events: int) -> Ability:
    """Whether most events carry the tokens so far."""
    name = "usage in every event"
    if refused:
        return ability(name, NO, f"refused: {refused}")
    if usages > max(1, events // 2):
        return ability(name, YES, f"in {usages} of {events} events")
    return ability(name, NO, "ignored")


def judge_ids(*, given: int, refused: str, exact: int, cuts: int) -> Ability:
    """``given``: ids that came with the answer; ``exact``: cuts by ids that were gone on with to the letter."""
    name = "token ids"
    if not given:
        return ability(name, NO, "none are given")
    if refused:
        return ability(name, NO, f"given; as a prompt refused: {refused}")
    if not cuts:
        return ability(name, UNKNOWN, "given, but the answer is too short to cut")
    if exact < cuts:
        return ability(name, NO, f"given and taken, identical in {exact} of {cuts} cuts")
    return ability(name, YES, f"given and taken, identical in {exact} of {cuts} cuts")


# Which kind.


def suggest_kind(looks_like: str, verdicts: Mapping[str, Verdict]) -> tuple[str, str]:
    """The kind to set, and why. A kind that promises a continuation which was not seen is never suggested.

    Token ids that are not given do no harm (there is then nothing to go on by), nor do metrics that are not there (what is
    unknown is not believed); a continuation that begins anew puts two answers into one.
    """
    if looks_like:
        promised = KINDS[looks_like].continues
        row = WAYS.get(promised, "")
        if not row or verdicts.get(row) == YES:
            return looks_like, f"it looks like {looks_like} and does what is assumed of that"
        if verdicts.get(row, UNKNOWN) == UNKNOWN:
            return (
                "openai",
                f'it looks like {looks_like}, but could not be asked to go on; kind = "{looks_like}" if you know',
            )
        return "openai", f"it looks like {looks_like}, but does not go on as that does ({row.partition(', ')[2]})"
    if verdicts.get(WAYS[Continues.FINAL_MESSAGE]) == YES:
        kind = "vllm" if verdicts.get("token ids") == YES else "sglang"
        return kind, f"it goes on as {kind} does; what kind it is does not show, so its load may stay unknown"
    if verdicts.get(WAYS[Continues.PREFILL]) == YES:
        return "llamacpp", "it goes on as llama.cpp does; what kind it is does not show, so its load may stay unknown"
    return "openai", "no continuation was seen, so nothing is assumed"
