"""What a run has found, as one JSON object.

What lives here: the schema and its version, combining repeats, and reading a result back.
What must not: computing figures (figures.py), other forms (markdown.py, page.py).

A figure is the mean over repeats with Student's 95 % interval. With a single repeat, a percentile has the interval of its own
order statistics, and what is no percentile has none. A figure that does not exist (no stream was complete) is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..words.errors import SettingsError
from .declarations import PATHS
from .figures import Figures
from .histogram import merged
from .records import Record
from .statistics import Interval, t_interval

SCHEMA = "longwire-bench/1"
"""The number rises when a field changes its meaning or goes; fields may be added under the same one."""

WHOLE = ("plan", "machine", "problems", "plots")
"""What a comparison reads besides the figures."""

Result = dict[str, Any]


def make_result(repeats: Sequence[Figures], **facts: Any) -> Result:
    """Repeats as one result. ``facts`` say what was measured, where, when and how."""
    problems = [f"Repeat {number}: {problem}" for number, each in enumerate(repeats, 1) for problem in each.problems]
    return {
        "schema": SCHEMA,
        **facts,
        "valid": not problems and bool(repeats),
        "problems": problems,
        "metrics": {path: _metric(path, repeats) for path in PATHS},
        "examples": {word: text for each in repeats for word, text in each.examples.items()},
        "plots": {
            "ttft_ms": _as_json(merged(each.ttft for each in repeats)),
            "itl_ms": _as_json(merged(each.itl for each in repeats)),
            "tokens_by_second": [each.tokens_by_second for each in repeats],
            "gaps": [[list(gap) for gap in each.gaps] for each in repeats],
        },
    }


def _metric(path: str, repeats: Sequence[Figures]) -> dict[str, Any]:
    values = [each.values[path] for each in repeats]
    found = t_interval(values)
    if len(repeats) == 1:
        found = repeats[0].intervals.get(path, found)
    return {**interval_json(found), "repeats": [number(value) for value in values]}


def interval_json(found: Interval) -> dict[str, Any]:
    """A figure and its bounds."""
    return {"value": number(found.value), "low": number(found.low), "high": number(found.high)}


def number(value: float) -> float | int | None:
    """As JSON has it: null of what does not exist, whole numbers without a point, and no digits that mean nothing."""
    if math.isnan(value) or math.isinf(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.6g}")


def _as_json(counts: dict[int, int]) -> list[list[int]]:
    return [[number, count] for number, count in counts.items()]


def raw_of(records: Sequence[Record], go_ns: int) -> list[dict[str, Any]]:
    """Every timestamp of a repeat, in nanoseconds from its start; null where it was not reached."""
    return [
        {
            "number": record.number,
            "outcome": record.outcome.word,
            "status": record.status,
            "tokens": record.tokens,
            **{
                name: at_ns - go_ns if (at_ns := getattr(record, name)) else None
                for name in ("scheduled_ns", "sent_ns", "ready_ns", "head_ns", "body_ns", "end_ns")
            },
            "content_ns": [at_ns - go_ns for at_ns in record.times],
            "cuts_ns": [[cut.at_ns - go_ns, cut.back_ns - go_ns if cut.back_ns else None] for cut in record.cuts],
        }
        for record in sorted(records, key=lambda record: record.number)
    ]


def write_result(result: Result, path: str) -> None:
    """As a file; small enough to be kept, and read by a person if need be."""
    Path(path).write_text(
        json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n", "utf-8"
    )


def read_result(path: str) -> Result:
    """A result from a file.

    Raises:
        SettingsError: there is none, or one of another schema.
    """
    try:
        result = json.loads(Path(path).read_text("utf-8"))
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror or exc}.") from exc
    except (ValueError, RecursionError) as exc:
        raise SettingsError(f"{path} is no JSON: {exc}.") from exc
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA or not isinstance(result.get("metrics"), dict):
        raise SettingsError(f"{path} is no result of longwire bench that this version reads ({SCHEMA}): {schema!r}.")
    if missing := [name for name in WHOLE if name not in result]:
        raise SettingsError(f"{path} is not whole: {', '.join(missing)} is missing; measure again.")
    found: Result = result
    return found
