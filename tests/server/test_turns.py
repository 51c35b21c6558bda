"""What many clients want at once is done in their order, with a turn of the loop in between."""

from __future__ import annotations

import asyncio
from functools import partial

from longwire.server.turns import Turns


async def ask(*wishes: str) -> str:
    """They come in one turn of the loop; what was done, ``|`` where a turn ended. First letters are clients, ``!`` knocks."""
    turns, done = Turns(asyncio.get_running_loop()), list[str]()
    for wish in wishes:
        if wish[0] == "!":
            turns.knock(partial(done.append, wish))
        else:
            turns.take(wish[0], partial(done.append, wish))
    for _ in range(6):
        done.append("|")
        await asyncio.sleep(0)
    assert repr(turns) == "<Turns 0 waiting>"
    turns.take("z", partial(done.append, "z"))
    assert done.pop() == "z", "nobody is before it any more"
    return " ".join(done)


def test_one_is_served_at_once() -> None:
    assert asyncio.run(ask("a")) == "a | | | | | |"
    assert asyncio.run(ask("!")) == "! | | | | | |"


def test_many_are_served_one_after_the_other() -> None:
    assert asyncio.run(ask("a", "b", "c", "d")) == "a | b | c | d | | |"


def test_who_has_left_needs_nothing_else() -> None:
    assert asyncio.run(ask("a", "b asks", "c", "b leaves")) == "a | b leaves | c | | | |"


def test_those_who_knock_and_those_who_are_in_alternate() -> None:
    assert asyncio.run(ask("a", "b", "c", "d", "!")) == "a | b | ! | c | d | |"
    assert asyncio.run(ask("!", "!!", "b")) == "! | b | !! | | | |"


async def fail() -> list[str]:
    turns, done = Turns(asyncio.get_running_loop()), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: done.append(repr(context["exception"])))
    turns.take("a", lambda: None)
    turns.take("b", partial([].pop))
    turns.take("c", partial(done.append, "c"))
    assert "b" in turns and "a" not in turns
    for _ in range(4):
        await asyncio.sleep(0)
    return done


def test_a_fault_takes_nobody_s_turn_away() -> None:
    assert asyncio.run(fail()) == ["IndexError('pop from empty list')", "c"]
