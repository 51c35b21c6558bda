"""What each public route does, over real sockets: cursors, keys, policies, tenants, and a gateway that shuts down."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest
from tests.house import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOLD,
    WHOLE,
    Answer,
    TestHouse,
    chat,
    delta,
    hashed,
    in_chunks,
    open_house,
    until,
)

from longwire.words.reasons import CloseReason as Reason
from longwire.words.settings import TenantSettings

NOBODY = "lw_" + "0" * 34


# Reading by cursor.


async def ended(house: TestHouse) -> Answer:
    """A whole stream of four events, 1-0 to 1-3."""
    house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
    return await house.ask(chat(model="script"))


@pytest.mark.parametrize(
    "name", ["after", "last_event_id", "lastEventId", "lastEventID", "Last-Event-ID", "starting_after"]
)
async def test_a_cursor_is_known_by_many_names(name: str) -> None:
    async with open_house() as house:
        whole = await ended(house)
        answer = await house.fetch(f"/v1/streams/{whole.stream_id}?{name}=1-1", EVENTS)
        assert answer.data == whole.data[2:]


@pytest.mark.parametrize(
    ("cursor", "first"),
    [("", 0), ("-1", 0), ("0", 1), ("1-0", 1), ("1-2", 3), ("2", 3), ("0-1", 2)],
)
async def test_reading_goes_on_behind_the_cursor(cursor: str, first: int) -> None:
    async with open_house() as house:
        whole = await ended(house)
        for headers, query in (({"last-event-id": cursor}, ""), ({}, f"?after={cursor}")):
            answer = await house.fetch(f"/v1/streams/{whole.stream_id}{query}", {**EVENTS, **headers})
            assert answer.status == 200 and answer.data == whole.data[first:]
            assert [line for line in answer.body.split(b"\n") if line.startswith(b"id:")] == [
                b"id: 1-%d" % seq for seq in range(first, 4)
            ], "an id in each block, and only one"


async def test_the_blocks_are_those_of_the_first_reader_with_ids() -> None:
    async with open_house() as house:
        whole = await ended(house)
        replay = await house.replay(whole.stream_id)
        assert [re.sub(rb"^id: [0-9-]+\n", b"", piece) for piece in replay.pieces] == whole.pieces
        assert replay.header("content-type") == "text/event-stream; charset=utf-8"
        assert replay.header("x-accel-buffering") == "no" and replay.stream_id == whole.stream_id


async def test_a_header_wins_over_the_url_that_an_eventsource_keeps() -> None:
    async with open_house() as house:
        whole = await ended(house)
        answer = await house.fetch(f"/v1/streams/{whole.stream_id}?after=1-0", {**EVENTS, "last-event-id": "1-2"})
        assert answer.data == whole.data[3:]


@pytest.mark.parametrize("cursor", ["x", "1-", "-2", "1-2-3", "1.5", "0x1", "1 ", "٣", "9" * 40, "1-1e3", "None"])
async def test_a_malformed_cursor_is_a_400(cursor: str) -> None:
    async with open_house() as house:
        whole = await ended(house)
        from urllib.parse import quote

        answer = await house.fetch(f"/v1/streams/{whole.stream_id}?after={quote(cursor)}", EVENTS)
        assert answer.status == 400 and answer.error["code"] == "bad_cursor"


@pytest.mark.parametrize("query", ["?after=1-0&after=1-1", "?after=1-0&last_event_id=1-0"])
async def test_two_cursors_are_none(query: str) -> None:
    async with open_house() as house:
        whole = await ended(house)
        answer = await house.fetch(f"/v1/streams/{whole.stream_id}{query}", EVENTS)
        assert answer.status == 400 and "twice" in answer.error["message"]


@pytest.mark.parametrize(
    ("cursor", "words"), [("1-4", "1-3"), ("1-99", "beyond the end"), ("2-0", "epoch"), ("7-1", "epoch")]
)
async def test_a_cursor_from_the_future_is_an_error_and_no_silent_wait(cursor: str, words: str) -> None:
    async with open_house() as house:
        whole = await ended(house)
        answer = await house.replay(whole.stream_id, cursor)
        assert answer.status == 400 and words in answer.error["message"]
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        live = await client.head()
        await client.event()
        assert (await house.replay(live.stream_id, "1-1")).status == 400


async def test_at_the_end_of_a_finished_stream_there_is_nothing_more() -> None:
    async with open_house() as house:
        whole = await ended(house)
        answer = await house.replay(whole.stream_id, "1-3")
        assert answer.status == 204 and answer.body == b"", "EventSource stops at a 204"


async def test_at_the_end_of_a_live_stream_one_waits_for_more() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        first = await house.connect()
        first.post(chat(model="script"))
        stream_id = (await first.head()).stream_id
        await first.event()
        second = await house.connect()
        second.get(f"/v1/streams/{stream_id}?after=1-0", EVENTS)
        await second.head()
        go_on.set()
        assert (await second.rest()).data == (await first.rest()).data[1:]


async def test_a_stream_that_has_not_begun_can_be_waited_for() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(go_on, CHUNKED + in_chunks(*WHOLE))
        first = await house.connect()
        first.post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        second = await house.connect()
        second.get(f"/v1/streams/{house.streams[0].public_id}", EVENTS)
        await until(lambda: len(house.streams[0].subscribers) == 2, "both wait")
        go_on.set()
        assert (await second.answer()).data == (await first.answer()).data


async def test_a_body_is_no_event_stream() -> None:
    async with open_house() as house:
        answer = await house.ask(chat(False))
        refused = await house.replay(answer.stream_id)
        assert refused.status == 406 and refused.error["code"] == "not_acceptable"
        assert (await house.state(answer.stream_id))["readable"] is False


async def test_unknown_and_evicted_streams() -> None:
    async with open_house(retention_s=60) as house:
        whole = await ended(house)
        for path in (f"/v1/streams/{NOBODY}", "/v1/streams/nonsense", f"/v1/streams/{whole.stream_id.upper()}"):
            for headers in (EVENTS, {}):
                answer = await house.fetch(path, headers)
                assert answer.status == 404 and answer.error["code"] == "not_found"
        house.pass_time(100)
        for headers in (EVENTS, {}):
            answer = await house.fetch(f"/v1/streams/{whole.stream_id}", headers)
            assert answer.status == 410 and answer.error["code"] == "stream_evicted"


async def test_head_of_a_stream_starts_nothing() -> None:
    async with open_house() as house:
        whole = await ended(house)
        for accept in (EVENTS, {"accept": "application/json"}):
            client = await house.connect()
            client.request("HEAD", f"/v1/streams/{whole.stream_id}", None, accept)
            assert (await client.head()).status == 200
            client.get("/healthz")
            assert (await client.answer()).status == 200
        assert house.stream(whole.stream_id).facts.readers_total == 1


async def test_the_state_tells_all_that_is_promised() -> None:
    async with open_house() as house:
        whole = await ended(house)
        state = await house.state(whole.stream_id)
        promised = {
            "id", "object", "status", "close_reason", "model", "engine", "epoch", "events", "bytes", "last_seq", "readers",
            "created_at", "first_token_ms", "last_event_ms", "ended_ms", "usage", "usage_estimated", "readable", "tenant",
        }  # fmt: skip
        assert promised <= set(state)
        assert (state["id"], state["object"], state["status"]) == (whole.stream_id, "stream", "ended")
        assert (state["model"], state["engine"], state["tenant"]) == ("script", "script", "anonymous")
        assert (state["events"], state["last_seq"], state["epoch"]) == (4, 3, 1)


# Tenants.


ADA = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")], models=["sim", "script"], max_streams=2)
BOB = TenantSettings(name="bob", key_hashes=[hashed("sk-bob")], may_run_detached=False, max_grace_s=5)
AS_ADA = {"authorization": "Bearer sk-ada"}
AS_BOB = {"authorization": "Bearer sk-bob"}
TENANTS = [ADA, BOB]


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer sk-eve"}, {"authorization": "Basic sk-ada"}, {"x-api-key": "no"}]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/models", "/v1/streams", f"/v1/streams/{NOBODY}"])
async def test_without_a_key_there_is_nothing(headers: dict[str, str], path: str) -> None:
    async with open_house(tenants=TENANTS) as house:
        answer = (
            await house.ask(chat(), headers, path)
            if "completions" in path or "embed" in path
            else await house.fetch(path, headers)
        )
        assert answer.status == 401 and answer.error["code"] == "invalid_api_key"
        assert answer.header("www-authenticate").startswith("Bearer")
        assert not house.sim.requests


async def test_health_and_the_api_s_description_need_no_key() -> None:
    async with open_house(tenants=TENANTS) as house:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await house.fetch(path)).status == 200


async def test_a_key_comes_in_two_ways() -> None:
    async with open_house(tenants=TENANTS) as house:
        for headers in (AS_ADA, {"x-api-key": "sk-ada"}, {"authorization": "bearer sk-ada"}):
            assert (await house.ask(chat(), headers)).status == 200
        both = await house.ask(chat(), {"authorization": "Bearer sk-ada", "x-api-key": "sk-bob"})
        assert both.status == 401


async def test_identity_is_of_the_request_and_not_of_the_connection() -> None:
    async with open_house(tenants=TENANTS) as house:
        client = await house.connect()
        seen = []
        for headers in (AS_ADA, AS_BOB, {}):
            client.get("/v1/models", headers)
            answer = await client.answer()
            seen.append((answer.status, len(answer.json.get("data", []))))
        assert seen == [(200, 2), (200, 2), (401, 0)]


async def test_a_stream_is_its_tenant_s_alone() -> None:
    async with open_house(tenants=TENANTS) as house:
        mine = await house.ask(chat(), AS_ADA)
        path = f"/v1/streams/{mine.stream_id}"
        for headers in ({**AS_BOB, **EVENTS}, AS_BOB):
            assert (await house.fetch(path, headers)).status == 404
        assert (await house.call("DELETE", path, None, AS_BOB)).status == 404
        assert (await house.fetch("/v1/streams", AS_BOB)).json == {"object": "list", "data": []}
        own = (await house.fetch("/v1/streams", AS_ADA)).json["data"]
        assert [stream["id"] for stream in own] == [mine.stream_id]
        assert (await house.fetch(path, {**AS_ADA, **EVENTS})).data == mine.data


async def test_an_evicted_stream_is_gone_for_its_owner_and_unknown_to_others() -> None:
    async with open_house(tenants=TENANTS, retention_s=10) as house:
        mine = await house.ask(chat(), AS_ADA)
        house.pass_time(30)
        assert (await house.fetch(f"/v1/streams/{mine.stream_id}", AS_ADA)).status == 410
        assert (await house.fetch(f"/v1/streams/{mine.stream_id}", AS_BOB)).status == 404


async def test_models_are_those_that_the_tenant_may_use() -> None:
    tenant = TenantSettings(name="c", key_hashes=[hashed("k")], models=["script"])
    async with open_house(tenants=[tenant]) as house:
        auth = {"authorization": "Bearer k"}
        listed = (await house.fetch("/v1/models", auth)).json["data"]
        assert [model["id"] for model in listed] == ["script"]
        refused = await house.ask(chat(model="sim"), auth)
        assert refused.status == 403 and refused.error["code"] == "model_forbidden"


async def test_an_unknown_model_is_told_which_there_are() -> None:
    async with open_house() as house:
        answer = await house.ask(chat(model="gpt-9"))
        assert answer.status == 404 and answer.error["code"] == "model_not_found"
        assert "sim" in answer.error["message"] and "script" in answer.error["message"]


async def test_a_tenant_has_so_many_streams_at_once_and_no_more() -> None:
    async with open_house(tenants=TENANTS) as house:
        clients = []
        for _ in range(2):
            client = await house.connect()
            client.post(chat(fault="hang"), AS_ADA)
            clients.append(client)
        await house.sim.wait_open(2)
        refused = await house.ask(chat(), AS_ADA)
        assert (
            refused.status == 429
            and refused.error["code"] == "too_many_streams"
            and refused.error["type"] == "rate_limit_error"
        )
        assert int(refused.header("retry-after")) >= 1
        assert (await house.ask(chat(), AS_BOB)).status == 200, "another tenant does not notice"
        clients[0].close()
        await house.sim.wait_open(1)
        assert (await house.ask(chat(), AS_ADA)).status == 200


# What a request asks for on disconnect.


@pytest.mark.parametrize(
    "value", ["never", "grace", "grace=", "grace=-1", "grace=1.5", "grace=1e3", "grace=9999999", "run=1", "grace=٣"]
)
async def test_a_policy_that_is_none_is_refused(value: str) -> None:
    async with open_house() as house:
        client = await house.connect()
        fields = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2"
        head = f"POST {CHAT} HTTP/1.1\r\n{fields}\r\nlongwire-on-disconnect: {value}\r\n\r\n"
        client.send(head.encode() + b"{}")
        answer = await client.answer()
        assert answer.status == 400 and answer.error["param"] == "Longwire-On-Disconnect"


@pytest.mark.parametrize(
    ("asked", "granted"), [("cancel", "cancel"), ("run", "run"), ("grace=7", "grace=7"), ("grace=9999", "grace=300")]
)
async def test_what_was_granted_is_said(asked: str, granted: str) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), {"longwire-on-disconnect": asked})
        assert answer.header("longwire-on-disconnect") == granted


async def test_who_may_not_run_detached_does_not() -> None:
    async with open_house(tenants=TENANTS) as house:
        for asked in ("run", "grace=5"):
            answer = await house.ask(chat(), {**AS_BOB, "longwire-on-disconnect": asked})
            assert answer.header("longwire-on-disconnect") == "cancel"
        await house.ask(chat(), {**AS_BOB, "idempotency-key": "k"})
        assert all(stream.on_disconnect == 0 for stream in house.streams)


# Idempotency.


async def test_the_same_key_finds_the_same_stream() -> None:
    async with open_house() as house:
        body = chat()
        first = await house.ask(body, {"idempotency-key": "k"})
        second = await house.ask(body, {"idempotency-key": "k"})
        assert second.stream_id == first.stream_id and second.pieces == first.pieces
        assert len(house.sim.requests) == 1
        assert (await house.ask(body, {"idempotency-key": "other"})).stream_id != first.stream_id


async def test_two_at_the_same_moment_start_one() -> None:
    async with open_house() as house:
        answers = await asyncio.gather(*[house.ask(chat(), {"idempotency-key": "k"}) for _ in range(10)])
        assert len({answer.stream_id for answer in answers}) == 1
        assert len({answer.body for answer in answers}) == 1 and answers[0].is_marked_done
        assert len(house.sim.requests) == 1


async def test_a_live_stream_is_joined_from_its_beginning() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        body = chat(model="script")
        first = await house.connect()
        first.post(body, {"idempotency-key": "k"})
        await first.head()
        await first.event()
        second = await house.connect()
        second.post(body, {"idempotency-key": "k"})
        await second.head()
        assert await second.event() == delta("a")[6:-2]
        go_on.set()
        assert (await second.rest()).pieces == (await first.rest()).pieces


async def test_the_same_key_with_another_body_is_a_422() -> None:
    async with open_house() as house:
        await house.ask(chat(), {"idempotency-key": "k"})
        answer = await house.ask(chat(max_tokens=3), {"idempotency-key": "k"})
        assert answer.status == 422 and answer.error["code"] == "idempotency_key_reused"


async def test_a_key_is_its_tenant_s_and_its_route_s() -> None:
    async with open_house(tenants=TENANTS) as house:
        body = {"model": "sim", "prompt": "x", "messages": []}
        ids = [
            (await house.ask(body, {**who, "idempotency-key": "k"}, path)).stream_id
            for who in (AS_ADA, AS_BOB)
            for path in (CHAT, "/v1/completions", "/v1/embeddings")
        ]
        assert len(set(ids)) == 6


async def test_a_failure_before_any_content_does_not_pin_its_key() -> None:
    async with open_house() as house:
        body = chat()
        house.sim.fail_next("status=503")
        assert (await house.ask(body, {"idempotency-key": "k"})).status == 503
        again = await house.ask(body, {"idempotency-key": "k"})
        assert again.status == 200 and again.is_marked_done


async def test_a_key_is_forgotten_after_its_time() -> None:
    async with open_house(idempotency_ttl_s=100) as house:
        body = chat()
        first = await house.ask(body, {"idempotency-key": "k"})
        house.pass_time(90)
        assert (await house.ask(body, {"idempotency-key": "k"})).stream_id == first.stream_id
        house.pass_time(20)
        assert (await house.ask(body, {"idempotency-key": "k"})).stream_id != first.stream_id


async def test_a_key_is_bounded() -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), {"idempotency-key": "k" * 257})
        assert answer.status == 400 and answer.error["param"] == "Idempotency-Key"


# Draining.


async def test_a_draining_gateway_tells_eventsources_to_come_back_and_others_that_it_stops() -> None:
    async with open_house(resume_retry_ms=1000) as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        client.post(chat(model="script"))
        stream_id = (await client.head()).stream_id
        house.gateway.gateway.is_draining = True
        waits = set()
        for path in [f"/v1/streams/{stream_id}"] * 5 + [f"/v1/streams/{NOBODY}"]:
            answer = await house.fetch(path, EVENTS)
            assert answer.status == 200 and not answer.head.keep_alive, "a 5xx would be for good"
            match = re.fullmatch(rb"retry: (\d+)\n\n", answer.body)
            assert match is not None
            waits.add(int(match[1]))
        assert all(1000 <= wait <= 2000 for wait in waits) and len(waits) > 1, "not all at the same moment"
        refused = await house.ask(chat())
        assert refused.status == 503 and refused.header("retry-after")
        assert (await house.state(stream_id))["status"] == "live"
        ready = await house.fetch("/readyz")
        assert ready.status == 503 and ready.json == {"ready": False, "reason": "draining"}
        assert (await house.fetch("/healthz")).status == 200
        go_on.set()
        assert (await client.rest()).text == "ab", "what runs is finished"


async def test_no_engine_is_not_ready() -> None:
    async with open_house() as house:
        for upstream in house.gateway.directory.upstreams:
            upstream.is_up, upstream.problem = False, "it is starting"
        ready = await house.fetch("/readyz")
        assert ready.status == 503 and "sim: it is starting" in ready.json["reason"]
        answer = await house.ask(chat())
        assert answer.status == 503 and answer.error["code"] == "no_engine_ready"


# The rest.


async def test_the_description_of_the_api_is_served() -> None:
    async with open_house() as house:
        answer = await house.fetch("/openapi.json")
        assert answer.json["openapi"].startswith("3.") and CHAT in answer.json["paths"]


async def test_request_ids_are_echoed_on_every_answer() -> None:
    async with open_house() as house:
        for method, path, body in (
            ("POST", CHAT, chat()),
            ("GET", "/nowhere", None),
            ("GET", CHAT, None),
            ("POST", CHAT, b"{"),
        ):
            answer = await house.call(method, path, body, {"x-request-id": "req-7"})
            assert answer.header("x-request-id") == "req-7", path
        assert (await house.fetch("/healthz")).header("x-request-id").startswith("req_")


async def test_unknown_fields_reach_the_engine() -> None:
    async with open_house() as house:
        fields: dict[str, Any] = {"future_option": {"deep": [1, 2.5, None, "é", True]}, "temperature": 0.1}
        await house.ask(chat(False, **fields))
        sent = json.loads(house.sim.requests[-1].body)
        assert sent == chat(False, **fields)


async def test_a_relayed_body_is_passed_on_byte_for_byte() -> None:
    async with open_house() as house:
        body = b'{ "model" : "sim",\n "input": "\\u00e9", "x": 1.0 }'
        assert (await house.ask(body, path="/v1/embeddings")).status == 200
        assert house.sim.requests[-1].body == body
        multipart = {"content-type": "multipart/form-data; boundary=x"}
        answer = await house.ask(b"--x\r\n\x00\xff\r\n--x--\r\n", multipart, "/v1/audio/transcriptions")
        assert answer.status == 200 and house.sim.requests[-1].body == b"--x\r\n\x00\xff\r\n--x--\r\n"


async def test_a_relayed_stream_is_a_stream_like_any() -> None:
    async with open_house() as house:
        answer = await house.ask({"model": "sim", "stream": True, "input": "x"}, path="/v1/responses")
        assert answer.status == 200 and b"response.completed" in answer.body
        replay = await house.replay(answer.stream_id)
        assert replay.data == answer.data
        assert (await house.replay(answer.stream_id, "1-2")).data == answer.data[3:]
        state = await house.check_ending(answer.stream_id, Reason.COMPLETED)
        assert state["usage"]["output_tokens"] == 5


class Broken(Executor):
    """A pool whose process was killed."""

    def submit(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise BrokenProcessPool("a child process terminated abruptly")


async def test_a_large_body_is_read_even_when_the_reading_process_has_died() -> None:
    async with open_house(arena_bytes=16 << 20) as house:
        house.gateway.listener.handlers._executor = Broken()
        answer = await house.ask(chat(pad="x" * 400_000))
        assert answer.is_marked_done
        bad = await house.ask(b"[" + b"1," * 200_000 + b"1]")
        assert bad.status == 400
