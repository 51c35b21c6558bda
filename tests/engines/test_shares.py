"""What is kept free of an engine for tenants with less than their share: enough for them, and nothing where nobody floods."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.admission.fairqueue import FairQueue
from longwire.engines.room import NOTHING, Bounds, Need, fits
from longwire.engines.shares import KEPT_OF_CACHE, MOST_KEPT, RECENT_S, Sharers, is_much, left_to

ONE = Need(1.0, 100.0, 100.0)
TENANTS = st.integers(1, 50)
WEIGHTS = st.floats(0, 1000)
BOUNDS = st.builds(Bounds, st.none() | st.floats(1, 1000), st.none() | st.floats(1, 1e7))
NEEDS = st.builds(Need, st.floats(1, 50), st.floats(0, 1e5), st.floats(0, 1e5))


@given(BOUNDS, NEEDS, NEEDS, TENANTS)
def test_a_little_is_kept_at_most(bounds: Bounds, own: Need, need: Need, tenants: int) -> None:
    left = left_to(bounds, own, need, tenants)
    assert (left.limit is None) == (bounds.limit is None)
    assert (left.capacity_tokens is None) == (bounds.capacity_tokens is None)
    if bounds.limit is not None and left.limit is not None:
        assert bounds.limit * (1 - MOST_KEPT) <= left.limit <= bounds.limit
    if bounds.capacity_tokens is not None and left.capacity_tokens is not None:
        assert bounds.capacity_tokens * (1 - KEPT_OF_CACHE) <= left.capacity_tokens <= bounds.capacity_tokens


@given(BOUNDS, NEEDS, NEEDS)
def test_nothing_is_kept_where_a_tenant_is_alone(bounds: Bounds, own: Need, need: Need) -> None:
    assert left_to(bounds, own, need, 1) == bounds


@given(BOUNDS, NEEDS, TENANTS)
def test_a_large_request_of_who_has_nothing_there_has_all_of_it(bounds: Bounds, need: Need, tenants: int) -> None:
    """Passed over again and again for its size, it would wait until its deadline."""
    assert left_to(bounds, NOTHING, need, tenants) == bounds


@given(st.integers(2, 50), st.floats(0.1, 1000))
def test_those_who_have_as_much_as_each_other_fill_an_engine(tenants: int, whole: float) -> None:
    assert not is_much(whole / tenants, whole, tenants)
    assert is_much(whole, whole, tenants), "and one of them alone does not"


@pytest.mark.parametrize(("limit", "kept"), [(1, 0), (7.9, 0), (8, 1), (16, 2), (64, 6), (100, 7), (640, 18)])
def test_how_much_is_kept(limit: float, kept: int) -> None:
    assert left_to(Bounds(limit), Need(limit, 0.0, 0.0), ONE, 2) == Bounds(limit - kept)


def test_a_cache_has_a_part_that_is_kept_too() -> None:
    bounds = Bounds(None, 16_000.0)
    assert left_to(bounds, Need(1.0, 6000.0, 6000.0), ONE, 2).capacity_tokens == 15_000.0
    assert left_to(bounds, Need(1.0, 6000.0, 3000.0), ONE, 2) == bounds


# Who shares.


@given(st.lists(st.tuples(st.sampled_from("abc"), NEEDS), max_size=40), st.randoms(use_true_random=False))
def test_what_came_and_left_leaves_nothing(requests: list[tuple[str, Need]], dice: random.Random) -> None:
    sharers = Sharers()
    for tenant, need in requests:
        sharers.enter(tenant, need)
    assert sharers.statistics()["holding"] == len({tenant for tenant, _ in requests})
    dice.shuffle(requests)
    for number, (tenant, need) in enumerate(requests):
        sharers.leave(tenant, need)
        rest = sum(each.weight for other, each in requests[number + 1 :] if other == tenant)
        assert sharers.held_by(tenant).weight == pytest.approx(rest, abs=1e-6)
    assert sharers.held_by("a") == NOTHING and sharers.statistics()["holding"] == 0


def test_who_has_not_asked_for_long_is_forgotten() -> None:
    sharers = Sharers()
    assert [sharers.note_asked(tenant, 0.0) for tenant in "aab"] == [1, 1, 2]
    assert sharers.note_asked("a", RECENT_S) == 2
    assert sharers.note_asked("c", RECENT_S + 1) == 2, "b has gone"
    assert sharers.note_asked("c", 10 * RECENT_S) == 1
    assert repr(sharers) == "<Sharers 0 with requests, 1 seen>"


# What it is for.


def waits(limit: int, *, floods: bool, keeps: bool) -> list[float]:
    """How long the requests of nine tenants wait that use half of their shares, in answers; a tenth floods or is not there."""
    dice = random.Random(3)
    share = limit / 10
    coming = sorted((each, f"quiet{tenant}") for tenant in range(9) for each in poisson(dice, share / 2, 40.0))
    sharers, queue = Sharers(), FairQueue[tuple[str, float]](10_000, 10_000)
    ends: list[tuple[float, str]] = []
    waited: list[float] = []

    def serve(now: float) -> None:
        passed_over: list[str] = []
        while (entry := queue.peek(passed_over)) is not None and len(ends) < limit:
            tenant, came = entry.item
            held = Need(float(len(ends)), 0.0, 0.0)
            bounds = Bounds(float(limit))
            if not fits(ONE, held, left_to(bounds, sharers.held_by(tenant), ONE, 10) if keeps else bounds):
                passed_over.append(tenant)
                continue
            queue.pop(passed_over)
            sharers.enter(tenant, ONE)
            heapq.heappush(ends, (now + dice.uniform(0.5, 1.5), tenant))
            if tenant != "greedy":
                waited.append(now - came)

    while coming or ends:
        if floods and queue.waiting_of("greedy") < 5 and coming:
            queue.push(("greedy", 0.0), "greedy", 200, 1e9)
            continue
        if coming and (not ends or coming[0][0] < ends[0][0]):
            now, tenant = coming.pop(0)
            queue.push((tenant, now), tenant, 200, 1e9)
        else:
            now, tenant = heapq.heappop(ends)
            sharers.leave(tenant, ONE)
        serve(now)
    return sorted(waited)


def poisson(dice: random.Random, rate: float, until: float) -> list[float]:
    found = [dice.expovariate(rate)]
    while found[-1] < until:
        found.append(found[-1] + dice.expovariate(rate))
    return found[:-1]


def p99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)]


@pytest.mark.parametrize(("limit", "most", "before"), [(16, 0.35, 0.4), (64, 0.03, 0.1)])
def test_others_hardly_wait_for_one_that_floods(limit: int, most: float, before: float) -> None:
    assert p99(waits(limit, floods=False, keeps=True)) == 0.0
    assert p99(waits(limit, floods=True, keeps=True)) <= most < before <= p99(waits(limit, floods=True, keeps=False))
