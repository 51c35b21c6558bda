"""From one repeat's records to its figures.

What lives here: each figure as its declaration has it. Pure functions. What must not: definitions in words (declarations.py),
combining repeats (result.py).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .declarations import SHARES
from .histogram import histogram
from .outcomes import Cause, Outcome
from .records import TIME, Record
from .statistics import Interval, mean, percentile, percentile_interval
from .windows import evenness

LATE_NS = 10_000_000
"""A request that is sent so much after its time was not part of the load that was asked for."""
LATE_SHARE = 0.01
LATE_P99_MS = 10.0
BUSY_SHARE = 0.85
"""A client process that has so little time left is late for what arrives in bursts."""
SLOW_FIRST_BYTE_MS = 800.0
MAX_GAPS_KEPT = 2000
"""For the plot: the longest."""


@dataclass(slots=True)
class Measured:
    """All that one repeat has brought."""

    records: list[Record]
    go_ns: int
    warm_up_s: float
    duration_s: float
    is_open_loop: bool = True
    lags: array[int] = field(default_factory=lambda: array(TIME))
    cpu_share: float = 0.0
    skipped: int = 0
    uncut: int = 0
    kills: int = 0
    stalls: int = 0
    detections_ms: list[float] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def counts_from_ns(self) -> int:
        """When the warm-up is over."""
        return self.go_ns + int(self.warm_up_s * 1e9)

    def asked_after(self) -> list[Record]:
        """Requests that were scheduled after the warm-up: whose waits count."""
        return [record for record in self.records if record.scheduled_ns >= self.counts_from_ns]

    def counted(self) -> list[Record]:
        """Those that count in all else. A closed loop's streams begin in the warm-up and may be held throughout: they
        count when they have not ended within it."""
        if self.is_open_loop:
            return self.asked_after()
        return [record for record in self.records if record.end_ns >= self.counts_from_ns]


@dataclass(slots=True)
class Figures:
    """One repeat in figures and plots. ``problems`` are why it must not be cited."""

    values: dict[str, float]
    intervals: dict[str, Interval]
    problems: list[str]
    ttft: dict[int, int]
    itl: dict[int, int]
    tokens_by_second: list[int]
    gaps: list[tuple[float, float, str]]
    examples: dict[str, str]


def figures_of(measured: Measured) -> Figures:
    """Everything."""
    asked, counted = measured.asked_after(), measured.counted()
    tally = Tally()
    _waits(tally, asked)
    _paces(tally, counted)
    _tokens(tally, measured, counted)
    _interruptions(tally, counted)
    _order(tally, counted)
    _failures(tally, counted)
    _chaos(tally, measured, counted)
    _client(tally, measured, asked)
    values = tally.values
    values["load.skipped"] = measured.skipped
    values["load.requests_per_s"] = values["load.complete"] / measured.duration_s if measured.duration_s else math.nan
    return Figures(
        values=values,
        intervals=tally.intervals,
        problems=list(problems_of(measured, values)),
        ttft=histogram(_since_sent(asked)),
        itl=histogram(_itls_ms(counted)),
        tokens_by_second=_by_second(measured),
        gaps=_longest_gaps(measured, counted),
        examples=measured.examples,
    )


class Tally:
    """Figures under their paths."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.intervals: dict[str, Interval] = {}

    def __repr__(self) -> str:
        return f"<Tally of {len(self.values)}>"

    def distribution(self, path: str, values: Iterable[float]) -> None:
        """The five figures of a distribution."""
        ordered = sorted(values)
        self.values[path.format("mean")] = mean(ordered)
        for stat, share in SHARES.items():
            self.values[path.format(stat)] = percentile(ordered, share)
            self.intervals[path.format(stat)] = percentile_interval(ordered, share)
        self.values[path.format("max")] = ordered[-1] if ordered else math.nan


def ratio(part: float, whole: float) -> float:
    """NaN of nothing."""
    return part / whole if whole else math.nan


def _since(records: Iterable[Record], end: str, start: str) -> Iterator[float]:
    """Milliseconds between two of a record's times, where the later one was reached."""
    for record in records:
        end_ns = getattr(record, end)
        if end_ns:
            yield (end_ns - getattr(record, start)) / 1e6


def _since_sent(records: Iterable[Record]) -> Iterator[float]:
    return ((record.times[0] - record.sent_ns) / 1e6 for record in records if record.times)


def _itls_ms(records: Iterable[Record]) -> Iterator[float]:
    for record in records:
        times = record.times
        cuts = {cut.event for cut in record.cuts}
        for event in range(1, len(times)):
            if event not in cuts:
                yield (times[event] - times[event - 1]) / 1e6


def _waits(tally: Tally, asked: Sequence[Record]) -> None:
    complete = [record for record in asked if record.outcome is Outcome.COMPLETE]
    ttfbs = list(_since(asked, "body_ns", "sent_ns"))
    tally.distribution("ttfb.{}_ms", ttfbs)
    without = sum(record.outcome.fails and not record.body_ns for record in asked)
    slow = sum(ttfb > SLOW_FIRST_BYTE_MS for ttfb in ttfbs)
    tally.values["ttfb.over_800_share"] = ratio(slow + without, len(ttfbs) + without)
    tally.distribution("ttfb_scheduled.{}_ms", _since(asked, "body_ns", "scheduled_ns"))
    tally.distribution("ttft.{}_ms", _since_sent(asked))
    tally.distribution(
        "ttft_scheduled.{}_ms", ((each.times[0] - each.scheduled_ns) / 1e6 for each in asked if each.times)
    )
    tally.distribution("e2e.{}_ms", _since(complete, "end_ns", "sent_ns"))
    tally.distribution("e2e_scheduled.{}_ms", _since(complete, "end_ns", "scheduled_ns"))


def _paces(tally: Tally, counted: Sequence[Record]) -> None:
    tally.distribution("itl.{}_ms", _itls_ms(counted))
    tpots = [
        (record.times[-1] - record.times[0]) / 1e6 / (record.tokens - 1)
        for record in counted
        if record.outcome is Outcome.COMPLETE and record.tokens > 1 and len(record.times) > 1
    ]
    tally.distribution("tpot.{}_ms", tpots)
    tally.distribution("tokens.stream_per_s.{}", (1000 / tpot for tpot in tpots if tpot))


def _tokens(tally: Tally, measured: Measured, counted: Sequence[Record]) -> None:
    start_ns = measured.counts_from_ns
    end_ns = start_ns + int(measured.duration_s * 1e9)
    arrived = 0.0
    for record in measured.records:
        times = record.times
        inside = bisect_left(times, end_ns) - bisect_left(times, start_ns)
        if inside:
            arrived += inside * (record.tokens / len(times) if record.outcome is Outcome.COMPLETE else 1.0)
    tally.values["tokens.per_s"] = ratio(arrived, measured.duration_s)
    found = evenness(record.times for record in counted)
    tally.values |= {
        "sigma2_tps.variance": found.variance,
        "sigma2_tps.cv": found.cv,
        "sigma2_tps.periodic": found.periodic,
        "sigma2_tps.poisson": found.poisson,
        "sigma2_tps.windows": found.windows,
        "sigma2_tps.full_streams": found.full_streams,
    }


def _interruptions(tally: Tally, counted: Sequence[Record]) -> None:
    begun = [record for record in counted if record.has_begun]
    breaks = sum(record.outcome.breaks for record in begun)
    causes = Counter(gap.cause for record in begun for gap in record.gaps)
    gaps = sum(causes.values())
    tokens = sum(record.tokens for record in begun)
    tally.values |= {
        "ir.share": ratio(sum(record.is_interrupted for record in begun), len(begun)),
        "ir.per_stream": ratio(breaks + gaps, len(begun)),
        "ir.per_1000_tokens": ratio(1000 * (breaks + gaps), tokens),
        "ir.breaks": breaks,
        "ir.gaps": gaps,
    }
    tally.values |= {f"ir.gaps_{cause.word}": causes[cause] for cause in Cause}


def _order(tally: Tally, counted: Sequence[Record]) -> None:
    tally.values |= {
        "order.verified": sum(record.verified for record in counted),
        "order.duplicates": sum(record.duplicates for record in counted),
        "order.violations": sum(record.disorders for record in counted),
        "order.lost": sum(record.lost for record in counted),
        "order.wrong": sum(record.wrong for record in counted),
    }


def _failures(tally: Tally, counted: Sequence[Record]) -> None:
    outcomes = Counter(record.outcome for record in counted)
    failed = sum(count for outcome, count in outcomes.items() if outcome.fails)
    tally.values |= {
        "load.sent": len(counted),
        "load.complete": outcomes[Outcome.COMPLETE],
        "load.unfinished": outcomes[Outcome.UNFINISHED],
        "failures.share": ratio(failed, len(counted)),
    }
    tally.values |= {f"failures.{outcome.word}": outcomes[outcome] for outcome in Outcome if outcome.fails}


def _chaos(tally: Tally, measured: Measured, counted: Sequence[Record]) -> None:
    cuts = [cut for record in counted for cut in record.cuts]
    back = [cut for cut in cuts if cut.back_ns]
    tally.values |= {
        "resume.cuts": len(cuts),
        "resume.uncut": measured.uncut,
        "resume.resumed": len(back),
        "chaos.kills": measured.kills,
        "chaos.stalls": measured.stalls,
    }
    tally.distribution("resume.time.{}_ms", ((cut.back_ns - cut.at_ns) / 1e6 for cut in back))
    tally.distribution("chaos.detection.{}_ms", measured.detections_ms)


def _client(tally: Tally, measured: Measured, asked: Sequence[Record]) -> None:
    tally.distribution("client.late.{}_ms", _since(asked, "sent_ns", "scheduled_ns"))
    late = sum(record.sent_ns - record.scheduled_ns > LATE_NS for record in asked)
    tally.values["client.late_share"] = ratio(late, len(asked))
    tally.distribution("client.loop_lag.{}_ms", (lag / 1e6 for lag in measured.lags))
    tally.values["client.cpu_share"] = measured.cpu_share


def problems_of(measured: Measured, values: dict[str, float]) -> Iterator[str]:
    """Why the figures are not those of the load that was asked for, or not the endpoint's."""
    late, share = values["client.late.p99_ms"], values["client.late_share"]
    if measured.is_open_loop and (late > LATE_P99_MS or share > LATE_SHARE):
        yield f"The sender fell behind: {share:.1%} of the requests were sent over 10 ms late (p99 {late:.1f} ms)."
    if measured.skipped:
        yield f"{measured.skipped} requests were due and not sent: --max-in-flight was reached."
    if measured.cpu_share > BUSY_SHARE:
        yield f"A client process was busy for {measured.cpu_share:.0%} of the time: give it more --processes."
    if values["ir.gaps_client"]:
        yield f"{values['ir.gaps_client']:.0f} gaps are the client's own: it stood still."
    if not values["load.complete"] + values["load.unfinished"]:
        yield "No stream came to its end, or was held to the end of the run."


def _by_second(measured: Measured) -> list[int]:
    """Content events in each second from the start on, up to the end of the duration."""
    seconds = math.ceil(measured.warm_up_s + measured.duration_s)
    counts = [0] * seconds
    for record in measured.records:
        for at_ns in record.times:
            second = (at_ns - measured.go_ns) // 1_000_000_000
            if 0 <= second < seconds:
                counts[second] += 1
    return counts


def _longest_gaps(measured: Measured, counted: Sequence[Record]) -> list[tuple[float, float, str]]:
    found = [
        (
            (record.times[gap.event] - measured.go_ns) / 1e9,
            (record.times[gap.event] - record.times[gap.event - 1]) / 1e6,
            gap.cause.word,
        )
        for record in counted
        for gap in record.gaps
    ]
    return sorted(sorted(found, key=lambda gap: -gap[1])[:MAX_GAPS_KEPT])
