"""The tables of docs/metrics.md and docs/errors.md, made from the declarations.

What lives here: rendering, and the queries that operators ask first.
What must not: any fact that is not read from a declaration.

``python -m longwire.observe.reference docs`` writes them; a test requires that the pages are what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ..words import errors
from ..words.errors import LongwireError
from ..words.page import rendered, table
from ..words.reasons import CloseReason
from ..words.shards import SHARD_STATES
from .declarations import CLOCKS, MAX_LABELLED, METRICS, OTHERS, Metric
from .instruments import ROUTES
from .queue_declarations import WHY_REFUSED
from .snapshot import ARENA_USES, STREAM_STATES

COMMAND: Final = "python -m longwire.observe.reference docs"

QUERIES: Final = (
    (
        "Streams per second by how they ended",
        "sum by (close_reason) (rate(longwire_streams_ended_total[5m]))",
    ),
    (
        "Share of streams that engines broke",
        (
            'sum(rate(longwire_streams_ended_total{close_reason=~"upstream_.*"}[5m]))'
            " / sum(rate(longwire_streams_ended_total[5m]))"
        ),
    ),
    (
        "Time to the first token, 95th percentile",
        "histogram_quantile(0.95, sum by (le) (rate(longwire_ttft_seconds_bucket[5m])))",
    ),
    (
        "How full the arena is",
        "1 - longwire_arena_free_blocks / longwire_arena_blocks",
    ),
    (
        "Is the gateway itself late?",
        "histogram_quantile(0.99, sum by (le) (rate(longwire_loop_lag_seconds_bucket[5m])))",
    ),
)
"""Questions that operators ask first. A test checks that each names only metrics that exist."""


def _code(word: object) -> str:
    return f"`{word}`"


def _range(metric: Metric) -> str:
    """A histogram's kind with the reach of its buckets."""
    if metric.kind != "histogram":
        return metric.kind
    return f"histogram, {(1 << metric.low) / 1e6:g} s to {(1 << metric.high) / 1e6:g} s"


def _metric_rows() -> Iterator[Sequence[str]]:
    for metric in METRICS:
        labels = ", ".join(_code(label) for label in metric.labels)
        yield _code(metric.name), _range(metric), metric.unit, labels, metric.help


def _label_rows() -> Iterator[Sequence[str]]:
    yield _code("close_reason"), "the words in [errors.md](errors.md#close-reasons)"
    yield (
        _code("state"),
        (
            f"of a stream: {', '.join(STREAM_STATES)}; of a connection: idle, busy, connecting; "
            f"of a shard: {', '.join(SHARD_STATES)}"
        ),
    )
    yield _code("shard"), "its slot, from 0 on"
    yield _code("use"), ", ".join(ARENA_USES)
    yield _code("clock"), ", ".join(CLOCKS)
    yield _code("why"), ", ".join(WHY_REFUSED)
    yield _code("route"), ", ".join(sorted(ROUTES))
    yield _code("status"), "the HTTP status as a number"
    yield _code("engine"), "the engine's name in the settings"
    yield _code("tenant"), f"the tenant's name in the settings; beyond {MAX_LABELLED} tenants the rest is `{OTHERS}`"
    yield _code("version"), "the release"


def _metrics() -> str:
    return table(("Name", "Kind", "Unit", "Labels", "What it says"), _metric_rows())


def _labels() -> str:
    return table(("Label", "Values"), _label_rows())


def _queries() -> str:
    return table(("Question", "PromQL"), ((question, _code(query)) for question, query in QUERIES))


def error_classes() -> list[type[LongwireError]]:
    """Every error of the tree, in the order of its file."""
    return [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, LongwireError)]


def _first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "`")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _error_rows() -> Iterator[Sequence[str]]:
    for error in error_classes():
        if error is not LongwireError:
            yield (
                _code(error.code),
                "none (exit 2)" if issubclass(error, errors.SettingsError) else str(error.status),
                "" if issubclass(error, errors.SettingsError) else _code(error.type),
                _yes(error.retryable),
                _first_line(error),
            )


_OWN_STATUS: Final = {
    CloseReason.UPSTREAM_REFUSED: "the engine's own 4xx",
    CloseReason.UPSTREAM_FAILED: "502 (503 stays 503)",
}
"""Where the answer depends on what the engine has said."""


def _reason_rows() -> Iterator[Sequence[str]]:
    for reason in CloseReason:
        status = _OWN_STATUS.get(reason, str(reason.status or ""))
        yield _code(reason.value), status, _yes(reason.resumable), reason.help


def _errors() -> str:
    return table(("Code", "Status", "Type", "Retry helps", "When"), _error_rows())


def _reasons() -> str:
    head = ("Reason", "Status before the first byte", "More comes at the cursor", "What happened")
    return table(head, _reason_rows())


PAGES: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "metrics.md": {"metrics": _metrics, "labels": _labels, "queries": _queries},
    "errors.md": {"errors": _errors, "reasons": _reasons},
}
"""Each page's tables."""


def render(name: str, page: str) -> str:
    """The page of that name with every table as the declarations have it."""
    return rendered(page, PAGES[name])


if __name__ == "__main__":
    for name in PAGES:
        path = Path(sys.argv[1]) / name
        path.write_text(render(name, path.read_text("utf-8")), "utf-8")
        print(path)
