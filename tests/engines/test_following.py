"""Upstreams come and go by a watched file and by DNS; what fails leaves everything as it was."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.house import serving

from longwire.engines.directory import Directory
from longwire.engines.following import HAND_OVER_S, MAX_ADDRESSES, Following, ask_system
from longwire.engines.pool import Upstream
from longwire.words.clock import VirtualClock
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings


class Scene:
    """One engine that is followed, DNS on a string, and who has come and gone."""

    def __init__(self, settings: dict[str, Any] | None = None, **engine: Any) -> None:
        self.clock = VirtualClock()
        self.answers: dict[str, list[str] | OSError | UnicodeError] = {}
        self.asked: list[str] = []
        told = EngineSettings(**{"name": "gpu", "url": "http://gpu:8000", **engine})
        self.following = Following(told, Settings(**(settings or {})), self.clock, self._resolve)
        self.directory = Directory(self.following.live.values())
        self.log: list[str] = []
        self.directory.on_added = lambda upstream: self.log.append(f"+{upstream.name}")
        self.directory.on_retired = lambda upstream: self.log.append(f"-{upstream.name}")
        self.started: list[Coroutine[None, None, None]] = []

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tick(self, seconds: float = 0.0) -> None:
        """Some time passes; what was begun is over."""
        self.clock.advance(seconds)
        self.following.tick(self.directory, self.started.append)
        while self.started:
            await self.started.pop()

    @property
    def names(self) -> list[str]:
        return sorted(upstream.name for upstream in self.directory.upstreams)

    def named(self, name: str) -> Upstream:
        return next(each for each in self.directory.upstreams if each.name == name)

    def all_up(self) -> None:
        for upstream in self.directory.upstreams:
            upstream.is_up = True


def test_what_is_only_listed_never_changes() -> None:
    scene = Scene(urls=["http://b:2"])
    assert scene.following.is_static and scene.names == ["gpu", "gpu@b:2"]
    assert not Scene(resolve_s=1).following.is_static


# The file.


class UrlsFile:
    """The file, as an operator edits it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("http://b:2\n")

    def __str__(self) -> str:
        return str(self.path)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def remove(self) -> None:
        self.path.unlink()


@pytest.fixture
def file(tmp_path: Path) -> UrlsFile:
    return UrlsFile(tmp_path / "urls")


def test_the_file_is_read_at_the_start(file: UrlsFile) -> None:
    scene = Scene(urls_file=str(file))
    assert scene.names == ["gpu", "gpu@b:2"] and not scene.following.is_static


def test_a_file_that_is_bad_at_the_start_is_an_error(file: UrlsFile) -> None:
    file.write("http://b:2\nnonsense\n")
    with pytest.raises(SettingsError) as caught:
        Scene(urls_file=str(file))
    assert caught.value.where == f"{file}:2"
    file.remove()
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        Scene(urls_file=str(file))
    assert caught.value.where == str(file)


async def test_a_changed_file_brings_upstreams_and_takes_them(file: UrlsFile) -> None:
    scene = Scene(urls_file=str(file))
    scene.all_up()
    kept = scene.named("gpu")
    file.write("http://c:3\nhttp://d:4\n")
    await scene.tick()
    assert scene.names == ["gpu", "gpu@c:3", "gpu@d:4"] and scene.named("gpu") is kept
    assert scene.log == ["+gpu@c:3", "+gpu@d:4", "-gpu@b:2"], "those that come are there before the others go"
    await scene.tick()
    assert len(scene.log) == 3, "an unchanged file changes nothing"


async def test_another_path_at_the_same_place_is_another_upstream_of_the_same_name(file: UrlsFile) -> None:
    scene = Scene(urls_file=str(file))
    was = scene.named("gpu@b:2")
    file.write("http://b:2/new\n")
    await scene.tick()
    assert scene.named("gpu@b:2") is not was and scene.named("gpu@b:2").base_path == "/new" and was.is_retired


async def test_a_bad_file_changes_nothing_and_is_told_once(file: UrlsFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "longwire.endpoints")
    scene = Scene(urls_file=str(file))
    for text in ("http://c:3\nnonsense\n", "http://c:3\nnonsense\n\n"):
        file.write(text)
        for _ in range(3):
            await scene.tick()
    file.remove()
    for _ in range(3):
        await scene.tick()
    assert scene.names == ["gpu", "gpu@b:2"] and scene.log == []
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2, "bad, then gone"
    assert scene.following.statistics()["problems"] == 1
    file.write("http://c:3\n")
    await scene.tick()
    assert "gpu@c:3" in scene.names and scene.following.statistics()["problems"] == 0


# DNS.


async def test_each_address_becomes_an_upstream_and_they_follow_dns() -> None:
    scene = Scene(resolve_s=30)
    scene.answers["gpu"] = ["10.0.0.2", "10.0.0.1", "10.0.0.1"]
    await scene.tick()
    assert scene.names == ["gpu@10.0.0.1:8000", "gpu@10.0.0.2:8000"]
    one = scene.named("gpu@10.0.0.1:8000")
    assert (one.host, one.host_header, one.endpoint.address) == ("gpu", b"gpu:8000", "10.0.0.1")
    scene.all_up()
    scene.answers["gpu"] = ["10.0.0.1", "10.0.0.3"]
    await scene.tick(29)
    assert scene.asked == ["gpu"], "not before its time"
    scene.log.clear()
    await scene.tick(1)
    assert scene.log == ["+gpu@10.0.0.3:8000", "-gpu@10.0.0.2:8000"] and scene.named(one.name) is one


@pytest.mark.parametrize(
    "failure", [socket.gaierror(-3, "Temporary failure in name resolution"), [], UnicodeError("label too long")]
)
async def test_dns_dies_and_nothing_changes(
    failure: list[str] | OSError | UnicodeError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "longwire.endpoints")
    scene = Scene(resolve_s=5, urls=["http://other:9"])
    scene.answers |= {"gpu": ["10.0.0.1"], "other": ["10.0.0.9"]}
    await scene.tick()
    known = scene.names
    scene.log.clear()
    caplog.clear()
    scene.answers["gpu"] = failure
    for _ in range(3):
        await scene.tick(5)
    assert scene.names == known and scene.log == [] and scene.asked.count("gpu") == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"], "told once"
    scene.answers |= {"gpu": ["10.0.0.2"], "other": ["10.0.0.9"]}
    await scene.tick(5)
    assert scene.names == ["gpu@10.0.0.2:8000", "gpu@10.0.0.9:9"]


async def test_dns_that_never_worked_leaves_the_name_to_the_system() -> None:
    scene = Scene(resolve_s=5)
    scene.answers["gpu"] = socket.gaierror(-2, "Name or service not known")
    await scene.tick()
    assert scene.names == ["gpu"] and scene.named("gpu").endpoint.address == ""


async def test_a_slow_answer_is_waited_for_and_not_asked_for_again() -> None:
    scene = Scene(resolve_s=5)
    scene.answers["gpu"] = ["10.0.0.1"]
    pending: list[Coroutine[None, None, None]] = []
    for _ in range(4):
        scene.following.tick(scene.directory, pending.append)
        scene.clock.advance(60)
    assert len(pending) == 1
    await pending.pop()
    assert scene.names == ["gpu@10.0.0.1:8000"]


async def test_an_answer_of_a_thousand_addresses_is_cut() -> None:
    scene = Scene(resolve_s=5)
    scene.answers["gpu"] = [f"10.0.{n >> 8}.{n & 255}" for n in range(1000)]
    await scene.tick()
    assert len(scene.names) == MAX_ADDRESSES


async def test_the_last_that_serves_goes_when_there_is_another_that_does() -> None:
    """A name that now stands for another machine: requests go to the old one until the new one has answered a probe."""
    scene = Scene(resolve_s=5)
    scene.answers["gpu"] = ["10.0.0.1"]
    await scene.tick()
    scene.all_up()
    scene.answers["gpu"] = ["10.0.0.2"]
    await scene.tick(5)
    assert scene.names == ["gpu@10.0.0.1:8000", "gpu@10.0.0.2:8000"]
    assert scene.directory.choose("m").name == "gpu@10.0.0.1:8000"
    scene.named("gpu@10.0.0.2:8000").is_up = True
    await scene.tick(1)
    assert scene.names == ["gpu@10.0.0.2:8000"]
    scene.answers["gpu"] = ["10.0.0.3"]
    await scene.tick(5)
    await scene.tick(HAND_OVER_S)
    assert scene.names == ["gpu@10.0.0.3:8000"], "but not for ever"


async def test_one_that_was_to_go_and_is_listed_again_stays() -> None:
    scene = Scene(resolve_s=5)
    scene.answers["gpu"] = ["10.0.0.1"]
    await scene.tick()
    scene.all_up()
    for addresses in (["10.0.0.2"], ["10.0.0.1", "10.0.0.2"]):
        scene.answers["gpu"] = addresses
        await scene.tick(5)
    scene.all_up()
    await scene.tick(2 * HAND_OVER_S)
    assert scene.names == ["gpu@10.0.0.1:8000", "gpu@10.0.0.2:8000"]


async def test_a_successor_begins_with_the_addresses_that_were_known() -> None:
    scene = Scene(resolve_s=5)
    scene.following.recall(["gpu@10.0.0.1:8000", "gpu@10.0.0.2:8000"], scene.directory)
    scene.directory.recall({"gpu@10.0.0.1:8000": ("m",)})
    assert scene.names == ["gpu@10.0.0.1:8000", "gpu@10.0.0.2:8000"]
    assert scene.directory.choose("m").name == "gpu@10.0.0.1:8000"
    scene.answers["gpu"] = socket.gaierror(-3, "Temporary failure in name resolution")
    await scene.tick()
    assert len(scene.names) == 2, "DNS need not answer"


async def test_the_system_is_asked_off_the_loops_way() -> None:
    assert set(await ask_system("127.0.0.1", 80)) == {"127.0.0.1"}


async def test_one_is_spoken_to_at_its_address_under_its_hosts_name() -> None:
    heard = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        writer.close()

    async with serving(answer) as address:
        port = address.rpartition(":")[2]
        scene = Scene(url=f"http://engine.invalid:{port}", resolve_s=5)
        scene.answers["engine.invalid"] = ["127.0.0.1"]
        await scene.tick()
        (upstream,) = scene.directory.upstreams
        connection = await upstream.wait_connection()
        await heard.wait()
        assert upstream.host_header == f"engine.invalid:{port}".encode()
        connection.close()


# Leaving.


async def test_what_runs_on_a_retired_one_goes_on_and_what_is_idle_is_closed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with serving(answer) as address:
        scene = Scene(url=f"http://{address}")
        (upstream,) = scene.directory.upstreams
        idle, busy = [await upstream.wait_connection() for _ in range(2)]
        idle.release(reusable=True)
        scene.directory.retire(upstream)
        assert [each.is_closed for each in (idle, busy)] == [True, False] and scene.log == ["-gpu"]
        assert scene.directory.upstreams == [] and scene.directory.retired == [upstream]
        scene.directory.purge_nowait()
        assert [upstream.statistics()["busy"], *scene.directory.retired] == [1, upstream], "whoever uses it is not cut"
        busy.release(reusable=True)
        assert busy.is_closed, "nobody will ask for it again"
        scene.directory.purge_nowait()
        assert scene.directory.retired == []
