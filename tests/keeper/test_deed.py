"""The deed on its way to a child, and texts in memory."""

from __future__ import annotations

import os

from longwire.keeper.deed import Deed, SlotDeed, read_text, store_text


def test_a_deed_is_read_as_it_was_written() -> None:
    deed = Deed(3, 4, 5, 6, 7, 8, (SlotDeed(9, 10, 11, 12, 13), SlotDeed(14, 15, 16, 17, 18)))
    assert Deed.parse(str(deed)) == deed
    assert " " not in str(deed), "it is one word of a command line"


def test_children_inherit_all_of_it_and_only_when_told() -> None:
    fds = [store_text("test", b"") for _ in range(11)]
    deed = Deed(*fds[:6], (SlotDeed(*fds[6:]),))
    assert not any(map(os.get_inheritable, fds))
    deed.let_inherit()
    assert all(map(os.get_inheritable, fds))
    for fd in fds:
        os.close(fd)


def test_a_text_can_be_read_again_and_again() -> None:
    fd = store_text("test", "é".encode() * 100_000)
    assert [read_text(fd).decode() for _ in range(2)] == ["é" * 100_000] * 2
    os.close(fd)
