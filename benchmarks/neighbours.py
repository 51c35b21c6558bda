"""What tenants notice of one that behaves badly: on its own shard, and on the other.

What lives here: a gateway with homes for tenants, and the quiet ones' delays before and while another floods or is stuck; and,
for comparison, while processes compute that have nothing to do with the gateway.
What must not: the command line (costs.py).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from children import Child, Worker
from event import MODEL
from gateway import Gateway
from outcome import Outcome, put_first, say

OTHER_GOAL = 1.1
SAME_GOAL = 2.0
HEAVY = "heavy"
HEAVY_FILL = 1600
"""Events, 400 KB, that a stuck reader's stream has at once: more than the gateway and the kernel keep for a small window."""
BURNERS = 2
"""As many as a flood keeps busy: its client, and the shard that answers it."""
STUCK_WITHIN_S = 60.0
SETTLE_S = 2.0
OPEN_WITHIN_S = 60.0
FINISH_WITHIN_S = 60.0
TENANTS = {"noisy": 0, "same shard": 0, "other shard": 1}
"""By name: the slot that each is at home in."""


def measure(options: argparse.Namespace) -> Outcome:
    """Both ways of being a bad neighbour, one after the other."""
    outcome = Outcome(
        f"Neighbours: {options.quiet} streams per quiet tenant at {options.rate:g} events/s, p99 of "
        f"{options.seconds:g} s before and during"
    )
    for what, connections, arguments in (
        ("a flood", options.flood, []),
        ("stuck readers", options.stuck, ["--stuck", "--model", HEAVY]),
    ):
        say(f"neighbours of {what}")
        one_run(f"{what} ({connections} connections)", connections, arguments, options, outcome)
    say("neighbours of processes that only compute")
    one_run(f"control: {BURNERS} processes that only compute", BURNERS, None, options, outcome)
    return outcome


class Burners:
    """What a flood takes of the cores without touching the gateway: takes the orders that flood.py takes."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack

    def ask(self, order: str, connections: int = BURNERS) -> dict[str, int]:
        if order == "start":
            for number in range(connections):
                command = [sys.executable, "-c", "while True: pass"]
                self._stack.enter_context(Child("burner", command, None, self._directory / f"burner{number}.log"))
        return {"sent": 0, "open": connections}


def one_run(
    what: str, connections: int, arguments: list[str] | None, options: argparse.Namespace, outcome: Outcome
) -> None:
    with tempfile.TemporaryDirectory(prefix="neighbours_") as name, ExitStack() as stack:
        directory = Path(name)
        rate = ["--rate", str(options.rate)]
        engine = stack.enter_context(Worker("prefilled.py", rate, None, directory / "engine.log"))
        fill = [*rate, "--fill", str(HEAVY_FILL)]
        heavy = stack.enter_context(Worker("prefilled.py", fill, None, directory / "heavy.log"))
        keys = {tenant: f"lwk-{secrets.token_urlsafe(24)}" for tenant in TENANTS}
        ports = [int(each.answer()["port"]) for each in (engine, heavy)]
        config = write_config(directory, keys, ports)
        gateway = Gateway(0, directory, 2, ["--config", str(config), "--log-level", "error"])
        stack.enter_context(gateway)
        headers = {tenant: f"Authorization: Bearer {key}" for tenant, key in keys.items()}
        gateway.wait_ready({"Authorization": f"Bearer {keys['noisy']}"})
        port = ["--port", str(gateway.port)]
        quiet = {
            tenant: stack.enter_context(
                Worker("load.py", [*port, "--header", headers[tenant]], None, directory / f"quiet{home}.log")
            )
            for tenant, home in TENANTS.items()
            if tenant != "noisy"
        }
        noisy: Worker | Burners = Burners(directory, stack)
        if arguments is not None:
            words = [*port, "--header", headers["noisy"], *arguments]
            noisy = stack.enter_context(Worker("flood.py", words, None, directory / "noisy.log"))
        put_first(engine, *quiet.values())
        for load in quiet.values():
            load.ask("open", streams=options.quiet, within_s=OPEN_WITHIN_S)
        time.sleep(SETTLE_S)
        before = window(quiet, options.seconds)
        noisy.ask("start", connections=connections)
        if arguments:
            wait_stuck(heavy, connections)
        time.sleep(SETTLE_S)
        told = noisy.ask("count")
        during = window(quiet, options.seconds)
        now = noisy.ask("count")
        noisy.ask("stop")
        engine.ask("finish")
        heavy.ask("finish")
        ends = {tenant: load.ask("finish", within_s=FINISH_WITHIN_S) for tenant, load in quiet.items()}
    outcome.add(f"{what}: requests/s", (now["sent"] - told["sent"]) / options.seconds)
    goals: tuple[float | None, ...] = (OTHER_GOAL, SAME_GOAL) if arguments is not None else (None, None)
    for tenant, goal in zip(("other shard", "same shard"), goals, strict=True):
        outcome.add(f"  {tenant}, p99 before", before[tenant], "ms", digits=2)
        outcome.add(f"  {tenant}, p99 during", during[tenant], "ms", digits=2)
        ratio = during[tenant] / before[tenant]
        words = f"<= {goal:g} x" if goal else ""
        outcome.add(f"  {tenant}, during / before", ratio, "x", goal, digits=2, goal=words)
        if ends[tenant]["complete"] != options.quiet or ends[tenant]["errors"]:
            outcome.invalid.append(f"{what}, {tenant}: {ends[tenant]}")
    outcome.raw[what] = {"before": before, "during": during, "noisy": now}
    if now["open"] < connections / 2:
        outcome.invalid.append(f"{what}: only {now['open']} of {connections} connections were open: {now}")


def wait_stuck(heavy: Worker, connections: int) -> None:
    """Until the streams of all stuck readers have their past: writing it is no part of what is measured."""
    deadline = time.monotonic() + STUCK_WITHIN_S
    while heavy.ask("count")["sent"] < connections * HEAVY_FILL and time.monotonic() < deadline:
        time.sleep(SETTLE_S)


def window(quiet: dict[str, Worker], seconds: float) -> dict[str, float]:
    """The p99 of each quiet tenant."""
    for load in quiet.values():
        load.ask("begin")
    time.sleep(seconds)
    return {tenant: float(load.ask("end")["p99_ms"]) for tenant, load in quiet.items()}


def write_config(directory: Path, keys: dict[str, str], ports: list[int]) -> Path:
    """Tenants at home in slots, and an engine for the streams of stuck readers."""
    from longwire.admission.tenants import hash_key  # the path to it was set by then

    lines = [f"arena_bytes = {4 << 30}", "slow_reader_s = 600.0"]
    for model, port in zip((MODEL, HEAVY), ports, strict=True):
        lines += ["[[engines]]", f'name = "{model}"', f'url = "http://127.0.0.1:{port}"', f'models = ["{model}"]']
    for tenant, home in TENANTS.items():
        lines += ["[[tenants]]", f'name = "{tenant.replace(" ", "-")}"', f"home = {home}", "max_streams = 10000"]
        lines += [f'key_hashes = ["{hash_key(keys[tenant])}"]']
    path = directory / "longwire.toml"
    path.write_text("\n".join(lines) + "\n")
    return path
