"""``--fail-if 'ttft.p99_ms > 500'``: a figure, an operator, a number, and nothing else.

What lives here: reading such a condition and judging by it. What must not: eval.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ..words.errors import SettingsError
from .declarations import PATHS

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([a-z0-9_.]+)\s*(>=|<=|==|!=|>|<)\s*(-?[0-9.eE+-]+)\s*\Z")


class Condition(NamedTuple):
    """What must not hold."""

    path: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.path} {self.sign} {self.bound:g}"

    def holds(self, metrics: Mapping[str, Mapping[str, Any]]) -> bool | None:
        """Whether it holds; None where the figure does not exist."""
        value = metrics[self.path]["value"]
        return None if value is None else OPERATORS[self.sign](value, self.bound)


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        SettingsError: with a sentence for whoever wrote it.
    """
    match = _FORM.match(text)
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or math.isnan(bound):
        raise SettingsError(
            f"A condition is a figure, an operator and a number, as in 'ttft.p99_ms > 500': {text!r} is not."
        )
    path = match[1]
    if path not in PATHS:
        near = [known for known in PATHS if known.startswith(path + ".")] or get_close_matches(path, PATHS, 1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise SettingsError(f"There is no figure {path!r}{guess}; docs/bench.md lists them.")
    return Condition(path, match[2], bound)


def failed(conditions: list[Condition], metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each condition that holds, or cannot be judged: a figure that is missing is no success."""
    found = []
    for condition in conditions:
        holds = condition.holds(metrics)
        if holds is None:
            found.append(f"{condition.path} does not exist: too little was measured to judge {str(condition)!r}.")
        elif holds:
            found.append(f"{condition} holds: it is {metrics[condition.path]['value']:g}.")
    return found
