"""SIGKILL of an engine in mid-answer with a second one standing by: its readers get one unbroken answer each."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.engines import MODEL, embedded, table_of
from tests.e2e.gateways import Gateway, Reader, Sim, fetch, play, running, until
from tests.house import Answer, Client

from longwire.engines import local
from longwire.sim.answer import answer_text
from longwire.words.settings import Settings

pytestmark = pytest.mark.e2e

CLIENTS = 12
TOKENS, ITL_MS = 120, 10
SEEN_EVENTS = 30
"""So many events every reader has seen when the engine is killed: it is in mid-answer then."""
REAL_CLIENTS = 2
REAL_TOKENS = 40
"""Few: this model's tokens cost processor time."""
REAL_SEEN_EVENTS = 12


def gateway_of(folder: Path, engines: str) -> Gateway:
    """Two shards before these engines, all of which are up."""
    (folder / "longwire.toml").write_text(engines)
    gateway = Gateway(folder, "--config", "longwire.toml", "--shards", "2", "--arena-bytes", "96MiB")
    count = engines.count("[[engines]]")
    until(lambda: sum(figures(gateway, "longwire_engine_up")) == count, "all engines are up")
    return gateway


def figures(gateway: Gateway, name: str) -> list[float]:
    return [value for key, value in gateway.metrics().items() if key.partition("{")[0] == name]


def state_of(gateway: Gateway, stream_id: str) -> Any:
    return json.loads(fetch(gateway.port, f"/v1/streams/{stream_id}")[1])


async def read_to_the_end(reader: Reader, seed: int, tokens: int) -> None:
    await reader.rest()
    assert (reader.error, reader.is_done) == (None, True)
    assert reader.text == answer_text(seed, tokens)


def test_one_of_two_engines_is_killed_and_no_reader_notices(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first, second = Sim(tmp_path), Sim(tmp_path)
        for sim in (first, second):
            stack.enter_context(running(sim))
        gateway = gateway_of(tmp_path, table_of("sim", (first.url, 100), (second.url, 100)))
        stack.enter_context(running(gateway))
        ids: list[str] = []

        async def read_all() -> None:
            readers = [await Reader.connect(gateway.port) for _ in range(CLIENTS)]
            for seed, reader in enumerate(readers):
                await reader.generate(seed, TOKENS, ITL_MS)
                ids.append(reader.headers["x-stream-id"])
            for reader in readers:
                for _ in range(SEEN_EVENTS):
                    await reader.event()
            assert all(
                [await asyncio.to_thread(lambda sim=sim: sim.statistics()["open_streams"]) for sim in (first, second)]
            )
            first.process.kill()
            await asyncio.gather(*(read_to_the_end(reader, seed, TOKENS) for seed, reader in enumerate(readers)))
            # The same connections go on. Whoever is sent to the dead engine now does not hear of it either.
            for seed, reader in enumerate(readers):
                reader.text, reader.is_done = "", False
                await reader.generate(CLIENTS + seed, 5, 1)
                await read_to_the_end(reader, CLIENTS + seed, 5)

        play(read_all())
        states = [state_of(gateway, stream_id) for stream_id in ids]
        broken = [state for state in states if state["epoch"] > 1]
        assert broken and all(len(state["seams"]) == 1 and state["engine"] == "b" for state in broken)
        assert all(state["close_reason"] == "completed" for state in states)
        assert sum(figures(gateway, "longwire_continuations_total")) == len(broken)
        assert len(second.generations()) <= 2 * CLIENTS + len(broken)


@pytest.mark.skipif(not local.is_installed(), reason="the embedded engine is not installed: `longwire local install`")
def test_one_of_two_real_engines_is_killed_and_no_reader_notices(tmp_path: Path) -> None:
    with embedded(2, Settings(local_context_tokens=512)) as (first, second):
        gateway = gateway_of(tmp_path, table_of("llamacpp", (first.url, 100), (second.url, 0)))

        async def begin(subject: str) -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
            message = {"role": "user", "content": f"Write a long story about {subject}."}
            limits = {"max_tokens": REAL_TOKENS, "temperature": 0, "stream_options": {"include_usage": True}}
            client.post({"model": MODEL, "stream": True, "messages": [message], **limits})
            assert (await client.head()).status == 200
            for _ in range(REAL_SEEN_EVENTS):
                await client.event()
            return client

        async def read_all() -> None:
            clients = await asyncio.gather(*(begin(subject) for subject in ("a fox", "a ship")[:REAL_CLIENTS]))
            seen = [client.current.text for client in clients if client.current is not None]
            await asyncio.to_thread(first.end)
            answers = await asyncio.gather(*(client.rest() for client in clients))
            for client, answer, text in zip(clients, answers, seen, strict=True):
                check_whole(answer, text)
                state = await asyncio.to_thread(state_of, gateway, answer.stream_id)
                assert (state["engine"], state["epoch"], len(state["seams"])) == ("b", 2, 1)
                client.close()

        with running(gateway):
            play(read_all())


def check_whole(answer: Answer, seen: str) -> None:
    """One beginning, one end, one identity (this engine tells the time of each event), the limit kept and told."""
    assert answer.is_whole and answer.is_marked_done and answer.in_band_error is None
    assert answer.text.startswith(seen) and len(answer.text) > len(seen)
    choices = [frame["choices"][0] for frame in answer.frames if frame["choices"]]
    assert [choice["delta"].get("role") for choice in choices].count("assistant") == 1
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({(frame["id"], frame["model"]) for frame in answer.frames}) == 1
    (usage,) = [frame["usage"] for frame in answer.frames if frame.get("usage")]
    assert usage["completion_tokens"] == REAL_TOKENS
