"""What the processes say to the keeper.

What lives here: taking messages in, and telling whom each one concerns. What must not: what follows from it (the others here).
"""

from __future__ import annotations

import logging
import selectors
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from .channel import close_all
from .members import Member
from .pace import START
from .states import Event

if TYPE_CHECKING:
    from .keeper import Keeper

log = logging.getLogger("longwire.keeper")


class Hearing:
    """Of one keeper."""

    def __init__(self, keeper: Keeper, selector: selectors.BaseSelector) -> None:
        self._keeper = keeper
        self._selector = selector

    def begin(self, member: Member) -> None:
        """Listen to it from now on."""
        self._selector.register(member.channel, selectors.EVENT_READ, partial(self._hear, member))

    def end(self, member: Member) -> None:
        """It is dead: take in what it said before, the end of its guardian perhaps, and listen no more."""
        while self._hear(member):
            pass
        self._deafen(member)
        member.channel.close()

    def _deafen(self, member: Member) -> None:
        if member.channel.fileno() in self._selector.get_map():
            self._selector.unregister(member.channel)

    def _hear(self, member: Member) -> bool:
        """One message; whether there was one."""
        try:
            received = member.channel.receive()
        except BlockingIOError:
            return False
        except (OSError, ValueError) as exc:
            log.error("message_lost", extra={"fields": {"pid": member.pid, "problem": str(exc)}})
            return True
        if received is None:
            self._deafen(member)  # it would be readable until its death comes
            return False
        self._act(member, *received)
        return True

    def _act(self, member: Member, message: dict[str, Any], fds: list[int]) -> None:
        keeper = self._keeper
        match message:
            case {"am": "guarded"} if fds:
                member.take_guardian(socket.socket(fileno=fds.pop(0)))
            case {"am": "warm"} if not member.is_reaped:
                member.happens(Event.WARMED)
                if keeper.pace.failures(START):  # what has failed was starting, and it works again
                    keeper.pace.forgive(START)
                    keeper.pace.forgive("shard")
                if keeper.reload is not None and member.generation != keeper.generation:
                    keeper.reload.warmed()
                else:
                    keeper.filling.fill()
            case {"am": "serving"} if member.slot is not None:
                told = message.get("slot", member.slot)
                for slot in keeper.slots.served_by(member):
                    if slot.index == told:
                        keeper.serves(member, slot)
            case {"am": "unable"}:
                log.error(
                    "foster_unable", extra={"fields": {"pid": member.pid, "problem": str(message.get("why"))[:200]}}
                )
                keeper.slots.decline(member)
                keeper.filling.fill()
            case {"am": "warm" | "drained"}:
                pass  # its end is here, or follows
            case {"am": "failed", "why": str(why), "code": int(code)}:
                keeper.cannot_serve(member, why, code)
            case {"am": "read"} if keeper.reload is not None and keeper.reload.reader is member:
                keeper.reload.take(message, fds)
            case {"am": "able"} if keeper.succession is not None and keeper.succession.heir is member:
                keeper.succession.go_on()
            case {"ask": "reload"}:
                keeper.start_reload(lambda problem: member.tell({"told": "reload", "problem": problem}))
            case {"ask": "drain"}:
                keeper.stop()
            case _:
                log.error("strange_message", extra={"fields": {"pid": member.pid, "message": str(message)[:200]}})
        close_all(fds)
