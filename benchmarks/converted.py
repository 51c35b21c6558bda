"""What proxy_cost.py wrote, in the form in which all other works write: rounds of figures, goals, remarks.

What lives here: the figures that are shown of it, and the goals for work (a) and (b). Pure functions.
What must not: measuring, rendering.

A ratio is the median of the ratios within each round, as in report.py. A run that must not be cited has the figure
``invalid``; no median is made of it where the target has others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from work import INVALID, Figures, Goal, Round

SUBJECT, YARDSTICK, DIRECT = "longwire", "nginx", "direct"
CPU, ADDED_P99, MEMORY = "CPU us/event", "added p99 ms", "memory KiB/stream"
P99 = "p99 ms"
ROUTERS = ("vllm-router", "sglang-router")
SLOWEST = "litellm"

CPU_TIMES_NGINX = 1.30
TIMES_BELOW_LITELLM = 30.0
MEMORY_KIB = 12.0


def convert(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of a file with one scenario."""
    (scenario,) = told["scenarios"]
    rounds = [_round(runs) for runs in scenario["runs"]]
    goals = [asdict(goal) for goal in _goals(scenario["scenario"], rounds)]
    return {"rounds": rounds, "goals": goals, "remarks": list(_remarks(scenario["runs"]))}


def _round(runs: Mapping[str, Any]) -> Round:
    direct = runs.get(DIRECT)
    return {name: _figures(found, direct["delays_ms"] if direct else None) for name, found in runs.items()}


def _figures(found: Mapping[str, Any], direct_ms: Mapping[str, float] | None) -> Figures:
    """The direct run has delays only, and a round without one no added delays."""
    delays = found["delays_ms"]
    figures = {"p50 ms": delays["p50"], P99: delays["p99"]}
    if found["target"] != DIRECT:
        if direct_ms:
            figures |= {"added p50 ms": delays["p50"] - direct_ms["p50"], ADDED_P99: delays["p99"] - direct_ms["p99"]}
        figures = {CPU: found["user_us"] + found["system_us"], **figures}
        figures |= {MEMORY: found["anonymous_kib"], "log KiB/stream": found["shared_kib"]}
        figures["core %"] = found["core_share"] * 100
    if found["invalid"]:
        figures[INVALID] = 1.0
    return figures


def _remarks(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, each in enumerate(runs, 1):
        for name, found in each.items():
            yield from (f"NOT VALID: {name}, run {number}: {text}" for text in found["invalid"])
            yield from (f"{name}, run {number}: {text}" for text in found["remarks"])


def countable(rounds: Sequence[Round], target: str) -> list[Figures]:
    """The runs of a target of which a median may be made: the valid ones, or all where none is."""
    runs = [each[target] for each in rounds if target in each]
    return [run for run in runs if INVALID not in run] or runs


def values(rounds: Sequence[Round], target: str, figure: str) -> list[float]:
    """One figure in every run that counts."""
    return [run[figure] for run in countable(rounds, target) if figure in run]


def between(
    rounds: Sequence[Round], one: str, other: str, figure: str, of: Callable[[float, float], float]
) -> float | None:
    """The median over the rounds of what ``of`` makes of two targets' figures in the same round."""
    counted = [countable(rounds, one), countable(rounds, other)]
    pairs = [
        (each[one][figure], each[other][figure])
        for each in rounds
        if each.get(one) in counted[0]
        and each.get(other) in counted[1]
        and figure in each[one]
        and figure in each[other]
    ]
    return median(of(first, second) for first, second in pairs) if pairs else None


def _ratio(first: float, second: float) -> float:
    return first / second if second else float("inf")


def _goals(scenario: str, rounds: Sequence[Round]) -> list[Goal]:
    """Those of the work that this scenario is; any other has none."""
    if scenario == "500x20":
        return [_cpu_goal(rounds), _routers_goal(rounds), _p99_goal(rounds)]
    if scenario == "9000x2":
        return [_p99_goal(rounds), _memory_goal(rounds)]
    return [_litellm_goal(rounds)] if any(SLOWEST in each for each in rounds) else []


def _cpu_goal(rounds: Sequence[Round]) -> Goal:
    ratio = between(rounds, SUBJECT, YARDSTICK, CPU, _ratio)
    words = f"<= {CPU_TIMES_NGINX:.2f} x nginx"
    return Goal.most("CPU per event", "x nginx", ratio, CPU_TIMES_NGINX, words, _doubt(rounds, SUBJECT, YARDSTICK))


def _routers_goal(rounds: Sequence[Round]) -> Goal:
    """Below each of them, so below the cheapest."""
    found = {name: between(rounds, SUBJECT, name, CPU, _ratio) for name in ROUTERS}
    ratios = {name: ratio for name, ratio in found.items() if ratio is not None}
    missing = [name for name in ROUTERS if name not in ratios]
    notes = [f"of {name}: {ratio:.2f}" for name, ratio in ratios.items()] + [f"{name} did not run" for name in missing]
    notes.append(_doubt(rounds, SUBJECT, *ratios))
    worst = max(ratios.values(), default=None)
    met = None if worst is None else worst < 1.0
    name = "CPU per event beside the LLM gateways in Rust"
    return Goal(name, "x the cheapest", "below each: < 1 x", worst, met, "; ".join(filter(None, notes)))


def _litellm_goal(rounds: Sequence[Round]) -> Goal:
    ratio = between(rounds, SLOWEST, SUBJECT, CPU, _ratio)
    note = _doubt(rounds, SUBJECT, SLOWEST)
    return Goal.least("LiteLLM's CPU per event, over Longwire's", "x", ratio, TIMES_BELOW_LITELLM, note)


def _p99_goal(rounds: Sequence[Round]) -> Goal:
    """By the difference in each round, in which the way without a gateway was the same for both."""
    ours, theirs = (values(rounds, name, ADDED_P99) for name in (SUBJECT, YARDSTICK))
    difference = between(rounds, SUBJECT, YARDSTICK, ADDED_P99, lambda first, second: first - second)
    met = None if difference is None else difference <= 0
    words = f"<= nginx's ({median(theirs):.3f} ms)" if theirs else "<= nginx's"
    notes = [] if difference is None else [f"median difference in the same round {difference:+.3f} ms"]
    notes.append(_doubt(rounds, SUBJECT, YARDSTICK, DIRECT))
    return Goal("p99 added delay", "ms", words, median(ours) if ours else None, met, "; ".join(filter(None, notes)))


def _memory_goal(rounds: Sequence[Round]) -> Goal:
    found = values(rounds, SUBJECT, MEMORY)
    kib = median(found) if found else None
    return Goal.most("memory per stream besides the log", "KiB", kib, MEMORY_KIB, note=_doubt(rounds, SUBJECT))


def _doubt(rounds: Sequence[Round], *targets: str) -> str:
    """How many of the runs that a goal stands on are not valid."""
    runs = [(name, each[name]) for each in rounds for name in targets if name in each]
    broken = [name for name, run in runs if INVALID in run]
    return f"{len(broken)} of {len(runs)} runs not valid ({', '.join(sorted(set(broken)))})" if broken else ""
