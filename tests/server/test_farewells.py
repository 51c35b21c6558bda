"""Clients that leave together are seen off in turn, each once."""

from __future__ import annotations

import asyncio
from typing import cast

from longwire.server.connection import ClientConnection
from longwire.server.farewells import PER_TURN, Farewells


class Leaving:
    """A connection whose client has left."""

    def __init__(self) -> None:
        self.seen_off = 0

    def see_off(self) -> None:
        self.seen_off += 1


async def leave(count: int) -> list[int]:
    """So many leave in one turn of the loop; how many are gone after each turn."""
    farewells = Farewells(asyncio.get_running_loop())
    clients = [Leaving() for _ in range(count)]
    put_off = [farewells.take(cast(ClientConnection, client)) for client in clients]
    assert put_off == [number >= PER_TURN for number in range(count)]
    gone = []
    while not gone or gone[-1] < count:
        gone.append(sum(client.seen_off for client in clients))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [client.seen_off for client in clients] == [1] * count
    assert repr(farewells) == "<Farewells 0 waiting>"
    assert not farewells.take(cast(ClientConnection, Leaving())), "it begins anew"
    return gone


def test_a_few_go_at_once() -> None:
    assert asyncio.run(leave(PER_TURN)) == [PER_TURN]


def test_many_go_in_turn_and_the_loop_turns_in_between() -> None:
    assert asyncio.run(leave(3 * PER_TURN + 1)) == [PER_TURN, 2 * PER_TURN, 3 * PER_TURN, 3 * PER_TURN + 1]
