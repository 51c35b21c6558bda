"""Slots: handed out within two bounds, given back exactly once on every path."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from longwire.admission.limiter import Limiter, Slot
from longwire.admission.tenants import Tenant
from longwire.words.errors import Overloaded, TooManyStreams
from longwire.words.settings import TenantSettings


def make_tenant(name: str = "acme", max_streams: int = 2, index: int = 0) -> Tenant:
    return Tenant(TenantSettings(name=name, max_streams=max_streams), index)


def test_a_tenant_gets_as_many_slots_as_it_may_and_no_more() -> None:
    limiter, tenant = Limiter(100), make_tenant()
    slots = [limiter.admit(tenant), limiter.admit(tenant)]
    with pytest.raises(TooManyStreams) as caught:
        limiter.admit(tenant)
    assert (caught.value.status, caught.value.code) == (429, "too_many_streams")
    assert "2 streams of at most 2" in str(caught.value)
    slots[0].release()
    assert limiter.admit(tenant).is_held


def test_one_tenants_limit_is_not_anothers() -> None:
    limiter, greedy, other = Limiter(100), make_tenant(max_streams=1), make_tenant("other", index=1)
    limiter.admit(greedy)
    with pytest.raises(TooManyStreams):
        limiter.admit(greedy)
    assert limiter.admit(other).tenant is other


def test_a_full_gateway_refuses_with_503_and_a_full_tenant_hears_of_its_own_limit_first() -> None:
    limiter, first, second = Limiter(1), make_tenant(max_streams=1), make_tenant("second", index=1)
    limiter.admit(first)
    with pytest.raises(Overloaded) as caught:
        limiter.admit(second)
    assert caught.value.status == 503
    assert caught.value.headers()
    with pytest.raises(TooManyStreams):
        limiter.admit(first)


def test_a_refusal_takes_nothing() -> None:
    limiter, tenant = Limiter(1), make_tenant(max_streams=5)
    slot = limiter.admit(tenant)
    for _ in range(3):
        with pytest.raises(Overloaded):
            limiter.admit(tenant)
    slot.release()
    assert (limiter.live_streams, tenant.live_streams) == (0, 0)


def test_releasing_twice_gives_back_one_slot() -> None:
    limiter, tenant = Limiter(100), make_tenant()
    slot, kept = limiter.admit(tenant), limiter.admit(tenant)
    slot.release()
    slot.release()
    assert (limiter.live_streams, tenant.live_streams) == (1, 1)
    assert kept.is_held and not slot.is_held


def test_refused_clients_are_told_to_come_back_at_different_times() -> None:
    limiter, tenant = Limiter(0), make_tenant()
    waits = []
    for _ in range(8):
        with pytest.raises(Overloaded) as caught:
            limiter.admit(tenant)
        waits.append(dict(caught.value.headers())[b"retry-after"])
    assert waits == [b"1", b"2", b"3", b"4"] * 2


def test_statistics_and_reprs_tell_the_state() -> None:
    limiter, tenant = Limiter(2), make_tenant(max_streams=1)
    slot = limiter.admit(tenant)
    with pytest.raises(TooManyStreams):
        limiter.admit(tenant)
    assert limiter.statistics() == {
        "live_streams": 1, "max_total": 2, "admitted": 1, "refused_too_many": 1, "refused_overloaded": 0,
    }  # fmt: skip
    assert repr(limiter) == "<Limiter streams=1/2 admitted=1>"
    assert repr(slot) == "<Slot 'acme' held>"
    slot.release()
    assert repr(slot) == "<Slot 'acme' released>"


class LimiterNeverLeaks(RuleBasedStateMachine):
    """Any order of admissions, releases and repeated releases: the counts are those of the slots held, within bounds."""

    held = Bundle("held")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.limiter = Limiter(4)
        self.tenants = [make_tenant(f"t{index}", max_streams=index + 1, index=index) for index in range(4)]
        self.model: dict[Slot, Tenant] = {}

    @rule(target=held, index=st.integers(0, 3))
    def admit(self, index: int) -> object:
        tenant = self.tenants[index]
        own = sum(owner is tenant for owner in self.model.values())
        if own >= tenant.settings.max_streams:
            with pytest.raises(TooManyStreams):
                self.limiter.admit(tenant)
            return None
        if len(self.model) >= 4:
            with pytest.raises(Overloaded):
                self.limiter.admit(tenant)
            return None
        slot = self.limiter.admit(tenant)
        self.model[slot] = tenant
        return slot

    @rule(target=released, slot=consumes(held))
    def release(self, slot: Slot | None) -> Slot | None:
        if slot is not None:
            slot.release()
            del self.model[slot]
        return slot

    @rule(slot=released)
    def release_again(self, slot: Slot | None) -> None:
        if slot is not None:
            slot.release()

    @invariant()
    def counts_are_those_of_the_slots_held(self) -> None:
        assert self.limiter.live_streams == len(self.model) <= 4
        for tenant in self.tenants:
            assert tenant.live_streams == sum(owner is tenant for owner in self.model.values())

    def teardown(self) -> None:
        for slot in self.model:
            slot.release()
        assert self.limiter.live_streams == 0
        assert all(tenant.live_streams == 0 for tenant in self.tenants)


TestLimiterNeverLeaks = LimiterNeverLeaks.TestCase
TestLimiterNeverLeaks.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
