"""The whole house on real ports: opening it, engines that come late, what it says at the door, and its clockwork."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.house import CHAT, Client, chat, hashed, open_house, until

from longwire import lifecycle
from longwire.groundwork import CannotListen
from longwire.lifecycle import House
from longwire.sim import SimServer
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings, SimSettings, TenantSettings

SMALL: dict[str, Any] = {
    "port": 0,
    "admin_port": 0,
    "arena_bytes": 4 << 20,
    "max_streams": 64,
    "max_connections": 64,
    "probe_s": 0.05,
    "drain_s": 0,
}


@pytest.fixture(autouse=True)
def _own_collector() -> Iterator[None]:
    """A house takes the collector over; other tests want it back."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "GREETING_POLL_S", 0.001)
    monkeypatch.setattr(lifecycle, "FAREWELL_S", 0.001)


def house_before(*urls: str, **settings: Any) -> House:
    engines = [EngineSettings(name=f"e{index}", url=url) for index, url in enumerate(urls)]
    return House(Settings(engines=engines, **{**SMALL, **settings}))


async def started_sim(**settings: Any) -> SimServer:
    sim = SimServer(SimSettings(**{"port": 0, "itl_ms": 0, "ttft_ms": 0, "tokens": 3, **settings}))
    await sim.start()
    return sim


class Said:
    """What was printed so far, line by line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.text = ""

    def __contains__(self, words: str) -> bool:
        self.text += self._capsys.readouterr().out
        return words in self.text

    def address(self, before: str) -> tuple[str, int]:
        assert before in self
        host, _, port = self.text.partition(before)[2].partition("\n")[0].rpartition(":")
        return host, int(port)


async def test_it_opens_greets_once_serves_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    sim = await started_sim()
    before = asyncio.all_tasks()
    said = Said(capsys)
    house = house_before(sim.url)
    await house.open()
    try:
        await until(lambda: "Try it:" in said, "there is a model to try")
        address = said.address("listening on http://")
        assert f"http://{address[0]}:{address[1]}/v1/chat/completions" in said and '"model": "sim"' in said
        client = Client(*await asyncio.open_connection(*address))
        client.post(chat())
        assert (await client.answer()).is_marked_done
        admin = Client(*await asyncio.open_connection(*said.address("admin on http://")))
        admin.get("/metrics")
        assert b"longwire_streams_ended_total" in (await admin.answer()).body
        assert "nothing" not in said and said.text.count("Try it:") == 1
        client.close()
        admin.close()
    finally:
        await house.close()
        await sim.close()
    await until(lambda: asyncio.all_tasks() <= before, "every task is over")
    assert not house.listener.connections and house.admin is not None
    for address in (said.address("listening on http://"), said.address("admin on http://")):
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)


async def test_an_engine_may_come_later_and_the_greeting_waits_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    said = Said(capsys)
    house = house_before(f"http://127.0.0.1:{port}")
    await house.open()
    (upstream,) = house.directory.upstreams
    sim = None
    try:
        await until(lambda: "refused" in upstream.problem, "it was looked for")
        ready, why = house.is_ready()
        assert not ready and why.startswith("e0: ")
        client = Client(*await asyncio.open_connection(*said.address("listening on http://")))
        client.get("/readyz")
        assert (await client.answer()).status == 503
        client.post(chat())
        refused = await client.answer()
        assert refused.status == 503 and refused.error["code"] == "no_engine_ready" and refused.header("retry-after")
        assert "Try it:" not in said
        sim = await started_sim(port=port)
        await until(lambda: house.is_ready()[0] and "Try it:" in said, "it was found")
        client.post(chat())
        assert (await client.answer()).is_marked_done
        await sim.close()
        await until(lambda: not house.is_ready()[0], "it was missed")
        client.close()
    finally:
        await house.close()
        if sim is not None:
            await sim.close()


async def test_the_greeting_speaks_of_a_key_where_one_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    sim = await started_sim()
    said = Said(capsys)
    house = house_before(sim.url, tenants=[TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])])
    await house.open()
    try:
        await until(lambda: "Try it:" in said, "there is a model to try")
        assert "Bearer KEY" in said and "sk-ada" not in said
    finally:
        await house.close()
        await sim.close()


# What must be right before anything is opened.


async def test_a_taken_admin_port_is_an_error_before_anything_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        house = house_before("http://127.0.0.1:9", admin_port=taken.getsockname()[1])
        before = asyncio.all_tasks()
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{taken.getsockname()[1]}: .*--admin-port"):
            await house.open()
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("bad", ["keys", "certificate"])
async def test_bad_files_are_an_error_before_anything_runs(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("nonsense")
    setting = {"keys_file": str(path)} if bad == "keys" else {"tls_cert_file": str(path), "tls_key_file": str(path)}
    house = house_before("http://127.0.0.1:9", tenants=[TenantSettings(name="a", key_hashes=[hashed("k")])], **setting)
    before = asyncio.all_tasks()
    with pytest.raises(SettingsError):
        await house.open()
    assert asyncio.all_tasks() == before and not house._children


# Endpoints that come and go.


async def test_an_endpoint_of_a_changed_file_serves_and_one_that_left_ends_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lifecycle, "ENDPOINTS_POLL_S", 0.01)
    first, second = await started_sim(tokens=1000, itl_ms=50), await started_sim()
    file = UrlsFile(tmp_path / "urls")
    file.write(first.url)
    said = Said(capsys)
    engine = EngineSettings(name="e", url="http://127.0.0.1:9", urls_file=str(file.path))
    house = House(Settings(engines=[engine], **SMALL))
    await house.open()
    directory = house.directory
    try:
        await until(lambda: house.is_ready()[0], "the file's endpoint was probed")
        client = Client(*await asyncio.open_connection(*said.address("listening on http://")))
        client.post(chat())
        await client.head()
        await client.event()
        was = next(each for each in directory.upstreams if each.is_up)
        assert was.name == f"e@{first.url.partition('://')[2]}"
        file.write(second.url)
        await until(lambda: was.is_retired, "another is up, and this one gone")
        assert was.statistics()["busy"], "its answer goes on"
        first.hurry()
        assert (await client.rest()).is_marked_done
        await until(lambda: directory.retired == [], "nothing of it is left")
        client.post(chat())
        assert (await client.answer()).is_marked_done
        assert set(house._probes) == set(directory.upstreams), "one probe for each, and none beside"
        client.close()
    finally:
        await house.close()
        await first.close()
        await second.close()


async def test_a_successor_knows_what_its_predecessor_did() -> None:
    engine = EngineSettings(name="e", url="http://engine.invalid:9", resolve_s=60)
    house = House(Settings(engines=[engine], **SMALL))
    house.recall({"e@10.0.0.1:9": ("m",), "other": ("n",)})
    (upstream,) = house.directory.upstreams
    assert house.is_ready()[0] and house.directory.choose("m") is upstream
    assert upstream.endpoint.address == "10.0.0.1"
    house._executor.shutdown(cancel_futures=True)


class UrlsFile:
    """A file of URLs, as an operator edits it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *urls: str) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text("\n".join(urls))
        beside.replace(self.path)


# The clockwork, called by hand.


async def test_the_collector_looks_at_what_is_new_only_when_there_is_enough() -> None:
    async with open_house() as house:
        inside = house.gateway
        gc.collect()
        gc.disable()
        inside._collect_young()
        assert inside.instruments.gc_runs_total == 0
        kept = [[] for _ in range(2 * lifecycle.YOUNG_OBJECTS)]  # type: ignore[var-annotated]
        frozen = gc.get_freeze_count()
        inside._collect_young()
        assert inside.instruments.gc_runs_total == 1
        assert gc.get_freeze_count() >= frozen + len(kept), "what is left of them is out of its sight"
        assert gc.get_count()[0] < lifecycle.YOUNG_OBJECTS and not gc.isenabled()


async def test_everything_is_looked_at_when_no_stream_lives() -> None:
    async with open_house() as house:
        inside = house.gateway
        client = await house.connect()
        client.post(chat(fault="hang"))
        await house.sim.wait_open(1)
        inside._collect_idle()
        assert inside.instruments.gc_runs_total == 0, "it would stop the stream for long"
        client.close()
        await house.sim.wait_open(0)
        inside._collect_idle()
        assert inside.instruments.gc_runs_total == 1 and not gc.isenabled()


async def test_the_loop_s_lag_is_what_came_late() -> None:
    async with open_house() as house:
        probe = house.gateway._probe_lag()
        lag = house.gateway.instruments.loop_lag
        house.pass_time(lifecycle.LAG_PROBE_S)
        probe()
        house.pass_time(lifecycle.LAG_PROBE_S + 2.0)
        probe()
        assert sum(lag.buckets) == 2 and lag.sum_us == pytest.approx(2e6)


async def test_what_runs_by_the_clock_goes_on() -> None:
    async with open_house() as house:
        calls: list[float] = []
        house.gateway._every(5, lambda: calls.append(house.clock.now()))
        house.pass_time(16)
        assert [later - calls[0] for later in calls] == [0, 5, 10]


async def test_a_problem_of_the_keys_file_is_logged_and_no_key_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("")
    tenant = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
    async with open_house(tenants=[tenant], keys_file=str(path)) as house:
        keys = house.gateway.keys
        assert keys is not None
        keys.load()
        path.write_text("ada sk-pasted-by-mistake\n")
        with caplog.at_level(logging.ERROR, "longwire"):
            keys.poll_nowait()
        (record,) = [each for each in caplog.records if each.message == "keys_file"]
        assert f"{path}:1" in record.fields["problem"] and "sk-pasted" not in str(record.fields)


async def test_a_secret_that_is_kept_makes_hashes_that_compare(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        async with open_house(state_dir=str(tmp_path)) as house:
            await house.ask(chat(), path=CHAT)
            seen.append(house.gateway.streamlog.hash_id(b"x" * 16))
    async with open_house() as house:
        seen.append(house.gateway.streamlog.hash_id(b"x" * 16))
    assert seen[0] == seen[1] != seen[2]
