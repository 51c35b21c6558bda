"""The queue is fair in tokens, starves nobody, ends on time, and forgets who leaves."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from longwire.admission import fairqueue
from longwire.admission.fairqueue import (
    LEAST_COST_TOKENS,
    MAX_QUANTA,
    QUANTUM_TOKENS,
    SPARE_TICKS,
    TICK_S,
    Entry,
    FairQueue,
    Full,
)

LATE = 1e6
MOST = 4096
costs = st.integers(LEAST_COST_TOKENS, MOST)


def queue_of(max_entries: int = 10_000, max_per_tenant: int = 10_000) -> FairQueue[str]:
    return FairQueue(max_entries, max_per_tenant)


def put(queue: FairQueue[str], tenant: str, cost: int = 500, deadline: float = LATE, weight: float = 1.0) -> Entry[str]:
    entry = queue.push(tenant, tenant, cost, deadline, weight)
    assert isinstance(entry, Entry)
    return entry


def served(queue: FairQueue[str], count: int) -> list[Entry[str]]:
    found = [queue.pop() for _ in range(count)]
    assert None not in found
    return [each for each in found if each is not None]


# Order.


def test_one_tenant_s_requests_keep_their_order() -> None:
    queue = queue_of()
    entries = [put(queue, "a", cost) for cost in (5000, 1, 700, 90_000, 3)]
    assert served(queue, 5) == entries
    assert queue.pop() is None and queue.peek() is None


def test_who_is_looked_at_is_served_next() -> None:
    queue = queue_of()
    for number in range(50):
        put(queue, "abc"[number % 3], 300 * number)
    while (shown := queue.peek()) is not None:
        assert queue.peek() is shown
        assert queue.pop() is shown


def test_a_newcomer_goes_before_those_who_flood() -> None:
    queue = queue_of()
    for _ in range(100):
        put(queue, "noisy", 2000)
    served(queue, 5)
    light = put(queue, "light")
    assert queue.pop() is light


def test_to_come_again_and_again_is_no_way_to_be_always_first() -> None:
    queue = queue_of()
    for _ in range(200):
        put(queue, "patient", 1000)
    tokens: Counter[str] = Counter()
    for _ in range(100):
        if not queue.waiting_of("sly"):
            put(queue, "sly", 1000)
        entry = served(queue, 1)[0]
        tokens[entry.item] += entry.cost_tokens
    assert tokens["patient"] >= 45_000


# Fairness.


@given(
    st.lists(costs, min_size=40, max_size=40),
    st.lists(costs, min_size=40, max_size=40),
    st.sampled_from([1.0, 2.0, 3.5]),
)
def test_tenants_that_wait_get_equal_tokens_for_their_weights(
    ours: list[int], theirs: list[int], weight: float
) -> None:
    """At any moment while both wait, they differ by a quantum and the largest request of each at most."""
    queue = queue_of()
    for cost in ours:
        put(queue, "a", cost)
    for cost in theirs:
        put(queue, "b", cost, weight=weight)
    got = {"a": 0.0, "b": 0.0}
    bound = 2 * QUANTUM_TOKENS + max(ours) + max(theirs)
    while queue.waiting_of("a") and queue.waiting_of("b"):
        entry = served(queue, 1)[0]
        got[entry.item] += entry.cost_tokens / (weight if entry.item == "b" else 1.0)
        assert abs(got["a"] - got["b"]) <= bound


@given(st.integers(1, 8), st.lists(costs, min_size=1, max_size=10), st.integers(0, 2**32))
def test_a_flood_delays_others_by_no_more_than_their_own_share(others: int, ours: list[int], seed: int) -> None:
    """Whoever floods, before a request is served each other lane gets as many tokens as ours, and a turn's worth."""
    dice = random.Random(seed)
    queue = queue_of()
    for _ in range(100 * len(ours)):
        for other in range(others):
            put(queue, f"flood{other}", dice.randint(LEAST_COST_TOKENS, MOST))
    served(queue, dice.randint(0, 50))
    mine = [put(queue, "me", cost) for cost in ours]
    passed: Counter[str] = Counter()
    sent = 0
    for entry in mine:
        while (next_one := served(queue, 1)[0]) is not entry:
            passed[next_one.item] += next_one.cost_tokens
        sent += entry.cost_tokens
        assert all(tokens <= sent + 2 * (QUANTUM_TOKENS + MOST) for tokens in passed.values())


def test_nobody_starves_behind_a_hundredfold_flood() -> None:
    """The flood sends a hundred requests for each of the others; these wait for a handful."""
    queue = queue_of()
    waits = []
    for _ in range(50):
        for _ in range(100):
            put(queue, "noisy", 600)
        mine = put(queue, "me", 600)
        before = 0
        while queue.pop() is not mine:
            before += 1
        waits.append(before)
    assert max(waits) <= 4


def test_one_huge_request_costs_its_tenant_a_bounded_number_of_turns() -> None:
    queue = queue_of()
    put(queue, "huge", 10**12)
    put(queue, "huge")
    for _ in range(1000):
        put(queue, "other", QUANTUM_TOKENS)
    order = [entry.item for entry in served(queue, 2 * MAX_QUANTA)]
    assert order.count("huge") == 2


def test_requests_that_say_nothing_of_their_size_still_take_turns() -> None:
    queue = queue_of()
    for tenant in "ab":
        for _ in range(5000):
            put(queue, tenant, 0)
    order = "".join(entry.item for entry in served(queue, 100))
    assert "aaa" not in order and "bbb" not in order


def test_whoever_is_passed_over_keeps_its_turn() -> None:
    queue = queue_of()
    greedy = [put(queue, "greedy", QUANTUM_TOKENS) for _ in range(4)]
    served(queue, 1)
    others = [put(queue, tenant, QUANTUM_TOKENS) for tenant in "abab"]
    for _ in others:
        entry = queue.peek(["greedy"])
        assert entry is not None and entry in others and queue.pop(["greedy"]) is entry
    assert queue.peek(["greedy"]) is None and queue.pop(["greedy"]) is None
    assert served(queue, 3) == greedy[1:]


@given(st.lists(st.tuples(st.sampled_from("abcd"), costs), max_size=60), st.integers(0, 2**32))
def test_who_is_passed_over_is_not_served_and_all_others_are(coming: list[tuple[str, int]], seed: int) -> None:
    dice = random.Random(seed)
    queue = queue_of()
    waiting: Counter[str] = Counter()
    while coming or len(queue):
        if coming and dice.random() < 0.5:
            tenant, cost = coming.pop()
            put(queue, tenant, cost)
            waiting[tenant] += 1
            continue
        passed_over = [tenant for tenant in "abcd" if dice.random() < 0.4]
        may = any(count for tenant, count in waiting.items() if tenant not in passed_over)
        shown = queue.peek(passed_over)
        assert queue.pop(passed_over) is shown and (shown is not None) == may
        if shown is not None:
            assert shown.item not in passed_over
            waiting[shown.item] -= 1
    assert queue.statistics() == {"waiting": 0, "lanes": 0, "ticks": 0}


# Bounds.


def test_it_is_bounded_in_all_and_for_each_tenant() -> None:
    queue = queue_of(5, 3)
    entries = [put(queue, "a") for _ in range(3)]
    assert queue.push("x", "a", 1, LATE) is Full.TENANT
    put(queue, "b"), put(queue, "c")
    assert queue.push("x", "d", 1, LATE) is Full.QUEUE
    assert queue.remove(entries[1])
    put(queue, "a")
    assert len(queue) == 5


# Deadlines.


def test_nobody_is_refused_early_and_nobody_late() -> None:
    queue = queue_of()
    entry = put(queue, "a", deadline=10.001)
    assert queue.expire(10.0009) == []
    due = queue.next_deadline()
    assert due is not None and 10.001 <= due <= 10.001 + TICK_S
    assert queue.expire(due) == [entry]
    assert not entry.is_waiting and queue.next_deadline() is None and len(queue) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60), st.lists(st.floats(0, 4), max_size=6))
def test_they_end_in_the_order_of_their_deadlines(pushed: list[tuple[str, float]], looks: list[float]) -> None:
    queue = queue_of()
    entries = [put(queue, tenant, deadline=deadline) for tenant, deadline in pushed]
    over: list[Entry[str]] = []
    for now in [*sorted(looks), 5.0]:
        found = queue.expire(now)
        assert all(entry.deadline <= now for entry in found)
        over += found
        assert all(entry.deadline > now - TICK_S for entry in entries if entry.is_waiting)
    assert [entry.deadline for entry in over] == sorted(entry.deadline for entry in entries)


# Leaving.


def test_who_leaves_is_gone_at_once_and_once() -> None:
    queue = queue_of()
    first, second = put(queue, "a"), put(queue, "a")
    assert queue.remove(first) and not queue.remove(first)
    assert not first.is_waiting and second.is_waiting
    assert queue.pop() is second
    assert not queue.remove(second)
    assert queue.statistics() == {"waiting": 0, "lanes": 0, "ticks": 0}


def test_a_hundred_thousand_that_leave_cost_nothing_that_lasts() -> None:
    queue = queue_of()
    put(queue, "stays")
    for number in range(100_000):
        queue.remove(put(queue, f"t{number % 7}", deadline=1000 + number * TICK_S))
    told = queue.statistics()
    assert told["waiting"] == 1 and told["lanes"] <= 8 and told["ticks"] <= SPARE_TICKS + 3


def count_steps(queue: FairQueue[str], entries: list[Entry[str]]) -> int:
    """Lines that run inside the queue's own code while these leave. The collector may call others in between."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal steps
        if frame.f_code.co_filename != fairqueue.__file__:
            return None
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        for entry in entries:
            queue.remove(entry)
    finally:
        sys.settrace(before)
    return steps


def test_leaving_costs_the_same_however_many_wait() -> None:
    small, large = queue_of(100_000, 100_000), queue_of(100_000, 100_000)
    few = [put(small, "a") for _ in range(100)]
    many = [put(large, "a") for _ in range(50_000)]
    assert count_steps(large, many[20_000:20_020]) == count_steps(small, few[40:60]) > 0


class Model(RuleBasedStateMachine):
    """Against the plainest queue there is: what waits is what was put in and did not leave; lanes are in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[str] = FairQueue(30, 12)
        self.lanes: dict[str, list[Entry[str]]] = {}
        self.now = 0.0

    @property
    def waiting(self) -> list[Entry[str]]:
        return [entry for lane in self.lanes.values() for entry in lane]

    @rule(
        tenant=st.sampled_from("abcd"), cost=st.integers(0, 200_000), wait_s=st.floats(0.01, 2), weight=st.floats(1, 5)
    )
    def push(self, tenant: str, cost: int, wait_s: float, weight: float) -> None:
        lane = self.lanes.setdefault(tenant, [])
        result = self.queue.push(tenant, tenant, cost, self.now + wait_s, weight)
        if len(lane) >= 12:
            assert result is Full.TENANT
        elif len(self.waiting) >= 30:
            assert result is Full.QUEUE
        else:
            assert isinstance(result, Entry)
            lane.append(result)

    @rule()
    def pop(self) -> None:
        entry = self.queue.pop()
        if entry is None:
            assert not self.waiting
            return
        assert self.lanes[entry.item].pop(0) is entry

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.waiting:
            entry = data.draw(st.sampled_from(self.waiting))
            assert self.queue.remove(entry)
            self.lanes[entry.item].remove(entry)

    @rule(seconds=st.floats(0, 1))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for entry in self.queue.expire(self.now):
            assert entry.deadline <= self.now
            self.lanes[entry.item].remove(entry)
        assert all(entry.deadline > self.now - TICK_S for entry in self.waiting)

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert all(self.queue.waiting_of(tenant) == len(lane) for tenant, lane in self.lanes.items())
        due = self.queue.next_deadline()
        nearest = min((entry.deadline for entry in self.waiting), default=None)
        assert (due is None) == (nearest is None)
        assert due is None or nearest is None or nearest <= due <= nearest + TICK_S


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("thing", [queue_of(), put(queue_of(), "a")])
def test_they_say_what_they_are(thing: object) -> None:
    assert repr(thing).startswith(("<FairQueue 0 of", "<Entry 500 tokens until"))
