"""The reference pages on metrics, errors and close reasons, made from their declarations.

What lives here: rendering of docs/metrics.md and docs/errors.md; a test requires that the files are what this makes.
What must not: any fact that is not read from a declaration, except the words around it.

``python -m longwire.observe.reference docs`` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ..words import errors
from ..words.errors import LongwireError
from ..words.reasons import CloseReason
from ..words.shards import SHARD_STATES
from .declarations import MAX_LABELLED, METRICS, OTHERS, Metric
from .instruments import ROUTES
from .snapshot import ARENA_USES, STREAM_STATES

COMMAND: Final = "python -m longwire.observe.reference docs"
_NOTICE: Final = f"<!-- Made by `{COMMAND}`; edit the declarations, not this page. -->"

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


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return lines


def _code(word: object) -> str:
    return f"`{word}`"


# docs/metrics.md


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
    yield _code("route"), ", ".join(sorted(ROUTES))
    yield _code("status"), "the HTTP status as a number"
    yield _code("engine"), "the engine's name in the settings"
    yield _code("tenant"), f"the tenant's name in the settings; beyond {MAX_LABELLED} tenants the rest is `{OTHERS}`"
    yield _code("version"), "the release"


def metrics_page() -> str:
    """docs/metrics.md"""
    return "\n".join(
        [
            "# Metrics",
            "",
            _NOTICE,
            "",
            "`GET /metrics` on the admin port answers in the Prometheus text format, or in OpenMetrics to whoever asks for it.",
            "No label holds an id of a stream or a client, or anything else that a request chooses.",
            "",
            *_table(("Name", "Kind", "Unit", "Labels", "What it says"), _metric_rows()),
            "",
            "The bounds of a histogram's buckets are powers of two of a microsecond, so they double from one to the next.",
            "",
            "## Labels",
            "",
            *_table(("Label", "Values"), _label_rows()),
            "",
            "## Questions and queries",
            "",
            *_table(("Question", "PromQL"), ((question, _code(query)) for question, query in QUERIES)),
            "",
        ]
    )


# docs/errors.md


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


def errors_page() -> str:
    """docs/errors.md"""
    return "\n".join(
        [
            "# Errors and close reasons",
            "",
            _NOTICE,
            "",
            "An answer that is an error has the shape that OpenAI's clients expect:",
            "",
            "```json",
            '{"error": {"message": "...", "type": "...", "param": null, "code": "..."}}',
            "```",
            "",
            "`code` is the stable word to program against; `message` is for people and may change.",
            "",
            "## Errors",
            "",
            *_table(("Code", "Status", "Type", "Retry helps", "When"), _error_rows()),
            "",
            "Where it is known how long to wait, the answer says so in `Retry-After`.",
            "",
            "## Close reasons",
            "",
            "Every stream ends for exactly one of these reasons. The same word stands in its log line, in the label",
            "`close_reason` of the metrics, in its JSON state, and as the `code` of the error event that a client gets when",
            "the end comes after the first byte.",
            "",
            "*More comes at the cursor* is the error event's `resumable`: only this reader was cut, and the stream goes on.",
            "What came before a bad end stays readable until the stream is evicted (`readable` in its state).",
            "",
            *_table(
                ("Reason", "Status before the first byte", "More comes at the cursor", "What happened"), _reason_rows()
            ),
            "",
        ]
    )


PAGES: Final[dict[str, Callable[[], str]]] = {"metrics.md": metrics_page, "errors.md": errors_page}


def write_pages(folder: Path) -> list[Path]:
    """Write every page into ``folder``; returns what was written."""
    written = []
    for name, render in PAGES.items():
        path = folder / name
        path.write_text(render(), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1])):
        print(page)
