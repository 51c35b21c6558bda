"""Every figure that a report has, declared once with its definition.

What lives here: paths, units, which way is better, and the exact words. What must not: computing them (figures.py).

docs/bench.md holds these words in a table, and `--fail-if` and `compare` know a figure by its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .outcomes import Cause, Outcome

STATS = ("mean", "p50", "p90", "p99", "max")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LOWER, HIGHER, NEITHER = "lower", "higher", ""


class Measure(NamedTuple):
    """One figure, or with ``{}`` in its path the five of a distribution."""

    path: str
    better: str
    help: str

    @property
    def paths(self) -> Iterator[str]:
        """The path of each figure."""
        if "{}" not in self.path:
            yield self.path
        else:
            yield from (self.path.format(stat) for stat in STATS)


MEASURES: tuple[Measure, ...] = (
    Measure(
        "load.sent",
        NEITHER,
        "Requests that count: scheduled after the warm-up and sent; in a closed loop those that had not ended within it.",
    ),
    Measure("load.skipped", LOWER, "Requests that were due and not sent, because `--max-in-flight` were under way."),
    Measure("load.complete", NEITHER, "Those whose end marker came."),
    Measure(
        "load.unfinished",
        NEITHER,
        "Those that still ran when the drain time was over. With content they count as begun; no e2e or TPOT has them.",
    ),
    Measure("load.requests_per_s", HIGHER, "Complete requests divided by `--duration-s`."),
    Measure(
        "ttfb.{}_ms",
        LOWER,
        "From sent to the first byte of the response's body, whatever it holds; the head does not count. Sent is "
        "the moment in which the client turns to the request: connecting, where it is needed, is inside.",
    ),
    Measure(
        "ttfb.over_800_share",
        LOWER,
        "Share of these that are over 800 ms; requests that never got a byte are in it.",
    ),
    Measure("ttfb_scheduled.{}_ms", LOWER, "The same from the moment for which the request was scheduled."),
    Measure(
        "ttft.{}_ms",
        LOWER,
        "From sent to the arrival of the first content event: one with a text that is not empty (content, text, "
        "reasoning, arguments of a call). The role, comments and empty deltas do not count.",
    ),
    Measure("ttft_scheduled.{}_ms", LOWER, "The same from the moment for which the request was scheduled."),
    Measure(
        "itl.{}_ms",
        LOWER,
        "Between the arrivals of two consecutive content events of one stream, over all streams, those that broke"
        " included. Events of one read arrive together. The gap around a cut of our own is left out.",
    ),
    Measure(
        "tpot.{}_ms",
        LOWER,
        "Of a complete stream: from its first to its last content event, divided by its tokens less one. Tokens "
        "are the endpoint's `completion_tokens`, or the content events where it tells none.",
    ),
    Measure("e2e.{}_ms", LOWER, "Of a complete stream: from sent to its end marker."),
    Measure("e2e_scheduled.{}_ms", LOWER, "The same from the moment for which the request was scheduled."),
    Measure("tokens.stream_per_s.{}", HIGHER, "Of a complete stream: 1,000 divided by its TPOT in ms."),
    Measure(
        "tokens.per_s",
        HIGHER,
        "Tokens that arrived after the warm-up and before the end of the duration, in all streams, divided by "
        "that time. Where an endpoint puts several tokens into an event, each event of a stream counts for as "
        "many as its stream has per event.",
    ),
    Measure(
        "sigma2_tps.variance",
        LOWER,
        "σ²_TPS, in (tokens/s)²: content events are counted in windows of 200 ms, of each stream the first 50 "
        "from its first content event on, without the last one that is not whole. The variance over the windows "
        "is taken within each stream (divided by its windows less one) and pooled over streams.",
    ),
    Measure("sigma2_tps.cv", LOWER, "Its root divided by the mean of the windows."),
    Measure(
        "sigma2_tps.periodic",
        NEITHER,
        "σ²_TPS of perfectly even tokens at the same rate: f (1 - f) / (0.2 s)², where f is the fraction of "
        "tokens per window. Where f is near 0, the least jitter at a window's edge costs up to 12.5 more.",
    ),
    Measure("sigma2_tps.poisson", NEITHER, "σ²_TPS of tokens by pure chance at the same rate: 5 times the rate."),
    Measure("sigma2_tps.windows", NEITHER, "Windows that were counted."),
    Measure(
        "sigma2_tps.full_streams",
        NEITHER,
        "Streams that filled all 50 windows; shorter ones count with what they have, from two on.",
    ),
    Measure(
        "ir.share",
        LOWER,
        "Interruption rate: streams that ended without their end marker or had a gap, divided by streams that "
        "began. A gap is a time of more than 500 ms between two consecutive content events; comments do not end "
        "it. A thinking pause before a tool call is one too: only the endpoint knows better.",
    ),
    Measure("ir.per_stream", LOWER, "Breaks and gaps, divided by streams that began."),
    Measure("ir.per_1000_tokens", LOWER, "Breaks and gaps per 1,000 tokens received."),
    Measure(
        "ir.breaks",
        LOWER,
        "Streams that ended without their end marker; by how, see the failures that are marked so.",
    ),
    Measure("ir.gaps", LOWER, "Gaps; the longest are in the plot."),
    *(Measure(f"ir.gaps_{cause.word}", LOWER, f"Gaps by cause. {cause.help}") for cause in Cause),
    Measure(
        "order.verified",
        NEITHER,
        "With `--verify`: streams whose every token was compared with the stand-in's known answer.",
    ),
    Measure("order.duplicates", LOWER, "Tokens that came again."),
    Measure("order.violations", LOWER, "Tokens that came after a later one."),
    Measure("order.lost", LOWER, "Tokens that were not there when the end marker came."),
    Measure("order.wrong", LOWER, "Events whose text is no token of the answer."),
    Measure("failures.share", LOWER, "Requests that failed, divided by those that were sent."),
    *(
        Measure(
            f"failures.{outcome.word}",
            LOWER,
            outcome.help + (" The stream had begun: a break." if outcome.breaks else ""),
        )
        for outcome in Outcome
        if outcome.fails
    ),
    Measure("resume.cuts", NEITHER, "Connections that `--chaos reset-clients` has reset."),
    Measure(
        "resume.uncut",
        NEITHER,
        "Cuts that were due when no live stream could be resumed: an endpoint that offers none is not cut.",
    ),
    Measure("resume.resumed", NEITHER, "Cuts after which the stream went on."),
    Measure(
        "resume.time.{}_ms",
        LOWER,
        "From the cut to the first new event over the next connection. The client comes back at once, and after "
        "each refusal 200 ms later.",
    ),
    Measure("chaos.kills", NEITHER, "Shards that `--chaos kill-shard` has killed."),
    Measure("chaos.stalls", NEITHER, "Pauses that `--chaos stall-engine` has asked the stand-in for."),
    Measure(
        "chaos.detection.{}_ms",
        LOWER,
        "From the kill until the admin port names another process that serves in that slot; it is asked every 20 ms.",
    ),
    Measure("client.late.{}_ms", LOWER, "The client's own lag: from scheduled to sent."),
    Measure("client.late_share", LOWER, "Share of requests that were sent more than 10 ms late."),
    Measure("client.loop_lag.{}_ms", LOWER, "How late the client's loop came to a tick that is due every 10 ms."),
    Measure(
        "client.cpu_share",
        LOWER,
        "Processor time of the busiest sending process divided by the time that passed.",
    ),
)

PATHS: dict[str, Measure] = {path: measure for measure in MEASURES for path in measure.paths}
