"""A schedule that is known is recovered exactly: the stand-in's own pauses, read at the times that they give."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from tests.bench.measured import GO_NS, S, measured
from tests.sim.playing import play

from longwire.bench.doors import DOORS
from longwire.bench.figures import figures_of
from longwire.bench.reading import AnswerReader
from longwire.bench.records import Record
from longwire.bench.windows import MAX_WINDOWS, WINDOW_NS
from longwire.sim import SimServer
from longwire.words.clock import VirtualClock
from longwire.words.settings import SimSettings

TTFT_S = 0.12


def arrivals_of(seed: int, tokens: int, itl_ms: float, jitter: float) -> tuple[list[bytes], list[float]]:
    """What the stand-in writes, and how long it pauses before each token."""
    server = SimServer(SimSettings(port=0), clock=VirtualClock())
    sim = {"tokens": tokens, "itl_ms": itl_ms, "ttft_ms": TTFT_S * 1000, "jitter": jitter, "seed": seed}
    body = json.dumps({"stream": True, "sim": sim, "messages": []}).encode()
    played = play(
        server,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body),
        99_999,
    )
    return played.writes, played.pauses


def record_of(writes: list[bytes], pauses: list[float], number: int) -> Record:
    """One stream, sent when it was due, each of whose tokens is read when the stand-in has sent it."""
    record = Record(number, GO_NS + 2 * S + number)
    record.sent_ns = record.scheduled_ns
    reader = AnswerReader(record, DOORS["sse"], lambda _, __: False)
    head, role, *rest = writes
    tokens = len(pauses) - 1
    times = [record.sent_ns + round(at_s * 1e9) for at_s in accumulate(pauses)]
    reader.receive_data(head, record.sent_ns)
    reader.receive_data(role, times[0])
    for data, at_ns in zip(rest[:tokens], times, strict=False):
        reader.receive_data(data, at_ns)
    for data in rest[tokens:]:
        reader.receive_data(data, times[-1])
    record.outcome = reader.outcome
    return record


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_waits_and_paces(jitter: float) -> None:
    made = [arrivals_of(seed, 200, 20, jitter) for seed in range(20)]
    records = [record_of(writes, pauses, number) for number, (writes, pauses) in enumerate(made)]
    values = figures_of(measured(records)).values
    gaps_ms = sorted(1000 * pause for _, pauses in made for pause in pauses[1:-1])
    assert values["load.complete"] == 20 and len(gaps_ms) == 20 * 199
    assert values["ttft.p50_ms"] == values["ttft.max_ms"] == values["ttfb.p50_ms"] == pytest.approx(TTFT_S * 1000)
    assert values["itl.mean_ms"] == pytest.approx(sum(gaps_ms) / len(gaps_ms))
    assert values["itl.max_ms"] == pytest.approx(gaps_ms[-1]) and values["ir.gaps"] == 0
    assert values["tpot.mean_ms"] == pytest.approx(values["itl.mean_ms"])


def test_evenness() -> None:
    """Tokens 25 ms apart: eight in each window, whatever the stream, and no variance at all."""
    writes, pauses = arrivals_of(0, 500, 25, 0)
    values = figures_of(measured([record_of(writes, pauses, number) for number in range(3)])).values
    assert (values["sigma2_tps.variance"], values["sigma2_tps.cv"], values["sigma2_tps.periodic"]) == (0, 0, 0)
    assert values["sigma2_tps.windows"] == 3 * MAX_WINDOWS and values["sigma2_tps.full_streams"] == 3
    assert values["sigma2_tps.poisson"] == pytest.approx(5 * 40)


def test_evenness_with_jitter_is_that_of_the_pauses() -> None:
    made = [arrivals_of(seed, 300, 20, 0.9) for seed in range(5)]
    records = [record_of(writes, pauses, number) for number, (writes, pauses) in enumerate(made)]
    squares = freedom = 0.0
    for _, pauses in made:
        times = [round(1e9 * at_s) for at_s in accumulate(pauses[1:-1], initial=0.0)]
        whole = min(MAX_WINDOWS, times[-1] // WINDOW_NS)
        counts = [sum(at // WINDOW_NS == window for at in times) for window in range(whole)]
        middle = sum(counts) / whole
        squares += sum((count - middle) ** 2 for count in counts)
        freedom += whole - 1
    assert figures_of(measured(records)).values["sigma2_tps.variance"] == pytest.approx(
        25 * squares / freedom, rel=0.02
    )
