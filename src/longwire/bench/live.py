"""What is seen while it runs.

What lives here: one line or picture from a repeat's progress. What must not: measuring; these figures are not the report's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .crew import Progress
from .statistics import percentile

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_EVERY_S = 5.0
"""Between two lines where there is no terminal: a log wants few."""


def headline(progress: Progress) -> str:
    """All of it in a line."""
    total, ttfts = progress.totals(), sorted(progress.ttfts_ms)
    elapsed_s = time.monotonic() - progress.started_s
    waits = f"{percentile(ttfts, 0.5):.0f} / {percentile(ttfts, 0.99):.0f} ms" if ttfts else "-"
    return (
        f"{progress.label}, {elapsed_s:.0f} of {progress.planned_s:.0f} s: {total['sent']} sent, {total['live']} live, "
        f"{total['done']} done, {total['failed']} failed, {progress.tokens_per_s:.0f} tokens/s, TTFT p50 / p99 {waits}"
    )


def picture(progress: Progress) -> RenderableType:
    """The same as a table under a bar."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total, ttfts = progress.totals(), sorted(progress.ttfts_ms)
    elapsed_s = min(time.monotonic() - progress.started_s, progress.planned_s)
    cells: dict[str, str] = {name.upper(): str(total[name]) for name in ("sent", "live", "done", "failed")}
    cells["TOKENS/S"] = f"{progress.tokens_per_s:.0f}"
    for name, share in (("TTFT P50", 0.5), ("TTFT P99", 0.99)):
        cells[name] = f"{percentile(ttfts, share):.0f} ms" if ttfts else "-"
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*cells.values(), style="red" if total["failed"] else "")
    bar = Table.grid()  # A bar alone does not end its line.
    bar.add_row(ProgressBar(total=max(0.1, progress.planned_s), completed=elapsed_s, width=60))
    return Group(Text(f"{progress.label}, {elapsed_s:.0f} of {progress.planned_s:.0f} s", "bold"), bar, table)


class PlainView:
    """Lines: once a repeat has sent something, every five seconds from then on, and at its end."""

    def __init__(self, say: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._label = ""
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<PlainView {self._label}>"

    def show(self, progress: Progress) -> None:
        """A line, if it is time."""
        now_s = self._clock()
        if progress.label != self._label:
            self._label = progress.label
            self._next_s = now_s
        if progress.is_over or (now_s >= self._next_s and progress.totals()["sent"]):
            self._say(headline(progress))
            self._next_s = now_s + PLAIN_EVERY_S


class LiveView:
    """The picture in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __repr__(self) -> str:
        return "<LiveView>"

    def show(self, progress: Progress) -> None:
        """Draw it anew; a repeat that is over leaves its line above."""
        if progress.is_over:
            self._live.console.print(headline(progress), highlight=False)
        else:
            self._live.update(picture(progress), refresh=True)
