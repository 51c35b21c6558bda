"""Figures of repeats whose times are known."""

from __future__ import annotations

import math
from array import array

import pytest
from tests.bench.measured import GO_NS, MS, S, measured, record

from longwire.bench.declarations import PATHS
from longwire.bench.figures import figures_of
from longwire.bench.outcomes import Cause, Outcome
from longwire.bench.records import TIME, Cut, Gap, Record, pack, unpack


def test_every_declared_figure_is_there_and_no_other() -> None:
    for records in ([], [record(0, 1.0)], [Record(0, GO_NS + 2 * S)]):
        assert set(figures_of(measured(records)).values) == set(PATHS)


def test_the_times_of_streams_that_are_all_alike() -> None:
    values = figures_of(measured([record(number, 1 + number / 10) for number in range(20)])).values
    for stat in ("mean", "p50", "p99", "max"):
        assert values[f"ttfb.{stat}_ms"] == 80
        assert values[f"ttfb_scheduled.{stat}_ms"] == 81
        assert values[f"ttft.{stat}_ms"] == 100
        assert values[f"ttft_scheduled.{stat}_ms"] == 101
        assert values[f"itl.{stat}_ms"] == 20
        assert values[f"tpot.{stat}_ms"] == 20
        assert values[f"e2e.{stat}_ms"] == 300
        assert values[f"client.late.{stat}_ms"] == 1
        assert values[f"tokens.stream_per_s.{stat}"] == 50
    assert values["load.sent"] == values["load.complete"] == 20
    assert values["load.requests_per_s"] == 5
    assert values["tokens.per_s"] == 50
    assert values["ir.share"] == values["failures.share"] == 0


def test_the_warm_up_is_left_out_but_its_tokens_count_where_they_arrive_after_it() -> None:
    early = record(0, 0.8)
    values = figures_of(measured([early, record(1, 1.0, sent_ns=GO_NS + 1 * S + 7 * MS)])).values
    assert values["load.sent"] == 1
    inside = sum(at >= GO_NS + S for at in early.times)
    assert 0 < inside < 10
    assert values["tokens.per_s"] == (10 + inside) / 4


def test_a_closed_loop_s_held_streams_count_but_their_waits_do_not() -> None:
    held = [record(0, 0.1), record(1, 0.9), record(2, 0.2, outcome=Outcome.UNFINISHED, end_ns=GO_NS + 5 * S)]
    values = figures_of(measured(held, is_open_loop=False)).values
    assert (values["load.sent"], values["load.complete"], values["load.unfinished"]) == (2, 1, 1)
    assert values["itl.p50_ms"] == 20 and math.isnan(values["ttft.p50_ms"])
    assert figures_of(measured(held)).values["load.sent"] == 0


def test_tokens_are_those_that_the_endpoint_counts() -> None:
    values = figures_of(measured([record(0, 1.0, told_tokens=19)])).values
    assert values["tpot.p50_ms"] == 10 and values["itl.p50_ms"] == 20
    assert values["tokens.per_s"] == 19 / 4


def test_interruptions_per_stream_and_per_thousand_tokens() -> None:
    records = [record(number, 1.0) for number in range(6)]
    records.append(record(6, 1.0, outcome=Outcome.RESET, tokens=4))
    records.append(record(7, 1.0, gaps=[Gap(3, Cause.ENGINE), Gap(5, Cause.GATEWAY)]))
    records.append(record(8, 1.0, outcome=Outcome.CUT_SHORT, tokens=6, gaps=[Gap(2, Cause.ENGINE)]))
    records.append(record(9, 1.0, outcome=Outcome.SHED, times=array(TIME), body_ns=0))
    found = figures_of(measured(records))
    values = found.values
    assert values["ir.breaks"] == 2 and values["ir.gaps"] == 3
    assert (values["ir.gaps_engine"], values["ir.gaps_gateway"], values["ir.gaps_client"]) == (2, 1, 0)
    assert values["ir.share"] == 3 / 9, "what was refused is no stream"
    assert values["ir.per_stream"] == 5 / 9
    assert values["ir.per_1000_tokens"] == 1000 * 5 / 80
    assert values["failures.share"] == 3 / 10
    assert (values["failures.reset"], values["failures.cut_short"], values["failures.shed"]) == (1, 1, 1)
    assert values["ttfb.over_800_share"] == 1 / 10, "who never got a byte has waited longer"
    assert found.gaps == [(1.141, 20, "engine"), (1.161, 20, "engine"), (1.201, 20, "gateway")]


def test_a_cut_of_our_own_is_no_gap_between_tokens() -> None:
    cut = record(0, 1.0, cuts=[Cut(5, GO_NS + S + 190 * MS, GO_NS + S + 700 * MS)])
    cut.times = array(TIME, [at + (500 * MS if event >= 5 else 0) for event, at in enumerate(cut.times)])
    values = figures_of(measured([cut])).values
    assert values["itl.max_ms"] == 20 and values["ir.share"] == 0
    assert values["resume.cuts"] == values["resume.resumed"] == 1
    assert values["resume.time.p50_ms"] == 510


def test_order_is_summed() -> None:
    records = [record(0, 1.0, verified=1, duplicates=2), record(1, 1.0, verified=1, lost=3, disorders=1, wrong=4)]
    values = figures_of(measured(records)).values
    names = ("verified", "duplicates", "violations", "lost", "wrong")
    assert [values[f"order.{name}"] for name in names] == [2, 2, 1, 3, 4]


# Validity.


def test_a_sender_that_fell_behind_says_so() -> None:
    records = [record(number, 1.0) for number in range(98)]
    late = [record(98 + number, 1.0, sent_ns=GO_NS + S + 11 * MS) for number in range(2)]
    assert figures_of(measured(records)).problems == []
    found = figures_of(measured([*records, *late]))
    assert found.values["client.late_share"] == 0.02
    assert found.problems == ["The sender fell behind: 2.0% of the requests were sent over 10 ms late (p99 11.0 ms)."]
    assert figures_of(measured([*records, *late], is_open_loop=False)).problems == [], "a closed loop has no schedule"


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"skipped": 3}, "3 requests were due"), ({"cpu_share": 0.9}, "busy for 90%")],
)
def test_what_else_makes_figures_invalid(facts: dict[str, float], words: str) -> None:
    (problem,) = figures_of(measured([record(0, 1.0)], **facts)).problems
    assert words in problem


def test_gaps_of_the_client_s_own_and_runs_without_an_answer_are_not_valid() -> None:
    assert "stood still" in figures_of(measured([record(0, 1.0, gaps=[Gap(1, Cause.CLIENT)])])).problems[0]
    found = figures_of(measured([record(0, 1.0, outcome=Outcome.REFUSED, times=array(TIME), body_ns=0)]))
    assert found.problems == ["No stream came to its end, or was held to the end of the run."]
    assert math.isnan(found.values["ttft.p50_ms"])


# From one process to another.


def test_records_survive_their_journey() -> None:
    records = [
        record(0, 1.0, gaps=[Gap(3, Cause.ENGINE)], cuts=[Cut(2, 5, 9)]),
        record(1, 1.0, outcome=Outcome.REFUSED, times=array(TIME)),
        record(2, 1.0, told_tokens=4, lost=1),
    ]
    again = unpack(*pack(records))
    names = [name for name in Record.__slots__ if name != "SCALARS"]
    assert [[getattr(each, name) for name in names] for each in again] == [
        [getattr(each, name) for name in names] for each in records
    ]
    assert figures_of(measured(again)).values.keys() == figures_of(measured(records)).values.keys()
