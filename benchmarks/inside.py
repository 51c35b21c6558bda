"""What can only be seen from inside: creating a stream, the memory of a log, and how long the event loop is held up.

state       processor time that the gateway spends on a stream's state: its object, its stored request, its row
log         memory of a log and its index against the bytes that came from the engine, for logs of 64 KiB and more
pause       the longest call out of the event loop, garbage collection included, with 9,000 streams at 2 events/s

examples:
  benchmarks/inside.py                     # all three
  benchmarks/inside.py --quick             # to see that it works; not to be cited
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import procstat
import trial
from children import Child, RunFailed, Worker
from targets import Target, resolve
from work import Figures, Goal, Work, command_line, run_command, say, show, two_cores

STREAMS = 500
STATE_ROUNDS = 7
STATE_GOAL_US = 20.0
REQUEST = b'{"model":"bench","messages":[{"role":"user","content":"Tell me about the sea."}],"stream":true}'
LOG_SIZES_KIB = (64, 80, 100, 128, 256, 1024)
LOGS = 16
LOG_GOAL = 1.15
EVENT_BYTES = 200
PAUSE_GOAL_MS = 20.0
PAUSES_DIRECTORY = Path(__file__).resolve().parent / "pauses"
DUMP_WITHIN_S = 5.0


def state_us() -> float:
    """Microseconds of one stream's state; the fastest of several rounds, for what disturbs a round makes it slower."""
    from longwire.dialects.openai_chat import OpenAiWords
    from longwire.observe.instruments import Instruments
    from longwire.streams.memory import Memory
    from longwire.streams.registry import Registry
    from longwire.streams.stream import Facts
    from longwire.words.clock import VirtualClock
    from longwire.words.reasons import CloseReason
    from longwire.words.settings import Settings

    registry = Registry(
        Memory.make(64 << 20, STREAMS + 1, 1), Settings(), VirtualClock(), Instruments(), lambda _: None
    )
    words = OpenAiWords()
    rounds = []
    gc.disable()  # as in the gateway, which collects by its own clock
    for _ in range(STATE_ROUNDS):
        streams = []
        began = time.thread_time_ns()
        for _ in range(STREAMS):
            facts = Facts(tenant="acme", tenant_index=0, route="chat_completions", model="bench")
            stream = registry.open(facts, words)
            stream.store_request(REQUEST)
            registry.store_row(stream)
            streams.append(stream)
        rounds.append((time.thread_time_ns() - began) / STREAMS / 1000)
        for stream in streams:
            stream.end(CloseReason.CANCELLED)
            registry.evict(stream)
    gc.enable()
    return min(rounds)


def log_share(kib: int) -> float:
    """Memory of logs of so many KiB, by the kernel's own count of the arena, and of their indexes, per byte received."""
    from longwire.streams.arena import Arena
    from longwire.streams.log import Log

    arena = Arena(64 << 20)
    before = os.fstat(arena.fd).st_blocks * 512
    body = b"data: " + b"x" * (EVENT_BYTES - 14) + b"\n\n"
    frame = b"%x\r\n%b\r\n" % (len(body), body)
    logs = [Log(arena) for _ in range(LOGS)]
    while logs[-1].upstream.end < kib << 10:
        for log in logs:  # by turns, as streams grow
            start = log.upstream.append(frame)
            log.append_span(start, start + len(frame))
    used = os.fstat(arena.fd).st_blocks * 512 - before + sum(len(log.entries) * 8 for log in logs)
    return used / sum(log.upstream.end for log in logs)


def pauses(scenario: trial.Scenario, conditions: trial.Conditions) -> dict[str, list[float]]:
    """``{what the loop called: [longest by the wall clock, longest by processor time]}``, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="inside_") as name, ExitStack() as stack:
        directory = Path(name)
        engine = stack.enter_context(trial.start_engine(scenario, conditions, directory))
        port, target = conditions.next_port(), _watched(directory / "pauses")
        argv = target.command(port, f"http://127.0.0.1:{int(engine.answer()['port'])}", directory)
        gateway = stack.enter_context(Child(target.name, argv, conditions.gateway_core, directory / "gateway.log"))
        trial.wait_ready(gateway, port)
        trial.wait_calm(gateway)
        load = Worker("load.py", ["--port", str(port)], conditions.load_core, directory / "load.log")
        stack.enter_context(load)
        trial.open_streams(load, scenario.streams, gateway)
        time.sleep(conditions.settle_s)
        shard = max(procstat.tree(gateway.pid), key=_processor_ms)
        _dump(shard, directory)
        time.sleep(conditions.seconds)
        found = _dump(shard, directory)
        engine.ask("finish")
        load.ask("finish", within_s=trial.FINISH_WITHIN_S)
    return {name: [each * 1000 for each in longest] for name, longest in found.items()}


def _watched(file: Path) -> Target:
    """Longwire with one shard, which notes how long its loop was held up."""
    target = resolve(["longwire"])[0][0]

    def command(port: int, upstream: str, directory: Path) -> list[str]:
        path = os.pathsep.join([str(PAUSES_DIRECTORY), os.environ.get("PYTHONPATH", "")])
        return ["env", f"PYTHONPATH={path}", f"LOOP_PAUSES={file}", *target.command(port, upstream, directory)]

    return replace(target, command=command)


def _processor_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * procstat.TICK_MS


def _dump(shard: int, directory: Path) -> dict[str, list[float]]:
    file = directory / f"pauses.{shard}"
    file.unlink(missing_ok=True)
    os.kill(shard, signal.SIGUSR2)
    deadline = time.monotonic() + DUMP_WITHIN_S
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()):
            return dict(json.loads(text))
        time.sleep(0.05)
    raise RunFailed("the shard did not say how long its loop was held up")


def measure() -> int:
    parser = command_line(str(__doc__), ["longwire"], seconds=10, runs=3)
    options = parser.parse_args()
    scenario = trial.Scenario(1000 if options.quick else 9000, 2)
    seconds, runs = (3.0, 1) if options.quick else (options.seconds, options.runs)
    gateway_core, load_core = two_cores()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    conditions = trial.Conditions(seconds, 2.0, 970, gateway_core, load_core, trial.free_port)
    work = Work("inside", f"Seen from inside: a stream's state, its log, the loop's pauses with {scenario}")
    for number in range(1, runs + 1):
        shares = {f"log_{kib}_kib": log_share(kib) for kib in LOG_SIZES_KIB}
        longest = pauses(scenario, conditions)
        wall_ms, processor_ms = (max(each[at] for each in longest.values()) for at in (0, 1))
        figures: Figures = {"state_us": state_us(), "log": max(shares.values()), **shares}
        figures |= {"pause_ms": processor_ms, "pause_wall_ms": wall_ms}
        figures |= {f"pause {name}": each[1] for name, each in longest.items()}
        work.rounds.append({"longwire": figures})
        say(f"run {number}/{runs}: {json.dumps({name: round(value, 2) for name, value in figures.items()})}")
    _judge(work)
    columns = [("state_us", "state, us", 1), ("log", "log, x", 3), ("pause_ms", "pause, ms", 1)]
    show(work, [*columns, ("pause_wall_ms", "by the wall clock, ms", 1)], options.json)
    return 0


def _judge(work: Work) -> None:
    def worst(figure: str) -> float:
        return max(each["longwire"][figure] for each in work.rounds)

    bound = partial(Goal.most)
    work.goals.append(bound("creating a stream's state", "us", worst("state_us"), STATE_GOAL_US))
    note = f"the largest share over logs of {LOG_SIZES_KIB[0]} to {LOG_SIZES_KIB[-1]} KiB, index included"
    work.goals.append(bound("memory of a log per byte received", "x", worst("log"), LOG_GOAL, note=note))
    note = (
        f"processor time of the longest call, of all runs; {worst('pause_wall_ms'):.1f} ms by the wall clock, in which a "
        "host that shares its processors has its part"
    )
    work.goals.append(bound("longest pause of the event loop", "ms", worst("pause_ms"), PAUSE_GOAL_MS, note=note))


if __name__ == "__main__":
    sys.exit(run_command(measure))
