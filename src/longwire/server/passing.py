"""Requests that belong to the shard of another slot: passed there at their boundary, with their connections.

What lives here: sending a connection into another slot's inbox, waiting for room there, and taking in what others send.
What must not: which slot a request belongs to (ownership.py), what a message looks like (parcel.py).

A connection is in one process's row at any time, or in a message. Its row says that it is being passed before the message is
sent, and is given back after: whoever adopts a row of that phase sends the message again (:meth:`Neighbours.pass_again`),
and the receiver drops a second one of the same request. A message that lies in an inbox outlives both processes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..streams.arena import Use
from ..streams.chain import Chain
from ..streams.tables import ConnectionRow
from ..words.errors import Misdirected
from ..words.faultpoint import reach
from .accepting import PAUSE_S, WANTING
from .connection import ClientConnection
from .handlers import Pending
from .listener import Listener
from .operators import OperatorConnection
from .ownership import OF_ONE_STREAM
from .parcel import CONNECTION, OPERATOR, Parcel, pack, unpack
from .passed import PassedConnection
from .record import Phase, fd_of

log = logging.getLogger("longwire.server")

MAX_WAITING = 256
"""Connections that wait for room in inboxes. An inbox that is full is that of a shard that is being replaced or hangs: more
than so many would only wait to be told what they can be told now."""

PASSING_S = 5.0
"""How long a request may wait for room in another shard's inbox. A shard that does not read it for so long hangs, and its
replacement has the same inbox: whoever tries again is passed to it."""

MAX_SEEN = 4096
"""Connections that were passed here or adopted last. A second message of one comes within the pause of an adoption."""


class Inbox(Protocol):
    """What is needed of ``keeper.channel.Channel``."""

    def send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None: ...

    def peek(self) -> tuple[dict[str, Any], list[int]] | None: ...

    def drop(self) -> None: ...

    def set_blocking(self, is_blocking: bool) -> None: ...

    def fileno(self) -> int: ...


class Neighbours:
    """The other shards, as far as this one passes connections to them and gets some from them."""

    def __init__(self, listener: Listener, inbox: Inbox, inboxes: Sequence[Inbox]) -> None:
        """``inbox`` is the end that this slot's shard reads, ``inboxes`` are the other ends, by slot."""
        self._listener = listener
        self._place = listener.place
        self._loop = listener.loop
        self._inbox = inbox
        self._inboxes = inboxes
        self._waiting: OrderedDict[ClientConnection | _Orphan, int] = OrderedDict()
        self._awaited: set[int] = set()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._is_reading = False
        self.is_served: Callable[[int], bool] = lambda _: True
        """Whether a slot has a shard at all: at the end of a drain it may have none any more."""
        self.passed_total = self.received_total = self.refused_total = 0

    def __repr__(self) -> str:
        return f"<Neighbours of slot {self._place.slot}: {len(self._waiting)} waiting, {self.statistics()}>"

    def start(self) -> None:
        """From now on pass on what belongs elsewhere, and take in what comes."""
        for inbox in [self._inbox, *self._inboxes]:
            inbox.set_blocking(False)
        self._listener.neighbours = self
        self._loop.add_reader(self._inbox.fileno(), self._receive)
        self._is_reading = True

    def stop(self) -> None:
        """Take in nothing more: what comes is the successor's. What waits to be passed on goes on waiting."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._inbox.fileno())

    def close(self) -> None:
        """Stop, and wait for nothing."""
        self.stop()
        for slot in list(self._awaited):
            self._ignore(slot)
        self._waiting.clear()

    # Sending.

    def pass_on(self, connection: ClientConnection, pending: Pending) -> bool:
        """Send a connection, with the request whose head it has just read, where that belongs. False: it is to be answered
        here.

        Raises:
            Misdirected: the request is for a stream of another shard, and the connection cannot leave this one.
        """
        slot = connection.handlers.owner_of(pending)
        if slot == self._place.slot:
            return False
        if fd_of(connection.transport) < 0:  # the state of our own TLS lies in this process
            if pending.route not in OF_ONE_STREAM:
                return False
            connection.keep_alive = False
            if connection.handlers.is_event_read(pending):  # an EventSource would give up on an error for good
                connection.handlers.decline(connection)
                return True
            raise Misdirected("Another shard keeps this stream; try again on a new connection.", retry_after_s=1)
        is_over = connection.handlers.gateway.is_draining and not self.is_served(slot)
        if connection.input_chain is None or len(self._waiting) >= MAX_WAITING or is_over:
            self._refuse(connection)
            return True
        self._hold(connection, slot, connection.input_chain.end)
        reach("passing_before_send")
        if not self._try_connection(connection, slot):
            self._waiting[connection] = slot
        return True

    def _hold(self, connection: ClientConnection, slot: int, input_bytes: int) -> None:
        """Receive and answer nothing more until the other shard has the connection, or it is known not to get it."""
        connection.phase = Phase.PASSING
        connection.deadline = self._listener.clock.now() + PASSING_S
        self._listener.watched.add(connection)
        connection.record.note_passing(slot, input_bytes, connection.peer, connection.written_bytes)
        connection.store_row()
        connection.pause_reading()
        if connection.transport.get_write_buffer_size():
            connection.transport.set_write_buffer_limits(
                high=0
            )  # so that we hear when the kernel has the last response

    def pass_again(self, index: int, row: ConnectionRow, sock: socket.socket) -> None:
        """For an adopter: a row whose phase is PASSING. Whether its message was sent is not known, so it is sent (again). The
        row is given back, and the socket closed, when that is done."""
        chain = Chain(self._listener.arena, Use.INPUT, stored=(row.input_block, row.answer_bytes))
        data = chain.read(0, row.answer_bytes)
        parcel = Parcel(
            row.start_position, row.serial, row.head.decode("utf-8", "replace"), row.read_base, row.written_base, data
        )
        orphan = _Orphan(self._listener, index, sock, chain, parcel)
        if not self._try_orphan(orphan):
            self._waiting[orphan] = parcel.slot
        else:
            orphan.let_go()

    def note_flushed(self, connection: ClientConnection) -> None:
        """The last response of a connection that waits has reached the kernel."""
        slot = self._waiting.get(connection)
        if slot is not None and self._try_connection(connection, slot):
            self.forget(connection)

    def give_up(self, connection: ClientConnection) -> None:
        """It has waited too long."""
        self.forget(connection)
        self._refuse(connection)

    def forget(self, connection: ClientConnection | _Orphan) -> None:
        """It waits no more."""
        self._waiting.pop(connection, None)

    def _refuse(self, connection: ClientConnection) -> None:
        """It is to be answered here, and be told so."""
        self.refused_total += 1
        connection.phase = Phase.ANSWERING
        connection.deadline = 0.0
        connection.transport.set_write_buffer_limits(high=self._listener.settings.write_high_water_bytes)
        connection.handlers.decline(connection)

    def _try_connection(self, connection: ClientConnection, slot: int) -> bool:
        """Whether nothing is left to be done: it was sent, or refused because it can never be, or is gone."""
        chain = connection.input_chain
        if chain is None or connection.phase != Phase.PASSING or connection.transport.is_closing():
            return True  # it was cut, and its descriptor's number may be another's already
        if connection.transport.get_write_buffer_size():
            return False  # what lies in this process would not go along
        parcel = Parcel(
            slot,
            connection.serial,
            connection.peer,
            connection.read_bytes - chain.end,
            connection.written_bytes,
            chain.read(0, chain.end),
        )
        try:
            if not self._try(slot, parcel, fd_of(connection.transport)):
                return False
        except (OSError, ValueError) as exc:
            log.warning("not_passed", extra={"fields": {"slot": slot, "problem": str(exc)}})
            self._refuse(connection)
        else:
            connection.let_go()
        return True

    def _try_orphan(self, orphan: _Orphan) -> bool:
        """Whether nothing is left to be done: it was sent, or can never be."""
        try:
            return self._try(orphan.parcel.slot, orphan.parcel, orphan.sock.fileno())
        except (OSError, ValueError) as exc:
            log.warning("not_passed", extra={"fields": {"slot": orphan.parcel.slot, "problem": str(exc)}})
            return True

    def _try(self, slot: int, parcel: Parcel, fd: int) -> bool:
        """Send one message; False where there is no room for it: then we are called when there is.

        Raises:
            OSError: it cannot be sent (too many descriptors on their way, no memory).
            ValueError: it is beyond a channel's bounds.
        """
        message, memfd = pack(parcel)
        try:
            self._inboxes[slot].send(message, [fd] if memfd < 0 else [fd, memfd])
        except BlockingIOError:
            self._await(slot)
            return False
        finally:
            if memfd >= 0:
                os.close(memfd)
        reach("passing_after_send")
        self._listener.instruments.connections_passed_total += 1
        self.passed_total += 1
        return True

    def _await(self, slot: int) -> None:
        if slot not in self._awaited:
            self._awaited.add(slot)
            self._loop.add_writer(self._inboxes[slot].fileno(), self._has_room, slot)

    def _ignore(self, slot: int) -> None:
        self._awaited.discard(slot)
        self._loop.remove_writer(self._inboxes[slot].fileno())

    def _has_room(self, slot: int) -> None:
        """An inbox takes messages again: send what waits for it, in order."""
        self._ignore(slot)
        for waiting, its_slot in list(self._waiting.items()):
            if slot in self._awaited:
                break  # it is full again
            if its_slot != slot:
                continue
            if isinstance(waiting, ClientConnection):
                is_done = self._try_connection(waiting, slot)
            elif is_done := self._try_orphan(waiting):
                waiting.let_go()
            if is_done:
                self.forget(waiting)

    # Receiving.

    def _receive(self) -> None:
        """Take in one connection. It costs as much as what else has a turn of the loop (turns.py), which calls again as long
        as there are more: streams go in between, and nobody asks the kernel whether that was the last."""
        try:
            received = self._inbox.peek()
        except BlockingIOError:
            return
        except (ValueError, OSError) as exc:
            log.warning("inbox_message", extra={"fields": {"problem": str(exc)}})
            if isinstance(exc, OSError) and exc.errno in WANTING:
                self._pause()  # it is whole, and can be taken when others have left
            else:
                self._inbox.drop()
            return
        if received is None:
            self.stop()  # every other end is closed: the gateway goes down
            return
        self._take(*received)
        reach("received_before_drop")
        self._inbox.drop()  # only now: until there is a row, the message is all that whoever comes after us has

    def _pause(self) -> None:
        self._loop.remove_reader(self._inbox.fileno())
        self._listener.clock.call_later(PAUSE_S, self._read_again)

    def _read_again(self) -> None:
        if self._is_reading:
            self._loop.add_reader(self._inbox.fileno(), self._receive)

    def _take(self, message: Mapping[str, Any], fds: list[int]) -> None:
        """Make a connection of a message; what is left of its descriptors is closed."""
        try:
            if not fds:
                raise ValueError("there is no socket")
            kind = message.get("kind")
            if kind == CONNECTION:
                self._take_connection(unpack(message, fds[1:]), fds)
            elif kind == OPERATOR:
                sock = _take_socket(fds, {socket.AF_UNIX})
                self._listener.open(OperatorConnection(self._listener, self._listener.handlers), sock)
            else:
                raise ValueError(f"its kind is {kind!r:.40}")
        except (ValueError, OSError) as exc:
            log.warning("inbox_message", extra={"fields": {"problem": str(exc)}})
        finally:
            for fd in fds:
                os.close(fd)

    def _take_connection(self, parcel: Parcel, fds: list[int]) -> None:
        if parcel.read_base <= self._seen.get(parcel.serial, -1):
            return  # whoever sent it, or whoever took it, was killed before that could be seen
        reach("receiving_passed")
        sock = _take_socket(fds, {socket.AF_INET, socket.AF_INET6})
        self.note_here(parcel.serial, parcel.read_base)
        self.received_total += 1
        connection = PassedConnection(self._listener, parcel, sock)
        self._listener.open(connection, sock, connection.abandon)

    def note_here(self, serial: int, read_base: int) -> None:
        """This connection is here with the request that begins at ``read_base``: another message of it is one too many."""
        self._seen[serial] = read_base
        self._seen.move_to_end(serial)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def statistics(self) -> dict[str, int]:
        """Connections ``passed``, ``received`` and ``refused`` so far, and those that are ``waiting``."""
        return {
            "passed": self.passed_total,
            "received": self.received_total,
            "refused": self.refused_total,
            "waiting": len(self._waiting),
        }


class _Orphan:
    """What a process that was killed had not passed on to the end."""

    __slots__ = ("_chain", "_index", "_listener", "parcel", "sock")

    def __init__(self, listener: Listener, index: int, sock: socket.socket, chain: Chain, parcel: Parcel) -> None:
        self._listener = listener
        self._index = index
        self._chain = chain
        self.sock = sock
        self.parcel = parcel

    def let_go(self) -> None:
        """It is another shard's now."""
        self._listener.table.give(self._index)
        self._chain.give()
        self.sock.close()


def _take_socket(fds: list[int], families: set[int]) -> socket.socket:
    """The first descriptor as a stream socket; it is taken out of the list.

    Raises:
        ValueError: it is something else.
        OSError: it is no socket at all.
    """
    sock = socket.socket(fileno=fds[0])
    if sock.family not in families or sock.type != socket.SOCK_STREAM:
        sock.detach()
        raise ValueError(f"its socket is of family {sock.family} and type {sock.type}")
    del fds[0]
    sock.setblocking(False)
    return sock
