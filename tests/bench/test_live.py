"""What is seen while it runs, and the client's own lag."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console
from rich.live import Live

from longwire.bench.crew import Progress
from longwire.bench.lateness import NOTED_NS, Lateness
from longwire.bench.live import PLAIN_EVERY_S, LiveView, PlainView, headline

S = 1_000_000_000


def progress() -> Progress:
    """Two processes have told how far they are."""
    made = Progress("repeat 1/5", started_s=0.0, planned_s=20)
    for worker in range(2):
        told = {"sent": 10, "live": 3, "done": 6, "failed": 1, "tokens": 50, "ttfts_ms": [10.0, 20.0, 30.0]}
        made.take(worker, told)
    return made


def test_processes_are_added_up() -> None:
    line = headline(progress())
    assert "20 sent, 6 live, 12 done, 2 failed" in line and "TTFT p50 / p99 20 / 30 ms" in line
    assert "TTFT p50 / p99 -" in headline(Progress("x"))


def test_rates_are_of_the_time_since_the_last_look() -> None:
    made = progress()
    made.note_rate(10.0)
    assert made.tokens_per_s == 10
    made.note_rate(12.0)
    assert made.tokens_per_s == 0


def test_without_a_terminal_a_line_comes_now_and_then_and_at_the_end() -> None:
    lines: list[str] = []
    now_s = [0.0]
    view = PlainView(lines.append, lambda: now_s[0])
    made = progress()
    for at_s in (0.0, 1.0, PLAIN_EVERY_S, PLAIN_EVERY_S + 1):
        now_s[0] = at_s
        view.show(made)
    assert len(lines) == 2
    made.is_over = True
    view.show(made)
    assert len(lines) == 3


def test_with_one_the_picture_stays_and_each_repeat_leaves_a_line() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Live(console=console, auto_refresh=False) as live:
        view = LiveView(live)
        made = progress()
        view.show(made)
        assert "TOKENS/S" in out.getvalue() and "TTFT P99" in out.getvalue()
        made.is_over = True
        view.show(made)
    assert "12 done, 2 failed" in out.getvalue()


def test_a_gap_is_the_client_s_own_where_it_stood_still_for_half_of_it() -> None:
    lateness = Lateness(asyncio.new_event_loop())
    lateness.note(10 * S, 600_000_000)
    lateness.note(20 * S, NOTED_NS - 1)
    assert lateness.was_late(9 * S, 10 * S + 1)
    assert not lateness.was_late(8 * S, 10 * S + 1), "0.6 s of 2"
    assert not lateness.was_late(11 * S, 12 * S)
    assert not lateness.was_late(19 * S, 20 * S + 1)
    assert list(lateness.lags) == [600_000_000, NOTED_NS - 1]
    lateness._loop.close()
