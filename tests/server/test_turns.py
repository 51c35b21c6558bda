"""What many clients want at once is done in their order, with a turn of the loop in between."""

from __future__ import annotations

import asyncio
from functools import partial

from longwire.server.turns import Turns


async def ask(*names: str) -> list[str]:
    """They come in one turn of the loop; what was done, with ``|`` where a turn ended."""
    turns, done = Turns(asyncio.get_running_loop()), list[str]()
    for name in names:
        work = partial(done.append, name)
        if turns.take(name[0], work):
            work()
    for _ in range(5):
        done.append("|")
        await asyncio.sleep(0)
    assert repr(turns) == "<Turns 0 waiting>"
    assert turns.take("z", lambda: None), "nobody is before it any more"
    return done


def test_one_is_served_at_once() -> None:
    assert "".join(asyncio.run(ask("a"))) == "a|||||"


def test_many_are_served_one_after_the_other() -> None:
    assert "".join(asyncio.run(ask("a", "b", "c", "d"))) == "a|b|c|d||"


def test_who_has_left_needs_nothing_else() -> None:
    assert " ".join(asyncio.run(ask("a", "b asks", "c", "b leaves"))) == "a | b leaves | c | | |"


async def fail() -> list[str]:
    turns, done = Turns(asyncio.get_running_loop()), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: done.append(repr(context["exception"])))
    assert turns.take("a", lambda: None)
    assert not turns.take("b", partial([].pop))
    assert not turns.take("c", partial(done.append, "c"))
    for _ in range(4):
        await asyncio.sleep(0)
    return done


def test_a_fault_takes_nobody_s_turn_away() -> None:
    assert asyncio.run(fail()) == ["IndexError('pop from empty list')", "c"]
