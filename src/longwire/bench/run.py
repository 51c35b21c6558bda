"""A whole measurement: control, repeats, and the result.

What lives here: the order of things. What must not: load (sender.py), figures (figures.py), the terminal (live.py, cli).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..words.bench_settings import BenchSettings
from .chaos import GRACE_S, RESET_CLIENTS, Chaos, check_reach, parse_chaos
from .comparison import compare
from .crew import Crew, Gathered, Progress, Show
from .endpoint import RunFailed, first_model, parts_of, port_of
from .figures import Figures, Measured, figures_of
from .job import Job
from .plan import base_url, load_of
from .prompts import read_extra, read_headers, read_prompts
from .result import Result, interval_json, make_result, raw_of
from .standin import StandIn

BUILT_IN = "sim"
NO_CONTROL = "none"


@dataclass(slots=True)
class Target:
    """Where a load goes."""

    base: str
    job: Job


class Run:
    """One call of ``longwire bench URL``. Settings are checked when it is made, so that nothing starts with a wrong one."""

    def __init__(self, url: str, settings: BenchSettings, environ: Mapping[str, str], show: Show) -> None:
        self._url = url if url == BUILT_IN else base_url(url)
        self._settings = settings
        self._show = show
        self._rates = parse_chaos(settings.chaos)
        check_reach(self._rates, settings.admin, settings.engine)
        self._headers = read_headers(settings.header)
        if key := environ.get("LONGWIRE_API_KEY"):
            self._headers.append(("authorization", f"Bearer {key}"))
        self._extra = read_extra(settings.body)
        if settings.control not in (BUILT_IN, NO_CONTROL):
            base_url(settings.control)
        if settings.prompts:
            read_prompts(settings.prompts)
        self._load = load_of(settings)
        self._stand_in: StandIn | None = None
        self._stand_in_url = ""
        self._raw: list[Any] = []

    def __repr__(self) -> str:
        return f"<Run against {self._url}>"

    async def run(self, stop: asyncio.Event) -> Result:
        """All of it, or what there is when ``stop`` is set.

        Raises:
            RunFailed: there is nothing to report.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            repeats, controls, target = await self._all(stop)
        finally:
            if self._stand_in is not None:
                await self._stand_in.close()
        if not repeats:
            raise RunFailed("Nothing was measured: no request was due after the warm-up, or it was stopped before.")
        result = make_result(
            repeats,
            made_at=started,
            target=target.base,
            model=target.job.model,
            plan=_plan_of(self._settings),
            machine=machine(),
            stopped=stop.is_set(),
        )
        if stop.is_set():
            result["problems"].append("It was stopped by hand.")
        if controls:
            self._add_control(result, controls)
        result["valid"] = not result["problems"]
        if self._settings.raw:
            result["raw"] = self._raw
        return result

    async def _all(self, stop: asyncio.Event) -> tuple[list[Figures], list[Figures], Target]:
        settings = self._settings
        target = await self._target(self._url, is_control=False)
        control = None
        if settings.control != NO_CONTROL:
            control = await self._target(settings.control, is_control=True)
        repeats: list[Figures] = []
        controls: list[Figures] = []
        for number in range(1, settings.repeats + 1):
            # The built-in stand-in shows once that the client is able. A control of the user's is what to subtract: each time.
            if control is not None and (settings.control != BUILT_IN or number == 1):
                controls += await self._repeat(control, f"control {number}", number, stop)
            if stop.is_set():
                break
            label = f"repeat {number}/{settings.repeats}"
            repeats += await self._repeat(target, label, number, stop, is_target=True)
        return repeats, controls, target

    async def _target(self, url: str, *, is_control: bool) -> Target:
        if url == BUILT_IN:
            base, tls = base_url(await self._start_stand_in()), False
        else:
            base = base_url(url)
            tls = parts_of(base).scheme == "https"
        model = self._settings.model
        if not model or (url == BUILT_IN and is_control):
            model = await asyncio.to_thread(first_model, base, dict(self._headers))
        job = make_job(self._settings, self._headers, self._extra, base, model)
        return Target(
            base, replace(job, tls=tls, resets_per_s=0.0 if is_control else self._rates.get(RESET_CLIENTS, 0.0))
        )

    async def _start_stand_in(self) -> str:
        if self._stand_in is None:
            self._stand_in = StandIn()
            self._stand_in_url = await self._stand_in.start()
        return self._stand_in_url

    async def _repeat(
        self, target: Target, label: str, number: int, stop: asyncio.Event, *, is_target: bool = False
    ) -> list[Figures]:
        """One repeat; nothing where it was stopped before anything was sent that counts."""
        settings = self._settings
        job = replace(target.job, seed=settings.seed + number - 1)
        progress = Progress(label, planned_s=job.warm_up_s + job.duration_s)
        crew = Crew(job, settings.processes, progress)
        chaos = Chaos(self._rates if is_target else {}, settings.admin, settings.engine, settings.stall_ms)
        try:
            go_ns = await crew.start()
            progress.started_s = time.monotonic()
            async with self._beside(crew, chaos, go_ns, progress, stop):
                gathered = await crew.gather()
        finally:
            await crew.close()
        progress.is_over = True
        self._show(progress)
        measured = self._measured(gathered, chaos)
        if not measured.counted():
            return []
        if is_target and settings.raw:
            self._raw.append(raw_of(gathered.records, gathered.go_ns))
        figures = figures_of(measured)
        figures.problems += chaos.problems
        return [figures]

    @contextlib.asynccontextmanager
    async def _beside(
        self, crew: Crew, chaos: Chaos, go_ns: int, progress: Progress, stop: asyncio.Event
    ) -> AsyncIterator[None]:
        """What goes on while the processes send."""
        settings = self._settings
        start_ns = go_ns + int(settings.warm_up_s * 1e9)
        tasks = [
            asyncio.create_task(chaos.run(start_ns, settings.duration_s, settings.seed)),
            asyncio.create_task(self._show_often(progress)),
            asyncio.create_task(_pass_on(stop, crew)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    async def _show_often(self, progress: Progress) -> None:
        while True:
            await asyncio.sleep(0.5)
            progress.note_rate(time.monotonic())
            self._show(progress)

    def _measured(self, gathered: Gathered, chaos: Chaos) -> Measured:
        settings = self._settings
        warm_up_ns, duration_s = int(settings.warm_up_s * 1e9), settings.duration_s
        reached_ns = time.monotonic_ns() - gathered.go_ns - warm_up_ns
        return Measured(
            records=gathered.records,
            go_ns=gathered.go_ns,
            warm_up_s=settings.warm_up_s,
            duration_s=max(0.001, min(duration_s, reached_ns / 1e9)),
            is_open_loop=not settings.concurrency,
            lags=gathered.lags,
            cpu_share=gathered.cpu_share,
            skipped=gathered.skipped,
            uncut=gathered.uncut,
            kills=chaos.kills,
            stalls=chaos.stalls,
            detections_ms=chaos.detections_ms,
            examples=gathered.examples,
        )

    def _add_control(self, result: Result, controls: list[Figures]) -> None:
        """What the control shows: that the client is able, and where it is the user's own, what the way costs."""
        control = make_result(controls, plan=result["plan"])
        result["control"] = {
            "target": self._settings.control,
            "metrics": control["metrics"],
            "problems": control["problems"],
        }
        result["problems"] += [f"Control run: {problem}" for problem in control["problems"]]
        if self._settings.control != BUILT_IN:
            result["control"]["differences"] = {
                each.path: interval_json(each.change) for each in compare(control, result)
            }


async def _pass_on(stop: asyncio.Event, crew: Crew) -> None:
    await stop.wait()
    crew.stop()


def make_job(
    settings: BenchSettings, headers: list[tuple[str, str]], extra: dict[str, Any], base: str, model: str
) -> Job:
    """The order for one endpoint, to all processes."""
    parts = parts_of(base)
    assert parts.hostname is not None
    load = load_of(settings)
    extra = dict(extra)
    if settings.verify:
        given = extra.get("sim") if isinstance(extra.get("sim"), dict) else {}
        extra["sim"] = {**(given or {}), "tokens": settings.tokens, "seed": settings.seed, "stamp": True}
    if any(text.startswith(RESET_CLIENTS) for text in settings.chaos):
        headers = [*headers, ("longwire-on-disconnect", f"grace={GRACE_S}")]
    same = ("tokens", "door", "verify", "prompts", "prompt_tokens", "seed", "arrivals", "concurrency")
    limits = ("warm_up_s", "duration_s", "drain_s", "sources", "timeout_s", "silence_s")
    return Job(
        host=parts.hostname,
        port=port_of(parts),
        path=parts.path + settings.path,
        model=model,
        answer_seed=settings.seed,
        extra=extra,
        headers=headers,
        rate=load.rate,
        end_rate=load.end_rate,
        burst=load.burst,
        burst_every_s=load.burst_every_s,
        # A closed loop's slots are its limit: one that was skipped would never ask again.
        max_in_flight=settings.concurrency or max(1, settings.max_in_flight // settings.processes),
        **{name: getattr(settings, name) for name in (*same, *limits)},
    )


def _plan_of(settings: BenchSettings) -> dict[str, Any]:
    """The settings without what is secret in them."""
    plan = asdict(settings)
    plan["header"] = [text.partition(":")[0] for text in settings.header]
    return plan


def machine() -> dict[str, Any]:
    """Where it was measured from."""
    cpu = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
