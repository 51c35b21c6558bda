"""What rows and counters cost: operations on shared memory, timed in this process and in another one.

What lives here: setting up tables as a shard has them, and timing single operations in a loop.
What must not: sockets, gateways (costs.py has those).

A figure is the fastest of several rounds: what disturbs a round only ever makes it slower.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

from outcome import Outcome

STREAMS = 1000
CALLS = 20_000
ROUNDS = 7
ROW_GOAL_US = 2.0


def microseconds(call: Callable[[int], object]) -> float:
    """Processor time of one call, less that of an empty loop."""
    return (_fastest_ns(call) - _fastest_ns(lambda _: None)) / CALLS / 1000


def _fastest_ns(call: Callable[[int], object]) -> int:
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for number in range(CALLS):
            call(number)
        rounds.append(time.thread_time_ns() - began)
    return min(rounds)


def measure() -> Outcome:
    """Everything that needs no gateway."""
    outcome = Outcome(f"Rows and counters, among {STREAMS:,} streams")
    rows(outcome)
    limits(outcome)
    return outcome


def rows(outcome: Outcome) -> None:
    from longwire.dialects.openai_chat import OpenAiWords
    from longwire.observe.instruments import Instruments
    from longwire.streams.memory import Memory
    from longwire.streams.registry import Registry
    from longwire.streams.stream import Facts
    from longwire.streams.tables import STREAM_ROW_BYTES, Table, pack_word, unpack_stream
    from longwire.words.clock import VirtualClock
    from longwire.words.settings import Settings

    memory = Memory.make(64 << 20, STREAMS, 16)
    registry = Registry(memory, Settings(), VirtualClock(), Instruments(), lambda _: None)
    facts = (Facts(tenant="acme", tenant_index=0, route="chat_completions", model="m") for _ in range(STREAMS))
    streams = [registry.open(each, OpenAiWords()) for each in facts]
    for stream in streams:
        registry.store_row(stream)
    names = [stream.public_id for stream in streams]
    table = memory.streams
    words, find, word_index = table.words, registry.find, table.word_index

    def get(number: int) -> int:
        return words[word_index(find(names[number % STREAMS], None).row)]

    def put(number: int) -> None:
        words[word_index(find(names[number % STREAMS], None).row)] = pack_word(number, number)

    outcome.add("row get: the checkpoint, by stream id", microseconds(get), "us", ROW_GOAL_US, digits=2)
    outcome.add("row set: the checkpoint, by stream id", microseconds(put), "us", ROW_GOAL_US, digits=2)
    outcome.add("  of these: finding the stream by id", microseconds(lambda n: find(names[n % STREAMS], None)), "us")
    outcome.add("whole row read and unpacked", microseconds(lambda n: _read(table, n, unpack_stream)), "us")
    outcome.add(
        "whole row written from the stream", microseconds(lambda n: registry.store_row(streams[n % STREAMS])), "us"
    )
    elsewhere = in_another_process(
        lambda: microseconds(
            lambda n, other=Table.attach("streams", os.dup(table.fd), STREAM_ROW_BYTES): other.read(n % STREAMS)
        )
    )
    outcome.add("Table.read by another process, no lock", elsewhere, "us")


def _read(table: object, number: int, unpack: Callable[[bytes], object]) -> object:
    return unpack(table.read(number % STREAMS))  # type: ignore[attr-defined]


def limits(outcome: Outcome) -> None:
    from longwire.admission.limiter import Limiter
    from longwire.admission.matrix import Matrix
    from longwire.admission.tenants import Tenants
    from longwire.words.clock import VirtualClock
    from longwire.words.settings import TenantSettings

    hashes = [f"sha256:{number:064x}" for number in range(100)]
    settings = [
        TenantSettings(name=f"t{n}", key_hashes=[each], max_requests_per_min=10**9, max_tokens_per_min=4 * 10**9)
        for n, each in enumerate(hashes)
    ]
    tenants = list(Tenants(settings))
    for shards in (2, 16):
        limiter = Limiter(Matrix.create(len(tenants), shards), 0, VirtualClock(), 10**6, tenants)

        def come_and_go(number: int, limiter: Limiter = limiter) -> None:
            limiter.admit(tenants[number % len(tenants)], 100).release()

        outcome.add(f"admit and release, all limits set, {shards} shards", microseconds(come_and_go), "us")


def in_another_process(measure_it: Callable[[], float]) -> float:
    """The figure as a forked child measures it."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writes, struct.pack("d", measure_it()))
        finally:
            os._exit(0)
    os.close(writes)
    told = os.read(reads, 8)
    os.close(reads)
    os.waitpid(pid, 0)
    return float(struct.unpack("d", told)[0]) if len(told) == 8 else float("nan")
