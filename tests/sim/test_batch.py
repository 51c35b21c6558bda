"""An engine under load as its own metrics show it: places, waiting, preemption, progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.sim.playing import Line, encode_request, play

from longwire.sim.connection import Connection
from longwire.sim.routes import LEAST_SLOTS


def ask(connection: Connection, **body: Any) -> None:
    connection.data_received(encode_request({"stream": True, **body}))


def metric(line: Line, name: str) -> float:
    text = play(line.server, encode_request(path="/metrics", method="GET")).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return float(families[f"vllm:{name}"].samples[0].value)


def load(line: Line) -> tuple[float, float]:
    return metric(line, "num_requests_running"), metric(line, "num_requests_waiting")


@pytest.fixture
def crowded() -> Line:
    """One place only."""
    return Line(tokens=5, itl_ms=20, ttft_ms=50, seed=3, max_running=1)


def test_who_finds_no_place_waits_and_comes_in_turn(crowded: Line) -> None:
    others = [crowded.connect() for _ in range(2)]
    for connection in (crowded.connection, *(other for _, other in others)):
        ask(connection)
    assert load(crowded) == (1, 2)
    assert [transport.sent.count(b"data: ") for transport, _ in others] == [0, 0]
    assert all(transport.sent.startswith(b"HTTP/1.1 200 OK\r\n") for transport, _ in others), (
        "vLLM sends its head at once"
    )
    crowded.clock.advance(0.151)
    assert load(crowded) == (1, 1)
    crowded.clock.advance(0.0501)
    assert [transport.sent.count(b"data: ") for transport, _ in others] == [2, 0], "its own time began with its place"
    crowded.clock.advance(1)
    assert all(b"[DONE]" in transport.sent for transport, _ in others)
    assert load(crowded) == (0, 0)


def test_who_leaves_while_waiting_takes_no_place(crowded: Line) -> None:
    others = [crowded.connect() for _ in range(2)]
    for connection in (crowded.connection, *(other for _, other in others)):
        ask(connection)
    others[0][1].connection_lost(None)
    assert load(crowded) == (1, 1)
    crowded.connection.connection_lost(None)
    assert load(crowded) == (1, 0)
    crowded.clock.advance(1)
    assert b"[DONE]" in others[1][0].sent
    assert crowded.server.statistics()["held_tokens"] == 0


def test_whole_answers_wait_too_and_faults_keep_no_place(crowded: Line) -> None:
    transport, connection = crowded.connect()
    silent, third = crowded.connect()
    ask(crowded.connection)
    ask(connection, stream=False)
    ask(third, sim={"fault": "empty"})
    crowded.clock.advance(0)
    assert b"0\r\n\r\n" in silent.sent, "it ends before it has waited"
    assert transport.sent == b""
    crowded.clock.advance(0.2)
    assert transport.sent == b""
    crowded.clock.advance(0.2)
    assert transport.sent.startswith(b"HTTP/1.1 200 OK")
    assert load(crowded) == (0, 0)


@pytest.mark.parametrize("body", [{}, {"stream": False}, {"sim": {"jitter": 0.001}}, {"n": 2}])
def test_the_generation_counter_moves_while_answers_are_made(line: Line, body: dict[str, Any]) -> None:
    ask(line.connection, **body)
    seen = [metric(line, "generation_tokens")]
    for _ in range(5):
        line.clock.advance(0.03)
        seen.append(metric(line, "generation_tokens"))
    line.clock.advance(1)
    assert seen == sorted(seen)
    assert seen[0] == 0 and len(set(seen)) >= 3
    assert metric(line, "generation_tokens") == 5 * body.get("n", 1)


def test_it_stands_still_where_the_engine_does(line: Line) -> None:
    ask(line.connection, sim={"fault": "stall_after=3"})
    line.clock.advance(1)
    assert metric(line, "generation_tokens") == 2
    line.clock.advance(60)
    assert metric(line, "generation_tokens") == 2
    line.connection.connection_lost(None)
    assert metric(line, "generation_tokens") == 2, "a counter never falls"


def test_the_kv_cache_is_as_large_as_it_is_set() -> None:
    line = Line(tokens=5, kv_blocks=1)
    assert metric(line, "kv_cache_usage_perc") == 0
    ask(line.connection, messages=[{"role": "user", "content": "one two three"}])
    assert metric(line, "kv_cache_usage_perc") == 8 / 16
    ask(line.connect()[1], sim={"tokens": 100})
    assert metric(line, "kv_cache_usage_perc") == 1


def test_preemption_lets_everyone_pause_at_once(line: Line) -> None:
    transport, other = line.connect()
    ask(line.connection)
    ask(other, sim={"fault": "preempt=1000"})
    line.clock.advance(0.0501)
    before = [each.sent.count(b"data: ") for each in (line.transport, transport)]
    assert before == [2, 2], "both have their role frame and first token"
    assert metric(line, "num_preemptions") == 2
    assert load(line) == (0, 2)
    line.clock.advance(0.99)
    assert [each.sent.count(b"data: ") for each in (line.transport, transport)] == before
    assert metric(line, "generation_tokens") == 2
    line.clock.advance(0.0301)
    assert [each.sent.count(b"data: ") for each in (line.transport, transport)] == [3, 3]
    assert load(line) == (2, 0)
    line.clock.advance(0.02)
    assert [each.sent.count(b"data: ") for each in (line.transport, transport)] == [4, 4], "no burst makes up for it"
    line.clock.advance(1)
    assert line.server.answered == 2


def test_preemption_from_outside(line: Line) -> None:
    ask(line.connection)
    line.clock.advance(0.0501)
    assert play(line.server, encode_request({"ms": 500}, "/sim/preempt")).json == {"preempted_ms": 500}
    line.clock.advance(0.5)
    assert line.transport.sent.count(b"data: ") == 2
    line.clock.advance(1)
    assert line.server.answered == 1
    for bad in ({}, {"ms": -1}, {"ms": "x"}, {"ms": True}, {"ms": 10**9}):
        assert play(line.server, encode_request(bad, "/sim/preempt")).head.status == 400


def test_hurry_lets_what_is_left_come_at_once_and_the_next_answer_take_its_time(line: Line) -> None:
    transport, other = line.connect()
    ask(line.connection, sim={"tokens": 500})
    ask(other, sim={"tokens": 500, "itl_ms": 3_600_000})
    line.clock.advance(0.0501)
    assert line.server.answered == 0
    assert play(line.server, encode_request({}, "/sim/hurry")).json == {"hurried": 2}
    line.clock.advance(0)
    assert line.server.answered == 2
    assert [each.sent.count(b"data: ") for each in (line.transport, transport)] == [503, 503]
    ask(line.connection)
    line.clock.advance(0.0501)
    assert line.server.answered == 2
    line.clock.advance(1)
    assert line.server.answered == 3


def slots(line: Line) -> list[dict[str, Any]]:
    found = json.loads(play(line.server, encode_request(path="/slots", method="GET")).body)
    assert isinstance(found, list)
    return found


def test_slots_as_llamacpp_shows_them(line: Line) -> None:
    assert [slot["is_processing"] for slot in slots(line)] == [False] * LEAST_SLOTS
    ask(line.connection, messages=[{"role": "user", "content": "one two three"}])
    line.clock.advance(0.0701)
    first, second = slots(line)[:2]
    assert (first["is_processing"], second["is_processing"]) == (True, False)
    assert first["n_prompt_tokens"] == 3 + 2
    assert first["next_token"] == [{"has_next_token": True, "has_new_line": False, "n_remain": 3, "n_decoded": 2}]
    assert sum(slot["n_ctx"] for slot in slots(line)) == 16 * line.server.settings.kv_blocks


def test_slots_are_as_many_as_may_run(crowded: Line) -> None:
    ask(crowded.connection)
    ask(crowded.connect()[1])
    assert [slot["is_processing"] for slot in slots(crowded)] == [True]


def test_it_says_how_many(crowded: Line) -> None:
    ask(crowded.connection)
    ask(crowded.connect()[1])
    assert repr(crowded.server._batch) == "<Batch 1 running, 1 waiting>"
