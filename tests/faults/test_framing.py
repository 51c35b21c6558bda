"""Faults of framing seen in the field, by their rows in docs/faults.md: the client gets every event, whole and at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.engines.recorded import STYLES, play_back, recorded
from tests.house import (
    CHUNKED,
    DONE,
    FIN,
    WHOLE,
    Answer,
    Step,
    chat,
    delta,
    encode_request,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.wire.chunked import LAST_CHUNK, encode_chunk
from longwire.words.reasons import CloseReason as Reason

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
USAGE_EVENT = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n'
EMOJI = "🚀"


async def ask_script(*steps: bytes, **fields: Any) -> Answer:
    async with open_house() as house:
        house.engine.will_say(*steps, FIN)
        answer = await house.ask(chat(model="script", **fields))
        assert answer.is_whole and answer.is_marked_done, answer.body
        return answer


@pytest.mark.parametrize("style", STYLES)
def test_1_ai_gateway_2162_no_cut_between_reads_changes_events_or_usage(style: str) -> None:
    """A final event that was split over two reads lost its usage. Here each answer is cut at every byte offset."""
    wire = recorded(style)
    whole = play_back(style, [wire])
    assert whole.reason is Reason.COMPLETED and whole.usage is not None
    for offset in range(1, len(wire)):
        cut = play_back(style, [wire[:offset], wire[offset:]])
        assert cut == whole, f"cut at {offset}: ...{wire[offset - 20 : offset]!r} | {wire[offset : offset + 20]!r}..."
    assert play_back(style, [wire[at : at + 1] for at in range(len(wire))]) == whole


@pytest.mark.parametrize(
    "last", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r"], ids=["no_line_end", "lf", "cr"]
)
async def test_2_higress_4620_a_last_event_that_nothing_terminates_is_not_lost(last: bytes) -> None:
    answer = await ask_script(head_of() + b"".join(WHOLE[:-1]) + last)
    assert answer.text == "ab" and answer.in_band_error is None


async def test_2_higress_4620_usage_in_a_last_event_that_nothing_terminates_is_counted() -> None:
    async with open_house() as house:
        house.engine.will_say(head_of() + b"".join(WHOLE[:-1]) + USAGE_EVENT.rstrip(), FIN)
        answer = await house.ask(chat(model="script"))
        assert answer.text == "ab" and answer.is_marked_done
        assert (await house.state(answer.stream_id))["usage"] == USAGE


@pytest.mark.parametrize("count", [2, 9, 300])
async def test_3_higress_1606_many_events_in_one_read_are_as_many_events(count: int) -> None:
    """And each is an HTTP chunk of its own, however many share a write (law 2)."""
    blocks = [delta(f"t{index} ") for index in range(count)]
    answer = await ask_script(CHUNKED + in_chunks(*blocks, *WHOLE[2:]))
    assert answer.pieces == [*blocks, *WHOLE[2:]]
    in_one = await ask_script(CHUNKED + in_chunks(b"".join(blocks), b"".join(WHOLE[2:])))
    assert in_one.pieces == answer.pieces


async def test_5_ai_gateway_2470_the_space_behind_the_colon_is_optional() -> None:
    async with open_house() as house:
        house.engine.will_say(
            CHUNKED + in_chunks(*(b.replace(b"data: ", b"data:") for b in (*WHOLE[:3], USAGE_EVENT, DONE)))
        )
        answer = await house.ask(chat(model="script"))
        assert answer.text == "ab" and answer.is_marked_done
        assert (await house.state(answer.stream_id))["usage"] == USAGE


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
async def test_6_ai_gateway_1398_every_line_end_ends_a_line(ends: bytes) -> None:
    answer = await ask_script(CHUNKED + in_chunks(*(block.replace(b"\n", ends) for block in WHOLE)))
    assert answer.text == "ab"
    assert b"\r" not in answer.body, "what goes out has the one form that every client reads"


async def test_6_ai_gateway_1398_a_crlf_may_come_in_two_reads() -> None:
    body = b"".join(WHOLE).replace(b"\n", b"\r\n")
    cut = body.index(b"\r\n\r\n") + 3
    answer = await ask_script(head_of() + body[:cut], body[cut:])
    assert answer.text == "ab"
    between = body.index(b"\r\n") + 1
    answer = await ask_script(head_of() + body[:between], body[between:])
    assert answer.text == "ab"


CUTS = pytest.mark.parametrize("cut", [1, 2, 3])


@CUTS
async def test_7_aisix_111_a_code_point_cut_between_reads_is_never_replaced(cut: int) -> None:
    block = delta(EMOJI).replace(json.dumps(EMOJI).encode(), f'"{EMOJI}"'.encode())
    at = block.index(EMOJI.encode()) + cut
    for first, second in (
        (in_chunks(block[:at], last=False), in_chunks(block[at:], last=False)),
        (block[:at], block[at:]),
    ):
        is_chunked = first != block[:at]
        head = CHUNKED if is_chunked else head_of()
        rest = in_chunks(*WHOLE[2:]) if is_chunked else b"".join(WHOLE[2:])
        answer = await ask_script(head + first, second, rest)
        assert answer.text == EMOJI and "\ufffd" not in answer.body.decode()


@CUTS
async def test_8_liter_llm_152_a_cut_code_point_in_a_tool_call_aborts_nothing(cut: int) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":"' + EMOJI}}
    frame = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    block = b"data: " + json.dumps(frame, ensure_ascii=False).encode() + b"\n\n"
    at = block.index(EMOJI.encode()) + cut
    answer = await ask_script(CHUNKED + in_chunks(block[:at], last=False), in_chunks(block[at:], *WHOLE[2:]))
    (got,) = answer.frames[0]["choices"][0]["delta"]["tool_calls"]
    assert got == call


async def test_10_gpustack_6155_frames_that_share_a_delivery_with_usage_keep_their_prefix() -> None:
    """Asked for or not: every line has its ``data:``, and the end marker is last."""
    together = delta("a") + delta(finish="stop") + USAGE_EVENT + DONE
    shown = await ask_script(CHUNKED + in_chunks(together), stream_options={"include_usage": True})
    assert shown.pieces == [delta("a"), delta(finish="stop"), USAGE_EVENT, DONE]
    hidden = await ask_script(CHUNKED + in_chunks(together))
    assert hidden.pieces == [delta("a"), delta(finish="stop"), DONE]


@pytest.mark.parametrize("mib", [1, 4, 8])
async def test_11_ferro_labs_129_a_line_of_many_mebibytes_passes(mib: int) -> None:
    async with open_house(arena_bytes=32 << 20) as house:
        answer = await house.ask(chat(fault=f"big_event={mib << 20}"))
        assert answer.is_marked_done and max(map(len, answer.pieces)) == mib << 20


async def test_12_open_webui_10302_a_line_of_a_mebibyte_passes_in_any_framing() -> None:
    async with open_house(arena_bytes=32 << 20) as house:
        for framing in ("content_length", "close_delimited", "split_chunks=65536", "many_per_chunk=3"):
            answer = await house.ask(chat(fault=f"big_event={1 << 20},{framing}"))
            assert answer.is_marked_done and max(map(len, answer.pieces)) == 1 << 20


async def test_13_rocketmq_dashboard_2413_an_endless_event_is_cut_at_its_cap_in_words() -> None:
    async with open_house(max_event_bytes=256 * 1024, sim={"fault": ["endless_event"]}) as house:
        answer = await house.ask(chat())
        assert answer.is_whole and answer.status == 502, "nothing had been said before it"
        assert answer.error["code"] == "event_too_large"
        await house.sim.wait_cancelled(1)
        assert house.gateway.arena.statistics()["log"] <= 24, "what it took is bounded by the cap"
        await house.check_ending(answer.stream_id, Reason.EVENT_TOO_LARGE)


@pytest.mark.parametrize("stream", [True, False])
async def test_15_ai_gateway_1927_an_answer_in_gzip_is_refused_in_words(stream: bool) -> None:
    """Compression is not asked for, whatever the client accepts; who compresses nevertheless is told of, never half decoded."""
    async with open_house() as house:
        answer = await house.ask(chat(stream, fault="gzip"), {"accept-encoding": "gzip, br"})
        assert answer.status == 502 and "gzip" in answer.error["message"]
        assert house.sim.requests[-1].get(b"accept-encoding") == b"identity"
        assert (await house.ask(chat(stream), {"accept-encoding": "gzip, br"})).head.get(b"content-encoding") is None


async def test_16_ai_gateway_2391_the_engine_s_length_and_hop_fields_go_no_further() -> None:
    body = b"".join(WHOLE)
    fields = [
        b"content-length: %d" % len(body),
        b"connection: keep-alive, x-hop",
        b"keep-alive: timeout=5",
        b"x-accel-buffering: yes",
        b"set-cookie: a=b",
    ]
    answer = await ask_script(head_of(*fields) + body)
    assert answer.pieces == list(WHOLE), "a stream that is framed anew has no length"
    assert answer.head.chunked and answer.head.content_length is None
    for name in (b"keep-alive", b"set-cookie"):
        assert answer.head.get(name) is None
    assert answer.header("x-accel-buffering") == "no"


async def test_19_openai_python_2722_nothing_that_crashes_openai_clients_goes_out_on_openai_routes() -> None:
    """No ``id:`` (which arms heartbeats to crash), no ``retry:``, no bare ``data:``; heartbeats are comments."""
    async with open_house(heartbeat_s=5) as house:
        go_on = asyncio.Event()
        first = b"id: 7\nretry: 100\ndata: " + delta("a")[6:]
        house.engine.will_say(
            CHUNKED + in_chunks(b"retry: 9\n\n", b"id: 3\n\n", b"data\n\n", first, last=False),
            go_on,
            in_chunks(b": ping\n\n", b"event: x\n\n", *WHOLE[1:]),
        )
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        assert await client.piece() == delta("a")
        house.pass_time(6)
        heartbeat = await client.piece()
        assert heartbeat is not None and heartbeat.startswith(b": ") and heartbeat.endswith(b"\n\n")
        go_on.set()
        answer = await client.rest()
        assert answer.text == "ab" and answer.is_marked_done
        for block in answer.blocks:
            assert block.startswith((b"data: {", b"data: [DONE]", b": ")), block
        assert house.gateway.instruments.heartbeats_total == 1


@pytest.mark.parametrize("ping", [b'data: ""\n\n', b"data:\n\n", b"data: null\n\n", b"data: ping\n\n", b"data: []\n\n"])
async def test_20_caozhiyuan_88_a_ping_that_is_no_object_reaches_no_client(ping: bytes) -> None:
    answer = await ask_script(CHUNKED + in_chunks(ping, WHOLE[0], ping, ping, *WHOLE[1:]))
    assert answer.data == [block[6:-2] for block in WHOLE]


async def test_20_caozhiyuan_88_half_an_object_is_no_ping() -> None:
    """It was meant to be an event: passed over, it would be a token lost in silence."""
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(WHOLE[0], b'data: {"choices":[{"delta":{"cont\n\n', *WHOLE[1:]))
        answer = await house.ask(chat(model="script"))
        assert answer.text == "a" and answer.is_marked_done
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "upstream_protocol"


async def test_21_suna_3696_a_heartbeat_never_comes_into_the_middle_of_an_event() -> None:
    async with open_house(heartbeat_s=5) as house:
        go_on = asyncio.Event()
        whole = in_chunks(delta("b"), last=False)
        house.engine.will_say(
            CHUNKED + in_chunks(delta("a"), last=False) + whole[:30], go_on, whole[30:] + in_chunks(*WHOLE[2:])
        )
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        assert await client.piece() == delta("a")
        house.pass_time(6)
        assert (await client.piece() or b"").startswith(b":")
        house.pass_time(6)
        assert (await client.piece() or b"").startswith(b":")
        go_on.set()
        answer = await client.rest()
        assert answer.text == "ab" and answer.is_marked_done
        assert answer.pieces[3:] == [delta("b"), *WHOLE[2:]]


async def test_22_litellm_26102_each_event_is_there_before_the_next_is_made() -> None:
    """Nothing is gathered up: the engine goes on only when the client has the event before. No proxy is invited to."""
    async with open_house() as house:
        gates = [asyncio.Event() for _ in range(20)]
        steps: list[bytes | asyncio.Event] = [CHUNKED]
        for index, gate in enumerate(gates):
            steps += [in_chunks(delta(f"{index} "), last=False), gate]
        house.engine.will_say(*steps, in_chunks(*WHOLE[2:]))
        client = await house.connect()
        client.post(chat(model="script"))
        answer = await client.head()
        for index, gate in enumerate(gates):
            assert await client.piece() == delta(f"{index} ")
            gate.set()
        assert (await client.rest()).is_marked_done
        assert answer.header("x-accel-buffering") == "no"
        assert answer.header("cache-control") == "no-cache, no-transform"
        assert answer.head.get(b"content-encoding") is None


WAYS = ("frame_by_frame", "all_at_once", "in_halves")


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_however_frames_come_the_same_goes_out_and_the_same_is_known_of_it(way: str, readers: int) -> None:
    """A frame that comes by itself goes straight on to a reader who waits for it; any other is read first. Nobody can tell."""
    usage = {"prompt_tokens": 1, "completion_tokens": 30, "total_tokens": 31}
    blocks = [
        delta(""),
        *(delta(f"{number} {EMOJI}") for number in range(30)),
        b": ping\n\n",
        delta("tail", usage=usage),
    ]
    frames = [encode_chunk(block) for block in [*blocks, *WHOLE[2:]]]
    async with open_house() as house:
        gates = [asyncio.Event() for _ in frames]
        if way == "all_at_once":
            house.engine.will_say(CHUNKED, gates[0], b"".join(frames) + LAST_CHUNK)
        else:
            steps: list[Step] = [CHUNKED]
            for gate, frame in zip(gates, frames, strict=True):
                cut = 11 if way == "in_halves" else len(frame)
                steps += [gate, frame[:cut], *([frame[cut:]] if frame[cut:] else [])]
            house.engine.will_say(*steps, LAST_CHUNK)
        clients = [await house.connect() for _ in range(readers)]
        clients[0].post(chat(model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 1)
        stream_id = house.streams[0].public_id
        for other in clients[1:]:
            other.get(f"/v1/streams/{stream_id}", {"accept": "text/event-stream"})
        await until(lambda: len(house.streams[0].subscribers) == readers, "all of them wait")
        gates[0].set()
        gates[1].set()  # the first event says nothing yet
        for client in clients:
            await client.head()
            await client.piece()
        for gate in gates[2:]:
            for client in clients:
                await client.piece()
            gate.set()
        answers = [await client.rest() for client in clients]
        assert answers[0].pieces == [*blocks, *WHOLE[2:]]
        assert all(answer.data == answers[0].data for answer in answers)
        assert (await house.replay(stream_id)).data == answers[0].data
        assert (await house.replay(stream_id, "1-17")).data == answers[0].data[18:]
        state = await house.check_ending(stream_id, Reason.COMPLETED, completion_tokens=30, events=34)
        assert state["usage"] == usage


async def test_one_byte_per_write_from_the_engine_and_to_it_changes_nothing() -> None:
    async with open_house() as house:
        whole = await house.ask(chat())
        slow = await house.ask(chat(fault="one_byte"))
        assert slow.text == whole.text and len(slow.pieces) == len(whole.pieces)
        client = await house.connect()
        for byte in encode_request("POST", "/v1/chat/completions", chat()):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).text == whole.text
