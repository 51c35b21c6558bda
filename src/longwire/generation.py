"""A generation over one or more engines: what becomes of a stream when an engine's answer ends, breaks or never comes.

What lives here: the three stages of failover. What must not: how an engine is asked (engines/call.py), which one is chosen
(engines/directory.py), what a cut answer says and how its parts are joined (engines/said.py, continuation.py, seam.py).

1. Nothing of the answer has reached a reader: another engine is asked for all of it.
2. Something has: an engine that is known to do so exactly is asked for the rest. A new epoch begins with its first event.
3. Neither can be: the stream ends with the reason for which the first engine failed.

Each later attempt is made of what the arena holds, the stored request and the log. So whoever adopts a stream in the middle of
all this decides as the process before it would have done. A request that has waited for room is one, too.

Over 400 lines: the stages fall into one another, and what each leaves undone must be seen where the next begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from .endings import count_usage, end_by_length, end_finished, note_lengths, refusal_for
from .engines.base import Answer, Failure
from .engines.begun import fold, unfold
from .engines.call import Call, CallShell, Order
from .engines.clocks import Clocks, clocks_for
from .engines.continuation import (
    CannotContinue,
    Said,
    check_request,
    continued_body,
    continues_by_ids,
    is_chat,
    stops_of,
)  # fmt: skip
from .engines.directory import Directory
from .engines.openai import words_of
from .engines.pool import Upstream
from .engines.reading import how_to_read
from .engines.request import headers_for, with_model, without_usage
from .engines.retry import RetryBudget, is_retryable
from .engines.seam import Seam
from .engines.transport import UpstreamConnection
from .engines.watchman import Watchman
from .observe.instruments import Instruments
from .secondpart import Beginning, SecondPart, check_size, read_said, small_request, stored_request
from .streams.arena import ArenaFull
from .streams.registry import Registry
from .streams.stream import BodyHead, Facts, Kind, Link, OnDisconnect, State, Stream
from .streams.terms import MAX_REREAD_BYTES
from .waiting import WaitingRoom, wanted_of
from .wire.http1 import Headers, encode_request_head
from .words.clock import Clock
from .words.errors import LongwireError
from .words.faultpoint import reach
from .words.reasons import CloseReason
from .words.settings import Settings

log = logging.getLogger("longwire.failover")

MAX_KNOWN_CLOCKS = 1000
"""Models whose clocks are kept ready. Names may come from clients; with so many, all begin anew."""
LEAST_WAIT_S = 1.0
"""An adopted stream that has to wait does so for as long at least: that its process died is not its client's fault."""
_GONE_ON_AFTER = frozenset({
    CloseReason.UPSTREAM_RESET, CloseReason.UPSTREAM_INCOMPLETE, CloseReason.UPSTREAM_ERROR_EVENT,
    CloseReason.UPSTREAM_PROTOCOL, CloseReason.TOKEN_SILENCE, CloseReason.TOO_SLOW,
})  # fmt: skip
"""Endings in mid-answer that say nothing against the answer itself. A bound of ours would be reached again."""


@dataclass(frozen=True, slots=True)
class GenerationShell:
    """What every generation needs from around it."""

    settings: Settings
    directory: Directory
    registry: Registry
    calls: CallShell
    budget: RetryBudget
    waiting: WaitingRoom
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to read what was said."""
    _clocks: dict[tuple[str, str, bool], Clocks] = field(default_factory=dict)

    @classmethod
    def make(
        cls, settings: Settings, directory: Directory, registry: Registry, clock: Clock, instruments: Instruments
    ) -> GenerationShell:
        """With a watchman, a budget and queues of its own: one for each process."""
        waiting = WaitingRoom(settings, directory, clock, instruments)
        calls = CallShell(settings, clock, instruments, Watchman(clock, instruments), on_finished=waiting.pump_soon)
        return cls(settings, directory, registry, calls, RetryBudget(settings), waiting)

    def clocks_of(self, facts: Facts) -> Clocks:
        """The clocks of a stream's engines. Of an answer in one piece, or of one that nobody here can read, no token is seen.
        Those of requests that wish nothing are shared by all streams of a model."""
        clocks = None if facts.timeouts else self._clocks.get((facts.model, facts.route, facts.wants_stream))
        if clocks is None:
            clocks = clocks_for(self.settings, facts.model, facts.timeouts)
            if facts.route == "relay":
                clocks = clocks.without_tokens()
            elif not facts.wants_stream:
                clocks = clocks.in_one_piece()
            if not facts.timeouts:
                if len(self._clocks) >= MAX_KNOWN_CLOCKS:
                    self._clocks.clear()
                self._clocks[facts.model, facts.route, facts.wants_stream] = clocks
        return clocks


class Generation:
    """The owner of a stream's calls, one after the other: the one place where engines and the stream meet.

    Between two calls it is the stream's producer itself.
    """

    __slots__ = ("_broken", "_part", "_said", "_tokenless", "_work", "shell", "stream")

    def __init__(self, stream: Stream, shell: GenerationShell) -> None:
        self.stream = stream
        self.shell = shell
        self._broken: Failure | None = None
        """Why the first part has ended, to be told should there be no second."""
        self._said: Said | None = None
        self._part: SecondPart | None = None
        self._tokenless = 0
        self._work: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Generation of {self.stream!r}, attempt {self.stream.facts.attempts}>"

    def go_on_with(self, beginning: Beginning) -> None:
        """Begin with the rest of another stream's answer, whose client has asked for it."""
        self._broken = Failure(CloseReason.CANNOT_CONTINUE, "")
        self.stream.producer = self
        self._work = self.shell.calls.start(self._guarded(partial(self._take_up, beginning)))
        self._work.add_done_callback(lambda _: beginning.drop())

    def wait(self, request: bytes, key: bytes) -> None:
        """Let the stream wait for room at an engine. ``request`` is for the one that was thought of first.

        Raises:
            ArenaFull: the request could not be stored.
            LongwireError: it may not wait.
        """
        self.stream.store_request(request)
        self.shell.waiting.push(self.stream, self.begin, key)

    def wait_again(self) -> bool:
        """Whether an adopted stream, whose request is stored and was not sent, has to wait. It does so for some time, however
        late it is; and where too many wait it is sent: it was let in once."""
        waiting, facts = self.shell.waiting, self.stream.facts
        upstream = next((each for each in self.shell.directory.upstreams if each.name == facts.engine), None)
        if upstream is None or waiting.has_room(upstream, facts.model, wanted_of(facts)):
            return False
        try:
            waiting.push(self.stream, self.begin, least_s=LEAST_WAIT_S)
        except LongwireError:
            return False
        return True

    def begin(self, upstream: Upstream) -> None:
        """There is room here: ask for what is stored."""
        last = next((each for each in self._known() if each.name == self.stream.facts.engine), None)
        target, headers, body = stored_request(self.stream, last.base_path.encode() if last is not None else None)
        model = self.stream.facts.model
        if last is None or last.own_name(model) != upstream.own_name(model):
            body = with_model(body, "", upstream.own_name(model))
        self.stream.facts.engine = upstream.name
        self._call(upstream, self._order(upstream, target, headers, body))

    def _call(self, upstream: Upstream, order: Order) -> bool:
        """Ask for all of the answer; whether that could be begun."""
        stream, shell = self.stream, self.shell
        call = stream.producer = Call(upstream, order, stream, self, shell.calls)
        try:
            call.start()
        except ArenaFull:
            stream.stop(CloseReason.ARENA_FULL, "")
            return False
        if stream.link.fd < 0 and stream.state is not State.ENDED:
            shell.registry.store_row(stream)  # which request lies there now
        return True

    # The owner of a call.

    def sent(self, connection: UpstreamConnection) -> None:
        if self._part is None:  # nobody could read a second part from its socket: what came before lies in no memory
            self.stream.link = Link(connection.fd, connection.read_bytes, connection.written_bytes)
        self.shell.registry.store_row(self.stream)

    def answered(self, answer: Answer) -> None:
        self.stream.begin_body(BodyHead(answer.status, answer.headers, answer.content_length))

    def completed(self, call: Call, reason: CloseReason, message: str) -> None:
        if self._part is not None and self._part.is_over:
            self._count(call, is_whole=False)
            self._part.conclude()  # whatever the engine says of its end: that was decided before
            return
        if not reason.is_success and self._may_go_on(call, reason):
            self._broken = Failure(reason, message)
            self._go_on(call)  # what a second part holds back is said again by the third
            return
        if self._part is not None:
            self._part.flush()
        try:
            self._count(call, is_whole=reason.is_success)
        finally:  # whatever fails in the account, the answer is as whole as it was
            self.stream.end(reason, message)

    def failed(self, call: Call, failure: Failure) -> None:
        if self._part is not None or self.stream.facts.continues:
            self._part_failed(call, failure)
            return
        if self._may_ask_another(call, failure) and self._ask_another(call):
            return
        self._count(call, is_whole=False)
        message = failure.message or f"The engine answered {failure.status}: {words_of(failure.body)}"
        self.stream.end(failure.reason, message, refusal_for(failure, message, self.stream.ending))

    def _part_failed(self, call: Call, failure: Failure) -> None:
        """Nothing has come of an attempt to go on."""
        if self.stream.is_blank:
            self._broken = failure
        self._broken = self._broken or failure
        is_tried = self.shell.settings.failover != "off" and is_retryable(failure)
        may = (call.is_lost or is_tried) and self._may_try_rest(is_ours=call.is_lost)
        if may and self._is_no_whim(call, failure.reason):
            self._go_on(call)
        else:
            self._give_up("No other engine could go on with it.")

    def stopped(self, call: Call) -> None:
        self._count(call, is_whole=False)

    # The producer of a stream, between two calls.

    def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
        log = self.stream.log
        self.stream.facts.tokens_estimated = max(0, len(log.entries) - len(log.silent) - self._tokenless)

    def resume_reading(self) -> None:
        """Nothing is being read."""

    def unsplice(self) -> None:
        """Nothing goes the short way."""

    # The first stage: all of it from another engine.

    def _may_ask_another(self, call: Call, failure: Failure) -> bool:
        stream = self.stream
        return (
            self.shell.settings.failover != "off"
            and stream.facts.route != "relay"
            and (call.is_lost or is_retryable(failure))
            and stream.is_blank
            and self._has_attempts(is_ours=call.is_lost)
        )

    def _ask_another(self, call: Call) -> bool:
        """Whether another was asked."""
        shell = self.shell
        other = self._choose(is_ours=call.is_lost)
        if other is None or not (call.is_lost or self._is_within_budget()):
            return False
        try:
            target, headers, body = stored_request(self.stream)
            body = self._renamed(body, other)
        except CannotContinue:
            return False
        self._turn_to(other, is_ours=call.is_lost)
        self.stream.restart()
        if self._call(other, self._order(other, target, headers, body)):
            shell.calls.instruments.failovers_total += 1
            reach("failed_over")
        return True

    def _is_within_budget(self) -> bool:
        """Retries must not multiply an outage."""
        shell = self.shell
        if shell.budget.may_retry(self.stream.facts.tenant, shell.calls.clock.now()):
            return True
        shell.calls.instruments.retries_refused_total += 1
        return False

    # The second stage: the rest from an engine that goes on exactly.

    def _may_go_on(self, call: Call, reason: CloseReason) -> bool:
        is_wanted = self.shell.settings.failover == "continue" and reason in _GONE_ON_AFTER
        return is_wanted and self._may_try_rest(is_ours=call.is_lost) and self._is_no_whim(call, reason)

    def _is_no_whim(self, call: Call, reason: CloseReason) -> bool:
        """To go on is no retry: what was generated is not thrown away. But each time a prompt is read anew, and a client that
        waits for nobody must not have that done as often as it likes."""
        return not call.order.clocks.is_clients_own(reason) or self._is_within_budget()

    def _may_try_rest(self, *, is_ours: bool) -> bool:
        facts = self.stream.facts
        return (
            self.stream.kind is Kind.EVENTS
            and facts.route != "relay"
            and facts.choices == 1
            and self._has_attempts(is_ours=is_ours)
            and self._choose(is_ours=True, continues=True) is not None
        )

    def _go_on(self, call: Call) -> None:
        """Read what was said, in turns of their own; then ask for the rest."""
        stream = self.stream
        self._tokenless += call.watch.tokenless
        stream.break_off()
        stream.producer = self
        reach("broken_off")
        self._work = self.shell.calls.start(self._guarded(partial(self._read_and_ask, is_ours=call.is_lost)))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """The root of what is done between two calls: whatever comes of it, the stream does not wait for ever."""
        try:
            await work()
        except CannotContinue as exc:
            self._give_up(exc.why)
        except ArenaFull:
            self.stream.stop(CloseReason.ARENA_FULL, "")
        except Exception:
            log.exception("generation_fault")
            self._give_up("A fault of the gateway's.")

    async def _take_up(self, beginning: Beginning) -> None:
        """Store the request with all that the other has said: from then on this stream stands for itself."""
        target, headers, body = beginning.request
        folded = fold(body, await beginning.read(self.shell.reading), was_folded=beginning.was_folded)
        own = {b"x-request-id": self.stream.facts.request_id.encode(), b"content-length": b"%d" % len(folded)}
        kept = [(name, value) for name, value in headers if name not in own]
        head = encode_request_head(b"POST", target, [*kept, *own.items()])
        self.stream.store_request(head + folded)
        self.shell.registry.store_row(self.stream)
        await self._read_and_ask(is_ours=True)

    async def _read_and_ask(self, *, is_ours: bool) -> None:
        target, headers, body = small_request(self.stream)
        body, before = unfold(body) if self.stream.facts.continues else (body, Said())
        self._said = said = await read_said(self.stream.log, self.shell.reading, before)
        if said.is_finished and is_ours:  # else its engine has said more, which was no end
            end_finished(self.stream, said)
        else:
            self._ask_for_rest(said, (target, headers, body), is_ours=is_ours)

    def _ask_for_rest(self, said: Said, request: tuple[bytes, Headers, bytes], *, is_ours: bool) -> None:
        """Raises CannotContinue where nobody can be asked."""
        stream, shell = self.stream, self.shell
        target, headers, body = request
        fields = json.loads(body)
        check_request(target, fields)
        upstream = self._choose(is_ours=is_ours, continues=True) or self._choose(is_ours=True, continues=True)
        if upstream is None:
            raise CannotContinue("There is no engine left that can go on with it.")
        rest = continued_body(target, body, said, upstream.abilities)
        if rest is None:
            end_by_length(self.stream, said, is_chat=is_chat(target))
            return
        by_ids = continues_by_ids(target, body, said, upstream.abilities)
        rest = self._renamed(rest, upstream)
        include_stop = bool(fields.get("include_stop_str_in_output"))
        seam = Seam(said, stops_of(fields), include_stop, stream.facts.hides_usage, by_ids)
        self._turn_to(upstream, is_ours=is_ours)
        has_room = shell.registry.make_room_to_speak
        self._part = SecondPart(stream, seam, has_room, self._stopped_at_seam, self._part_is_alien)
        call = Call(upstream, self._order(upstream, target, headers, rest), self._part, self, shell.calls)
        stream.producer = call
        shell.calls.instruments.continuations_total += 1
        call.start()
        reach("continued")

    def _stopped_at_seam(self) -> None:
        call = self.stream.producer
        if isinstance(call, Call):
            call.stop()
            self.stream.end(CloseReason.COMPLETED)

    def _part_is_alien(self, why: str) -> None:
        call = self.stream.producer
        if isinstance(call, Call):
            call.stop()
            self._said = None  # what came of this part is counted, too
            self._give_up(why)

    # The third stage.

    def _give_up(self, why: str) -> None:
        broken = self._broken or Failure(CloseReason.INTERNAL_ERROR, "")
        fields = {"stream": self.stream.public_id, "reason": str(broken.reason), "why": why}
        log.info("not_continued", extra={"fields": fields})
        if self._said is not None:
            self.stream.facts.tokens_estimated = self._said.tokens
            self.stream.facts.usage = self._said.usage
        if broken.reason is CloseReason.CANNOT_CONTINUE:
            broken = Failure(broken.reason, why)
        refusal = refusal_for(broken, broken.message, self.stream.ending) if self.stream.is_blank else None
        self.stream.end(broken.reason, broken.message, refusal)

    # What all stages have in common.

    def _has_attempts(self, *, is_ours: bool) -> bool:
        """And somebody still wants it: nothing is tried again once the client is gone. ``is_ours``: the last one was lost by
        us, and is made again instead of being counted."""
        stream = self.stream
        is_wanted = stream.is_unread_since is None or stream.on_disconnect is not OnDisconnect.CANCEL
        attempts = stream.facts.attempts - is_ours
        return stream.state is not State.ENDED and is_wanted and attempts < self.shell.settings.max_attempts

    def _choose(self, *, is_ours: bool, continues: bool = False) -> Upstream | None:
        """Another engine than the last; ``is_ours``: the last has not failed, and is the best if it can be asked."""
        facts, waiting = self.stream.facts, self.shell.waiting
        tried = () if is_ours else (facts.engine,)
        wanted = wanted_of(facts)

        def fits(upstream: Upstream) -> bool:
            return waiting.has_room(upstream, facts.model, wanted)

        return self.shell.directory.choose_other(facts.model, tried, continues=continues, wish=facts.engine, fits=fits)

    def _known(self) -> list[Upstream]:
        directory = self.shell.directory
        return [*directory.retired, *directory.upstreams]

    def _turn_to(self, upstream: Upstream, *, is_ours: bool) -> None:
        """The next attempt is at this one; ``is_ours``: the last was lost by us, and is not counted."""
        facts = self.stream.facts
        facts.attempts += not is_ours
        fields = {"stream": self.stream.public_id, "from": facts.engine, "to": upstream.name, "attempt": facts.attempts}
        log.info("failover", extra={"fields": fields})
        facts.engine = upstream.name

    def _renamed(self, body: bytes, upstream: Upstream) -> bytes:
        """The body for an engine that may know the model by another name than the last one did. Raises CannotContinue where it
        would have to be read again for that, and is too large."""
        facts = self.stream.facts
        named = {each.name: each.own_name(facts.model) for each in self._known()}
        if named.get(facts.engine) != (own := upstream.own_name(facts.model)):
            check_size(body)
            body = with_model(body, "", own)
        return body

    def _order(self, upstream: Upstream, target: bytes, headers: Headers, body: bytes) -> Order:
        facts = self.stream.facts
        may_be_plain = facts.hides_usage and len(body) <= MAX_REREAD_BYTES
        return Order(
            target,
            headers_for(headers, upstream.host_header, upstream.engine.api_key),
            body,
            *how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage),
            self.shell.clocks_of(facts),
            without_usage(body) if may_be_plain else None,
            facts.model,
            self.stream.created_at,
            wanted_of(facts),
        )

    def _count(self, call: Call, *, is_whole: bool) -> None:
        told = call.watch.usage
        if self._part is not None and told is not None:
            told = self._part.seam.whole(told)
        count_usage(self.stream, told, self._tokenless + call.watch.tokenless, is_whole=is_whole)
        if is_whole and self._part is None:
            note_lengths(self.stream, wanted_of(self.stream.facts), call.upstream.occupancy)
