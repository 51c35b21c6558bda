"""A generation over one or more engines: what becomes of a stream when an engine's answer ends, breaks or never comes.

What lives here: the three stages of failover. What must not: how an engine is asked (engines/call.py), which one is chosen
(engines/directory.py), what a cut answer says and how its parts are joined (engines/said.py, continuation.py, seam.py).

1. Nothing of the answer has reached a reader: another engine is asked for all of it.
2. Something has: an engine that is known to do so exactly is asked for the rest. A new epoch begins with its first event.
3. Neither can be: the stream ends with the reason for which the first engine failed.

Each later attempt is made of what the arena holds, the stored request and the log. So whoever adopts a stream in the middle of
all this decides as the process before it would have done.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .engines.base import Answer, Failure, Watch
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
from .engines.exchange import Expect
from .engines.openai import ChatWatch, RelayWatch, most_usage, usage_of_body, usage_of_event, words_of
from .engines.pool import Upstream
from .engines.request import headers_for, take_apart, with_model, without_usage
from .engines.retry import RetryBudget, is_retryable
from .engines.seam import Seam, finish_event
from .engines.transport import UpstreamConnection
from .engines.watchman import Watchman
from .observe.instruments import Instruments
from .secondpart import DONE_BLOCK, SecondPart, read_said
from .streams.arena import ArenaFull
from .streams.registry import Registry
from .streams.stream import BodyHead, Facts, Kind, Link, OnDisconnect, Refusal, State, Stream
from .words.clock import Clock
from .words.faultpoint import reach
from .words.reasons import CloseReason
from .words.settings import Settings

log = logging.getLogger("longwire.failover")

USAGE_LOOK_BACK = 4
"""Of a stream's last events, so many are searched for usage at its end, and none before: engines that count as they go say it
in each event, others in one of the last."""
USAGE_LOOK_BACK_BYTES = 8 * 1024
MAX_COUNTED_BODY_BYTES = 256 * 1024
"""A JSON answer that is larger is not parsed for its usage: that would hold up all streams (embeddings reach megabytes)."""
MAX_REREAD_BODY_BYTES = 1024 * 1024
"""A request that is larger is not parsed again in the loop: reading this much takes some ten milliseconds."""
_GONE_ON_AFTER = frozenset({
    CloseReason.UPSTREAM_RESET, CloseReason.UPSTREAM_INCOMPLETE, CloseReason.UPSTREAM_ERROR_EVENT,
    CloseReason.UPSTREAM_PROTOCOL, CloseReason.TOKEN_SILENCE, CloseReason.TOO_SLOW,
})  # fmt: skip
"""Endings in mid-answer that say nothing against the answer itself. A bound of ours would be reached again."""


def how_to_read(route: str, wants_stream: bool, choices: int, hides_usage: bool) -> tuple[Expect, Callable[[], Watch]]:
    """What answer is expected of an engine, and who watches it."""
    if route == "relay":
        return Expect.ANY, RelayWatch
    return Expect.EVENTS if wants_stream else Expect.JSON, lambda: ChatWatch(choices, hides_usage)


def clocks_of(settings: Settings, facts: Facts) -> Clocks:
    """The clocks of a stream's engines. Of an answer in one piece, or of one that nobody here can read, no token is seen."""
    clocks = clocks_for(settings, facts.model, facts.timeouts)
    return clocks if facts.wants_stream and facts.route != "relay" else clocks.without_tokens()


@dataclass(frozen=True, slots=True)
class GenerationShell:
    """What every generation needs from around it."""

    settings: Settings
    directory: Directory
    registry: Registry
    calls: CallShell
    budget: RetryBudget

    @classmethod
    def make(
        cls, settings: Settings, directory: Directory, registry: Registry, clock: Clock, instruments: Instruments
    ) -> GenerationShell:
        """With a watchman and a budget of its own: one for each process."""
        calls = CallShell(settings, clock, instruments, Watchman(clock, instruments))
        return cls(settings, directory, registry, calls, RetryBudget(settings))


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

    # The owner of a call.

    def sent(self, connection: UpstreamConnection) -> None:
        if self._part is None:  # nobody could read a second part from its socket: what came before lies in no memory
            self.stream.link = Link(connection.fd, connection.read_bytes, connection.written_bytes)
        self.shell.registry.store_row(self.stream)

    def answered(self, answer: Answer) -> None:
        self.stream.begin_body(BodyHead(answer.status, answer.headers, answer.content_length))

    def completed(self, call: Call, reason: CloseReason, message: str) -> None:
        if not reason.is_success and self._may_go_on(reason, is_ours=call.is_lost):
            self._broken = Failure(reason, message)
            self._go_on(call)  # what a second part holds back is said again by the third
            return
        if self._part is not None:
            self._part.flush()
        self._count(call, is_whole=reason.is_success)
        self.stream.end(reason, message)

    def failed(self, call: Call, failure: Failure) -> None:
        if self._part is not None and self._broken is not None:
            if is_retryable(failure) and self._may_go_on(self._broken.reason, is_ours=call.is_lost):
                self._go_on(call)
            else:
                self._give_up("No other engine could go on with it.")
            return
        if self._may_ask_another(call, failure) and self._ask_another(call):
            return
        self._count(call, is_whole=False)
        message = failure.message or f"The engine answered {failure.status}: {words_of(failure.body)}"
        self.stream.end(failure.reason, message, self._refusal(failure, message))

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
        shell, facts = self.shell, self.stream.facts
        other = shell.directory.choose_other(facts.model, () if call.is_lost else (facts.engine,))
        if other is None or not self._is_within_budget():
            return False
        stored = self._stored_request()
        if stored is None:
            return False
        target, headers, body = stored
        body = self._renamed(body, other)
        self._turn_to(other, is_ours=call.is_lost)
        self.stream.restart()
        call = Call(other, self._order(other, target, headers, body), self.stream, self, shell.calls)
        self.stream.producer = call
        try:
            call.start()
        except ArenaFull:
            self.stream.stop(CloseReason.ARENA_FULL, "")
        else:
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

    def _may_go_on(self, reason: CloseReason, *, is_ours: bool) -> bool:
        stream, facts = self.stream, self.stream.facts
        return (
            self.shell.settings.failover == "continue"
            and reason in _GONE_ON_AFTER
            and stream.kind is Kind.EVENTS
            and facts.route != "relay"
            and facts.choices == 1
            and self._has_attempts(is_ours=is_ours)
            and self._choose_for_rest(is_ours=is_ours) is not None
        )

    def _go_on(self, call: Call) -> None:
        """Read what was said, in turns of their own; then ask for the rest."""
        stream = self.stream
        self._tokenless += call.watch.tokenless
        stream.break_off()
        stream.producer = self
        reach("broken_off")
        self._work = self.shell.calls.start(self._read_and_ask(is_ours=call.is_lost))

    async def _read_and_ask(self, *, is_ours: bool) -> None:
        try:
            self._said = said = await read_said(self.stream.log)
            if said.is_finished:
                self._end_whole(said, *(() if said.is_done else (DONE_BLOCK,)))
            else:
                self._ask_for_rest(said, is_ours=is_ours)
        except CannotContinue as exc:
            self._give_up(exc.why)
        except Exception:
            log.exception("generation_fault")
            self._give_up("A fault of the gateway's.")

    def _ask_for_rest(self, said: Said, *, is_ours: bool) -> None:
        """Raises CannotContinue where nobody can be asked."""
        stream, shell = self.stream, self.shell
        stored = self._stored_request()
        if stored is None:
            raise CannotContinue("Its request is not there any more.")
        target, headers, body = stored
        if len(body) > MAX_REREAD_BODY_BYTES:
            raise CannotContinue("Its request is too large to be read again.")
        fields = json.loads(body)
        check_request(target, fields)
        upstream = self._choose_for_rest(is_ours=is_ours)
        if upstream is None:
            raise CannotContinue("There is no engine left that can go on with it.")
        rest = continued_body(target, body, said, upstream.abilities)
        if rest is None:
            self._end_whole(said, finish_event(said, "length", is_chat=is_chat(target)), DONE_BLOCK)
            return
        by_ids = continues_by_ids(target, body, said, upstream.abilities)
        rest = self._renamed(rest, upstream)
        include_stop = bool(fields.get("include_stop_str_in_output"))
        seam = Seam(said, stops_of(fields), include_stop, stream.facts.hides_usage, by_ids)
        self._turn_to(upstream, is_ours=is_ours)
        self._part = SecondPart(stream, seam, self._stopped_at_seam, self._part_is_alien)
        call = Call(upstream, self._order(upstream, target, headers, rest), self._part, self, shell.calls)
        stream.producer = call
        shell.calls.instruments.continuations_total += 1
        call.start()
        reach("continued")

    def _choose_for_rest(self, *, is_ours: bool) -> Upstream | None:
        """Another one if there is any, else the same: it may have lost a connection only. Where we have, the same first:
        nothing speaks against it, and the other may be the one that has failed before."""
        directory, facts = self.shell.directory, self.stream.facts
        same = directory.choose_again(facts.model, facts.engine)
        first = same if is_ours else None
        return first or directory.choose_other(facts.model, (facts.engine,), continues=True) or same

    def _stopped_at_seam(self) -> None:
        call = self.stream.producer
        if isinstance(call, Call):
            call.stop()
            self.stream.end(CloseReason.COMPLETED)

    def _part_is_alien(self, why: str) -> None:
        call = self.stream.producer
        if isinstance(call, Call):
            call.stop()
            self._give_up(why)

    def _end_whole(self, said: Said, *blocks: bytes) -> None:
        """All of it was said: nothing is missing but its end."""
        for block in blocks:
            self.stream.append_said(block)
        self.stream.facts.tokens_estimated, self.stream.facts.usage = said.tokens, said.usage
        self.stream.end(CloseReason.COMPLETED)

    # The third stage.

    def _give_up(self, why: str) -> None:
        broken = self._broken or Failure(CloseReason.INTERNAL_ERROR, "")
        fields = {"stream": self.stream.public_id, "reason": str(broken.reason), "why": why}
        log.info("not_continued", extra={"fields": fields})
        if self._said is not None:
            self.stream.facts.tokens_estimated, self.stream.facts.usage = self._said.tokens, self._said.usage
        self.stream.end(broken.reason, broken.message)

    # What all stages have in common.

    def _has_attempts(self, *, is_ours: bool) -> bool:
        """And somebody still wants it: nothing is tried again once the client is gone. ``is_ours``: the last was lost by us,
        and is made again without being counted."""
        stream = self.stream
        is_wanted = stream.is_unread_since is None or stream.on_disconnect is not OnDisconnect.CANCEL
        attempts = stream.facts.attempts - is_ours
        return stream.state is not State.ENDED and is_wanted and attempts < self.shell.settings.max_attempts

    def _stored_request(self) -> tuple[bytes, list[tuple[bytes, bytes]], bytes] | None:
        """Target without a base path, headers and body of the client's request as the last engine was sent it."""
        request = self.stream.request
        if request is None:
            return None
        target, headers, body = take_apart(request.read(0, request.end))
        return target[target.rindex(b"/v1/") :], headers, body

    def _turn_to(self, upstream: Upstream, *, is_ours: bool) -> None:
        """The next attempt is at this one; ``is_ours``: the last was lost by us, and is not counted."""
        facts = self.stream.facts
        facts.attempts += not is_ours
        fields = {"stream": self.stream.public_id, "from": facts.engine, "to": upstream.name, "attempt": facts.attempts}
        log.info("failover", extra={"fields": fields})
        facts.engine = upstream.name

    def _renamed(self, body: bytes, upstream: Upstream) -> bytes:
        """The body for an engine that may know the model by another name than the last one did."""
        facts, directory = self.stream.facts, self.shell.directory
        named = {each.name: each.own_name(facts.model) for each in (*directory.retired, *directory.upstreams)}
        return with_model(body, named.get(facts.engine, ""), upstream.own_name(facts.model))

    def _order(self, upstream: Upstream, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Order:
        facts = self.stream.facts
        may_be_plain = facts.hides_usage and len(body) <= MAX_REREAD_BODY_BYTES
        return Order(
            target,
            headers_for(headers, upstream.host_header, upstream.engine.api_key),
            body,
            *how_to_read(facts.route, facts.wants_stream, facts.choices, facts.hides_usage),
            clocks_of(self.shell.settings, facts),
            without_usage(body) if may_be_plain else None,
            facts.model,
            self.stream.created_at,
        )

    def _count(self, call: Call, *, is_whole: bool) -> None:
        facts = self.stream.facts
        log = self.stream.log
        if self.stream.kind is Kind.EVENTS:
            told = call.watch.usage
            if self._part is not None and told is not None:
                told = self._part.seam.whole(told)
            may_tell = (not is_whole or told is None) and self._speaks_of_usage()
            last = range(max(0, log.deliverable - USAGE_LOOK_BACK), log.deliverable) if may_tell else ()
            facts.usage = most_usage([told, *(usage_of_event(log.block(position)) for position in last)])
        elif log.bytes_held <= MAX_COUNTED_BODY_BYTES:
            facts.usage = usage_of_body(log.body())
        tokenless = self._tokenless + call.watch.tokenless
        facts.tokens_estimated = max(0, len(log.entries) - len(log.silent) - tokenless)

    def _speaks_of_usage(self) -> bool:
        """Whether the answer's last bytes do: to look at its events one by one costs something for each of them."""
        chain = self.stream.log.upstream if self._part is None else self.stream.log.records
        if chain is None:
            return False
        tail = min(chain.end, USAGE_LOOK_BACK_BYTES)
        return b'"usage"' in chain.read(chain.end - tail, tail)

    def _refusal(self, failure: Failure, message: str) -> Refusal | None:
        """The engine's own error, faithfully: a 4xx as it is, a 5xx as 502 with the engine's words."""
        if failure.reason is CloseReason.UPSTREAM_REFUSED:
            return Refusal(failure.status, failure.body, failure.content_type or b"text/plain", failure.headers)
        if failure.reason is CloseReason.UPSTREAM_FAILED:
            body = self.stream.ending.error_body(failure.reason, message)
            status = 503 if failure.status == 503 else 502
            return Refusal(status, body, headers=failure.headers)
        if failure.status:
            body = self.stream.ending.error_body(failure.reason, message)
            return Refusal(failure.status if failure.status < 500 else 502, body)
        return None
