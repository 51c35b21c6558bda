"""Slots without processes: what is passed on, kept and let go."""

from __future__ import annotations

import os
import socket

import pytest

from longwire.keeper.channel import Channel
from longwire.keeper.members import Member
from longwire.keeper.shards import ShardsTable
from longwire.keeper.slots import MAX_ORPHANS, Slots
from longwire.keeper.states import Event, State

# What is not closed here belongs to a process that ends, and takes it along.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def warm(incarnation: int) -> tuple[Member, Channel]:
    ours, its = Channel.pair()
    member = Member("shard", incarnation, 0, 2**31 - 1, ours, State.WARM)
    guardian, _ = socket.socketpair()
    member.take_guardian(guardian)
    return member, its


def test_a_slot_passes_on_what_the_dead_have_left_up_to_a_bound() -> None:
    slots = Slots(2, ShardsTable.make(2).fd)
    slot = slots[0]
    dead = [warm(n) for n in range(1, MAX_ORPHANS + 3)]
    for member, _ in dead:
        slots.give(slot, member)
        member.happens(Event.DIED)
        member.is_reaped = True
        member.channel.close()
        slots.vacate(member, leaves_streams=True)
    assert [orphan.incarnation for orphan in slot.orphans] == list(range(3, MAX_ORPHANS + 3))
    successor, its = warm(999)
    slots.give(slot, successor)
    received = its.receive()
    assert received is not None
    message, fds = received
    assert message["owners"] == [orphan.incarnation for orphan in slot.orphans] and len(fds) == MAX_ORPHANS
    assert message["restarts"] == slot.restarts == MAX_ORPHANS + 2
    for fd in fds:
        os.close(fd)
    assert slots.are_adopting and not slots.all_serve
    successor.happens(Event.ADOPTED)
    slot.release()
    assert not slot.orphans and "SERVING -" in repr(slots)
    slots.vacate(successor, leaves_streams=False)
    assert slot.member is None and not slot.orphans and successor.guardian is None
    slots.close()


def test_the_spare_leaves_nothing() -> None:
    slots = Slots(1, ShardsTable.make(1).fd)
    member, _ = warm(1)
    slots.vacate(member, leaves_streams=True)
    assert member.guardian is None and not slots[0].orphans
    slots.close()
