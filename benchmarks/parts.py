"""What `make bench` consists of: each part's script, what it is asked for, and the file that keeps what it said.

What lives here: the list, the command of a part, and who shows one that is no plain table.
What must not: running it (side_by_side.py), showing it (results.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import door_tables
from work import Round

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
PYTHON = ".venv/bin/python"
"""As a reader would call it; we run the same with the interpreter that runs us."""

PLAIN = ("nginx", "longwire", "haproxy", "envoy")
ROUTERS = ("vllm-router", "sglang-router")


Show = Callable[[Sequence[Round], Mapping[str, str]], Iterator[str]]
"""Rounds, and why targets are missing, as lines of the page."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of one script. Without targets, runs or seconds the script takes its own."""

    key: str
    """What `--only` calls it; two parts of one key belong together."""
    name: str
    title: str
    script: str
    arguments: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    runs: int | None = None
    seconds: float | None = None
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Targets that are not in it, each with what its row says."""
    show: Show | None = None
    """None: one table, targets and figures."""

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.name}.json"

    @property
    def has_script(self) -> bool:
        return (HERE / self.script).exists()

    def command(self, targets: Sequence[str], runs: int | None, seconds: float | None) -> list[str]:
        """Without the interpreter and `--json`; what is given goes before what the part says."""
        words = [f"benchmarks/{self.script}", *self.arguments]
        if chosen := runs or self.runs:
            words += ["--runs", str(chosen)]
        if length := seconds or self.seconds:
            words += ["--seconds", f"{length:g}"]
        return [*words, "--targets", *targets] if targets else words


PARTS = (
    Part(
        "a",
        "a",
        "500 streams at 20 events/s",
        "proxy_cost.py",
        ("--scenario", "500x20"),
        (*PLAIN, *ROUTERS),
        runs=5,
        seconds=10,
        elsewhere={"litellm": "100 streams saturate it already: see the next table"},
    ),
    Part(
        "a",
        "a-litellm",
        "100 streams at 20 events/s, for LiteLLM, which more would only saturate further",
        "proxy_cost.py",
        ("--scenario", "100x20"),
        ("nginx", "longwire", "litellm"),
        runs=3,
        seconds=10,
    ),
    Part(
        "b",
        "b",
        "9,000 streams at 2 events/s",
        "proxy_cost.py",
        ("--scenario", "9000x2"),
        (*PLAIN, *ROUTERS),
        runs=5,
        seconds=10,
        elsewhere={"litellm": "not run: it is saturated by 100 streams at 20 events/s"},
    ),
    Part(
        "c",
        "c",
        "Short requests: 64 connections, one token",
        "short.py",
        targets=("nginx", "longwire", "longwire-all", "haproxy", "envoy", *ROUTERS),
    ),
    Part("d", "d", "Channels: 10,000 readers over 100 streams", "channels.py"),
    Part("e", "e", "50,000 held connections over several shards", "held.py"),
    Part("f", "f", "Soak: 500 streams of 8,192 tokens, a tenth of them cut and resumed", "soak.py"),
    Part(
        "doors",
        "doors",
        "Doors: server-sent events and HTTP chunks, straight and behind nginx",
        "doors.py",
        targets=("longwire", "nginx"),
        show=door_tables.tables,
    ),
    Part("inside", "inside", "Inside: the log, a stream's state, the loop's longest pause", "inside.py"),
)
KEYS = tuple(dict.fromkeys(part.key for part in PARTS))
