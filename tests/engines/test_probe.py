"""Whether an engine is there, and what it lists."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from tests.house import FIN, HOLD, RST, Step, TestHouse, chat, head_of, in_chunks, open_house, until

from longwire.engines import load_probe
from longwire.engines.breaker import BreakerState
from longwire.engines.dialing import ConnectFailed
from longwire.engines.load_probe import ABSENT_S, LoadProbe
from longwire.engines.pool import Upstream
from longwire.engines.probe import EAGER_LOOKS, EAGER_S, MAX_MODEL_LIST_BYTES, MAX_MODELS, Prober, read_models
from longwire.words.clock import VirtualClock
from longwire.words.settings import EngineSettings, Settings

SETTINGS = Settings(connect_timeout_s=5.0)
HASTY = Settings(connect_timeout_s=0.05)
"""For an engine that says nothing: nobody waits for it."""


def listing(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def answer(body: bytes, *, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return head_of(b"content-length: %d" % len(body), status=status, kind=kind) + body


async def probe(*script: Step, models: list[str] | None = None) -> Upstream:
    """One probe of an engine that says this."""
    settings = HASTY if script == (HOLD,) else SETTINGS
    async with open_house() as house:
        house.engine.will_say(*script)
        upstream = Upstream(
            EngineSettings(name="e", url=house.engine.url, models=models or []), settings, VirtualClock()
        )
        upstream.is_up = True
        is_up = await Prober(upstream, settings).probe()
        assert is_up is upstream.is_up and is_up is (upstream.problem == "")
        (head, body), *_ = house.engine.requests
        assert (head.method, head.target, body) == ("GET", b"/v1/models", b"")
        upstream.close()
        return upstream


async def test_an_engine_that_lists_its_models_is_up() -> None:
    for wire in (
        answer(listing("m", "n")),
        head_of(b"transfer-encoding: chunked", kind=b"application/json") + in_chunks(listing("m", "n")),
    ):
        upstream = await probe(wire)
        assert upstream.is_up and upstream.models == ("m", "n")


async def test_models_of_the_settings_are_not_replaced() -> None:
    assert (await probe(answer(listing("m")), models=["own"])).models == ("own",)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ((answer(b"no", status=b"401 No"),), "it answered 401"),
        ((answer(b"no", status=b"503 No"),), "it answered 503"),
        ((answer(b"<html>", kind=b"text/html"),), "text/html"),
        ((answer(b'{"error":{"message":"not ready"}}'),), "not ready"),
        ((FIN,), "before it answered"),
        ((RST,), "before it answered"),
        ((head_of(b"content-length: 900", kind=b"application/json") + listing("m"), RST), "broke"),
        ((b"SSH-2.0\r\n", HOLD), "HTTP/1.1"),
        ((HOLD,), "in time"),
        ((head_of(b"content-length: 99999999", kind=b"application/json"), *[b"x" * 1_000_000] * 5, HOLD), ""),
    ],
    ids=["401", "503", "html", "error", "fin", "rst", "cut", "no_http", "silent", "endless"],
)
async def test_an_engine_that_does_not_is_down_and_it_is_said_why(script: tuple[Step, ...], problem: str) -> None:
    upstream = await probe(*script)
    assert not upstream.is_up and problem in upstream.problem
    assert MAX_MODEL_LIST_BYTES < 5_000_000


async def test_an_engine_that_was_never_there_is_told_once_and_not_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It may start together with the gateway; but who runs it must not have to ask why nothing is served."""
    async with open_house() as house:
        upstream = house.gateway.directory.upstreams[1]
        upstream.is_up = False
        await house.engine.close()
        prober = Prober(upstream, SETTINGS)
        with caplog.at_level(logging.INFO, "longwire.probe"):
            for _ in range(EAGER_LOOKS - 1):
                assert not await prober.probe()
            assert not states_told(caplog)
            for _ in range(3):
                assert not await prober.probe()
        assert_missing(caplog, upstream)


async def test_an_engine_that_went_away_is_told_once_and_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house() as house:
        upstream = house.gateway.directory.upstreams[1]
        upstream.is_up = False
        house.engine.will_say(answer(listing("m")))
        prober = Prober(upstream, SETTINGS)
        assert await prober.probe()
        await house.engine.close()
        with caplog.at_level(logging.WARNING, "longwire.probe"):
            assert not await prober.probe()
            assert_missing(caplog, upstream)
            for _ in range(EAGER_LOOKS + 3):
                assert not await prober.probe()
        assert_missing(caplog, upstream)


def assert_missing(caplog: pytest.LogCaptureFixture, upstream: Upstream) -> None:
    """It was told once."""
    (line,) = states_told(caplog)
    assert line.levelno == logging.WARNING
    fields = line.fields  # type: ignore[attr-defined]
    assert fields["engine"] == upstream.name and fields["up"] is False and "refused" in fields["problem"]


@pytest.mark.parametrize("is_there", [True, False])
async def test_it_is_looked_for_often_until_it_is_found_or_missed(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if seconds != EAGER_S:
            raise asyncio.CancelledError

    upstream = Upstream(EngineSettings(name="e", url="http://127.0.0.1:9"), SETTINGS, VirtualClock())
    prober = Prober(upstream, SETTINGS)
    looks = 0

    async def get_models() -> bytes:
        nonlocal looks
        looks += 1
        if is_there and looks == 3:
            return listing("m")
        raise ConnectFailed("refused")

    monkeypatch.setattr(prober, "_get_models", get_models)
    monkeypatch.setattr(asyncio, "sleep", note)
    with pytest.raises(asyncio.CancelledError):
        await prober.run()
    often = 2 if is_there else EAGER_LOOKS
    assert pauses == [EAGER_S] * often + [SETTINGS.probe_s]
    assert upstream.is_up is is_there


async def test_each_change_is_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house() as house:
        upstream = house.gateway.directory.upstreams[1]
        upstream.is_up = False
        down, up = answer(b"no", status=b"503 No"), answer(listing("m"))
        prober = Prober(upstream, SETTINGS)
        with caplog.at_level(logging.INFO, "longwire.probe"):
            for script in (up, up, down, down, up):
                house.engine.will_say(script)
                await prober.probe()
        told = [(line.levelno, line.fields["problem"]) for line in states_told(caplog)]  # type: ignore[attr-defined]
        assert told == [(logging.INFO, ""), (logging.WARNING, "it answered 503"), (logging.INFO, "")]


def states_told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == "engine_state"]


async def test_a_stale_pooled_connection_does_not_make_a_healthy_engine_look_down() -> None:
    async with open_house() as house:
        upstream = house.gateway.directory.upstreams[0]
        assert (await house.ask(chat(fault="die_idle"))).is_marked_done
        assert await Prober(upstream, SETTINGS).probe() and upstream.is_up


async def test_the_engine_s_key_is_used() -> None:
    async with open_house() as house:
        assert await Prober(house.gateway.directory.upstreams[0], SETTINGS).probe()
        assert house.sim.requests[-1].get(b"authorization") == b"Bearer sk-engine"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (listing("a", "b"), ("a", "b")),
        (listing(), ()),
        (listing("a", 3, None, "", "x" * 300), ("a",)),
        (b'{"data":["a",{"name":"b"},{"id":"c"}]}', ("c",)),
        (b'{"data":{}}', ()),
        (b'[{"id":"a"}]', ()),
        (b"{", ()),
        (b"[" * 100_000, ()),
    ],
)
def test_a_list_of_any_shape_does_no_harm(body: bytes, names: tuple[str, ...]) -> None:
    assert read_models(body) == names


def test_a_list_is_bounded() -> None:
    assert len(read_models(listing(*map(str, range(MAX_MODELS + 5))))) == MAX_MODELS


# What the breaker hears.


async def test_a_probe_ends_a_rest_that_is_over() -> None:
    async with open_house() as house:
        upstream, clock = upstream_of(house)
        upstream.breaker.note_fault(clock.now(), 100, "upstream_reset")
        for wait_s, state in ((1, BreakerState.OPEN), (4, BreakerState.HALF_OPEN)):
            clock.advance(wait_s)
            house.engine.will_say(answer(listing("m")))
            assert await Prober(upstream, SETTINGS).probe()
            assert upstream.breaker.state is state
        upstream.close()


async def test_failed_probes_count_once_it_has_been_up() -> None:
    async with open_house() as house:
        upstream, _ = upstream_of(house)
        prober = Prober(upstream, SETTINGS)
        for _ in range(10):
            house.engine.will_say(FIN)
            assert not await prober.probe()
        assert upstream.breaker.state is BreakerState.CLOSED, "one that was never there has not failed anybody"
        house.engine.will_say(answer(listing("m")))
        assert await prober.probe()
        for _ in range(int(SETTINGS.breaker_faults)):
            house.engine.will_say(FIN)
            await prober.probe()
        assert upstream.breaker.state is BreakerState.OPEN and "model list" in upstream.breaker.why
        upstream.close()


async def test_it_is_probed_as_soon_as_its_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    clock = VirtualClock()
    upstream = Upstream(EngineSettings(name="e", url="http://127.0.0.1:9"), SETTINGS, clock)
    prober = Prober(upstream, SETTINGS)

    async def get_models() -> bytes:
        if len(pauses) == 1:
            upstream.breaker.note_fault(clock.now() - 3, 100, "upstream_reset")
        return listing("m")

    monkeypatch.setattr(prober, "_get_models", get_models)
    monkeypatch.setattr(asyncio, "sleep", note)
    with pytest.raises(asyncio.CancelledError):
        await prober.run()
    assert pauses == [SETTINGS.probe_s, 2, SETTINGS.probe_s]
    assert upstream.breaker.state is BreakerState.HALF_OPEN


# Its load.


def upstream_of(house: TestHouse, kind: str = "", at: str = "") -> tuple[Upstream, VirtualClock]:
    """The scripted engine (or the one there) as an upstream whose clock is ours."""
    clock = VirtualClock()
    engine = EngineSettings(name="e", url=(at or house.engine.url) + "/v1", kind=kind)
    return Upstream(engine, SETTINGS, clock), clock


def metrics(kv: float, generated: int) -> bytes:
    page = b"vllm:kv_cache_usage_perc %f\nvllm:generation_tokens_total %d\n" % (kv, generated)
    return answer(page, kind=b"text/plain")


async def test_the_stand_in_s_load_is_seen() -> None:
    async with open_house() as house:
        upstream, clock = upstream_of(house, "sim", house.sim.url)
        probe = LoadProbe(upstream, SETTINGS)
        assert await probe.look()
        first = upstream.load
        assert first is not None and (first.running, first.generated, first.at) == (0, 0, clock.now())
        assert upstream.moved_at is None
        assert (await house.ask(chat(tokens=7))).is_marked_done
        clock.advance(1)
        assert await probe.look()
        assert upstream.load is not None and (upstream.load.generated or 0) > 0
        assert upstream.moved_at == clock.now() and "sim" not in repr(probe)
        request = house.sim.requests[-1]
        assert request.target == b"/metrics" and request.get(b"connection") == b"close"
        assert upstream.statistics()["idle"] == 0, "its connection is not kept"
        upstream.close()


async def test_an_engine_s_load_is_looked_at_as_soon_as_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then requests go there without any reckoning."""
    async with open_house() as house:
        upstream, _ = upstream_of(house, "vllm")
        house.engine.will_say(metrics(0.5, 5))
        monkeypatch.setattr(load_probe, "NOT_UP_S", 0.0)
        task = asyncio.create_task(LoadProbe(upstream, SETTINGS).run())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not house.engine.requests
        upstream.is_up = True
        await until(lambda: upstream.load is not None, "it was asked")
        task.cancel()
        upstream.close()


async def test_llamacpp_is_asked_for_its_slots() -> None:
    async with open_house() as house:
        upstream, _ = upstream_of(house, "llamacpp")
        house.engine.will_say(answer(b'[{"id":0,"n_ctx":9,"is_processing":false}]'))
        assert await LoadProbe(upstream, SETTINGS).look()
        assert house.engine.requests[0][0].target == b"/slots"
        assert upstream.load is not None and (upstream.load.running, upstream.load.kv_used) == (0, 0)
        upstream.close()


async def test_load_is_smoothed_until_it_is_stale() -> None:
    async with open_house() as house:
        upstream, clock = upstream_of(house, "vllm")
        probe = LoadProbe(upstream, SETTINGS)
        seen = []
        for wait_s, kv, generated in ((1, 0.2, 5), (1, 0.6, 5), (1, 0.6, 6), (SETTINGS.load_stale_s, 0.9, 6)):
            clock.advance(wait_s)
            house.engine.will_say(metrics(kv, generated))
            assert await probe.look()
            assert upstream.load is not None
            seen.append((round(upstream.load.kv_used or 0, 3), upstream.moved_at))
        assert seen == [(0.2, None), (0.4, None), (0.5, 1003.0), (0.9, 1003.0)]
        upstream.close()


HTML = answer(b"<html>welcome</html>", kind=b"text/html")


@pytest.mark.parametrize(
    ("script", "is_absent"),
    [
        ((answer(b"", status=b"404 No"),), True),
        ((answer(b"{}", status=b"501 No"),), True),
        ((answer(b"", status=b"401 No"),), True),
        ((answer(b"", status=b"503 No"),), False),
        ((answer(b"", status=b"429 No"),), False),
        ((HTML,), True),
        ((answer(b"[]"),), True),
        ((answer(b'{"error":"no metrics"}'),), True),
        ((FIN,), False),
        ((HOLD,), False),
        ((head_of(b"content-length: 99999999"), *[b"x" * 1_000_000] * 3, HOLD), False),
        ((head_of() + b"data: 1\n\n", FIN), False),
    ],
    ids=["404", "501", "401", "503", "429", "html", "json", "error", "fin", "silent", "endless", "events"],
)
async def test_an_engine_that_does_not_tell_its_load_is_as_good_as_any(
    script: tuple[Step, ...], is_absent: bool
) -> None:
    async with open_house() as house:
        upstream, _ = upstream_of(house, "vllm")
        upstream.is_up = True
        probe = LoadProbe(upstream, SETTINGS)
        house.engine.will_say(metrics(0.5, 1))
        assert await probe.look()
        known = upstream.load
        house.engine.will_say(*script)
        if script == (HOLD,):
            probe = LoadProbe(upstream, HASTY)
        assert not await probe.look()
        assert upstream.is_up and upstream.load is known, "it fails open: what is known grows old by itself"
        assert upstream.breaker.state is BreakerState.CLOSED
        assert probe.pause_s == SETTINGS.load_probe_s * (2 if is_absent else 1)
        upstream.close()


async def test_an_engine_without_metrics_is_asked_rarely_and_one_that_has_them_again_as_before() -> None:
    async with open_house() as house:
        upstream, _ = upstream_of(house, "vllm")
        probe = LoadProbe(upstream, SETTINGS)
        pauses = []
        for _ in range(8):
            house.engine.will_say(answer(b"", status=b"404 No"))
            await probe.look()
            pauses.append(probe.pause_s)
        assert pauses == [2, 4, 8, 16, 32, ABSENT_S, ABSENT_S, ABSENT_S]
        house.engine.will_say(metrics(0.5, 1))
        assert await probe.look() and probe.pause_s == SETTINGS.load_probe_s
        upstream.close()


@pytest.mark.parametrize(
    ("kind", "every_s", "looks"), [("vllm", 1.0, True), ("vllm", 0.0, False), ("openai", 1.0, False)]
)
async def test_load_is_looked_at_beside_the_models(
    kind: str, every_s: float, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And both end with the probe."""
    settings = Settings(load_probe_s=every_s)
    upstream = Upstream(EngineSettings(name="e", url="http://127.0.0.1:9", kind=kind), settings, VirtualClock())
    prober = Prober(upstream, settings)
    seen: list[str] = []
    told = asyncio.Event()

    async def get_models() -> bytes:
        seen.append("models")
        if len(seen) > 5:
            told.set()
        return listing("m")

    async def look(_: LoadProbe) -> bool:
        seen.append("load")
        await asyncio.Event().wait()  # metrics that never come
        return False

    turn = asyncio.sleep

    async def pass_time(seconds: float) -> None:
        await turn(0)

    monkeypatch.setattr(prober, "_get_models", get_models)
    monkeypatch.setattr(LoadProbe, "look", look)
    monkeypatch.setattr(asyncio, "sleep", pass_time)
    task = asyncio.create_task(prober.run())
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen.count("load") == looks and len(asyncio.all_tasks()) == 1
