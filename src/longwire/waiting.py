"""Streams whose request waits for room at an engine: who waits, whose turn it is, and what becomes of those who wait in vain.

What lives here: the queues of one process, one for each model, and the clock over them. What must not: the order within a
queue (admission/fairqueue.py), what fits (engines), how a request is sent once it is its turn (generation.py).

What waits is the stream itself, in state opening, its request in the arena. It has its tenant's slot and a row, and nothing of
an engine's. So it can be read, cancelled, found by its key and adopted like any other, and costs nothing once its client has
left.

**No overtaking.** A request that does not fit holds back those behind it: else long ones would wait for as long as there are
short ones. For the same reason an upstream for which the head of one queue waits takes nothing from another queue in the same
round, and no newcomer. Queues are served in turn.

But one that does not fit only because its tenant has much more than its share (engines/shares.py) is passed over: what is kept
is kept for those behind it.

**No commitment.** A stream that waits is refused before its status would have to be sent, so that the refusal is one that
clients understand: 429 or 503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from math import ceil, exp

from .admission.fairqueue import Entry, FairQueue, Full
from .admission.ratelimits import is_own_doing, refusal, retry_after_s
from .engines.clocks import clocks_for
from .engines.directory import Directory
from .engines.occupancy import Wanted
from .engines.pool import Upstream
from .observe.instruments import Instruments
from .streams.stream import Facts, Refusal, State, Stream
from .words.clock import Clock, Timer
from .words.errors import LongwireError
from .words.reasons import CloseReason
from .words.settings import Settings

log = logging.getLogger("longwire.waiting")

MAX_QUEUES = 64
"""Names of models come from clients where an engine lists none. What waits for still others shares one queue."""
MAX_STARTS = 64
"""Requests that are sent in one turn of the loop, at some 150 µs each: events of other streams are not to wait for more."""
MAX_REFUSALS = 32
"""In one turn of the loop, at some 130 µs each. What came together waits in vain together, and a thousand refusals at once
would hold everybody else up for longer than a tenth of a second."""
LOOK_S = 0.25
"""How often it is looked whether there is room for another reason than that a call has ended: a limit has risen, an upstream is
up again, or has become one."""
COMMIT_MARGIN_S = 0.3
"""So long before its status would be sent a stream is refused; of a short commit_after_ms a quarter. A thousand refusals take
half of it."""
MAX_PASS_S = 0.005
"""And so long in one turn at most, whatever it is that takes the time."""
REST_SHARE = 9.0
"""After reckoning what fits the loop does other things for so many times as long. With hundreds of requests under way at each
of several engines it takes milliseconds, and calls end all the time."""
RATE_MEMORY_S = 10.0
"""Of how fast those who wait are served, what was longer ago hardly counts."""

Begin = Callable[[Upstream], None]


def wanted_of(facts: Facts) -> Wanted:
    """What a stream's request may take of an engine."""
    answer_tokens = max(0, facts.context_tokens - facts.prompt_tokens)
    return Wanted(facts.prompt_tokens, answer_tokens, facts.choices, facts.tenant)


class Waiting:
    """One stream that waits: its producer until it is its turn."""

    __slots__ = ("_room", "begin", "entry", "key", "queue", "since", "stream", "wanted")

    def __init__(self, room: WaitingRoom, stream: Stream, begin: Begin, key: bytes, since: float) -> None:
        self._room = room
        self.stream = stream
        self.begin = begin
        self.key = key
        self.since = since
        self.wanted = wanted_of(stream.facts)
        self.queue = ""
        self.entry: Entry[Waiting] | None = None

    def __repr__(self) -> str:
        return f"<Waiting {self.stream!r} since {self.since:g}>"

    def stop(self) -> None:
        """It is not wanted any more."""
        self._room.leave(self)

    def resume_reading(self) -> None:
        """Nothing is being read."""

    def unsplice(self) -> None:
        """Nothing goes the short way."""


class WaitingRoom:
    """All queues of one process."""

    def __init__(self, settings: Settings, directory: Directory, clock: Clock, instruments: Instruments) -> None:
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self._instruments = instruments
        self._queues: OrderedDict[str, FairQueue[Waiting]] = OrderedDict()
        """None of them is empty. The one that was served last stands last."""
        self._by_tenant: Counter[str] = Counter()
        self._timer: Timer | None = None
        self._due = 0.0
        self._is_called = False
        self._rests_until = 0.0
        self._refused = 0
        self._over: deque[tuple[Waiting, LongwireError]] = deque()
        """Whose time is over, and what they are to be told."""
        self._served_per_s = 0.0
        self._served_at = clock.now()
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<WaitingRoom {self.waiting} in {len(self._queues)} queues>"

    def statistics(self) -> dict[str, int]:
        """Who waits."""
        return {"waiting": self.waiting, "queues": len(self._queues), "tenants": len(self._by_tenant)}

    # Coming.

    def has_room(self, upstream: Upstream, model: str, wanted: Wanted) -> bool:
        """Whether a request that comes now may be sent there at once."""
        if self._queues and (self._name(model) in self._queues or self._is_awaited(upstream)):
            return False
        return self._directory.has_room(upstream, wanted)

    def check(self, tenant: str) -> None:
        """Whether one more of this tenant's may wait.

        Raises:
            LongwireError: there are too many, and no promise is made that could not be kept.
        """
        settings = self._settings
        if self.waiting >= settings.max_queued:
            raise self._refusal(Full.QUEUE)
        if self._by_tenant[tenant] >= settings.max_queued_per_tenant:
            raise self._refusal(Full.TENANT)

    def push(self, stream: Stream, begin: Begin, key: bytes = b"", least_s: float = 0.0) -> None:
        """Let a stream wait, whose request is stored; ``begin`` is called with the upstream when it is its turn. It waits for
        ``least_s`` in any case.

        Raises:
            LongwireError: it may not; nothing has changed.
        """
        facts, now = stream.facts, self._clock.now()
        self.check(facts.tenant)
        waiting = Waiting(self, stream, begin, key, now)
        deadline = max(self._deadline(stream, now), now + least_s)
        name = self._name(facts.model)
        queue = self._queues.get(name) or FairQueue(self._settings.max_queued, self._settings.max_queued_per_tenant)
        entry = queue.push(waiting, facts.tenant, self._cost(waiting), deadline)
        if isinstance(entry, Full):
            raise self._refusal(entry)
        self._queues[name] = queue
        waiting.queue, waiting.entry = name, entry
        stream.producer = waiting
        self.waiting += 1
        self._by_tenant[facts.tenant] += 1
        self._instruments.queued_total += 1
        self._arm()
        if queue.waiting_of(facts.tenant) == 1 and len(queue) > 1:
            self.pump_soon()  # what those before it may not have can be kept for this one

    def _name(self, model: str) -> str:
        """Of the queue for this model."""
        return model if model in self._queues or len(self._queues) < MAX_QUEUES else ""

    def _is_awaited(self, upstream: Upstream) -> bool:
        """Whether somebody waits who would be sent there."""
        heads = [entry.item for queue in self._queues.values() if (entry := queue.peek()) is not None]
        return any(upstream in self._directory.possible(head.stream.facts.model) for head in heads)

    def _cost(self, waiting: Waiting) -> int:
        """What it counts against its tenant's share: the tokens that it is expected to take."""
        upstreams = self._directory.possible(waiting.stream.facts.model)
        if not upstreams:
            return waiting.wanted.prompt_tokens + waiting.wanted.answer_tokens
        return ceil(upstreams[0].occupancy.need_of(waiting.wanted).tokens)

    def _deadline(self, stream: Stream, now: float) -> float:
        """Until when it may wait."""
        settings, facts = self._settings, stream.facts
        times = [now + settings.queue_deadline_s]
        if total_s := clocks_for(settings, facts.model, facts.timeouts).total_s:
            times.append(stream.created_at + total_s)
        if facts.wants_stream and settings.commit_after_ms:
            commit_s = settings.commit_after_ms / 1000
            times.append(stream.created_at + commit_s - min(COMMIT_MARGIN_S, commit_s / 4))
        return min(times)

    # Going.

    def leave(self, waiting: Waiting) -> None:
        """Its client has left, or somebody has stopped it."""
        queue = self._queues.get(waiting.queue)
        if queue is None or waiting.entry is None or not queue.remove(waiting.entry):
            return
        self._forget(waiting)
        if not len(queue):
            del self._queues[waiting.queue]
        self._arm()
        self.pump_soon()

    def pump_soon(self) -> None:
        """Look in the loop's next turn whose request may be sent: connections that are just coming free are free then."""
        if not self._queues or self._is_called:
            return
        self._is_called = True
        rest_s = min(LOOK_S, self._rests_until - self._clock.now())
        if rest_s > 0:
            self._clock.call_later(rest_s, self._called)
        else:
            asyncio.get_running_loop().call_soon(self._called)

    def _called(self) -> None:
        self._is_called = False
        self.pump()

    def pump(self) -> None:
        """Send whatever there is room for, in turn."""
        awaited: set[Upstream] = set()
        names = list(self._queues)
        left, until = MAX_STARTS, self._clock.now() + MAX_PASS_S
        while names and left and self._clock.now() <= until:
            name = names.pop(0)
            if self._serve(name, awaited):
                left -= 1
                names.append(name)
        if names:
            self.pump_soon()
        self._arm()

    def _serve(self, name: str, awaited: set[Upstream]) -> bool:
        """Whether the next of this queue could be sent. If not, nothing else may go where it could have gone."""
        queue = self._queues.get(name)
        passed_over: list[str] = []
        while queue is not None and (entry := queue.peek(passed_over)) is not None:
            waiting = entry.item
            upstream = self._room_for(waiting, awaited)
            if upstream is not None:
                queue.pop(passed_over)
                self._send(waiting, upstream)
                return True
            possible = self._directory.possible(waiting.stream.facts.model)
            if not any(
                self._directory.is_kept_for_others(each, waiting.wanted) for each in possible if each not in awaited
            ):
                awaited.update(possible)
                return False
            passed_over.append(waiting.stream.facts.tenant)
        return False

    def _room_for(self, waiting: Waiting, awaited: set[Upstream]) -> Upstream | None:
        def fits(upstream: Upstream) -> bool:
            return upstream not in awaited and self._reckon(upstream, waiting)

        return self._directory.choose_with_room(waiting.stream.facts.model, fits, key=waiting.key)

    def _send(self, waiting: Waiting, upstream: Upstream) -> None:
        """It has been taken out of its queue."""
        self._queues.move_to_end(waiting.queue)
        if not len(self._queues[waiting.queue]):
            del self._queues[waiting.queue]
        self._forget(waiting)
        self._note_served(waiting)
        self._begin(waiting, upstream)

    def _reckon(self, upstream: Upstream, waiting: Waiting) -> bool:
        began = self._clock.now()
        has_room = self._directory.has_room(upstream, waiting.wanted)
        ended = self._clock.now()
        self._rests_until = max(self._rests_until, ended) + REST_SHARE * (ended - began)
        return has_room

    def _begin(self, waiting: Waiting, upstream: Upstream) -> None:
        """Whatever goes wrong with one is that one's end, and nobody else's."""
        waiting.stream.producer = None
        try:
            waiting.begin(upstream)
        except Exception:
            log.exception("waiting_fault")
            waiting.stream.stop(CloseReason.INTERNAL_ERROR, "")

    def _forget(self, waiting: Waiting) -> None:
        tenant = waiting.stream.facts.tenant
        self.waiting -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    def _note_served(self, waiting: Waiting) -> None:
        now = self._clock.now()
        self._instruments.queue_wait.observe_s(now - waiting.since)
        self._served_per_s = self._rate(now) + 1 / RATE_MEMORY_S
        self._served_at = now

    def _rate(self, now: float) -> float:
        """Requests that were served per second, lately."""
        return self._served_per_s * exp((self._served_at - now) / RATE_MEMORY_S)

    # In vain.

    def _expire(self) -> None:
        now = self._clock.now()
        entries = [entry for queue in self._queues.values() for entry in queue.expire(now)]
        over = [(entry.item, self._refusal_of(entry.item)) for entry in entries]
        self._queues = OrderedDict((name, queue) for name, queue in self._queues.items() if len(queue))
        is_telling = bool(self._over)
        self._over.extend(over)
        if not is_telling:
            self._tell_some()

    def _tell_some(self) -> None:
        """Refuse so many whose time is over as may be refused in one turn. They count as waiting until then."""
        for _ in range(min(MAX_REFUSALS, len(self._over))):
            waiting, error = self._over.popleft()
            self._forget(waiting)
            if waiting.stream.state is State.ENDED:
                continue  # its client has left meanwhile
            waiting.stream.producer = None
            try:
                _refuse(waiting.stream, error)
            except Exception:  # that one's, and nobody else's
                log.exception("waiting_fault")
                waiting.stream.stop(CloseReason.INTERNAL_ERROR, "")
        if self._over:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def _refusal_of(self, waiting: Waiting) -> LongwireError:
        """What one is told that has waited in vain, while those whose time was over together with its still count."""
        own = self._by_tenant[waiting.stream.facts.tenant]
        self._instruments.queue_expired_total += 1
        return self._refusal(None, own_doing=is_own_doing(own, self.waiting, len(self._by_tenant)))

    def _refusal(self, full: Full | None, *, own_doing: bool = False) -> LongwireError:
        if full is not None:
            self._instruments.queue_full_total += full is Full.QUEUE
            self._instruments.queue_full_of_tenant_total += full is Full.TENANT
        wait_s = retry_after_s(self.waiting, self._rate(self._clock.now()), self._refused)
        self._refused += 1
        return refusal(full, wait_s, own_doing=own_doing)

    # Time.

    def _arm(self) -> None:
        """Have the clock call when the next deadline is over, or when it is time for a look."""
        deadlines = [at for queue in self._queues.values() if (at := queue.next_deadline()) is not None]
        if not deadlines:
            self._disarm()
            return
        due = min(self._clock.now() + LOOK_S, *deadlines)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.now()), self._look)

    def _look(self) -> None:
        self._timer = None
        self._expire()
        self.pump()

    def close(self) -> None:
        """Serve nobody any more, for tests in which a process dies: those who wait belong to another one by now."""
        self._queues.clear()
        self._over.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _refuse(stream: Stream, error: LongwireError) -> None:
    """It has waited in vain."""
    body = json.dumps(error.body(), separators=(",", ":")).encode()
    stream.end(CloseReason.QUEUE_DEADLINE, error.message, Refusal(error.status, body, headers=error.headers()))
