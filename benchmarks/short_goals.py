"""What short requests are to cost, and what kept a target from doing more.

What lives here: the goals of short.py, from the figures of its rounds.
What must not: measuring.
"""

from __future__ import annotations

from collections.abc import Sequence

from targets import DIRECT
from work import Goal, Round, middle

ALL = "longwire-all"
OURS, YARDSTICK = "longwire", "nginx"
ROUTERS = ("vllm-router", "sglang-router")
GOAL_TIMES_NGINX = 1.8
GOAL_SHARE_OF_ROUTERS = 0.5
GOAL_PER_S, GOAL_P99_MS = 12_400.0, 372.0
BUSY = 0.9
"""Of a core: beyond that it is what limited the run."""
MAX_WAITED = 0.05


def goals(rounds: Sequence[Round]) -> list[Goal]:
    """Against nginx, the Rust routers, and the rate of streams started."""
    routers = [name for name in ROUTERS if middle(rounds, name, "cpu_us") is not None]
    least = min(routers, key=lambda name: middle(rounds, name, "cpu_us") or 0.0, default="")
    to_nginx, to_nginx_paced = (ratio(rounds, YARDSTICK, figure) for figure in ("cpu_us", "paced_cpu_us"))
    paced = "" if to_nginx_paced is None else f"; paced, at equal work, {to_nginx_paced:.2f} x"
    name = ALL if middle(rounds, ALL, "requests_per_s") is not None else OURS
    rate, p99 = middle(rounds, name, "requests_per_s"), middle(rounds, name, "p99_ms")
    return [
        Goal.most("CPU per short request", "x nginx", to_nginx, GOAL_TIMES_NGINX, note=f"as fast as each can{paced}"),
        Goal.most(
            "CPU per short request against the cheaper Rust router",
            "x router",
            ratio(rounds, least, "cpu_us"),
            GOAL_SHARE_OF_ROUTERS,
            note=f"as fast as each can; {least}" if least else "no Rust router was measured in this run",
        ),
        Goal.least("short streams started", "/s", rate, GOAL_PER_S, note=f"{name}; {stopped_by(rounds, name)}"),
        Goal.most("short streams started, p99", "ms", p99, GOAL_P99_MS, note=name),
    ]


def ratio(rounds: Sequence[Round], yardstick: str, figure: str) -> float | None:
    """Longwire's figure over another's; None where one of them did not run."""
    ours, theirs = middle(rounds, OURS, figure), middle(rounds, yardstick, figure)
    return ours / theirs if ours is not None and theirs else None


def stopped_by(rounds: Sequence[Round], name: str) -> str:
    """What a request cost each of the three, and so why there were not more of them."""
    parts = [middle(rounds, name, figure) for figure in ("cpu_us", "engine_us", "load_us", "requests_per_s")]
    if None in parts:
        return "not measured"
    gateway, engine, load, rate = (float(part or 0.0) for part in parts)
    used = (gateway + engine + load) * rate / 1e6
    return (
        f"per request the gateway takes {gateway:.0f} us, engine stand-in {engine:.0f} and load {load:.0f}: "
        f"{used:.2f} cores in use when no more was possible"
    )


def limits(rounds: Sequence[Round]) -> list[str]:
    """For which targets something else than the gateway was what ended at the most."""
    found = []
    for name in dict.fromkeys(name for each in rounds for name in each if name not in (DIRECT, ALL)):
        share, waited = (middle(rounds, name, figure) for figure in ("core_share", "waited_share"))
        if share is None or waited is None or share >= BUSY:
            continue
        if waited > MAX_WAITED:
            found.append(f"{name}: others kept it from its core for {waited:.0%} of the time: it can do more")
        else:
            found.append(
                f"{name} used {share:.0%} of its core at the most: engine and load, on the other, were the limit"
            )
    return found
