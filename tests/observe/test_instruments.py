"""The counters: what they count, and that nothing makes them grow or fall."""

from __future__ import annotations

import pytest

from longwire.observe.instruments import BUCKETS, OTHER_ROUTE, ROUTES, Histogram, Instruments
from longwire.words.reasons import CloseReason


@pytest.mark.parametrize(
    ("us", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (2**38, 39), (2**39, 39), (2**80, 39), (-5, 0)],
)
def test_a_duration_falls_into_the_bucket_of_its_bit_length(us: int, bucket: int) -> None:
    histogram = Histogram()
    histogram.observe_us(us)
    assert [i for i, held in enumerate(histogram.buckets) if held] == [bucket]
    assert histogram.sum_us == max(0, us)
    assert len(histogram.buckets) == BUCKETS


def test_seconds_are_counted_as_microseconds() -> None:
    histogram = Histogram()
    histogram.observe_s(0.0015)
    assert (histogram.sum_us, histogram.count) == (1500, 1)


def test_quantiles_bound_what_was_seen() -> None:
    histogram = Histogram()
    assert histogram.quantile_us(0.5) == 0
    for us in (10, 10, 10, 5000):
        histogram.observe_us(us)
    assert 10 <= histogram.quantile_us(0.5) < 20
    assert 5000 <= histogram.quantile_us(0.99) < 10_000
    assert histogram.statistics()["sum_us"] == 5030


def test_every_close_reason_is_there_from_the_start_under_its_word() -> None:
    instruments = Instruments()
    assert set(instruments.streams_ended) == set(CloseReason)
    instruments.readers_ended["slow_reader"] += 1
    assert instruments.readers_ended[CloseReason.SLOW_READER] == 1
    assert not any(instruments.streams_ended.values())


def test_requests_stay_bounded_whatever_is_asked_for() -> None:
    instruments = Instruments()
    for n in range(5000):
        instruments.count_request(f"/guess/{n}", 404)
        instruments.count_request("models", 600 + n)
    assert instruments.requests == {(OTHER_ROUTE, 404): 5000, ("models", 0): 5000}
    assert OTHER_ROUTE in ROUTES


def test_statistics_and_repr_show_the_state() -> None:
    instruments = Instruments()
    instruments.events_total += 7
    instruments.ttft.observe_us(9)
    shown = instruments.statistics()
    assert shown["events_total"] == 7
    assert shown["ttft"] == instruments.ttft.statistics()
    assert "events=7" in repr(instruments)
    assert "count=1" in repr(instruments.ttft)
    with pytest.raises(AttributeError):
        instruments.evnets_total = 1  # type: ignore[attr-defined]
