"""What a run of ``longwire bench`` is: its flags, declared once.

What lives here: names, defaults, bounds and help. What must not: the rules between them (bench/plan.py), doing any of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .settings import setting

DOOR_NAMES = ("sse", "chunked")
"""Each has its entry in bench/doors.py."""
MAX_PROCESSES = 256
MAX_SOURCES = 200
"""127.0.0.2 and so on: each has some 28,000 connections to one port (net.ipv4.ip_local_port_range)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """One measurement of one endpoint."""

    # What is asked.
    model: str = setting("", "Model to ask for; empty: the first that the endpoint lists.")
    path: str = setting("/chat/completions", "What is posted to, below /v1: /chat/completions or /completions.")
    prompt_tokens: int = setting(32, "Words of each prompt; every prompt is another.", low=1, high=1_000_000)
    prompts: str = setting("", "File of prompts instead: a line each, or JSON lines with prompt or messages.")
    tokens: int = setting(64, "max_tokens of each request.", low=1, high=10_000_000)
    body: str = setting("", "JSON object whose fields are added to each request.")
    header: list[str] = setting([], "Header of each request, as 'NAME: VALUE'; may be given several times.")
    door: str = setting(
        "sse", "How the answer is read: as server-sent events, or HTTP chunk by chunk.", choices=DOOR_NAMES
    )
    verify: bool = setting(False, "Check each token's text: for `longwire sim`, behind any gateway.")

    # When.
    rate: float = setting(
        4.0, "Requests per second, sent when due whatever has been answered.", low=0.001, high=1_000_000
    )
    arrivals: str = setting("constant", "Evenly, or by chance at the same rate.", choices=("constant", "poisson"))
    ramp: str = setting("", "Rate at the beginning and at the end, as 2:50, instead of rate.")
    burst: str = setting("", "So many more at once, each time so many seconds have passed, as 100@10.")
    concurrency: int = setting(
        0, "So many at a time, each sent when the one before has ended, instead of rate.", low=0, high=1_000_000
    )
    warm_up_s: float = setting(3.0, "Time at the beginning whose requests are left out.", low=0, high=3600)
    duration_s: float = setting(20.0, "Time after it in which requests are sent.", low=0.1, high=86_400)
    drain_s: float = setting(30.0, "How long the last ones may take to end.", low=0, high=3600)
    repeats: int = setting(5, "How often all of it is done.", low=1, high=1000)
    seed: int = setting(0, "Seed of arrivals, prompts and chaos.", low=0, high=2**31)

    # Who asks.
    processes: int = setting(1, "Processes that send.", low=1, high=MAX_PROCESSES)
    max_in_flight: int = setting(
        10_000, "Most at once; what is due beyond is skipped and counted.", low=1, high=1_000_000
    )
    sources: int = setting(
        1, "Loopback addresses to connect from, for more than 28,000 connections.", low=1, high=MAX_SOURCES
    )
    timeout_s: float = setting(60.0, "Until the first byte of an answer.", low=0.1, high=3600)
    silence_s: float = setting(30.0, "Without a byte within an answer.", low=0.6, high=3600)
    control: str = setting("sim", "Where the control run goes: sim (the built-in stand-in), none, or a URL.")

    # What is broken meanwhile.
    chaos: list[str] = setting(
        [], "NAME=RATE a second: reset-clients, kill-shard, stall-engine; may be given several times."
    )
    stall_ms: float = setting(1000.0, "How long stall-engine lets the engine pause.", low=1, high=60_000)
    admin: str = setting("", "Admin port of the gateway on this machine, for kill-shard.")
    engine: str = setting("", "The stand-in behind the gateway, for stall-engine.")

    # What is kept.
    raw: bool = setting(False, "Put every timestamp into the JSON.")
