"""The page that a Prometheus scrapes.

What lives here: how counters and a snapshot become the exposition format. The one file that sees prometheus_client.
What must not: the metrics themselves (declarations.py), counting (instruments.py), HTTP (admin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from .declarations import METRICS, Look, Metric, Reading
from .instruments import BUCKETS, Histogram

_render_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = cast(Any, openmetrics.generate_latest)
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def cumulative(histogram: Histogram, low: int, high: int) -> list[tuple[str, float]]:
    """``(le, count)`` as Prometheus wants it: seconds, each count including all before it, +Inf last.

    Bucket k holds whole microseconds below 2^k, cut off from real time, so the bound 2^k is exact.
    """
    assert 0 <= low <= high < BUCKETS - 1, "the last bucket has no upper bound"
    steps: list[tuple[str, float]] = []
    seen = 0
    for exponent, held in enumerate(histogram.buckets):
        seen += held
        if low <= exponent <= high:
            steps.append((repr((1 << exponent) / 1e6), seen))
    steps.append(("+Inf", seen))
    return steps


def _clean(value: str) -> str:
    """A label value that can be encoded: a name from the environment may hold lone surrogates."""
    return value.encode("utf-8", "replace").decode()


def _family(metric: Metric, reading: Reading | None) -> Family:
    """The client library's form of one metric; without a reading, its description only."""
    if metric.kind == "histogram":
        shown = HistogramMetricFamily(metric.name, metric.help, unit=metric.unit)
        if isinstance(reading, Histogram):
            shown.add_metric([], cumulative(reading, metric.low, metric.high), reading.sum_us / 1e6)
        return shown
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    if isinstance(reading, Mapping):
        for values, number in reading.items():
            family.add_metric([_clean(value) for value in values], number)
    elif isinstance(reading, (int, float)):
        family.add_metric([], reading)
    return family


class InstrumentsCollector(Collector):
    """Looks when scraped; between scrapes it costs nothing."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look

    def describe(self) -> Iterator[Family]:
        """What will be collected; the registry asks at registration, before the rooms can be asked."""
        return (_family(metric, None) for metric in METRICS)

    def collect(self) -> Iterator[Family]:
        """Every metric with its values."""
        look = self._look()
        for metric in METRICS:
            yield _family(metric, metric.read(look))


class Metrics:
    """The scrape page. :meth:`render` must run on the loop's thread: the rooms it reads have no locks."""

    def __init__(self, look: Callable[[], Look]) -> None:
        # A registry of our own: the library's global one would export what some imported package registered there.
        self._registry = CollectorRegistry()
        self._registry.register(InstrumentsCollector(look))
        self._scrapes = 0

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its Content-Type: OpenMetrics for whoever asks for it, else the classic text format."""
        self._scrapes += 1
        if "application/openmetrics-text" in accept:
            return _render_openmetrics(self._registry), openmetrics.CONTENT_TYPE_LATEST
        return exposition.generate_latest(self._registry), exposition.CONTENT_TYPE_PLAIN_0_0_4

    def statistics(self) -> dict[str, int]:
        """How often the page was asked for."""
        return {"scrapes": self._scrapes}

    def __repr__(self) -> str:
        return f"<Metrics {len(METRICS)} metrics, {self._scrapes} scrapes>"
