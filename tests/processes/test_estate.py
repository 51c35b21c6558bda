"""The estate: made by one, attached to by others, and the configuration on its way through memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from longwire.keeper.deed import Deed
from longwire.keeper.shards import ShardFacts
from longwire.processes.estate import Blob, Estate, make_deed, shards_of
from longwire.words.settings import EngineSettings, Settings, TenantSettings

# What is not closed here belongs to a process that ends, and takes it along.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SMALL: dict[str, Any] = {"arena_bytes": 8 << 20, "max_streams": 16, "max_connections": 16}


def settings(**more: Any) -> Settings:
    return Settings(
        **SMALL,
        engines=[EngineSettings(name="e", url="http://h", api_key="sk-secret")],
        tenants=[TenantSettings(name="t", key_hashes=["sha256:" + "0" * 64], max_streams=3)],
        **more,
    )


def deed_for(slots: int) -> Deed:
    return make_deed(Blob(settings(shards=slots), b"s" * 32, {"sim": 9}), socket.socket(), socket.socket())


def test_all_that_attach_see_the_same() -> None:
    deed = deed_for(3)
    one, other = Estate(deed), Estate(Deed.parse(str(deed)))
    assert repr(one) == "<Estate of 3 slots>" and len(one.streams) == len(one.connections) == 3
    one.shards.tell(1, ShardFacts(pid=5, incarnation=2, state="serving"))
    assert other.shards.facts(1).pid == 5
    one.open_inboxes()[2].send({"kind": "hello"})
    assert other.inbox(2).receive() == ({"kind": "hello"}, [])
    with pytest.raises(BlockingIOError):
        other.inbox(1).receive()


def test_a_slot_s_memory_belongs_to_it_alone() -> None:
    estate = Estate(deed_for(2))
    first, second = estate.memory(0, 7), estate.memory(1, 8)
    assert (first.place.slot, first.place.slots, first.place.incarnation) == (0, 2, 7)
    assert first.streams.take() == second.streams.take() == 0
    assert estate.streams[0].words is not first.streams.words


def test_the_arenas_together_are_as_large_as_one() -> None:
    deed = deed_for(2)
    sizes = [os.fstat(slot.arena).st_size for slot in deed.slots]
    assert sizes[0] == sizes[1] and sum(sizes) <= (8 << 20) + (1 << 20)


def test_the_configuration_comes_through_whole_and_on_no_command_line() -> None:
    blob = Blob(settings(cors_origins=["https://a"]), b"\x00" * 32, {"local": 5})
    fd = blob.store()
    assert Blob.read(fd) == blob
    assert Blob.read(fd) == blob, "anybody may read it, at any time"
    assert "sk-secret" not in str(deed_for(1))
    assert "memfd" in str(Path(f"/proc/self/fd/{fd}").readlink())


def test_one_shard_per_core_unless_told_otherwise() -> None:
    assert shards_of(Settings(shards=5)) == 5
    assert shards_of(Settings()) == len(os.sched_getaffinity(0))
