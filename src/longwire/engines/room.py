"""Whether a request fits into an engine now: what it needs, what is left, and what an answer without a bound is given.

What lives here: a request's need in weight and in tokens, reservation against the KV cache, the expected length of answers,
and the clamp. What must not: what an engine's load means (saturation.py), who waits meanwhile (the admission room).

Two bounds hold at once. The *limit* is one of concurrency, where the operator has set one or saturation has taught one; a
request with a long prompt counts as several. The *cache* is a number of tokens, where the engine tells one: prompt and answer
of every request under way are reserved in it before the request is sent, because what a running request will still need
shows in no reading, and 256 requests that arrive at once are all sent before the first reading.

Requests that are at different places in their answers do not need all of it at the same moment: when the longest has come to
its end, the others have long given theirs back. So where the plain sum does not fit, the peak is reckoned: the cache is
fullest just before some answer ends, and what is held at each of these moments is known. Requests that began together need
the sum; those that came one after the other need as little as their prompts and half of their answers.

What is reserved for an answer is what it may have at most, until enough answers were seen: then it is what answers take of
that, with a margin. Clients declare 4,096 tokens and take 300; to keep room for what nobody takes would leave most of an engine
idle.

A request is admitted whatever it needs where nothing else is under way: whether it fits at all is for the engine to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, sqrt
from typing import NamedTuple

BLOCK_SLACK_TOKENS = 8
"""A cache is given out in blocks, mostly of 16 tokens, and the last of each request's is half empty on average."""
OVERDUE_SHARE = 0.125
"""Of what an answer has, so much more is expected of one that is longer than was expected: long ones are longer still."""
MAX_REQUESTS_RECKONED = 1024
"""With more under way in one shard than this, sorting them takes longer than is spent on a request: then the sum holds."""
PROMPT_WEIGHT_TOKENS = 2048
"""A prompt of so many tokens is one step's work of a common prefill budget; longer ones count as several requests."""
UNBOUND_ANSWER_TOKENS = 1024
"""Kept for an answer without a bound while too few were seen: the median chat answer is shorter, few are longer."""
BELIEVED_ANSWERS = 32
"""Before so many have ended, those that did are the short ones."""
MEMORY = 1 / 64
"""Weight of the newest answer: the last two hundred count."""
MARGIN = 3.0
"""Deviations that are reserved above the mean."""
LEAST_CLAMP_TOKENS = 256
"""No answer is clamped to less: a sentence cut in its middle is worth less than a refusal."""
CLAMP_HEADER = b"longwire-max-tokens"


@dataclass(frozen=True, slots=True)
class Need:
    """What one request takes, or several take together: weight of the limit, and tokens of the cache."""

    weight: float
    prompt_tokens: float
    answer_tokens: float

    @property
    def tokens(self) -> float:
        """What it holds in the end."""
        return self.prompt_tokens + self.answer_tokens


class Holding(NamedTuple):
    """What a request under way holds of the cache now, and what it will still take until its end."""

    held_tokens: float
    left_tokens: float


NOTHING = Need(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure as it was lately: its mean, the mean square of what it differs by, and how often it was seen."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    def noted(self, value: float) -> Spread:
        """With one more."""
        share = max(MEMORY, 1.0 / (self.seen + 1))
        difference = value - self.mean
        variance = (1.0 - share) * (self.variance + share * difference * difference)
        return Spread(self.mean + share * difference, variance, self.seen + 1)

    def likely(self, among: int) -> float:
        """What the mean of so many will hardly exceed."""
        return self.mean + MARGIN * sqrt(self.variance / max(1, among))


@dataclass(frozen=True, slots=True)
class Answers:
    """How long answers were, lately: as a share of what was declared, and in tokens where nothing was."""

    shares: Spread = Spread()
    lengths: Spread = Spread()

    def expected(self, declared_tokens: int, among: int = 1) -> float:
        """What is to be kept for an answer that may have so many tokens (0: no bound), beside others: of ``among`` answers some
        are longer and some are shorter, so that the margin of each is smaller by the root of their number."""
        if declared_tokens:
            is_known = self.shares.seen >= BELIEVED_ANSWERS
            return declared_tokens * (min(1.0, self.shares.likely(among)) if is_known else 1.0)
        return self.lengths.likely(among) if self.lengths.seen >= BELIEVED_ANSWERS else float(UNBOUND_ANSWER_TOKENS)


def note_answer(old: Answers, declared_tokens: int, tokens: int) -> Answers:
    """What is known after one more answer, of which all was wanted and all came."""
    if declared_tokens:
        return replace(old, shares=old.shares.noted(min(1.0, tokens / declared_tokens)))
    return replace(old, lengths=old.lengths.noted(float(tokens)))


def need_of(prompt_tokens: int, answer_tokens: int, choices: int, answers: Answers, among: int = 1) -> Need:
    """What a request needs beside others, of which there are ``among`` with it. ``answer_tokens`` is the most that all its
    answers together may have; 0: no bound."""
    weight = max(1.0, prompt_tokens / PROMPT_WEIGHT_TOKENS)
    each = -(-answer_tokens // choices)
    return Need(weight, prompt_tokens + BLOCK_SLACK_TOKENS, choices * answers.expected(each, among * choices))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds an upstream now. None: nothing does."""

    limit: float | None = None
    capacity_tokens: float | None = None


def bounds_of(
    operator_limit: int, learned_limit: float | None, capacity_tokens: float | None, kv_share: float = 1.0
) -> Bounds:
    """The tighter limit of the operator's (0: none) and the learned one, and what may be reserved of the cache here."""
    given = [float(operator_limit)] if operator_limit else []
    limits = given if learned_limit is None else [*given, learned_limit]
    reserved = (capacity_tokens or 0.0) * kv_share
    return Bounds(min(limits, default=None), reserved if reserved > 0.0 and isfinite(reserved) else None)


def fits(need: Need, held: Need, bounds: Bounds, running: Callable[[], Sequence[Holding]] = list) -> bool:
    """Whether a request may be sent while others hold what they hold. ``running`` says how far each of them is; it is asked
    only where it matters."""
    if held.weight <= 0.0:
        return True
    if bounds.limit is not None and held.weight + need.weight > bounds.limit:
        return False
    if bounds.capacity_tokens is None or held.tokens + need.tokens <= bounds.capacity_tokens:
        return True
    holdings = running()
    if not 0 < len(holdings) <= MAX_REQUESTS_RECKONED:
        return False
    return peak_tokens([*holdings, Holding(need.prompt_tokens, need.answer_tokens)]) <= bounds.capacity_tokens


def peak_tokens(holdings: Iterable[Holding]) -> float:
    """The most that these will hold at once, if all go on at the same pace and nothing is added.

    It is reached just before one of them ends: those that have more left have grown by as much as it had left.
    """
    most = held = 0.0
    for count, each in enumerate(sorted(holdings, key=lambda each: -each.left_tokens), start=1):
        held += each.held_tokens
        most = max(most, held + count * each.left_tokens)
    return most


def holding_of(need: Need, answered_tokens: int) -> Holding:
    """Where a request is that has so much of its answer."""
    overdue = max(BLOCK_SLACK_TOKENS, OVERDUE_SHARE * answered_tokens)
    left = need.answer_tokens - answered_tokens
    return Holding(need.prompt_tokens + answered_tokens, left if left > 0 else overdue)


def added(held: Need, need: Need) -> Need:
    """With one more request under way."""
    return Need(
        held.weight + need.weight, held.prompt_tokens + need.prompt_tokens, held.answer_tokens + need.answer_tokens
    )


def taken_off(held: Need, need: Need, left: int) -> Need:
    """With one fewer, of which ``left`` remain. Where none does, what rounding has left is nothing, too."""
    if left <= 0:
        return NOTHING
    return Need(
        max(0.0, held.weight - need.weight),
        max(0.0, held.prompt_tokens - need.prompt_tokens),
        max(0.0, held.answer_tokens - need.answer_tokens),
    )


def find_clamp(answer_tokens: int, answers: Answers, bounds: Bounds, *, may_clamp: bool) -> int | None:
    """The bound that an answer is given which has none: what is reserved for it, so that the reserve holds. None: it is left
    as it is.

    ``may_clamp`` is for the caller to say: the engine is saturated, and nobody has opted out. A bound of the client's own is
    never touched, whatever it is.
    """
    if answer_tokens or not may_clamp or bounds.capacity_tokens is None:
        return None
    return max(LEAST_CLAMP_TOKENS, ceil(answers.expected(0)))


def clamp_header(clamped_tokens: int | None) -> list[tuple[bytes, bytes]]:
    """What tells the client of a clamp."""
    return [] if clamped_tokens is None else [(CLAMP_HEADER, b"%d" % clamped_tokens)]
