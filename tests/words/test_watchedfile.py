"""A file that people change: what counts as changed. (How a bad one is told: with each file that is watched.)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longwire.words.errors import SettingsError
from longwire.words.watchedfile import WatchedFile


def test_it_is_read_until_it_has_settled_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    file = WatchedFile(path, "The file", 100)
    assert file.may_differ() and file.read() == b"one"
    assert file.may_differ(), "a second write in the same tick would leave the same stat"
    assert file.read() == b"one" and not file.may_differ()
    os.utime(path, ns=(1, 1))
    assert file.may_differ()


def test_one_that_comes_back_as_it_was_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    file = WatchedFile(path, "The file", 100)
    file.read()
    file.read()
    path.rename(tmp_path / "aside")
    with pytest.raises(SettingsError, match=r"The file cannot be read: No such file"):
        file.may_differ()
    (tmp_path / "aside").rename(path)
    assert file.may_differ() and file.read() == b"one"


def test_its_bound_and_its_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff" * 5)
    with pytest.raises(SettingsError, match="The file is larger than 4 bytes") as caught:
        WatchedFile(path, "The file", 4).read()
    assert caught.value.where == str(path)
    file = WatchedFile(path, "The file", 5)
    with pytest.raises(SettingsError, match="not UTF-8"):
        file.decode(file.read())
