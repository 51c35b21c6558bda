"""One client's connection over real sockets: the cycle of requests, limits, deadlines, and every way to be a bad client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.house import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOLD,
    RST,
    WHOLE,
    Client,
    TestHouse,
    chat,
    delta,
    encode_request,
    head_of,
    in_chunks,
    open_house,
    until,
)

from longwire.server.connection import LINGER_S, MAX_PIPELINED_BYTES, ClientConnection
from longwire.server.listener import TICK_S
from longwire.server.record import Phase, peer_has_left
from longwire.streams.stream import State
from longwire.words.reasons import CloseReason

GET = encode_request("GET", "/healthz")
OK = b'{"status":"ok"}'


# One after the other.


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with open_house() as house:
        client = await house.connect()
        body = chat()
        client.send(GET + encode_request("POST", CHAT, body) + encode_request("GET", "/v1/models") + GET)
        assert (await client.answer()).body.startswith(OK)
        assert (await client.answer()).is_marked_done
        assert (await client.answer()).json["object"] == "list"
        assert (await client.answer()).body.startswith(OK)


async def test_a_thousand_pipelined_requests_do_not_recurse() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.send(GET * 1000)
        for _ in range(1000):
            assert (await client.answer()).status == 200


class Crowd:
    """Others who stand in line before everybody, for as long as they like."""

    def __init__(self, house: TestHouse) -> None:
        self._turns = house.gateway.listener.turns
        self._turns._is_taken = True

    def leave(self) -> None:
        self._turns._begin()


async def test_who_waits_in_line_brings_no_more_along_than_a_bound() -> None:
    """Neither the limit of a head nor that of a body is looked at before it is a client's turn."""
    async with open_house() as house:
        client = await house.connect()
        await until(lambda: house.gateway.listener.connections, "it is there")
        crowd = Crowd(house)
        client.post(chat(prompt="x" * 200_000))
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.is_reading_paused, "the gateway stops reading")
        assert connection.read_bytes < 3 * MAX_PIPELINED_BYTES
        crowd.leave()
        assert (await client.answer()).is_marked_done


async def test_what_a_client_has_asked_before_it_left_is_asked_when_its_turn_comes() -> None:
    async with open_house() as house:
        client = await house.connect()
        await until(lambda: house.gateway.listener.connections, "it is there")
        (connection,) = house.gateway.listener.connections
        crowd = Crowd(house)
        client.post(chat(), {"longwire-on-disconnect": "run"})
        await until(lambda: connection.read_bytes and connection in house.gateway.listener.turns, "it waits")
        client.writer.close()
        await until(lambda: not client.writer.transport.get_write_buffer_size(), "it has left")
        other = await house.connect()
        crowd.leave()
        await until(lambda: connection not in house.gateway.listener.connections, "it is gone")
        other.get("/healthz")
        assert (await other.answer()).body.startswith(OK)
        (stream,) = house.gateway.registry.list(None)
        await until(lambda: stream.state is State.ENDED, "it runs to its end")
        assert stream.reason is CloseReason.COMPLETED


async def test_pipelined_requests_leave_turns_to_others() -> None:
    async with open_house() as house:
        greedy, modest = await house.connect(), await house.connect()
        await until(lambda: len(house.gateway.listener.connections) == 2, "they are there")
        crowd = Crowd(house)
        greedy.send(GET * 100)
        modest.send(GET)
        waiting = house.gateway.listener.turns
        await until(lambda: all(each in waiting for each in house.gateway.listener.connections), "both wait")
        crowd.leave()
        assert (await modest.answer()).body.startswith(OK)
        few, many = sorted(each.written_bytes for each in house.gateway.listener.connections)
        assert many < 100 * few, "the greedy one has not got all"
        for _ in range(100):
            assert (await greedy.answer()).body.startswith(OK)


async def test_what_is_sent_ahead_of_a_long_answer_waits_within_a_bound() -> None:
    async with open_house() as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        ahead = encode_request("GET", "/healthz", headers={"x-pad": "y" * 1000})
        count = 200
        client.send(ahead * count)
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.is_reading_paused, "the gateway stops reading")
        assert connection._reader.buffered_bytes < 2 * MAX_PIPELINED_BYTES
        go_on.set()
        assert (await client.rest()).is_marked_done
        for _ in range(count):
            assert (await client.answer()).status == 200


async def test_garbage_behind_a_request_spoils_only_what_follows() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.send(encode_request("POST", CHAT, chat()) + b"\x00garbage\r\n\r\n" + GET)
        assert (await client.answer()).is_marked_done
        bad = await client.answer()
        assert bad.status == 400 and bad.error["code"] == "bad_http" and bad.header("connection") == "close"
        assert await client.wait_closed_by_peer() == b"", "nothing that follows is looked at"


async def test_a_connection_is_kept_and_closed_when_it_has_been_idle_long_enough() -> None:
    async with open_house(keep_alive_s=75) as house:
        client = await house.connect()
        for _ in range(3):
            client.get("/healthz")
            assert (await client.answer()).head.keep_alive
            house.pass_time(70)
        house.pass_time(7)
        assert await client.wait_closed_by_peer() == b""
        assert house.gateway.connection_table.rows_used == 0


async def test_connection_close_is_honoured() -> None:
    async with open_house() as house:
        for body in (None, chat()):
            client = await house.connect()
            client.request("POST" if body else "GET", CHAT if body else "/healthz", body, {"connection": "close"})
            answer = await client.answer()
            assert answer.status == 200 and answer.is_whole and answer.header("connection") == "close"
            assert await client.wait_closed_by_peer() == b""


async def test_http_1_0_gets_no_chunks_and_the_end_by_close() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.request("POST", CHAT, chat(), version="1.0")
        answer = await client.answer()
        assert answer.head.get(b"transfer-encoding") is None and answer.head.content_length is None
        assert answer.is_whole and answer.is_marked_done
        whole = await house.ask(chat())
        assert answer.text == whole.text
        client = await house.connect()
        client.request("GET", "/healthz", version="1.0")
        assert (await client.answer()).body.startswith(OK) and await client.wait_closed_by_peer() == b""


async def test_http_1_0_reads_a_stream_by_cursor() -> None:
    async with open_house() as house:
        whole = await house.ask(chat())
        client = await house.connect()
        client.request("GET", f"/v1/streams/{whole.stream_id}", None, EVENTS, version="1.0")
        answer = await client.answer()
        assert answer.data == whole.data and b"id: 1-0\n" in answer.body


async def test_expect_100_continue_is_honoured_and_only_where_the_body_is_wanted() -> None:
    async with open_house() as house:
        client = await house.connect()
        request = encode_request("POST", CHAT, chat(), {"expect": "100-continue"})
        head, _, body = request.partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).is_marked_done
        for path, status in (("/nothing", 404), ("/v1/models", 405)):
            client = await house.connect()
            client.send(encode_request("POST", path, None, {"expect": "100-continue", "content-length": "100"}))
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 %d" % status)
        client = await house.connect()
        client.send(encode_request("POST", CHAT, None, {"expect": "200-ok", "content-length": "1"}))
        assert (await client.answer()).status == 417


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/models", "/v1/streams", "/openapi.json"])
async def test_head_says_what_get_would_without_a_body(path: str) -> None:
    async with open_house() as house:
        client = await house.connect()
        client.request("HEAD", path)
        head = await client.head()
        client.get("/healthz")
        assert (await client.answer()).body.startswith(OK), "not a byte of a body was sent"
        client.get(path)
        got = await client.answer()
        assert (head.status, head.head.content_length) == (got.status, len(got.body))


async def test_options_has_no_body() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.request("OPTIONS", CHAT)
        answer = await client.answer()
        assert answer.status == 204 and answer.header("allow") == "POST, OPTIONS"
        assert answer.head.get(b"content-length") is None
        client.send(GET)
        assert (await client.answer()).status == 200


# Bad input.


BAD: dict[str, tuple[bytes, int]] = {
    "no_http": (b"hello\r\n\r\n", 400),
    "bare_lf": (b"GET / HTTP/1.1\nhost: localhost\n\n", 400),
    "bare_cr": (b"GET / HTTP/1.1\r\nx: a\rb\r\nhost: localhost\r\n\r\n", 400),
    "nul": (b"GET / HTTP/1.1\r\nx: a\0b\r\nhost: localhost\r\n\r\n", 400),
    "obs_fold": (b"GET / HTTP/1.1\r\nx: a\r\n b\r\nhost: localhost\r\n\r\n", 400),
    "space_before_colon": (b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n", 400),
    "no_host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two_hosts": (b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
    "two_lengths": (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx", 400),
    "length_and_chunks": (
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two_codings": (b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400),
    "negative_length": (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n", 400),
    "chunk_size": (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\n"
        % CHAT.encode(),
        400,
    ),
    "http_2": (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_http_is_answered_and_closed(name: str) -> None:
    wire, status = BAD[name]
    async with open_house() as house:
        client = await house.connect()
        client.send(wire + GET)
        answer = await client.answer()
        assert answer.status == status and answer.header("connection") == "close"
        assert answer.error["type"] == "invalid_request_error" and answer.error["message"]
        assert await client.wait_closed_by_peer() == b"", "what follows cannot be trusted"
        assert (await house.ask(chat())).is_marked_done, "and no one else notices"


async def test_a_head_over_the_limit_is_refused_before_its_end() -> None:
    async with open_house(max_head_bytes=2048) as house:
        client = await house.connect()
        client.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 3000)
        answer = await client.answer()
        assert answer.status == 431 and answer.error["code"] == "headers_too_large"
        client = await house.connect()
        client.send(encode_request("GET", "/healthz", headers={f"x-{number}": "1" for number in range(150)}))
        assert (await client.answer()).status in (400, 431)
        client = await house.connect()
        client.send(encode_request("GET", "/healthz", headers={"x": "y" * 1900}))
        assert (await client.answer()).status == 200


async def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async with open_house(max_body_bytes=4096) as house:
        client = await house.connect()
        client.send(encode_request("POST", CHAT, None, {"content-type": "application/json", "content-length": "4097"}))
        answer = await client.answer()
        assert (
            answer.status == 413 and answer.error["code"] == "body_too_large" and answer.header("connection") == "close"
        )
        client = await house.connect()
        client.send(
            encode_request("POST", CHAT, None, {"content-type": "application/json", "transfer-encoding": "chunked"})
        )
        client.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        client.send(b"1\r\n")
        assert (await client.answer()).status == 413
        assert (await house.ask(chat(pad="x" * 3900))).status == 200
        assert (
            house.gateway.instruments.requests[("other", 413)]
            + house.gateway.instruments.requests.get(("chat_completions", 413), 0)
            == 2
        )


async def test_a_client_that_goes_on_sending_reads_why_it_was_refused() -> None:
    """Closing with bytes unread would reset the connection, and the answer with it."""
    async with open_house(max_body_bytes=4096) as house:
        client = await house.connect()
        client.send(
            encode_request("POST", CHAT, None, {"content-type": "application/json", "content-length": "5000000"})
        )
        client.send(b"x" * 5_000_000)
        answer = await client.answer()
        assert answer.status == 413 and answer.is_whole
        await client.writer.drain()
        house.pass_time(LINGER_S + 2 * TICK_S)
        await until(lambda: not house.gateway.listener.connections, "it is cut after a while")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-type": 'application/json; charset="UTF-8"'}, 200),
        ({"content-type": "Application/JSON"}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "identity"}, 200),
    ],
)
async def test_only_json_is_read_as_json(headers: dict[str, str], status: int) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), headers)
        assert answer.status == status
        if status == 415:
            assert answer.error["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "line 1, column 2"),
        (b'{\n"model": "sim",\n}', "line 3"),
        (b"[]", "object"),
        (b"\xff", "UTF-8"),
        (b'{"model":"a","model":"b"}', "twice"),
        (b'{"model":NaN}', "NaN"),
        (b'{"a":' * 20_000, ""),
        (b"", ""),
    ],
)
async def test_bad_json_is_refused_with_its_place(body: bytes, where: str) -> None:
    async with open_house() as house:
        client = await house.connect()
        client.post(body)
        answer = await client.answer()
        assert answer.status == 400 and answer.error["code"] == "bad_json" and where in answer.error["message"]
        client.post(chat())
        assert (await client.answer()).is_marked_done, "the connection is as good as before"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stream_options": []}, "stream_options"),
    ],
)
async def test_a_field_of_the_wrong_kind_is_named(fields: dict[str, Any], param: str) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(**fields)) if "stream" not in fields else await house.ask({**chat(), **fields})
        assert answer.status == 400 and answer.error["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST, OPTIONS"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("PUT", "/v1/streams/lw_00", "GET, DELETE, HEAD, OPTIONS"),
        ("DELETE", "/v1/streams", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/embeddings", "POST, OPTIONS"),
        ("PATCH", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allow: str) -> None:
    async with open_house() as house:
        client = await house.connect()
        client.request(method, path)
        answer = await client.answer()
        assert answer.status == 405 and answer.header("allow") == allow
        client.send(GET)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/chat/completions", "/v1/streams/a/b", "/v1/a/../models", "/v1/%2e%2e/x", "//v1/models"]
)
async def test_an_unknown_path_is_a_404(path: str) -> None:
    async with open_house() as house:
        answer = await house.ask(chat(), path=path)
        assert answer.status == 404 and answer.error["code"] == "not_found"


# Deadlines, by the wall clock.


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "a_byte_now_and_then"])
async def test_a_slow_head_is_a_408(drip: bool) -> None:
    async with open_house(head_timeout_s=10) as house:
        client = await house.connect()
        client.send(b"GET /healthz HTTP/1.1\r\n")
        await _connections(house, read=23)
        for second in range(12):
            house.pass_time(1)
            if drip and second < 9:
                client.send(b"x")
                await _connections(house, read=24 + second)
        answer = await client.answer()
        assert answer.status == 408 and answer.error["code"] == "request_timeout"
        assert await client.wait_closed_by_peer() == b""


async def test_a_slow_body_is_a_408() -> None:
    async with open_house(head_timeout_s=10, body_timeout_s=60) as house:
        client = await house.connect()
        request = encode_request("POST", CHAT, chat())
        client.send(request[:-5])
        await _connections(house, read=len(request) - 5)
        house.pass_time(55)
        assert house.gateway.listener.connections
        house.pass_time(7)
        assert (await client.answer()).status == 408
        assert await client.wait_closed_by_peer() == b""


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with open_house(head_timeout_s=10) as house:
        client = await house.connect()
        await _connections(house, read=0)
        house.pass_time(12)
        assert await client.wait_closed_by_peer() == b""


async def test_a_request_under_way_has_no_deadline() -> None:
    async with open_house(head_timeout_s=10, body_timeout_s=10, keep_alive_s=10, heartbeat_s=3600) as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        house.pass_time(3000)
        go_on.set()
        assert (await client.rest()).text == "ab"


async def _connections(house: TestHouse, read: int) -> list[ClientConnection]:
    """The gateway's connections, as soon as there is one that has read so many bytes."""
    listener = house.gateway.listener
    await until(lambda: any(c.read_bytes >= read for c in listener.connections), f"{read} bytes are read")
    return list(listener.connections)


# Slow readers, and those who leave.


async def test_a_reader_without_progress_is_cut_and_can_resume() -> None:
    async with open_house(send_buffer=4096, slow_reader_s=60, write_high_water_bytes=4096, retention_s=3600) as house:
        blocks = [delta(f"{number:06}" + "x" * 2000) for number in range(400)]
        house.engine.will_say(CHUNKED + in_chunks(*blocks, *WHOLE[2:]))
        client = await house.connect(limit=512, receive_buffer=4096)
        client.post(chat(model="script"), {"longwire-on-disconnect": "run"})
        await house.lines.wait(1)
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.stuck_since, "the reader is held up")
        house.pass_time(50)
        assert house.gateway.listener.connections
        house.pass_time(15)
        await until(lambda: not house.gateway.listener.connections, "it is cut")
        ended = house.gateway.instruments.readers_ended
        assert (ended["slow_reader"], ended["client_left"]) == (1, 0), "one reader, one reason"
        head = await client.head()
        got = [piece async for piece in _pieces(client)]
        assert 0 < len(got) < 400 and got == blocks[: len(got)] and not head.is_whole
        rest = await house.replay(head.stream_id, f"1-{len(got) - 1}")
        assert [b"data: " + data + b"\n\n" for data in rest.data] == [*blocks[len(got) :], *WHOLE[2:]]


async def _pieces(client: Client) -> AsyncIterator[bytes]:
    while (piece := await client.piece()) is not None:
        yield piece


async def test_a_slow_reader_that_reads_a_little_now_and_then_is_not_cut() -> None:
    async with open_house(
        send_buffer=4096, slow_reader_s=60, write_high_water_bytes=4096, sim={"tokens": 1000}
    ) as house:
        client = await house.connect(limit=512, receive_buffer=4096)
        client.post(chat(), {"longwire-on-disconnect": "run"})
        await client.head()
        (connection,) = house.gateway.listener.connections
        for _ in range(5):
            await until(lambda: connection.stuck_since, "the reader is held up")
            house.pass_time(40)
            unsent = connection.transport.get_write_buffer_size()
            taken = connection.writer.sent_bytes if connection.writer else 0
            while connection.transport.get_write_buffer_size() == unsent and (
                connection.writer and connection.writer.sent_bytes == taken
            ):
                await client.piece()
            house.pass_time(1)
        assert (await client.rest()).is_marked_done
        assert house.gateway.instruments.readers_ended["slow_reader"] == 0


async def test_a_slow_reader_holds_up_nobody_else() -> None:
    async with open_house(send_buffer=4096, write_high_water_bytes=4096, sim={"tokens": 1000}) as house:
        slow = await house.connect(limit=512, receive_buffer=4096)
        slow.post(chat(), {"longwire-on-disconnect": "run"})
        stream_id = (await slow.head()).stream_id
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.stuck_since, "the reader is held up")
        fast = await house.replay(stream_id)
        assert fast.is_marked_done
        assert (await slow.rest()).data == fast.data


async def test_a_client_that_half_closes_and_never_reads_is_let_go() -> None:
    """Below the high-water mark nothing is paused, and nobody would notice that its bytes never leave."""
    async with open_house(send_buffer=4096, slow_reader_s=5) as house:
        blocks = [delta("x" * 1000)] * 40
        house.engine.will_say(CHUNKED + in_chunks(*blocks, *WHOLE[2:]))
        client = await house.connect(limit=512, receive_buffer=4096)
        client.post(chat(model="script"), {"longwire-on-disconnect": "run"})
        await until(lambda: house.gateway.listener.connections, "it is connected")
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.transport.get_write_buffer_size(), "bytes wait for it")
        client.fin()
        await until(lambda: connection.phase == Phase.CLOSING, "its leaving is seen")
        assert connection.transport.get_write_buffer_size(), "and its bytes still wait"
        house.pass_time(LINGER_S + 5 + 3 * TICK_S)
        await until(lambda: not house.gateway.listener.connections, "it is gone")


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["fin", "reset"])
async def test_leaving_is_seen_even_while_too_much_is_sent_ahead(leave: Callable[[Client], None]) -> None:
    """Reading is paused then, and the loop hears of neither FIN nor RST; the tick looks at the kernel's state instead."""
    async with open_house() as house:
        client = await house.connect()
        client.post(chat(fault="hang"))
        await house.sim.wait_open(1)
        (connection,) = house.gateway.listener.connections
        client.send(GET * 1000)
        await until(lambda: connection.is_reading_paused, "the gateway stops reading")
        house.pass_time(TICK_S)
        assert house.gateway.listener.connections and house.sim.open_streams == 1
        leave(client)
        await until(lambda: peer_has_left(connection.transport), "the kernel knows")
        house.pass_time(TICK_S)
        await house.sim.wait_cancelled(1)
        (line,) = await house.lines.wait(1)
        assert line["close_reason"] == "client_left"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("is_last", [True, False], ids=["closing", "kept"])
async def test_the_end_of_an_answer_may_come_slowly_on_a_connection_that_is_done(version: str, is_last: bool) -> None:
    """The lingering after the last answer, and the keep-alive time after any, are for connections with nothing left to send."""
    async with open_house(send_buffer=4096, slow_reader_s=60, keep_alive_s=5) as house:
        blocks = [delta(f"{number:03}" + "x" * 1000) for number in range(40)]
        house.engine.will_say(CHUNKED + in_chunks(*blocks, *WHOLE[2:]))
        client = await house.connect(limit=512, receive_buffer=4096)
        client.request("POST", CHAT, chat(model="script"), {"connection": "close" if is_last else ""}, version)
        await house.lines.wait(1)
        (connection,) = house.gateway.listener.connections
        await until(lambda: connection.phase in (Phase.CLOSING, Phase.IDLE), "all is given to the transport")
        answer = await client.head()
        for _ in range(20):
            assert connection.transport.get_write_buffer_size(), "some of it waits"
            house.pass_time(30)
            before = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == before:
                await client.piece()
            if connection.transport.get_write_buffer_size() == 0:
                break
        answer = await client.rest()
        assert answer.is_whole and answer.is_marked_done and answer.data[:-2] == [block[6:-2] for block in blocks]


async def test_an_http_1_0_client_can_tell_that_a_body_is_cut() -> None:
    """Without chunks and without a length a FIN would say that this was all."""
    async with open_house() as house:
        house.engine.will_say(
            head_of(b"transfer-encoding: chunked", kind=b"audio/mpeg") + in_chunks(b"sound", last=False), RST
        )
        client = await house.connect()
        client.request("POST", "/v1/audio/speech", {"model": "script"}, version="1.0")
        assert (await client.head()).head.content_length is None
        with pytest.raises(ConnectionResetError):
            while await client.reader.read(100):
                pass


async def test_a_request_with_a_fin_behind_it_is_answered_where_the_answer_is_at_hand() -> None:
    async with open_house() as house:
        client = await house.connect()
        client.send(GET)
        client.fin()
        assert (await client.answer()).body.startswith(OK)
        client = await house.connect()
        client.post(chat(fault="hang"))
        client.fin()
        assert await client.wait_closed_by_peer() == b""
        await house.sim.wait_open(0)


async def test_a_client_that_leaves_in_mid_request_leaves_nothing() -> None:
    async with open_house() as house:
        request = encode_request("POST", CHAT, chat(pad="x" * 100_000))
        for length in (1, 30, 5000, 60_000, len(request) - 1):
            for leave in (Client.close, Client.fin, Client.reset):
                client = await house.connect()
                client.send(request[:length])
                await until(lambda: house.gateway.arena.statistics()["input"], "it is being read")
                leave(client)
                await until(lambda: not house.gateway.listener.connections, "its leaving is seen")
                assert house.gateway.arena.statistics()["input"] == 0
        assert not house.sim.requests


# Too many.


async def test_beyond_the_most_connections_one_is_told_so() -> None:
    async with open_house(max_connections=2) as house:
        first, second = await house.connect(), await house.connect()
        for client in (first, second):
            client.send(GET)
            assert (await client.answer()).status == 200
        third = await house.connect()
        third.post(chat())
        answer = await third.answer()
        assert answer.status == 503 and answer.error["code"] == "overloaded" and answer.header("retry-after")
        assert await third.wait_closed_by_peer() == b""
        for path, status in (("/v1/models", 503), ("/healthz", 200)):
            other = await house.connect()
            other.get(path)
            told = await other.answer()
            assert told.status == status and told.header("connection") == "close", "it is told, and makes room"
        fourth = await house.connect()
        fourth.get("/v1/streams/lw_" + "0" * 34, EVENTS)
        told = await fourth.answer()
        assert told.status == 200 and told.body.startswith(b"retry: "), "an EventSource comes back"


async def test_without_memory_for_a_request_one_is_told_so() -> None:
    async with open_house(arena_bytes=2 << 20) as house:
        arena = house.gateway.arena
        from longwire.streams.arena import ArenaFull, Use
        from longwire.streams.chain import Chain

        held = []
        with pytest.raises(ArenaFull):
            while True:
                held.append(Chain(arena, Use.LOG))
        answer = await house.ask(chat())
        assert answer.status == 503 and answer.error["code"] == "overloaded"
        for chain in held:
            chain.give()
        assert (await house.ask(chat())).is_marked_done


async def test_a_large_body_is_read_apart_from_the_loop_and_comes_to_the_engine_unharmed() -> None:
    async with open_house(arena_bytes=16 << 20) as house:
        pad = "é" * 400_000
        answer = await house.ask(chat(pad=pad))
        assert answer.is_marked_done
        assert json.loads(house.sim.requests[-1].body)["pad"] == pad
        bad = await house.ask(b'{"model":"sim","pad":"' + b"x" * 400_000)
        assert bad.status == 400 and bad.error["code"] == "bad_json"


async def test_its_state_can_be_read() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        (connection,) = house.gateway.listener.connections
        assert "Writer" in repr(connection) and "1 connections" in repr(house.gateway.listener)
        assert house.gateway.listener.statistics() == {"connections": 1, "operator": 0}
