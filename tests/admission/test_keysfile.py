"""The keys file: taken when it changes, left when it is bad, and every problem reported once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longwire.admission.keysfile import MAX_FILE_BYTES, KeysFile
from longwire.admission.tenants import Tenants, hash_key
from longwire.words.errors import SettingsError, Unauthenticated
from longwire.words.settings import TenantSettings
from longwire.words.watchedfile import WatchedFile


class Scene:
    """A tenant, its keys file, and what was reported."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys"
        self.tenants = Tenants([TenantSettings(name="acme")])
        self.problems: list[SettingsError] = []
        self.file = KeysFile(self.path, self.tenants, self.problems.append)

    def write(self, text: str, mtime_ns: int | None = None) -> None:
        """Replace the file as an operator should: beside it, then renamed."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        if mtime_ns is not None:
            os.utime(beside, ns=(mtime_ns, mtime_ns))
        beside.replace(self.path)

    def write_keys(self, *keys: str) -> None:
        self.write("".join(f"acme {hash_key(key)}\n" for key in keys))

    def knows(self, key: str) -> bool:
        try:
            self.tenants.identify(b"Bearer " + key.encode())
        except Unauthenticated:
            return False
        return True

    def settle(self) -> None:
        for _ in range(3):
            self.file.poll_nowait()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_new_key_comes_in_and_a_removed_one_goes_at_the_next_poll(scene: Scene) -> None:
    scene.write_keys("one")
    assert scene.file.poll_nowait() is True
    assert scene.knows("one")
    scene.write_keys("two")
    assert scene.file.poll_nowait() is True
    assert scene.knows("two") and not scene.knows("one")
    assert not scene.problems


def test_an_unchanged_file_is_not_even_opened(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write_keys("one")
    scene.settle()
    monkeypatch.setattr(WatchedFile, "read", lambda _: pytest.fail("it was read"))
    assert scene.file.poll_nowait() is False


def test_a_second_write_that_leaves_the_stat_as_it_was_is_seen(scene: Scene) -> None:
    scene.write_keys("one")
    status = scene.path.stat()
    scene.file.poll_nowait()
    scene.path.write_text(f"acme {hash_key('two')}\n", encoding="utf-8")
    os.utime(scene.path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert (scene.path.stat().st_size, scene.path.stat().st_ino) == (status.st_size, status.st_ino)
    assert scene.file.poll_nowait() is True
    assert scene.knows("two")


def test_a_file_that_was_only_touched_is_no_new_set(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    os.utime(scene.path, ns=(1, 1))
    assert scene.file.poll_nowait() is False
    assert scene.file.statistics() == {"loads": 1, "has_problem": 0}


def test_an_older_file_put_back_is_taken_again(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    scene.write(f"acme {hash_key('older')}\n", mtime_ns=1)
    assert scene.file.poll_nowait() is True
    assert scene.knows("older")


def test_a_swapped_symlink_is_seen(scene: Scene, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"acme {hash_key(name)}\n", encoding="utf-8")
        os.utime(tmp_path / name, ns=(5, 5))
    scene.path.symlink_to("a")
    scene.settle()
    (tmp_path / "next").symlink_to("b")
    (tmp_path / "next").replace(scene.path)
    assert scene.file.poll_nowait() is True
    assert scene.knows("b") and not scene.knows("a")


def test_a_bad_file_keeps_the_last_good_keys_and_is_reported_once_with_its_line(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    scene.write(f"acme {hash_key('two')}\nacme sk-in-the-clear\n")
    assert [scene.file.poll_nowait() for _ in range(4)] == [False] * 4
    assert [problem.where for problem in scene.problems] == [f"{scene.path}:2"]
    assert "in-the-clear" not in str(scene.problems[0])
    assert scene.knows("one") and not scene.knows("two")
    assert scene.file.problem == str(scene.problems[0])


def test_a_mended_file_is_taken_and_the_same_mistake_later_is_reported_again(scene: Scene) -> None:
    for key in ("one", "two"):
        scene.write("nonsense\n")
        scene.settle()
        scene.write_keys(key)
        assert scene.file.poll_nowait() is True
        assert scene.file.problem is None
    assert len(scene.problems) == 2


def test_another_problem_is_reported_though_the_first_is_not_mended(scene: Scene) -> None:
    scene.write("nonsense\n")
    scene.settle()
    scene.write("# one line further\nnonsense\n")
    scene.settle()
    assert [problem.where for problem in scene.problems] == [f"{scene.path}:1", f"{scene.path}:2"]


def test_a_bad_file_put_back_as_it_was_is_no_problem_and_no_new_set(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    scene.write("nonsense\n")
    scene.settle()
    scene.write_keys("one")
    assert scene.file.poll_nowait() is False
    assert scene.file.problem is None
    assert scene.knows("one")


def test_a_missing_file_keeps_the_keys_and_is_seen_when_the_very_same_file_comes_back(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    aside = scene.path.with_suffix(".aside")
    scene.path.rename(aside)
    scene.settle()
    assert [problem.message for problem in scene.problems] == [
        "The keys file cannot be read: No such file or directory."
    ]
    assert scene.knows("one")
    aside.rename(scene.path)
    scene.settle()
    assert scene.file.problem is None


def test_what_is_no_reasonable_text_file_is_a_problem_and_not_a_crash(scene: Scene) -> None:
    scene.path.write_bytes(b"acme \xff\xfe\n")
    scene.settle()
    scene.path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    scene.settle()
    scene.path.unlink()
    scene.path.mkdir()
    scene.settle()
    scene.path.rmdir()
    os.mkfifo(scene.path)
    scene.settle()
    assert [problem.message for problem in scene.problems] == [
        "The keys file is not UTF-8 text.",
        f"The keys file is larger than {MAX_FILE_BYTES} bytes.",
        "The keys file cannot be read: Is a directory.",
        "The keys file is no regular file.",
    ]


def test_at_start_a_bad_or_missing_file_is_raised_and_a_good_one_taken(scene: Scene) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        scene.file.load()
    scene.write("acme\n")
    with pytest.raises(SettingsError, match="keys:1"):
        scene.file.load()
    scene.write_keys("one")
    scene.file.load()
    assert scene.knows("one")
    assert not scene.problems


def test_its_repr_tells_the_state(scene: Scene) -> None:
    scene.write_keys("one")
    scene.settle()
    assert repr(scene.file) == f"<KeysFile {str(scene.path)!r} loads=1 problem=False>"
