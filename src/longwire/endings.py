"""How the end of an engine's answer is told of its stream: its usage, its refusal, and an end that is all it lacks.

What lives here: functions over a stream that is about to end. What must not: whether it ends (generation.py).
"""

from __future__ import annotations

from typing import Any, TypeGuard

from .engines.base import Failure
from .engines.exchange import DONE_BLOCK
from .engines.occupancy import Occupancy, Wanted
from .engines.openai import completion_tokens, most_usage, usage_of_body, usage_of_event
from .engines.said import Said
from .engines.seam import finish_event, usage_event
from .engines.usage import usage_so_far
from .streams.stream import EndingWords, Kind, Refusal, Stream
from .words.reasons import CloseReason

USAGE_LOOK_BACK = 4
"""Of a stream's last events, so many are searched for usage at its end, and none before: engines that count as they go say it
in each event, others in one of the last."""
USAGE_LOOK_BACK_BYTES = 8 * 1024
MAX_TOLD_TOKENS = 1 << 32
"""Of a prompt or an answer. What an engine tells beyond it is no number of tokens."""
MAX_COUNTED_BODY_BYTES = 256 * 1024
"""A JSON answer that is larger is not parsed for its usage: that would hold up all streams (embeddings reach megabytes)."""


def count_usage(stream: Stream, told: dict[str, Any] | None, tokenless: int, *, is_whole: bool) -> None:
    """Note what the answer has used: by the engine's own count (``told`` outside of its events), and estimated from its events,
    of which ``tokenless`` carried no token."""
    facts, log = stream.facts, stream.log
    estimated = max(0, len(log.entries) - len(log.silent) - tokenless)
    if stream.kind is Kind.EVENTS:
        # Of an engine that counts as it goes, the watch has seen the first count, and none of an ordinary delta.
        is_told = is_whole and told is not None and completion_tokens(told) >= estimated
        may_tell = not is_told and _speaks_of_usage(stream)
        count = len(log.entries)  # what came together with the end is not deliverable yet
        last = range(max(0, count - USAGE_LOOK_BACK), count) if may_tell else ()
        facts.usage = most_usage([told, *(usage_of_event(log.block(position)) for position in last)])
    elif log.bytes_held <= MAX_COUNTED_BODY_BYTES:
        facts.usage = usage_of_body(log.body())
    facts.tokens_estimated = estimated


def note_lengths(stream: Stream, wanted: Wanted, occupancy: Occupancy) -> None:
    """A whole answer is there: let its upstream's account know how long it was, and its prompt. What is relayed may be no text,
    and of a rest the prompt is another."""
    facts, choices = stream.facts, max(1, wanted.choices)
    if facts.route == "relay" or facts.continues:
        return
    usage = facts.usage or {}
    tokens = usage.get("completion_tokens", facts.tokens_estimated if stream.kind is Kind.EVENTS else None)
    if _is_length(tokens):
        occupancy.note_answer(-(-wanted.answer_tokens // choices), tokens // choices)
    if _is_length(prompt_tokens := usage.get("prompt_tokens")):
        occupancy.note_prompt(wanted.prompt_tokens, prompt_tokens)


def _is_length(tokens: object) -> TypeGuard[int]:
    """Whether an engine has told a number of tokens that may be one."""
    return isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= MAX_TOLD_TOKENS


def _speaks_of_usage(stream: Stream) -> bool:
    """Whether the answer's last bytes do: to look at its events one by one costs something for each of them."""
    log = stream.log
    chain = log.records if log.seams and log.records is not None else log.upstream
    tail = min(chain.end, USAGE_LOOK_BACK_BYTES)
    return b'"usage"' in chain.read(chain.end - tail, tail)


def refusal_for(failure: Failure, message: str, ending: EndingWords) -> Refusal | None:
    """The engine's own error, faithfully: a 4xx as it is, a 5xx as 502 with the engine's words. None: as its reason says."""
    if failure.reason is CloseReason.UPSTREAM_REFUSED:
        return Refusal(failure.status, failure.body, failure.content_type or b"text/plain", failure.headers)
    if failure.reason is CloseReason.UPSTREAM_FAILED:
        body = ending.error_body(failure.reason, message)
        status = 503 if failure.status == 503 else 502
        return Refusal(status, body, headers=failure.headers)
    if failure.status:
        body = ending.error_body(failure.reason, message)
        return Refusal(failure.status if failure.status < 500 else 502, body)
    return None


def end_finished(stream: Stream, said: Said) -> None:
    """All of it was said when it broke: at most the end marker is missing."""
    used = usage_so_far(said)  # before anything is said: a fault behind the end marker would make two ends
    if not said.is_done:
        stream.append_said(DONE_BLOCK)
    _end_whole(stream, said, used)


def end_by_length(stream: Stream, said: Said, *, is_chat: bool) -> None:
    """As many tokens were said as were asked for: what is missing is the end alone."""
    used = usage_so_far(said)
    is_to_be_told = not stream.facts.hides_usage and (said.tokens_since_usage > 0 or not said.is_billed)
    blocks = [finish_event(said, "length", is_chat=is_chat)]
    if used is not None and is_to_be_told:
        blocks.append(usage_event(said, used, is_chat=is_chat))
    for block in [*blocks, DONE_BLOCK]:
        stream.append_said(block)
    _end_whole(stream, said, used)


def _end_whole(stream: Stream, said: Said, used: dict[str, Any] | None) -> None:
    stream.facts.tokens_estimated, stream.facts.usage = said.tokens, used
    stream.end(CloseReason.COMPLETED)
