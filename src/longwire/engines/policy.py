"""Which of several upstreams gets the next request: values in, a value out.

What lives here: the policies, over small frozen records, and the turns that make weights hold.
What must not: upstreams, breakers, clocks, whether one may be chosen at all (directory.py).

Weights are shares in the long run. Whoever counts requests begins with one that is found by weight (whose turn it is, or
chance), and leaves it only for one that would have no more to do with this request than the first has without. So a canary
with a hundredth of the weight gets a hundredth of the requests also where little is under way, and no more where there is much.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

KV_BAND = 0.1
"""Upstreams whose use of their KV caches differs by less count as equal. What they say of it is a second old: were the
least one always taken, all requests of that second would go to it."""
FEW_IN_FLIGHT = 4
"""So many requests an upstream may have whatever the others have, before conversations are sent elsewhere: with a handful
under way, twice the mean means nothing."""
MOST_OF_MEAN = 2.0
"""Beyond this multiple of its share of what is under way, an upstream's conversations go to the next one: the cost of a
prompt that is computed anew against that of a queue."""
_HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy knows of an upstream. ``kv_used`` is None where it is not known, or too old."""

    name: str
    weight: int
    in_flight: int
    kv_used: float | None = None

    @property
    def share(self) -> float:
        """The weight as what requests are divided by; where only upstreams without any are left, they are equal."""
        return float(self.weight or 1)


@dataclass(frozen=True, slots=True)
class Occasion:
    """What else a choice depends on: ``owed`` are the turns of this model's upstreams, ``key`` is the hash of how the
    conversation begins (empty: not known)."""

    owed: Mapping[str, float]
    dice: random.Random
    key: bytes = b""


Candidates = Sequence[Candidate]
"""Never none."""


# Turns.


def whose_turn(candidates: Candidates, owed: Mapping[str, float]) -> Candidate:
    """The one that is owed most, once all are owed their shares of this request; of equals the first."""
    whole = sum(each.share for each in candidates)
    return max(candidates, key=lambda each: owed.get(each.name, 0.0) + each.share / whole)


def take_turn(candidates: Candidates, owed: Mapping[str, float]) -> dict[str, float]:
    """What is owed after this request, whoever served it: the turn is spent. What is owed to others is forgotten.

    Debts stay below one request for each candidate, so that one that was away does not come back to a flood.
    """
    whole = sum(each.share for each in candidates)
    spent = whose_turn(candidates, owed).name
    after = {each.name: owed.get(each.name, 0.0) + each.share / whole for each in candidates}
    after[spent] -= 1.0
    return after


# Policies.


def round_robin(candidates: Candidates, occasion: Occasion) -> Candidate:
    """In turn, by weight."""
    return whose_turn(candidates, occasion.owed)


def least_in_flight(candidates: Candidates, occasion: Occasion) -> Candidate:
    """The one with the fewest requests under way for its weight."""
    first = whose_turn(candidates, occasion.owed)
    return _better(first, min(candidates, key=_load_with_one_more))


def power_of_two(candidates: Candidates, occasion: Occasion) -> Candidate:
    """The better of two taken at random, by weight."""
    if len(candidates) == 1:
        return candidates[0]
    first = _draw(candidates, occasion.dice)
    return _better(first, _draw([each for each in candidates if each is not first], occasion.dice))


def least_kv(candidates: Candidates, occasion: Occasion) -> Candidate:
    """Of those with the least of their KV caches in use, the one with the fewest requests.

    One of which nothing is known gets what it would get without: it is neither shunned nor flooded for being silent.
    """
    chosen = least_in_flight(candidates, occasion)
    if chosen.kv_used is None:
        return chosen
    known = {each.name: each.kv_used for each in candidates if each.kv_used is not None}
    limit = min(known.values()) + KV_BAND
    return least_in_flight([each for each in candidates if known.get(each.name, math.inf) <= limit], occasion)


def prefix(candidates: Candidates, occasion: Occasion) -> Candidate:
    """The same upstream for the same beginning (rendezvous hashing), while that has not too much to do.

    When one comes or goes, only the conversations that are now its own, or were, change places.
    """
    if not occasion.key:
        return least_in_flight(candidates, occasion)
    whole = sum(each.share for each in candidates)
    under_way = sum(each.in_flight for each in candidates)

    def has_room(each: Candidate) -> bool:
        return each.in_flight <= MOST_OF_MEAN * under_way * each.share / whole + FEW_IN_FLIGHT

    in_order = sorted(candidates, key=lambda each: _rendezvous(occasion.key, each), reverse=True)
    return next(each for each in in_order if has_room(each))  # not all can have more than twice their shares


Policy = Callable[[Candidates, Occasion], Candidate]

POLICIES: Mapping[str, Policy] = {
    "round_robin": round_robin,
    "least_in_flight": least_in_flight,
    "power_of_two": power_of_two,
    "least_kv": least_kv,
    "prefix": prefix,
}
"""By their names in the settings."""


# What they are made of.


def _load_with_one_more(each: Candidate) -> float:
    return (each.in_flight + 1) / each.share


def _better(first: Candidate, other: Candidate) -> Candidate:
    """The other one, where even with this request it has no more to do than the first has without."""
    return other if _load_with_one_more(other) <= first.in_flight / first.share else first


def _draw(candidates: Candidates, dice: random.Random) -> Candidate:
    return dice.choices(candidates, [each.share for each in candidates])[0]


def _rendezvous(key: bytes, each: Candidate) -> float:
    """The score of one upstream for one key: it is highest in the share of keys that its weight is of all weights."""
    told = blake2b(key + b"\0" + each.name.encode("utf-8", "surrogateescape"), digest_size=_HASH_BITS // 8).digest()
    point = (int.from_bytes(told) + 0.5) / (1 << _HASH_BITS)
    return -each.share / math.log(point) if point < 1.0 else math.inf
