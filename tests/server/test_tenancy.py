"""Tenants over HTTP: whose request it is, which models it may name on any route, and how many streams are whose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.house import CHAT, EVENTS, TestHouse, chat, encode_request, hashed, open_house, until

from longwire.admission.keysfile import KeysFile
from longwire.dialects.base import LARGE_BODY_BYTES
from longwire.words.settings import TenantSettings

ADA = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")], models=["sim"], max_streams=1)
BOB = TenantSettings(name="bob", key_hashes=[hashed("sk-bob")])
AS_ADA = {"authorization": "Bearer sk-ada"}
AS_BOB = {"x-api-key": "sk-bob"}
PAD = "x" * LARGE_BODY_BYTES


async def test_who_is_not_known_is_told_in_openai_s_shape() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        answer = await house.ask(chat(), {"authorization": "Bearer sk-eve"})
        assert answer.status == 401 and answer.header("www-authenticate") == 'Bearer realm="longwire"'
        assert answer.error.keys() >= {"message", "type", "param", "code"}
        assert answer.error["type"] == "authentication_error" and answer.error["code"] == "invalid_api_key"
        assert "sk-eve" not in answer.body.decode()
        assert answer.head.get(b"x-stream-id") is None


async def test_a_credential_that_is_sent_twice_is_none() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        for field in ("authorization: Bearer sk-ada", "x-api-key: sk-ada"):
            client = await house.connect()
            client.send(f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{field}\r\n{field}\r\n\r\n".encode())
            assert (await client.answer()).status == 400


@pytest.mark.parametrize("headers", [AS_ADA, {"x-api-key": "sk-ada"}, {**AS_ADA, "x-api-key": "sk-ada"}])
async def test_both_headers_lead_to_one_tenant_with_one_limit(headers: dict[str, str]) -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        client = await house.connect()
        client.post(chat(fault="hang"), AS_ADA)
        await house.sim.wait_open(1)
        refused = await house.ask(chat(), headers)
        assert refused.status == 429 and refused.error["code"] == "too_many_streams"


async def test_identity_changes_from_request_to_request_on_one_connection() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        client = await house.connect()
        ids: dict[str, list[str]] = {"ada": [], "bob": []}
        for _ in range(3):
            for name, headers in (("ada", AS_ADA), ("bob", AS_BOB)):
                client.post(chat(), headers)
                ids[name].append((await client.answer()).stream_id)
        client.send(b"".join(encode_request("GET", "/v1/streams", None, headers) for headers in (AS_ADA, AS_BOB)))
        for name in ("ada", "bob"):
            listed = (await client.answer()).json["data"]
            assert [stream["id"] for stream in listed] == ids[name], "pipelined or not"
            assert {stream["tenant"] for stream in listed} == {name}
        for headers, other in ((AS_ADA, "bob"), (AS_BOB, "ada")):
            for kind in (EVENTS, {"accept": "application/json"}):
                client.get(f"/v1/streams/{ids[other][0]}", {**headers, **kind})
                assert (await client.answer()).status == 404
            client.request("DELETE", f"/v1/streams/{ids[other][0]}", None, headers)
            assert (await client.answer()).status == 404


# Models.


def json_of(**fields: object) -> bytes:
    return json.dumps(fields).encode()


JSON = "application/json"
FORBIDDEN = {
    "chat": (CHAT, JSON, json_of(model="script", messages=[])),
    "chat, large": (CHAT, JSON, json_of(model="script", messages=[], pad=PAD)),
    "chat, no model": (CHAT, JSON, json_of(messages=[])),
    "completions": ("/v1/completions", JSON, json_of(model="script", prompt="x")),
    "relay": ("/v1/embeddings", JSON, json_of(model="script", input="x")),
    "relay, other spelling": ("/v1/embeddings", "Application/JSON;charset=utf-8", json_of(model="script")),
    "relay, large": ("/v1/embeddings", JSON, json_of(model="script", input=PAD)),
    "relay, no model": ("/v1/embeddings", JSON, json_of(input="x")),
    "relay, text": ("/v1/embeddings", "text/plain", json_of(model="sim", input="x")),
    "relay, json by another name": ("/v1/embeddings", "application/vnd.api+json", json_of(model="sim")),
    "relay, no type": ("/v1/embeddings", "", json_of(model="sim", input="x")),
    "relay, a form": ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", b"--x--\r\n"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
async def test_a_model_that_is_not_the_tenant_s_is_refused_on_every_route(case: str) -> None:
    path, kind, body = FORBIDDEN[case]
    async with open_house(tenants=[ADA, BOB], arena_bytes=16 << 20) as house:
        answer = await house.ask(body, {**AS_ADA, "content-type": kind}, path)
        if case == "chat, no model":
            assert answer.status in (400, 403)
        else:
            assert answer.status == 403 and answer.error["code"] == "model_forbidden"
            assert answer.error["type"] == "permission_error" and answer.error["param"] == "model"
        assert not house.sim.requests and not house.engine.requests


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": []}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/embeddings", {"input": PAD}),
    ],
)
async def test_its_own_models_are_served_on_every_route(path: str, fields: dict[str, object]) -> None:
    async with open_house(tenants=[ADA, BOB], arena_bytes=16 << 20) as house:
        assert (await house.ask({"model": "sim", **fields}, AS_ADA, path)).status == 200


async def test_two_models_in_one_body_are_no_way_around() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        body = b'{"model":"sim","input":"x","model":"script"}'
        for path in (CHAT, "/v1/embeddings"):
            answer = await house.ask(body, AS_ADA, path)
            assert answer.status == 400 and answer.error["code"] == "bad_json"
        assert not house.sim.requests and not house.engine.requests


async def test_a_model_that_may_not_be_used_is_not_named_in_errors_either() -> None:
    async with open_house(
        tenants=[TenantSettings(name="c", key_hashes=[hashed("k")], models=["sim", "ghost"])]
    ) as house:
        answer = await house.ask(chat(model="ghost"), {"x-api-key": "k"})
        assert answer.status == 404 and "script" not in answer.error["message"]


# Slots.


async def test_a_detached_stream_keeps_its_slot_until_its_end() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        client = await house.connect()
        client.post(chat(fault="hang"), {**AS_ADA, "longwire-on-disconnect": "run"})
        await house.sim.wait_open(1)
        (stream,) = house.streams
        client.close()
        await left(house)
        refused = await house.ask(chat(), AS_ADA)
        assert refused.status == 429 and int(refused.header("retry-after")) >= 1
        gone = await house.call("DELETE", f"/v1/streams/{stream.public_id}", None, AS_ADA)
        assert gone.status == 200 and gone.json["close_reason"] == "cancelled"
        assert (await house.ask(chat(), AS_ADA)).is_marked_done
        assert (await house.ask(chat(), AS_ADA)).is_marked_done, "each end frees its slot"


async def left(house: TestHouse) -> None:
    await until(lambda: all(not stream.subscribers for stream in house.streams), "the reader has left")


async def test_a_refused_request_takes_no_slot() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        assert (await house.ask(chat(fault="status=500"), AS_ADA)).status == 502
        assert (await house.ask(b"{", AS_ADA)).status == 400
        assert (await house.ask(chat(), AS_ADA)).is_marked_done


# The keys file.


async def test_a_changed_keys_file_counts_from_the_next_request_on(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hashed('sk-old')}\n")
    async with open_house(tenants=[ADA, BOB], keys_file=str(path)) as house:
        keys = house.gateway.keys
        assert isinstance(keys, KeysFile)
        keys.load()
        client = await house.connect()

        async def status(key: str) -> int:
            client.get("/v1/models", {"authorization": f"Bearer {key}"})
            return (await client.answer()).status

        assert [await status(key) for key in ("sk-old", "sk-new", "sk-ada")] == [200, 401, 200]
        path.write_text(f"# rotated\nada {hashed('sk-new')}\n")
        assert keys.poll_nowait()
        assert [await status(key) for key in ("sk-old", "sk-new", "sk-ada")] == [401, 200, 200], (
            "on the same connection"
        )
        path.write_text("ada sk-in-the-clear\n")
        assert not keys.poll_nowait()
        assert await status("sk-new") == 200, "the last good file stays in force"


async def test_who_lost_the_key_reads_its_stream_no_more(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"bob {hashed('sk-lent')}\n")
    async with open_house(tenants=[ADA, BOB], keys_file=str(path)) as house:
        keys = house.gateway.keys
        assert keys is not None
        keys.load()
        stream_id = (await house.ask(chat(), {"x-api-key": "sk-lent"})).stream_id
        path.write_text("")
        keys.poll_nowait()
        assert (await house.fetch(f"/v1/streams/{stream_id}", {"x-api-key": "sk-lent"})).status == 401
        assert (await house.fetch(f"/v1/streams/{stream_id}", AS_BOB)).status == 200


# Limits per minute and per slot.


async def test_tenants_that_take_turns_on_one_connection_have_limits_of_their_own() -> None:
    tenants = [replace(ADA, max_requests_per_min=3), BOB]
    async with open_house(tenants=tenants) as house:
        client = await house.connect()
        statuses: dict[str, list[int]] = {"ada": [], "bob": []}
        for _ in range(5):
            for name, headers in (("ada", AS_ADA), ("bob", AS_BOB)):
                client.post(chat(), headers)
                answer = await client.answer()
                statuses[name].append(answer.status)
        assert statuses == {"ada": [200, 200, 200, 429, 429], "bob": [200] * 5}
        refused = await house.ask(chat(), AS_ADA)
        assert refused.error["code"] == "too_many_requests"
        house.pass_time(int(refused.header("retry-after") or 0))
        assert (await house.ask(chat(), AS_ADA)).status == 200


async def test_tokens_are_counted_as_the_engine_has_counted_them() -> None:
    async with open_house(tenants=[replace(ADA, max_tokens_per_min=1500)]) as house:
        (ada,) = house.gateway.tenants
        assert (await house.ask(chat(max_tokens=1000), AS_ADA)).status == 200
        await until(lambda: not house.gateway.limiter.live_streams, "it has ended")
        (stream,) = house.streams
        assert stream.facts.usage is not None and stream.facts.context_tokens > 1000
        used = house.gateway.limiter.use(ada).tokens_per_min
        assert used == stream.facts.usage["total_tokens"] < 1000
        assert (await house.ask(chat(max_tokens=1000), AS_ADA)).status == 200
        client = await house.connect()
        client.post(chat(fault="hang", max_tokens=1200), AS_ADA)
        await house.sim.wait_open(1)
        assert house.metric('longwire_tenant_held_tokens{tenant="ada"}') > 1200
        client.close()
        await until(lambda: not house.gateway.limiter.live_streams, "it has ended")
        assert house.gateway.limiter.use(ada).tokens_per_min == 2 * used, "what was never generated is not counted"


async def test_a_request_beyond_its_slots_reserve_hears_of_both_numbers() -> None:
    async with open_house(tenants=[replace(ADA, home=0, reserved_slots=1, slot_tokens=500), BOB]) as house:
        refused = await house.ask(chat(max_tokens=500), AS_ADA)
        assert refused.status == 400 and refused.error["code"] == "context_too_large"
        assert "slot_tokens" in refused.error["message"] and "500" in refused.error["message"]
        assert (await house.ask(chat(max_tokens=300), AS_ADA)).status == 200
        assert house.metric('longwire_tenant_reserved_tokens{tenant="ada"}') == 500
