"""How busy an engine is, by its own account.

What lives here: the load as a value, smoothing it, and whether the engine's generation counter moves.
What must not: how each kind of engine tells it (load_kinds.py), asking (load_probe.py), what follows from it (directory.py,
the clocks of a call).

None means "not known", everywhere: an engine that says nothing is neither idle nor busy, and nobody may be held back for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SMOOTHING = 0.5
"""Weight of the newest sample: 2 / (n + 1) for an average over about three."""
MAX_COUNTED_PARTS = 4096
"""Slots of an engine that are followed one by one; servers have a few dozen."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine said at ``at``.

    ``kv_used`` is the share of its KV cache that is in use, ``capacity_tokens`` what the whole of it holds; ``preemptions`` and
    ``generated`` are counters that only grow. What ``generated`` counts differs (tokens, batches, iterations): only whether it
    moves has a meaning.
    """

    kv_used: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None
    generated: float | None
    at: float
    capacity_tokens: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether it says anything at all."""
        return any(
            value is not None for value in (self.kv_used, self.running, self.waiting, self.preemptions, self.generated)
        )

    def is_stale(self, now: float, stale_s: float) -> bool:
        """Whether it is too old to be believed."""
        return now - self.at >= stale_s


@dataclass(frozen=True, slots=True)
class Reading:
    """A load as it was read. ``parts`` are counts by name that begin anew with each request (or go up and down): an
    :class:`Odometer` makes one growing count of them."""

    load: Load
    parts: tuple[tuple[str, float], ...] = ()


class Odometer:
    """Adds up what counts that begin anew have moved by. One per upstream that is looked at."""

    __slots__ = ("_seen", "_total")

    def __init__(self) -> None:
        self._seen: dict[str, float] | None = None
        self._total = 0.0

    def __repr__(self) -> str:
        return f"<Odometer {self._total:g}>"

    def advance(self, reading: Reading) -> Load:
        """The reading's load, with all that its parts have moved so far in its ``generated``."""
        if not reading.parts:
            return reading.load
        parts = dict(reading.parts[:MAX_COUNTED_PARTS])
        if self._seen is not None:
            self._total += sum(self._moved_by(name, value) for name, value in parts.items())
        self._seen = parts
        return replace(reading.load, generated=(reading.load.generated or 0.0) + self._total)

    def _moved_by(self, name: str, value: float) -> float:
        before = (self._seen or {}).get(name, 0.0)
        return value - before if value >= before else value


def smooth(old: Load | None, new: Load) -> Load:
    """``new`` with what jumps about (KV use, the queue) averaged over about three samples. What is not known any more is not
    known, whatever it was before."""
    if old is None:
        return new
    return replace(new, kv_used=_average(old.kv_used, new.kv_used), waiting=_average(old.waiting, new.waiting))


def _average(old: float | None, new: float | None) -> float | None:
    return new if old is None or new is None else old + SMOOTHING * (new - old)


def has_moved(before: Load | None, after: Load | None) -> bool | None:
    """Whether the engine has generated anything between the two; None where nobody can say. A counter that has fallen is that
    of an engine that was started anew."""
    if before is None or after is None or before.generated is None or after.generated is None:
        return None
    return None if after.generated < before.generated else after.generated > before.generated


def is_generating(moved_at: float | None, now: float, within_s: float) -> bool:
    """Whether the engine is known to have generated within the last ``within_s`` seconds."""
    return moved_at is not None and now - moved_at <= within_s
