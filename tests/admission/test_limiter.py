"""Slots: handed out within every bound, over all shards, and given back exactly once on every path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from longwire.admission.limiter import Limiter, Slot, seconds_until_free
from longwire.admission.matrix import HELD, LIVE, MAX_COUNT, MINUTE_S, Matrix, in_window, minute_of
from longwire.admission.tenants import Tenant
from longwire.words.clock import VirtualClock
from longwire.words.errors import (
    ContextTooLarge,
    LongwireError,
    Overloaded,
    TooManyRequests,
    TooManyStreams,
    TooManyTokens,
)
from longwire.words.settings import TenantSettings


def make_tenant(name: str = "acme", max_streams: int = 2, index: int = 0, **more: Any) -> Tenant:
    return Tenant(TenantSettings(name=name, max_streams=max_streams, **more), index)


class Shards:
    """Several limiters over one matrix, and one clock."""

    def __init__(self, *tenants: Tenant, slots: int = 1, max_total: int = 100, start: float = 6000.0) -> None:
        self.clock = VirtualClock(start)
        self.tenants = tenants
        self.max_total = max_total
        self.matrix = Matrix.create(max(1, len(tenants)), slots)
        self.limiters = [self.begin(slot) for slot in range(slots)]

    def begin(self, slot: int) -> Limiter:
        """A new shard in a slot."""
        return Limiter(self.matrix, slot, self.clock, self.max_total, self.tenants)

    def close(self) -> None:
        self.matrix.close()

    def __getitem__(self, slot: int) -> Limiter:
        return self.limiters[slot]


def retry_after_s(call: Callable[[], object], error: type[LongwireError]) -> int:
    with pytest.raises(error) as caught:
        call()
    return int(dict(caught.value.headers())[b"retry-after"])


# Streams at once.


def test_a_tenant_gets_as_many_slots_as_it_may_and_no_more() -> None:
    tenant = make_tenant()
    limiter = Shards(tenant)[0]
    slots = [limiter.admit(tenant), limiter.admit(tenant)]
    with pytest.raises(TooManyStreams) as caught:
        limiter.admit(tenant)
    assert (caught.value.status, caught.value.code) == (429, "too_many_streams")
    assert "2 streams of at most 2" in str(caught.value)
    slots[0].release()
    assert limiter.admit(tenant).is_held


def test_a_limit_holds_over_all_shards() -> None:
    tenant = make_tenant(max_streams=3)
    shards = Shards(tenant, slots=4)
    slots = [shards[slot].admit(tenant) for slot in (0, 3, 3)]
    for limiter in shards.limiters:
        with pytest.raises(TooManyStreams):
            limiter.admit(tenant)
    slots[1].release()
    assert shards[2].admit(tenant).is_held
    assert [limiter.live_here(tenant) for limiter in shards.limiters] == [1, 0, 1, 1]
    assert shards[1].use(tenant).live_streams == 3


def test_one_tenants_limit_is_not_anothers() -> None:
    greedy, other = make_tenant(max_streams=1), make_tenant("other", index=1)
    limiter = Shards(greedy, other)[0]
    limiter.admit(greedy)
    with pytest.raises(TooManyStreams):
        limiter.admit(greedy)
    assert limiter.admit(other).tenant is other


def test_two_tenants_that_take_turns_are_counted_each_for_itself() -> None:
    ada = make_tenant("ada", max_streams=9, max_requests_per_min=3, max_tokens_per_min=100)
    bob = make_tenant("bob", max_streams=2, index=1)
    shards = Shards(ada, bob, slots=4)
    outcomes: Counter[str] = Counter()
    for turn in range(24):
        tenant = (ada, bob)[turn % 2]
        try:
            shards[turn % 4].admit(tenant, 10)
        except LongwireError as refused:
            outcomes[f"{tenant.name} {refused.code}"] += 1
        else:
            outcomes[tenant.name] += 1
    assert outcomes == {"ada": 3, "ada too_many_requests": 9, "bob": 2, "bob too_many_streams": 10}
    assert shards[0].use(ada) == (3, 3.0, 30.0, 30, 0) and shards[3].use(bob) == (2, 2.0, 20.0, 20, 0)


def test_a_full_shard_refuses_with_503_and_a_full_tenant_hears_of_its_own_limit_first() -> None:
    first, second = make_tenant(max_streams=1), make_tenant("second", index=1)
    shards = Shards(first, second, slots=2, max_total=1)
    shards[0].admit(first)
    with pytest.raises(Overloaded) as caught:
        shards[0].admit(second)
    assert caught.value.status == 503
    assert caught.value.headers()
    with pytest.raises(TooManyStreams):
        shards[0].admit(first)
    assert shards[1].admit(second).is_held, "the total is each shard's own"


def test_a_refusal_takes_nothing() -> None:
    tenant = make_tenant(max_streams=5, max_requests_per_min=50, max_tokens_per_min=50)
    limiter = Shards(tenant, max_total=1)[0]
    slot = limiter.admit(tenant)
    for _ in range(3):
        with pytest.raises(Overloaded):
            limiter.admit(tenant, 20)
    slot.release()
    assert limiter.live_streams == 0 and limiter.use(tenant) == (0, 1.0, 0.0, 0, 0)


def test_releasing_twice_gives_back_one_slot() -> None:
    tenant = make_tenant()
    limiter = Shards(tenant)[0]
    slot, kept = limiter.admit(tenant), limiter.admit(tenant)
    slot.release()
    slot.release()
    assert (limiter.live_streams, limiter.use(tenant).live_streams) == (1, 1)
    assert kept.is_held and not slot.is_held


def test_refused_clients_are_told_to_come_back_at_different_times() -> None:
    tenant = make_tenant()
    limiter = Shards(tenant, max_total=0)[0]
    assert [retry_after_s(lambda: limiter.admit(tenant), Overloaded) for _ in range(8)] == [1, 2, 3, 4] * 2


# Requests and tokens per minute.


def test_requests_are_counted_over_a_window_of_two_minutes() -> None:
    tenant = make_tenant(max_streams=100, max_requests_per_min=10)
    shards = Shards(tenant, slots=2, start=6030.0)  # in the middle of a minute
    for _ in range(10):
        shards[0].admit(tenant).release()
    with pytest.raises(TooManyRequests) as caught:
        shards[1].admit(tenant)
    assert (caught.value.status, caught.value.code) == (429, "too_many_requests")
    assert "10 of 10 requests per minute" in str(caught.value)
    assert caught.value.retry_after_s == 30 + 6, "the minute's rest, and the tenth part of the next"
    shards.clock.advance(35.9)
    with pytest.raises(TooManyRequests):
        shards[1].admit(tenant)
    shards.clock.advance(0.1)
    shards[1].admit(tenant)
    assert retry_after_s(lambda: shards[0].admit(tenant), TooManyRequests) == 6
    shards.clock.advance(120)
    assert shards[0].use(tenant).requests_per_min == 0


def test_tokens_are_counted_as_estimated_and_then_as_used() -> None:
    tenant = make_tenant(max_streams=100, max_tokens_per_min=1000)
    limiter = Shards(tenant)[0]
    slots = [limiter.admit(tenant, 400), limiter.admit(tenant, 500)]
    with pytest.raises(TooManyTokens) as caught:
        limiter.admit(tenant, 101)
    assert (caught.value.status, caught.value.code) == (429, "too_many_tokens")
    slots[0].settle(20)
    slots[0].settle(400)  # once
    assert limiter.use(tenant).tokens_per_min == 520
    slots[1].release()
    slots[1].settle(700)
    assert limiter.use(tenant).tokens_per_min == 720, "more than estimated counts too, after the release as well"
    assert limiter.admit(tenant, 280).is_held


@pytest.mark.parametrize(("told", "counted"), [(-5, 0), (10**30, MAX_COUNT)])
def test_an_engine_that_counts_nonsense_moves_a_count_within_its_bounds(told: int, counted: int) -> None:
    tenant = make_tenant(max_streams=100)
    limiter = Shards(tenant)[0]
    limiter.admit(tenant, 10).settle(told)
    assert limiter.use(tenant).tokens_per_min == counted


def test_what_was_estimated_too_high_goes_off_the_minute_in_which_it_was() -> None:
    tenant = make_tenant(max_streams=100)
    shards = Shards(tenant)
    early, late = shards[0].admit(tenant, 600), shards[0].admit(tenant, 50)
    shards.clock.advance(90)
    shards[0].admit(tenant, 7)
    early.settle(100)
    assert shards[0].use(tenant).tokens_per_min == 150 / 2 + 7
    late.settle(60)
    assert shards[0].use(tenant).tokens_per_min == 150 / 2 + 17, "what comes on top is used now"
    shards.clock.advance(600)
    early.settle(0)
    assert shards[0].use(tenant).tokens_per_min == 0


def test_a_request_that_could_never_pass_is_told_so_at_once() -> None:
    tenant = make_tenant(max_tokens_per_min=1000)
    with pytest.raises(ContextTooLarge) as caught:
        Shards(tenant)[0].admit(tenant, 1001)
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (400, "context_too_large", False)
    for word in ("max_tokens_per_min", "1001", "1000"):
        assert word in str(caught.value)


@settings(max_examples=300)
@given(
    start=st.floats(0, 10_000), admitted=st.lists(st.floats(0, 100), min_size=1, max_size=30), limit=st.integers(1, 20)
)
def test_whoever_comes_when_it_was_told_to_is_let_in_and_not_a_second_before(
    start: float, admitted: list[float], limit: int
) -> None:
    tenant = make_tenant(max_streams=100, max_requests_per_min=limit)
    shards = Shards(tenant, start=start)
    limiter = shards[0]
    for wait in sorted(admitted):
        shards.clock.advance(max(0.0, start + wait - shards.clock.now()))
        try:
            limiter.admit(tenant)
        except TooManyRequests as refused:
            told = refused.retry_after_s or 0.0
            break
    else:
        told = -1.0
    if told >= 0:
        check_wait(shards, tenant, told)
    shards.close()


def check_wait(shards: Shards, tenant: Tenant, told: float) -> None:
    limiter = shards[0]
    assert 0 <= told <= 2 * MINUTE_S
    if told > 1:
        shards.clock.advance(told - 1.001)
        with pytest.raises(TooManyRequests):
            limiter.admit(tenant)
        shards.clock.advance(1.001)
    else:
        shards.clock.advance(1)
    assert limiter.admit(tenant).is_held


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.floats(0, 1e6))
def test_the_time_until_a_window_is_free_is_the_least_one(before: int, current: int, room: int, now: float) -> None:
    wait = seconds_until_free(before, current, room, now)

    def held(later: float) -> float:
        moved = minute_of(later) - minute_of(now)
        return in_window(*[(before, current), (current, 0), (0, 0)][moved], later)

    assert wait >= 0 and held(now + wait + 1e-6) <= room + 1e-3
    if wait > 1e-3:
        assert held(now + wait - 1e-3) > room


# Homes.


def test_what_is_reserved_at_home_goes_to_nobody_else() -> None:
    pinned = make_tenant("pinned", max_streams=9, home=1, reserved_slots=3, slot_tokens=100)
    other = make_tenant("other", max_streams=99, index=1)
    shards = Shards(pinned, other, slots=2, max_total=5)
    assert shards[0].use(pinned).reserved_tokens == 300
    others = [shards[1].admit(other) for _ in range(2)]
    with pytest.raises(Overloaded):
        shards[1].admit(other)
    assert shards[1].statistics()["kept_slots"] == 3
    mine = [shards[1].admit(pinned, 100) for _ in range(3)]
    assert shards[1].statistics()["kept_slots"] == 0 and shards[1].use(pinned).held_tokens == 300
    for tenant in (pinned, other):
        with pytest.raises(Overloaded):
            shards[1].admit(tenant)
    mine[0].release()
    with pytest.raises(Overloaded):
        shards[1].admit(other)
    others[0].release()
    fourth = shards[1].admit(other)
    assert [shards[0].admit(other).is_held for _ in range(5)] == [True] * 5, "nothing is kept away from home"
    fourth.release()
    mine.append(shards[1].admit(pinned))
    mine.append(shards[1].admit(pinned))
    assert shards[1].live_here(pinned) == 4, "beyond its reserve a tenant takes what is free"


def test_a_request_beyond_a_slots_reserve_is_refused_with_both_numbers() -> None:
    tenant = make_tenant(home=0, reserved_slots=1, slot_tokens=4096)
    limiter = Shards(tenant)[0]
    assert limiter.admit(tenant, 4096).is_held
    with pytest.raises(ContextTooLarge) as caught:
        limiter.admit(tenant, 4097)
    for word in ("slot_tokens", "4096", "4097"):
        assert word in str(caught.value)
    assert limiter.statistics()["refused_too_large"] == 1


# Taking over.


@pytest.mark.parametrize("is_reset", [True, False])
def test_streams_that_are_taken_over_are_counted_without_asking(is_reset: bool) -> None:
    tenant = make_tenant(max_streams=3, max_requests_per_min=3)
    shards = Shards(tenant, slots=2, max_total=2)
    for slot, limiter in enumerate(shards.limiters):
        for _ in range(2 - slot):
            limiter.admit(tenant, 10)
    successor = shards.begin(0)
    if is_reset:
        shards.matrix.reset(0)
    else:
        successor.begin_recount()
    first = successor.readmit(tenant, 10)
    seen = shards[1].use(tenant).live_streams
    assert seen == (2 if is_reset else 3), "a recount hides no stream that still waits to be taken over"
    successor.end_recount()
    assert shards[1].use(tenant) == (2, 3.0, 30.0, 20, 0), "one was lost; what was used stays used"
    first.settle(4)
    assert shards[1].use(tenant).tokens_per_min == 30, "nobody knows any more in which minute it was counted"
    first.release()
    first.release()
    assert shards[1].use(tenant).live_streams == 1
    assert successor.live_streams == 0


def test_a_stream_that_ends_during_a_recount_is_not_counted_after_it() -> None:
    tenant = make_tenant(max_streams=2)
    shards = Shards(tenant, slots=2)
    shards[0].admit(tenant, 5)
    shards[0].admit(tenant, 5)
    successor = shards.begin(0)
    successor.begin_recount()
    successor.readmit(tenant, 5).release()
    successor.readmit(tenant, 5)
    assert shards[1].use(tenant).live_streams == 2
    with pytest.raises(TooManyStreams):
        successor.admit(tenant)
    successor.end_recount()
    assert shards[1].use(tenant)[:1] == (1,) and shards[1].use(tenant).held_tokens == 5
    assert shards.matrix.total(shards.matrix.gateway_row, LIVE) == 1


def test_statistics_and_reprs_tell_the_state() -> None:
    tenant = make_tenant(max_streams=1)
    limiter = Shards(tenant, max_total=2)[0]
    slot = limiter.admit(tenant)
    with pytest.raises(TooManyStreams):
        limiter.admit(tenant)
    assert limiter.statistics() == {
        "live_streams": 1, "max_total": 2, "kept_slots": 0, "admitted": 1, "refused_too_many": 1, "refused_minute": 0,
        "refused_too_large": 0, "refused_overloaded": 0,
    }  # fmt: skip
    assert repr(limiter) == "<Limiter slot=0 streams=1/2 admitted=1>"
    assert repr(slot) == "<Slot 'acme' held>"
    slot.release()
    assert repr(slot) == "<Slot 'acme' released>"


# Any order of everything.

SLOTS = 3
MAX_TOTAL = 4


class StaleMatrix(Matrix):
    """Its sums can be held still: so several shards ask before any of them has counted."""

    def __init__(self, fd: int, tenants: int, slots: int) -> None:
        super().__init__(fd, tenants, slots)
        self.picture: dict[int, int] | None = None

    def hold(self) -> None:
        self.picture = {row: Matrix.total(self, row, LIVE) for row in range(self.tenants + 1)}

    def total(self, row: int, cell: int) -> int:
        return super().total(row, cell) if self.picture is None or cell != LIVE else self.picture[row]


class LimitsHoldOverShards(RuleBasedStateMachine):
    """Shards admit, release, die and are taken over in any order: the matrix always shows the streams that there are.

    A limit is exceeded only where several shards ask at the same moment, and then at most by their number less one.
    """

    held = Bundle("held")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.tenants = [make_tenant(f"t{index}", max_streams=index + 1, index=index) for index in range(4)]
        self.clock = VirtualClock(6000.0)
        self.matrix = StaleMatrix.create(len(self.tenants), SLOTS)
        assert isinstance(self.matrix, StaleMatrix)
        self.limiters = [self.begin(slot) for slot in range(SLOTS)]
        self.model: dict[int, tuple[int, Tenant, int]] = {}
        self.live: dict[int, Slot] = {}
        self.admissions: list[tuple[int, Tenant]] = []

    def begin(self, slot: int) -> Limiter:
        return Limiter(self.matrix, slot, self.clock, MAX_TOTAL, self.tenants)

    def count(self, slot: int | None = None, tenant: Tenant | None = None) -> int:
        return sum(slot in (None, s) and tenant in (None, t) for s, t, _ in self.model.values())

    def note(self, slot: int, tenant: Tenant, tokens: int, taken: Slot) -> int:
        name = len(self.admissions)
        self.admissions.append((minute_of(self.clock.now()), tenant))
        self.model[name] = (slot, tenant, tokens)
        self.live[name] = taken
        return name

    @rule(target=held, slot=st.integers(0, SLOTS - 1), index=st.integers(0, 3), tokens=st.integers(0, 50))
    def admit(self, slot: int, index: int, tokens: int) -> int | None:
        tenant = self.tenants[index]
        if self.count(tenant=tenant) >= tenant.settings.max_streams:
            with pytest.raises(TooManyStreams):
                self.limiters[slot].admit(tenant, tokens)
            return None
        if self.count(slot) >= MAX_TOTAL:
            with pytest.raises(Overloaded):
                self.limiters[slot].admit(tenant, tokens)
            return None
        return self.note(slot, tenant, tokens, self.limiters[slot].admit(tenant, tokens))

    @rule(index=st.integers(0, 3))
    def all_ask_at_once(self, index: int) -> None:
        """Nobody sees what the others are about to count; afterwards all of it ends, or the model could not go on."""
        tenant = self.tenants[index]
        limit, had = tenant.settings.max_streams, self.count(tenant=tenant)
        self.matrix.hold()
        taken = []
        for slot, limiter in enumerate(self.limiters):
            try:
                taken.append(limiter.admit(tenant))
                self.admissions.append((minute_of(self.clock.now()), tenant))
            except TooManyStreams:
                assert had >= limit
            except Overloaded:
                assert self.count(slot) >= MAX_TOTAL
        self.matrix.picture = None
        assert self.matrix.total(index, LIVE) == had + len(taken) <= max(had, limit + SLOTS - 1)
        for slot_taken in taken:
            slot_taken.release()

    @rule(target=released, name=consumes(held))
    def release(self, name: int | None) -> Slot | None:
        if name is None or name not in self.model:
            return None
        del self.model[name]
        slot = self.live.pop(name)
        slot.release()
        return slot

    @rule(slot=released)
    def release_again(self, slot: Slot | None) -> None:
        if slot is not None:
            slot.release()

    @rule(slot=st.integers(0, SLOTS - 1), is_reset=st.booleans(), lost=st.integers(0, 2))
    def die(self, slot: int, is_reset: bool, lost: int) -> None:
        """The shard is gone; its successor finds all its streams, or all but some, in any case no others."""
        self.limiters[slot] = successor = self.begin(slot)
        names = [name for name, (where, _, _) in self.model.items() if where == slot]
        before = {tenant: self.count(tenant=tenant) for tenant in self.tenants}
        if is_reset:
            self.matrix.reset(slot)
        else:
            successor.begin_recount()
        for name in names[:lost]:
            del self.model[name], self.live[name]
        for name in names[lost:]:
            _, tenant, tokens = self.model[name]
            self.live[name] = successor.readmit(tenant, tokens)
            assert is_reset or self.matrix.total(tenant.index, LIVE) == before[tenant]
        if not is_reset:
            successor.end_recount()

    @rule(slot=st.integers(0, SLOTS - 1))
    def die_again_during_a_recount(self, slot: int) -> None:
        """A successor that counted half of them and died leaves what the next one can begin from."""
        half = self.begin(slot)
        half.begin_recount()
        for where, tenant, tokens in [*self.model.values()][::2]:
            if where == slot:
                half.readmit(tenant, tokens)
        self.die(slot, False, 0)

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def the_matrix_shows_the_streams_that_there_are(self) -> None:
        for tenant in self.tenants:
            own = [tokens for _, owner, tokens in self.model.values() if owner is tenant]
            assert self.matrix.total(tenant.index, LIVE) == len(own) <= tenant.settings.max_streams
            assert self.matrix.total(tenant.index, HELD) == sum(own)
        assert self.matrix.total(self.matrix.gateway_row, LIVE) == len(self.model)
        for slot, limiter in enumerate(self.limiters):
            assert limiter.live_streams == self.count(slot) <= MAX_TOTAL

    @invariant()
    def a_window_holds_what_was_admitted_in_it(self) -> None:
        now = self.clock.now()
        for tenant in self.tenants:
            minutes = Counter(minute for minute, owner in self.admissions if owner is tenant)
            expected = in_window(minutes[minute_of(now) - 1], minutes[minute_of(now)], now)
            assert math.isclose(self.matrix.use(tenant.index, now).requests_per_min, expected)

    def teardown(self) -> None:
        for slot in self.live.values():
            slot.release()
        assert not any(self.matrix.total(row, cell) for row in range(5) for cell in (LIVE, HELD))
        self.matrix.close()


TestLimitsHoldOverShards = LimitsHoldOverShards.TestCase
TestLimitsHoldOverShards.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
