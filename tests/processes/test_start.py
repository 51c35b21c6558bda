"""What is done before the first process: what cannot begin, where engines of our own are placed, how each kind is started."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.house import hashed

from longwire.keeper.deed import Deed
from longwire.keeper.members import Orders
from longwire.processes import start
from longwire.processes.estate import Blob
from longwire.processes.start import check_keys, free_port, orders_for, place_engines
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings, TenantSettings

# What is not closed here belongs to a process that ends, and takes it along.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SMALL: dict[str, Any] = {"port": 0, "admin_port": 0, "arena_bytes": 4 << 20, "max_streams": 16, "max_connections": 16}
READER = ["python", "-m", "reader"]


class PaperKeeper:
    """Notes what it was given."""

    def __init__(self, deed: Deed, orders: Orders, announce: Callable[[], None]) -> None:
        self.deed, self.orders, self.announce = deed, orders, announce
        kept.append(self)

    def run(self) -> int:
        self.announce()
        return 7


kept: list[PaperKeeper] = []


@pytest.fixture(autouse=True)
def _paper(monkeypatch: pytest.MonkeyPatch) -> None:
    kept.clear()
    monkeypatch.setattr(start, "Keeper", PaperKeeper)
    monkeypatch.setattr(start, "configure_logging", lambda _: None)
    monkeypatch.setattr(start, "raise_descriptor_limit", lambda: None)


def test_it_says_where_it_listens_and_ends_with_the_keeper_s_code(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(**SMALL, shards=2, engines=[EngineSettings(name="sim", url="sim")])
    assert start.run(settings, READER) == 7
    (keeper,) = kept
    blob = Blob.read(keeper.deed.settings)
    assert [engine.url for engine in blob.settings.engines] == [f"http://127.0.0.1:{blob.ours['sim']}"]
    assert len(keeper.deed.slots) == 2 and keeper.orders.reader == tuple(READER)
    out = capsys.readouterr().out.splitlines()
    for line, fd, words in zip(
        out, (keeper.deed.public, keeper.deed.admin), ("listening on", "admin on"), strict=False
    ):
        with socket.socket(fileno=fd) as sock:
            assert line == f"longwire: {words} http://127.0.0.1:{sock.getsockname()[1]}"
            socket.create_connection(sock.getsockname()).close()


def test_a_kernel_that_does_not_count_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "counters_work", lambda: False)
    assert start.run(Settings(**SMALL, shards=1)) == 7
    assert "longwire: adoption = off" in capsys.readouterr().out


def test_a_taken_port_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert start.run(Settings(**SMALL | {"admin_port": port})) == 1
    said = capsys.readouterr()
    assert said.err.startswith("longwire: ") and f"127.0.0.1:{port}" in said.err and said.err.count("\n") == 1
    assert not said.out and not kept


@pytest.mark.parametrize("bad", ["keys", "certificate"])
def test_bad_files_are_one_sentence(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text("nonsense")
    files = {"keys_file": str(path)} if bad == "keys" else {"tls_cert_file": str(path), "tls_key_file": str(path)}
    settings = Settings(**SMALL, tenants=[TenantSettings(name="a", key_hashes=[hashed("k")])], **files)
    assert start.run(settings) == 2
    said = capsys.readouterr()
    assert (
        said.err.startswith("longwire: ")
        and (str(path) in said.err or "tls_cert_file" in said.err)
        and said.err.count("\n") == 1
        and not said.out
    )
    assert not kept, "no process was started over it"


def test_what_the_machine_does_not_have_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(start, "bind", fail)
    assert start.run(Settings(**SMALL)) == 1
    assert capsys.readouterr().err == "longwire: cannot start: Cannot allocate memory.\n"


def test_keys_are_checked_only_where_there_is_a_file(tmp_path: Path) -> None:
    check_keys(Settings())
    with pytest.raises(SettingsError):
        check_keys(Settings(keys_file=str(tmp_path / "none")))


def test_engines_of_ours_get_a_port_once() -> None:
    settings = Settings(engines=[EngineSettings(name="", url="sim"), EngineSettings(name="a", url="http://h:1")])
    placed, ours = place_engines(settings)
    assert [(engine.name, engine.url) for engine in placed.engines] == [
        ("sim", f"http://127.0.0.1:{ours['sim']}"),
        ("a", "http://h:1"),
    ]
    assert [engine.kind for engine in placed.engines] == ["sim", ""], "what it is cannot be told from its address"
    again, same = place_engines(settings, ours)
    assert (again, same) == (placed, ours)
    assert 0 < free_port() < 65536


def test_each_kind_has_its_command() -> None:
    settings = Settings(drain_s=3, hang_kill_s=4, log_level="debug")
    orders = orders_for(settings, True, READER)
    assert (orders.drain_s, orders.hang_kill_s, orders.reader) == (3, 4, tuple(READER))
    kinds = {"shard": orders.shard, "admin": orders.admin, "engines": orders.engines}
    assert {kind: command[-1] for kind, command in kinds.items()} == {
        kind: f"longwire.processes.{kind}" for kind in kinds
    }
    assert orders.keeper == (sys.executable, "-P", "-m", "longwire.keeper", "debug")
    assert orders_for(settings, False, ()).engines == ()
