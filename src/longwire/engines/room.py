"""Whether a request fits into an engine now: what it needs, what is left, and what an answer without a bound is given.

What lives here: a request's need in weight and in tokens, reservation against the KV cache, the expected length of answers,
and the clamp. What must not: what an engine's load means (saturation.py), who waits meanwhile (the admission room).

Two bounds hold at once. The *limit* is one of concurrency, where the operator has set one or saturation has taught one; a
request with a long prompt counts as several. The *cache* is a number of tokens, where the engine tells one: prompt and answer
of every request under way are reserved in it before the request is sent, because what a running request will still need
shows in no reading, and 256 requests that arrive at once are all sent before the first reading.

What is reserved for an answer is what it may have at most, until enough answers were seen: then it is what answers take, with
a margin. Clients declare 4,096 tokens and take 300; to keep room for what nobody takes would leave most of an engine idle.

A request is admitted whatever it needs where nothing else is under way: whether it fits at all is for the engine to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, sqrt

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
    """What one request takes: weight of the limit, and tokens of the cache."""

    weight: float
    tokens: float


NOTHING = Need(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Answers:
    """How long answers were, lately: a mean, the mean square of what they differ by, and how many were seen."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    def expected(self, declared_tokens: int) -> float:
        """What is to be kept for an answer that may have so many tokens (0: no bound)."""
        bound = float(declared_tokens or UNBOUND_ANSWER_TOKENS)
        if self.seen < BELIEVED_ANSWERS:
            return bound
        likely = self.mean + MARGIN * sqrt(self.variance)
        return min(bound, likely) if declared_tokens else likely


def note_answer(old: Answers, tokens: int) -> Answers:
    """What is known after one more answer, of which all was wanted and all came."""
    share = max(MEMORY, 1.0 / (old.seen + 1))
    difference = tokens - old.mean
    mean = old.mean + share * difference
    variance = (1.0 - share) * (old.variance + share * difference * difference)
    return Answers(mean, variance, old.seen + 1)


def need_of(prompt_tokens: int, answer_tokens: int, answers: Answers, choices: int = 1) -> Need:
    """What a request needs. ``answer_tokens`` is the most that all its answers together may have; 0: no bound."""
    weight = max(1.0, prompt_tokens / PROMPT_WEIGHT_TOKENS)
    each = -(-answer_tokens // choices)
    return Need(weight, prompt_tokens + choices * answers.expected(each))


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


def fits(need: Need, held: Need, bounds: Bounds) -> bool:
    """Whether a request may be sent while others hold what they hold."""
    if held.weight <= 0.0:
        return True
    if bounds.limit is not None and held.weight + need.weight > bounds.limit:
        return False
    return bounds.capacity_tokens is None or held.tokens + need.tokens <= bounds.capacity_tokens


def added(held: Need, need: Need) -> Need:
    """With one more request under way."""
    return Need(held.weight + need.weight, held.tokens + need.tokens)


def taken_off(held: Need, need: Need, left: int) -> Need:
    """With one fewer, of which ``left`` remain. Where none does, what rounding has left is nothing, too."""
    if left <= 0:
        return NOTHING
    return Need(max(0.0, held.weight - need.weight), max(0.0, held.tokens - need.tokens))


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
