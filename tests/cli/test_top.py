"""``longwire top`` before an admin port of the tests' own: one picture, many, and a gateway that goes and comes back."""

from __future__ import annotations

import io
import json
from itertools import islice
from typing import Any

import pytest
from rich.console import Console

from longwire.cli import top
from longwire.cli.admin_port import AdminPort, PublicPort
from longwire.cli.terminal import Failure
from longwire.cli.top import follow_live, looks, with_rates
from longwire.observe.declarations import Look
from longwire.observe.instruments import Instruments
from longwire.observe.overview import MAX_TENANTS_SHOWN, overview
from longwire.observe.snapshot import PoolSnapshot, Snapshot

from .conftest import AdminStandIn, Run

ONE = {"index": 0, "pid": 41, "state": "serving", "streams": 7, "connections": 9, "restarts": 1}
TWO = {"index": 1, "pid": 42, "state": "hung", "streams": 3, "connections": 4, "restarts": 0}
SHARDS = [ONE | {"loop_lag_ms": 0.25, "silent_s": 0.1}, TWO | {"loop_lag_ms": None, "silent_s": 12.4}]


def seen(at_s: float = 10.0, events: int = 0, **gauges: Any) -> dict[str, Any]:
    """What a gateway says of itself."""
    counters = Instruments()
    counters.events_total, counters.upstream_bytes_total = events, 100 * events
    snapshot = Snapshot(
        **{
            "version": "1.2",
            "is_ready": True,
            "streams": {"live": 9, "opening": 1},
            "queued": 4,
            "arena_blocks": 100,
            "arena_blocks_free": 75,
            "arena_bytes": 2 << 30,
            "pools": {
                "e": PoolSnapshot(up=True, busy=10, in_flight=9),
                "ill": PoolSnapshot(up=True, breaker=2, kv_used=0.5, waiting=3, problem="5 upstream_reset"),
            },
            "tenant_streams": {"acme": 8},
            **gauges,
        }
    )
    made = json.loads(json.dumps(overview(Look(counters, snapshot), SHARDS, {"acme": 20, "idle": 5})))
    return {**made, "at_s": at_s}


@pytest.fixture
def planned(admin: AdminStandIn) -> AdminStandIn:
    admin.plan("GET /v1/overview", seen())
    return admin


def test_once_prints_one_picture(run: Run, planned: AdminStandIn) -> None:
    result = run("top", "--once", "--url", planned.url)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["0", "41", "serving", "7", "9", "0.2", "ms", "1"] in lines
    assert ["1", "42", "hung", "for", "12", "s", "3", "4", "-", "0"] in lines
    assert ["e", "up", "9", "10", "0", "0", "-", "-"] in lines
    assert ["ill", "breaker", "open", *"000", "0", "50%", "3", "5", "upstream_reset"] in lines
    assert ["acme", "8", "20"] in lines and ["idle", "0", "5"] in lines
    assert "9 live, 1 opening, 0 ended streams; 4 queued, 0 readers" in result.output
    assert "25% of 2.0 GiB" in result.output
    assert len(planned.requests) == 1


def test_once_json_is_one_object(run: Run, planned: AdminStandIn) -> None:
    told = json.loads(run("top", "--once", "--json", "--url", planned.url).output)
    assert told["shards"] == SHARDS
    assert set(told["rates"].values()) == {None}, "one look knows no rate"


def test_once_says_where_no_gateway_is(run: Run, closed_url: str) -> None:
    result = run("top", "--once", "--url", closed_url)
    assert result.exit_code == 1 and "No gateway listens" in result.stderr


def test_another_servers_port_is_told(run: Run, admin: AdminStandIn) -> None:
    admin.plan("GET /v1/overview", [])
    result = run("top", "--once", "--url", admin.url)
    assert result.exit_code == 1 and "no overview" in result.stderr


def test_why_it_is_not_ready_is_shown(run: Run, admin: AdminStandIn) -> None:
    admin.plan("GET /v1/overview", seen(is_ready=False, problem="e: refused"))
    assert "Not ready: e: refused" in run("top", "--once", "--url", admin.url).output


def test_rates_are_differences() -> None:
    rates = with_rates(seen(10.0, 100), seen(12.0, 700))["rates"]
    assert (rates["events_per_s"], rates["mb_in_per_s"]) == (300.0, 0.03)


@pytest.mark.parametrize("before", [None, seen(10.0, 900), seen(12.0, 700), seen(13.0, 0)])
def test_what_fell_or_took_no_time_has_no_rate(before: dict[str, Any] | None) -> None:
    """A gateway that was started anew begins at nothing."""
    assert with_rates(before, seen(12.0, 700))["rates"]["events_per_s"] is None


def paused(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The command runs through so many pauses, and then somebody presses Ctrl-C."""
    left = iter(range(times))

    def pause(_: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", pause)


def test_in_a_pipe_it_prints_picture_after_picture_until_ctrl_c(
    run: Run, admin: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(3):
        admin.plan("GET /v1/overview", seen(float(second), 50 * second))
    paused(monkeypatch, 2)
    result = run("top", "--url", admin.url)
    assert result.exit_code == 0
    assert result.output.count("longwire 1.2:") == 3 and result.output.count("50.0 events/s") == 2


def test_a_gateway_that_is_gone_is_told_once_and_asked_on(
    run: Run, admin: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.plan("GET /v1/overview", seen(1.0, 10))
    for _ in range(2):
        admin.plan("GET /v1/overview", {"error": {"message": "Away."}}, 503)
    admin.plan("GET /v1/overview", seen(4.0, 0))
    paused(monkeypatch, 3)
    result = run("top", "--json", "--url", admin.url)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["totals"]["events_total"] for line in lines] == [10, 0]
    assert lines[1]["rates"]["events_per_s"] is None, "what came before the gap says nothing"
    assert result.stderr.count("Away.") == 1


def test_on_a_terminal_the_last_picture_stays_while_the_gateway_is_gone() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, height=40)
    found = [with_rates(None, seen()), Failure("Nobody is there."), with_rates(None, seen(version="1.3"))]
    follow_live(iter(found), "http://x", console)
    text = written.getvalue()
    assert text.index("longwire 1.2") < text.index("Nobody is there. Asking again") < text.index("longwire 1.3")


def test_looks_go_on_for_ever(closed_url: str) -> None:
    pauses: list[float] = []
    found = list(islice(looks(AdminPort(closed_url), pauses.append), 3))
    assert all(isinstance(look, Failure) for look in found) and len(pauses) == 2


def test_only_the_busiest_tenants_are_shown() -> None:
    streams = {f"t{n:03}": n for n in range(2 * MAX_TENANTS_SHOWN)}
    shown = overview(Look(Instruments(), Snapshot(tenant_streams=streams)), [], {})["tenants"]
    assert isinstance(shown, list) and len(shown) == MAX_TENANTS_SHOWN
    assert shown[0] == {"name": "t099", "streams": 99, "limit": None}


def test_the_public_port_is_not_waited_for(admin: AdminStandIn) -> None:
    admin.plan("GET /readyz", {"ready": True, "reason": ""})
    with pytest.raises(PublicPort):
        next(looks(AdminPort(admin.url)))
