"""What one engine that is dead or slow costs the streams of the others.

Two stand-ins behind one gateway, each with a model of its own. The streams of the well one are measured: alone, and while the
ill one's model is asked for at the same time. Three kinds of ill: stopped (it accepts and says nothing), killed (connections
are refused) and slow (a token a second). Each round measures all four in turn, so that what the machine does else falls on all
of them; the ratios to the first are the result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from children import Child, RunFailed
from outcome import Outcome, command_line, run_command, say
from trial import free_port

WELL, ILL = "well", "ill"
FIGURES = ("ttft.p50_ms", "ttft.p99_ms", "itl.p99_ms")
KINDS = ("alone", "stopped", "killed", "slow")
UNTIL_UP_S = 20.0
LOOK_S = 0.1
ASKING_FIRST_S = 2.0
"""The ill engine is asked for so long before anything is measured: its breaker has seen it by then, or has not."""
GOAL = 1.1
"""Nobody else's p99 changes: within a tenth."""
EPILOG = """
examples:
  benchmarks/ill_upstream.py                          # about two and a half minutes
  benchmarks/ill_upstream.py --rounds 1 --seconds 3   # to see that it works; not to be cited
"""


def main() -> int:
    """Run it; 0 when it could be measured."""
    parser = command_line(__doc__, EPILOG)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all four (3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement (6)")
    parser.add_argument("--rate", type=float, default=20.0, help="streams per second of the well engine's model (20)")
    parser.add_argument("--ill-rate", type=float, default=20.0, help="requests per second for the ill one's (20)")
    options = parser.parse_args()
    return run_command(options, lambda: [_measure_all(options)])


def _measure_all(options: argparse.Namespace) -> Outcome:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for kind in KINDS:
                run = _measure(Path(folder), kind, options.rate, options.ill_rate, options.seconds)
                found[kind].append(run)
                say(f"round {number + 1}, {kind}: {', '.join(f'{name} {value:.2f}' for name, value in run.items())}")
    return _outcome(found)


def _measure(folder: Path, kind: str, rate: float, ill_rate: float, seconds: float) -> dict[str, float]:
    """One gateway, its engines, and the well model's streams beside requests for the other."""
    with ExitStack() as stack:
        well = stack.enter_context(_engine(folder, WELL, "20"))
        ill = stack.enter_context(_engine(folder, ILL, "1000" if kind == "slow" else "20"))
        url = stack.enter_context(_gateway(folder, well.port, ill.port))
        if kind in ("stopped", "killed"):
            os.kill(ill.pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
        if kind != "alone":
            stack.enter_context(_asking(url, ill_rate, seconds))
        return _bench(folder, url, rate, seconds)


class Engine(Child):
    """A stand-in in a process of its own."""

    def __init__(self, folder: Path, model: str, itl_ms: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "longwire", "sim", "--port", str(self.port), "--model", model]
        super().__init__(model, [*command, "--itl-ms", itl_ms, "--ttft-ms", "20"], None, folder / f"{model}.log")


@contextmanager
def _engine(folder: Path, model: str, itl_ms: str) -> Iterator[Engine]:
    with Engine(folder, model, itl_ms) as engine:
        yield engine
        if engine.popen.poll() is None:
            os.kill(engine.pid, signal.SIGCONT)  # one that is stopped hears of nothing else


@contextmanager
def _gateway(folder: Path, *ports: int) -> Iterator[str]:
    port, admin = free_port(), free_port()
    engines = [flag for each in ports for flag in ("--engine", f"http://127.0.0.1:{each}")]
    command = [sys.executable, "-m", "longwire", "serve", *engines, "--shards", "1", "--port", str(port)]
    with Child(
        "longwire", [*command, "--admin-port", str(admin), "--drain-s", "0"], None, folder / "gateway.log"
    ) as it:
        deadline = time.monotonic() + UNTIL_UP_S
        models = ""
        while not (f'"{WELL}"' in models and f'"{ILL}"' in models):
            it.must_live()
            if time.monotonic() > deadline:
                raise RunFailed(f"the gateway knows no model after {UNTIL_UP_S:g} s: {models}")
            time.sleep(LOOK_S)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
                models = answer.read().decode()
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _asking(url: str, rate: float, seconds: float) -> Iterator[None]:
    """Requests for the ill model for as long as the others are measured. What becomes of them is not looked at."""
    command = [sys.executable, "-m", "longwire", "bench", url, "--model", ILL, "--rate", str(rate), "--repeats", "1"]
    command += [
        "--duration-s",
        str(seconds + 2 * ASKING_FIRST_S),
        "--warm-up-s",
        "0",
        "--drain-s",
        "1",
        "--control",
        "none",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(ASKING_FIRST_S)
        yield
    finally:
        process.terminate()
        process.wait()


def _bench(folder: Path, url: str, rate: float, seconds: float) -> dict[str, float]:
    result = folder / "result.json"
    command = [sys.executable, "-m", "longwire", "bench", url, "--model", WELL, "--rate", str(rate), "--repeats", "1"]
    command += ["--duration-s", str(seconds), "--warm-up-s", "1", "--control", "none", "--json", str(result)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    figures = json.loads(result.read_text())["metrics"]
    return {name: float(figures[name]["value"]) for name in FIGURES}


def _outcome(found: dict[str, list[dict[str, float]]]) -> Outcome:
    """Medians, and each kind's ratio to the streams alone."""
    outcome = Outcome("What an ill engine costs the streams of a well one", raw={"runs": found})
    for name in FIGURES:
        base = statistics.median(run[name] for run in found["alone"])
        for kind, runs in found.items():
            middle = statistics.median(run[name] for run in runs)
            outcome.add(f"{name}, {kind}", middle, "ms")
            if kind != "alone":
                outcome.add("  ratio to the same alone", middle / base, "x", GOAL, digits=2)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
