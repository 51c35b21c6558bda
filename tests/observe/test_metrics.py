"""The scrape page: what Prometheus itself would read from it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from longwire.observe.declarations import CLOCKS, MAX_LABELLED, METRICS, OTHERS, Look, Metric
from longwire.observe.instruments import BUCKETS, ROUTES, Histogram, Instruments
from longwire.observe.metrics import Metrics, cumulative
from longwire.observe.queue_declarations import WHY_REFUSED
from longwire.observe.snapshot import PoolSnapshot, Snapshot
from longwire.words.reasons import CloseReason

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(instruments: Instruments, snapshot: Snapshot | None = None) -> Samples:
    """Every sample of the page, by name and labels; a series that comes twice is an error."""
    page, content_type = Metrics(lambda: Look(instruments, snapshot or Snapshot())).render()
    assert content_type.startswith("text/plain; version=0.0.4")
    samples: Samples = {}
    for family in parse_classic(page.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = sample.value
    return samples


# Declarations.


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert metric.name.startswith("longwire_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.removesuffix("_total").endswith(metric.unit)
    assert metric.help.endswith(".")
    assert (metric.high > metric.low > 0) == (metric.kind == "histogram")
    assert metric.high < BUCKETS - 1
    assert not {"id", "stream", "request_id", "prompt", "key", "model", "client"} & set(metric.labels)


def test_every_counter_and_histogram_is_exported() -> None:
    instruments = Instruments()
    exported = {name: value for name, value in scrape(instruments).items() if not name[1]}
    for slot in Instruments.__slots__:
        value = getattr(instruments, slot)
        if isinstance(value, int):
            setattr(instruments, slot, 7)
        elif isinstance(value, Histogram):
            value.observe_us(5)
    now = scrape(instruments)
    assert all(now["longwire_clock_fired_total", (("clock", clock),)] == 7 for clock in CLOCKS)
    assert all(now["longwire_queue_refused_total", (("why", why),)] == 7 for why in WHY_REFUSED)
    changed = {name for name, value in now.items() if not name[1] and exported.get(name) != value}
    counters = sum(isinstance(getattr(instruments, slot), int) for slot in Instruments.__slots__)
    counters -= len(CLOCKS) + len(WHY_REFUSED)
    histograms = sum(isinstance(getattr(instruments, slot), Histogram) for slot in Instruments.__slots__)
    assert len(changed) == counters + 2 * histograms  # _count and _sum


# The page.


def test_counters_carry_their_labels() -> None:
    instruments = Instruments()
    instruments.streams_ended[CloseReason.SLOW_READER] += 2
    instruments.readers_ended["client_left"] += 1
    instruments.count_request("models", 200)
    samples = scrape(instruments)
    assert samples["longwire_streams_ended_total", (("close_reason", "slow_reader"),)] == 2
    assert samples["longwire_readers_ended_total", (("close_reason", "client_left"),)] == 1
    assert samples["longwire_requests_total", (("route", "models"), ("status", "200"))] == 1


def test_gauges_come_from_the_snapshot() -> None:
    snapshot = Snapshot(
        version="1.2",
        streams={"live": 3},
        subscribers=4,
        connections=5,
        arena_blocks=10,
        arena_blocks_free=6,
        arena_blocks_used={"log": 3, "input": 1},
        arena_bytes=655_360,
        pools={"a": PoolSnapshot(up=True, idle=1, busy=2, connecting=3)},
        tenant_streams={"acme": 3},
        tenant_held_tokens={"acme": 300},
        tenant_reserved_tokens={"acme": 4096},
    )
    samples = scrape(Instruments(), snapshot)
    assert samples["longwire_streams", (("state", "live"),)] == 3
    assert samples["longwire_streams", (("state", "opening"),)] == 0
    assert samples["longwire_subscribers", ()] == 4
    assert samples["longwire_connections", ()] == 5
    assert samples["longwire_arena_blocks", ()] == 10
    assert samples["longwire_arena_free_blocks", ()] == 6
    assert samples["longwire_arena_used_blocks", (("use", "log"),)] == 3
    assert samples["longwire_arena_bytes", ()] == 655_360
    assert samples["longwire_engine_up", (("engine", "a"),)] == 1
    assert samples["longwire_engine_connections", (("engine", "a"), ("state", "connecting"))] == 3
    assert samples["longwire_tenant_streams", (("tenant", "acme"),)] == 3
    assert samples["longwire_tenant_held_tokens", (("tenant", "acme"),)] == 300
    assert samples["longwire_tenant_reserved_tokens", (("tenant", "acme"),)] == 4096
    assert samples["longwire_build_info", (("version", "1.2"),)] == 1


def test_the_snapshot_is_taken_once_per_scrape_and_never_before() -> None:
    taken: list[int] = []

    def look() -> Look:
        taken.append(1)
        return Look(Instruments(), Snapshot())

    metrics = Metrics(look)
    assert taken == []
    metrics.render()
    assert taken == [1]
    assert metrics.statistics() == {"scrapes": 1}
    assert "1 scrapes" in repr(metrics)


def test_openmetrics_is_given_to_whoever_asks_for_it() -> None:
    page, content_type = Metrics(lambda: Look(Instruments(), Snapshot())).render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    families = cast(Any, parse_openmetrics)(page.decode())
    assert {family.name for family in families} >= {"longwire_events", "longwire_ttft_seconds"}


@pytest.mark.parametrize("accept", ["", "*/*", "application/openmetrics-text;version=x;escaping=?", "\x00;;,,"])
def test_a_strange_accept_header_still_gets_a_page(accept: str) -> None:
    page, _ = Metrics(lambda: Look(Instruments(), Snapshot())).render(accept)
    assert b"longwire_events_total 0.0" in page


# Histograms.


def test_buckets_are_cumulative_seconds() -> None:
    histogram = Histogram()
    for us in (100, 1023, 1024, 3000, 10**13):
        histogram.observe_us(us)
    steps = cumulative(histogram, 10, 12)
    assert steps == [("0.001024", 2), ("0.002048", 3), ("0.004096", 4), ("+Inf", 5)]


def test_a_histogram_on_the_page_adds_up() -> None:
    instruments = Instruments()
    instruments.ttft.observe_s(0.25)
    instruments.ttft.observe_s(2.0)
    samples = scrape(instruments)
    assert samples["longwire_ttft_seconds_count", ()] == 2
    assert samples["longwire_ttft_seconds_sum", ()] == 2.25
    assert samples["longwire_ttft_seconds_bucket", (("le", "0.262144"),)] == 1
    assert samples["longwire_ttft_seconds_bucket", (("le", "+Inf"),)] == 2


# Bounds.


def many(prefix: str, count: int) -> dict[str, int]:
    return {f"{prefix}{n:05d}": 1 for n in range(count)}


def test_tenants_beyond_the_bound_are_added_up() -> None:
    samples = scrape(Instruments(), Snapshot(tenant_streams=many("t", MAX_LABELLED + 50)))
    tenants = [key for key in samples if key[0] == "longwire_tenant_streams"]
    assert len(tenants) == MAX_LABELLED + 1
    assert samples["longwire_tenant_streams", (("tenant", OTHERS),)] == 50


def test_no_request_makes_series_without_end() -> None:
    instruments = Instruments()
    for route in ROUTES:
        instruments.count_request(route, 200)
    before = len(scrape(instruments))
    for n in range(2000):
        instruments.count_request(f"/{n}", n * 1000)
    assert len(scrape(instruments)) == before + 1  # other routes, impossible statuses


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "\udcff", "短い"])
def test_an_odd_name_of_the_operators_breaks_no_line(name: str) -> None:
    samples = scrape(Instruments(), Snapshot(tenant_streams={name: 1}))
    assert [value for key, value in samples.items() if key[0] == "longwire_tenant_streams"] == [1]
