"""Faults that befall some of a server's requests: they fail, then recover; they flap."""

from __future__ import annotations

import pytest
from tests.sim.playing import encode_request, play

from longwire.sim.fault import FaultError
from longwire.sim.faults import MAX_COUNTED, Turns, choose
from longwire.sim.server import SimServer
from longwire.words.settings import SimSettings

PATTERNS = {"first=2": "xx......", "every=3": "..x..x..", "flap=2": "xx..xx..", "after=3": "...xxxxx"}


def statuses(server: SimServer, body: object, requests: int = 8) -> str:
    return "".join(".x"[play(server, encode_request(body)).head.status == 503] for _ in range(requests))


@pytest.mark.parametrize(("condition", "pattern"), PATTERNS.items())
def test_a_condition_on_the_servers_faults(condition: str, pattern: str) -> None:
    server = SimServer(SimSettings(fault=["status=503", condition]))
    assert statuses(server, {}) == pattern


@pytest.mark.parametrize(("condition", "pattern"), PATTERNS.items())
def test_a_condition_in_the_request(condition: str, pattern: str) -> None:
    """The server counts the requests that have this very combination, so that a retry of the same bytes may fare better."""
    server = SimServer(SimSettings())
    assert statuses(server, {"sim": {"fault": f"{condition},status=503"}}) == pattern
    assert statuses(server, {"sim": {"fault": [condition, "status=503", "crlf"]}}, 4) == pattern[:4]


def test_other_requests_do_not_count() -> None:
    server = SimServer(SimSettings(fault=["status=503", "first=1"]))
    play(server, encode_request(path="/v1/models", method="GET"))
    play(server, encode_request({"sim": {"fault": "none"}}))
    assert statuses(server, {}, 3) == "x.."


def test_all_conditions_must_hold() -> None:
    server = SimServer(SimSettings(fault=["status=503", "first=5", "every=2"]))
    assert statuses(server, {}) == ".x.x...."


def test_every_kind_of_fault_can_be_conditional() -> None:
    server = SimServer(SimSettings(tokens=3, fault=["reset_after=2", "slow_headers=5", "first=1"]))
    one, two = play(server, encode_request({"stream": True})), play(server, encode_request({"stream": True}))
    assert len(one.data) == 2
    assert two.data[-1] == b"[DONE]"


def test_a_condition_needs_its_number() -> None:
    with pytest.raises(FaultError, match="every needs a number of at least 1"):
        choose(["every=0"])


def test_what_is_counted_is_bounded() -> None:
    turns = Turns()
    for arg in range(MAX_COUNTED + 10):
        assert len(turns.befalling(choose([f"first=1,status={400 + arg}"]))) == 1
    assert repr(turns) == f"<Turns of {MAX_COUNTED} combinations>"
    assert turns.befalling(choose([f"first=1,status={400 + MAX_COUNTED + 9}"])) == []
    assert len(turns.befalling(choose(["first=1,status=400"]))) == 1, "the oldest is forgotten"
