"""Admitting less while an engine is saturated: values in, values out.

What lives here: what a reading of an engine's load means, the limit that is learned from it, and how answers' lengths are
expected. What must not: asking engines (load_probe.py), the queue of those who wait, how much room a request needs (room.py).

**What saturation is.** A KV cache that is 90 % full is what a well-used engine looks like, and says nothing by itself. Harm
shows in two other figures: requests that wait inside the engine, where no tenant's share holds and none can be refused any
more, and preemptions, which throw work away. So HOT is: preemptions have risen, or requests wait while the cache is nearly
full, or so many wait so long that the cache is not what they wait for. EASY is: nothing waits and there is room. Between the
two lies WARM, where nothing is changed: the gap between the bounds keeps a limit from swinging.

**What is learned.** Nothing, until an engine was HOT once: an engine that batches hundreds of requests well is given
hundreds. Then the limit is what it was seen to run, and from there it goes up by equal steps while it is EASY and the limit
is what holds requests back, and down by a factor whenever it is HOT (AIMD, as TCP does). Each shard learns for itself from
its own requests: the engine's figures tell by which factor there are too many, and that factor is the same for all.

**What is not believed.** A reading that is stale, or was looked at already, changes nothing, whatever the time. A limit is
forgotten where it has not been needed for a while, or where the engine has told nothing for so long that it need not be the
same engine any more: then it is again the engine's word, and not an old one, that counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from .load import Load

KV_FULL = 0.90
"""From this share on a cache is nearly full: what waits now waits for it."""
KV_MOST = 0.95
"""From this share on no more is tried, even if nothing waits: what runs will grow by what it has yet to answer."""
KV_ROOM = 0.90
"""Below this share more is tried again. A twentieth lies between the two: a few long prompts are as much."""
LEAST_WAITING = 1.0
"""Fewer waiting (smoothed, so fractions occur) are requests between two of the engine's steps."""
QUEUE_SHARE = 0.1
"""A queue below this share of what runs is gone within one answer's time."""
QUEUE_ALONE_SHARE = 0.5
"""A queue of this share is one even where the cache has room, if it stays: an engine also has a most of running requests."""
QUEUE_ALONE_READINGS = 3
"""So many readings in a row: a burst of prompts waits for a second or two before it is read, and that is no saturation."""
LEAST_FACTOR = 0.25
"""A limit is at most quartered at a time: the figures are a second old, and smoothed."""
MOST_FACTOR = 0.9
"""And it is lowered by a tenth at least, else it is no answer to anything."""
PREEMPTED_FACTOR = 0.8
"""Where nothing waits and yet requests were preempted, only that there are too many is known."""
DECREASE_EVERY_S = 2.0
"""What was let in before goes on after a decrease, and the smoothed queue takes about three readings to fall."""
STEPS_UP = 16
"""A limit rises by half of itself in eight EASY readings, one a second."""
LEAST_STEP = 1.0
LEAST_LIMIT = 1.0
"""One request is always let through: without any, nothing would ever show that the engine is well again."""
BINDING_SHARE = 0.75
"""A limit of which less than this is used holds nobody back, and so an EASY reading says nothing about it."""
FORGET_S = 60.0
"""A limit that has held nobody back for so long is forgotten."""
SILENT_S = 300.0
"""An engine that has told nothing for so long was started anew, or has lost its metrics: what was learned is forgotten."""


class Pressure(Enum):
    """What a reading says."""

    EASY = "easy"
    WARM = "warm"
    HOT = "hot"


@dataclass(frozen=True, slots=True)
class Saturation:
    """What is known of one upstream's saturation. ``limit`` is how much weight of requests it takes; None: nothing is known,
    so there is none."""

    limit: float | None = None
    pressure: Pressure = Pressure.EASY
    read_at: float = -1.0
    """When the last believed reading was taken."""
    preemptions: float | None = None
    """The engine's counter then."""
    long_queues: int = 0
    """Readings in a row with a long queue."""
    step: float = LEAST_STEP
    decreased_at: float = -1.0
    slack_since: float | None = None
    """Since when the limit has held nobody back, by readings."""

    @property
    def is_hot(self) -> bool:
        """Whether it was saturated by the last believed reading, or has not recovered since."""
        return self.pressure is Pressure.HOT or (self.pressure is Pressure.WARM and self.limit is not None)

    def limit_at(self, now: float) -> float | None:
        """The limit that holds now."""
        return None if now - self.read_at >= SILENT_S else self.limit


def learn(old: Saturation, load: Load | None, in_flight: float, now: float, stale_s: float) -> Saturation:
    """What is known after another look at an engine's load. ``in_flight`` is the weight of our own requests that are there.

    The queue and the cache are to be smoothed (load.smooth). Nothing that is stale, or was seen before, changes anything.
    """
    if load is None or load.at <= old.read_at or load.is_stale(now, stale_s):
        return old
    if load.at - old.read_at >= SILENT_S:
        old = Saturation()
    long_queues = old.long_queues + 1 if _has_long_queue(load) else 0
    pressure = judge(old, load, long_queues)
    known = old.preemptions if load.preemptions is None else load.preemptions
    noted = replace(old, pressure=pressure, read_at=load.at, preemptions=known, long_queues=long_queues)
    if pressure is Pressure.HOT:
        return _lowered(noted, load, in_flight, was_preempted=_has_preempted(old, load))
    if pressure is Pressure.EASY:
        return _raised(noted, in_flight)
    return replace(noted, slack_since=None)


def judge(old: Saturation, load: Load, long_queues: int) -> Pressure:
    """What this reading says, after what was known. ``long_queues`` counts it."""
    if _has_preempted(old, load):
        return Pressure.HOT
    kv_used = load.kv_used or 0.0
    if (kv_used >= KV_FULL and _has_queue(load)) or long_queues >= QUEUE_ALONE_READINGS:
        return Pressure.HOT
    bound = KV_MOST if old.pressure is Pressure.EASY else KV_ROOM
    return Pressure.WARM if kv_used >= bound or _has_queue(load) else Pressure.EASY


def _has_preempted(old: Saturation, load: Load) -> bool:
    """A counter that has fallen is that of an engine that was started anew."""
    return old.preemptions is not None and load.preemptions is not None and load.preemptions > old.preemptions


def _has_queue(load: Load) -> bool:
    waiting = load.waiting or 0.0
    return waiting >= LEAST_WAITING and waiting >= QUEUE_SHARE * (load.running or 0.0)


def _has_long_queue(load: Load) -> bool:
    return _has_queue(load) and (load.waiting or 0.0) >= QUEUE_ALONE_SHARE * (load.running or 0.0)


def _lowered(noted: Saturation, load: Load, in_flight: float, *, was_preempted: bool) -> Saturation:
    """To what the engine was seen to run. While more is there than the limit lets in, the rest drains: to be HOT still says
    nothing about the limit, and a factor for each reading of that time would end far below."""
    noted = replace(noted, slack_since=None)
    drains = noted.limit is not None and in_flight > noted.limit + noted.step
    if drains or noted.read_at - noted.decreased_at < DECREASE_EVERY_S or in_flight < LEAST_LIMIT:
        return noted
    most = PREEMPTED_FACTOR if was_preempted else MOST_FACTOR
    limit = max(LEAST_LIMIT, in_flight * max(LEAST_FACTOR, min(most, _share_run(load))))
    return replace(noted, limit=limit, step=max(LEAST_STEP, limit / STEPS_UP), decreased_at=noted.read_at)


def _share_run(load: Load) -> float:
    """What the engine runs, of all that it was given. One that runs nothing says nothing of how much it could."""
    running, waiting = load.running or 0.0, load.waiting or 0.0
    return running / (running + waiting) if running > 0.0 else 1.0


def _raised(noted: Saturation, in_flight: float) -> Saturation:
    if noted.limit is None:
        return noted
    if in_flight >= BINDING_SHARE * noted.limit:
        return replace(noted, limit=noted.limit + noted.step, slack_since=None)
    since = noted.read_at if noted.slack_since is None else noted.slack_since
    if noted.read_at - since >= FORGET_S:
        return Saturation(pressure=noted.pressure, read_at=noted.read_at, preemptions=noted.preemptions)
    return replace(noted, slack_since=since)
