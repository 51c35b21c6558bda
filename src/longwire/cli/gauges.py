"""An engine's own account of its work: recognised, and watched while an answer is left.

What lives here: which metrics belong to which kind, reading them, and the judgement whether an abandoned answer stopped.
What must not: requests (asking.py), and how the gateway itself reads an engine's load (engines/): a check that shared its code
would share its mistakes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .abilities import NO, UNKNOWN, YES, Ability, ability

PATHS = ("/metrics", "/slots")
"""Where engines tell of their work."""
WATCH_S = 3.0
"""An engine that has not stopped by then has not noticed: all look at the connection at least once a token."""
PROMPT_S = 1.0
"""An answer that ends later than this after it was left may have ended by itself."""
LOOKS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.4, 2.0, 2.5, WATCH_S)
"""When the metrics are looked at, since the answer was left: often at first, for engines that are quick."""
FLAT_S = 1.0
"""A counter that has not moved for so long stands still."""


class Load(NamedTuple):
    """What an engine says of itself at one time; None is what it does not say."""

    running: float | None
    generated: float | None


class Gauges(NamedTuple):
    """One kind's names. Empty: it has none."""

    kind: str
    running: str
    generated: str


FAMILIES: Mapping[str, Gauges] = {
    "vllm:": Gauges("vllm", "vllm:num_requests_running", "vllm:generation_tokens_total"),
    "sglang:": Gauges("sglang", "sglang:num_running_reqs", "sglang:generation_tokens_total"),
    "llamacpp:": Gauges("llamacpp", "llamacpp:requests_processing", "llamacpp:tokens_predicted_total"),
    "tgi_": Gauges("tgi", "tgi_batch_current_size", "tgi_request_generated_tokens_sum"),
    "nv_": Gauges("triton", "", ""),
}
"""By the beginning of their metrics' names."""

OWNERS: Mapping[str, str] = {"longwire-sim": "sim", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""By ``owned_by`` of the model list, which is believed before the metrics: the stand-in has vLLM's."""

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Source:
    """One path that tells, and what it was recognised as."""

    path: str
    kind: str
    load: Load

    def __str__(self) -> str:
        known = [name for name, value in zip(Load._fields, self.load, strict=True) if value is not None]
        return f"{self.path}: {self.kind}" + (f" ({', '.join(known)})" if known else "")


def recognise(path: str, status: int, body: bytes) -> Source | None:
    """What a metrics page or a list of slots is, if it is one."""
    if status != 200:
        return None
    if path.endswith("/slots"):
        load = _read_slots(body)
        return Source(path, "llamacpp", load) if load else None
    values = _read_prometheus(body.decode("utf-8", "replace"))
    for beginning, gauges in FAMILIES.items():
        if any(name.startswith(beginning) for name in values):
            return Source(path, gauges.kind, Load(values.get(gauges.running), values.get(gauges.generated)))
    return None


def _read_prometheus(text: str) -> dict[str, float]:
    """Each name's sum over its labels."""
    values: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and not line.startswith("#"):
            try:
                values[match[1]] += float(match[2])
            except ValueError:
                continue
    return dict(values)


def _read_slots(body: bytes) -> Load | None:
    """llama.cpp's slots: which of them are at work, and what each has made of its present or latest answer."""
    try:
        slots = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(slots, list) or not slots or not all(isinstance(slot, dict) for slot in slots):
        return None
    if not all(isinstance(slot.get("is_processing"), bool) for slot in slots):
        return None
    return Load(
        float(sum(slot["is_processing"] for slot in slots)), sum(_decoded(slot.get("next_token")) for slot in slots)
    )


def _decoded(next_token: object) -> float:
    """``n_decoded``; later versions have a list of one."""
    found = next_token[0] if isinstance(next_token, list) and next_token else next_token
    count = found.get("n_decoded") if isinstance(found, dict) else None
    return float(count) if isinstance(count, (int, float)) else 0.0


# An answer that is left.


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen around a long answer that was left: loads before, during, and at seconds after."""

    before: Load
    during: Load
    after: tuple[tuple[float, Load], ...]
    left_s: float
    """How long the rest of the answer would have taken, by the pace of its beginning."""


def judge_watch(watch: Watch) -> Ability:
    """Whether the engine noticed that nobody reads any more."""
    name = "stops when left"
    idle = watch.before.running
    if idle is None or watch.during.running is None:
        return ability(name, UNKNOWN, "its metrics do not say what runs")
    if idle > 0:
        return ability(name, UNKNOWN, "others use it; ask again when it is idle")
    if watch.during.running <= idle:
        return ability(name, UNKNOWN, "its metrics did not show the answer while it ran")
    done_s = next((at_s for at_s, load in watch.after if load.running is not None and load.running <= idle), None)
    if done_s is None:
        return _judge_running(watch)
    if done_s <= min(PROMPT_S, watch.left_s / 2):
        return ability(name, YES, f"idle {done_s:.2f} s after, {max(0.0, watch.left_s - done_s):.0f} s before its end")
    if watch.left_s <= 2 * PROMPT_S:
        return ability(name, UNKNOWN, "too fast to tell: it would have ended by then anyway")
    return ability(name, UNKNOWN, f"ended {done_s:.1f} s after, perhaps by itself")


def _judge_running(watch: Watch) -> Ability:
    """The engine says that it runs on; its counter may know better."""
    name = "stops when left"
    counts = [(at_s, load.generated) for at_s, load in watch.after if load.generated is not None]
    if not watch.after or watch.after[-1][0] < FLAT_S:
        return ability(name, UNKNOWN, "its metrics stopped answering")
    last = counts[-1] if counts else (0.0, None)
    moved_s = max((at_s for at_s, count in counts if count != last[1]), default=0.0)
    began = watch.during.generated
    was_moving = (
        bool(counts) and watch.before.generated is not None and began is not None and began > watch.before.generated
    )
    if was_moving and last[0] - moved_s >= FLAT_S:
        return ability(
            name, YES, f"its token counter stands still since {moved_s:.1f} s after, though a request still shows"
        )
    return ability(name, NO, f"still at work {watch.after[-1][0]:.0f} s after")
