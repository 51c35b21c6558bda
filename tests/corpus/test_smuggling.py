"""A request inside a request: whatever dresses it up, a gateway answers once, closes, and the engine never hears of it."""

from __future__ import annotations

import json
import re

import pytest
from tests.house import CHUNKED, DONE, FIN, WHOLE, TestHouse, in_chunks, open_house, until

from longwire.wire.chunked import LAST_CHUNK, encode_chunk

BODY = json.dumps({"model": "script", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
IN_CHUNKS = encode_chunk(BODY) + LAST_CHUNK
LENGTH = b"Content-Length: %d" % len(BODY)
CODING = b"Transfer-Encoding: chunked"


def post(*fields: bytes, body: bytes = BODY, line_end: bytes = b"\r\n") -> bytes:
    """A chat request with these fields and no others that say where it ends."""
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *fields]
    return line_end.join([*lines, b"", b""]) + body


GOOD = post(LENGTH)
"""What is to be smuggled. It stands behind each shape, so a gateway that reads the shape's end otherwise would serve it."""

SHAPES: dict[str, bytes] = {
    "CL.TE: the length first": post(LENGTH, CODING, body=IN_CHUNKS),
    "TE.CL: the coding first": post(CODING, LENGTH, body=IN_CHUNKS),
    "CL.0: a length that hides a request": post(b"Content-Length: 0", CODING, body=IN_CHUNKS),
    "TE.TE: twice": post(CODING, CODING, body=IN_CHUNKS),
    "TE.TE: a second one that nobody knows": post(CODING, b"Transfer-Encoding: x", body=IN_CHUNKS),
    "a list that ends in chunked": post(b"Transfer-Encoding: identity, chunked", body=IN_CHUNKS),
    "a list that begins with chunked": post(b"Transfer-Encoding: chunked, identity", body=IN_CHUNKS),
    "xchunked beside a length": post(b"Transfer-Encoding: xchunked", LENGTH),
    "a vertical tab before the coding": post(b"Transfer-Encoding:\x0bchunked", LENGTH),
    "a space before the colon": post(b"Transfer-Encoding : chunked", LENGTH),
    "a tab before the colon": post(b"Transfer-Encoding\t: chunked", LENGTH),
    "a space before the name": post(LENGTH, b" Transfer-Encoding: chunked", body=IN_CHUNKS),
    "the coding folded": post(b"Transfer-Encoding:", b" chunked", LENGTH),
    "the coding behind a bare LF": post(b"X: y\nTransfer-Encoding: chunked", LENGTH),
    "the coding behind a bare CR": post(b"X: y\rTransfer-Encoding: chunked", LENGTH),
    "the coding behind a NUL": post(b"X: \0Transfer-Encoding: chunked", LENGTH),
    "two lengths": post(LENGTH, b"Content-Length: 0"),
    "two equal lengths": post(LENGTH, LENGTH),
    "a list of lengths": post(b"Content-Length: %d, %d" % (len(BODY), len(BODY))),
    "a length with a plus sign": post(b"Content-Length: +%d" % len(BODY)),
    "a length in hex": post(b"Content-Length: 0x%x" % len(BODY)),
    "a length with white space inside": post(b"Content-Length: %d 0" % len(BODY)),
    "bare LF for line ends": post(LENGTH, line_end=b"\n"),
    "a size as 0x": post(CODING, body=b"0x" + IN_CHUNKS),
    "a negative size": post(CODING, body=b"-" + IN_CHUNKS),
    "a size of 17 digits": post(CODING, body=b"0" * 15 + IN_CHUNKS),
    "a size with an underscore": post(CODING, body=b"0_" + IN_CHUNKS),
    "an extension with a bare LF": post(CODING, body=IN_CHUNKS.replace(b"\r\n", b";a\nb\r\n", 1)),
    "an extension with a bare CR": post(CODING, body=IN_CHUNKS.replace(b"\r\n", b";a\rb\r\n", 1)),
    "an extension of a kilobyte": post(CODING, body=IN_CHUNKS.replace(b"\r\n", b";" + b"a" * 1024 + b"\r\n", 1)),
    "data with other bytes for its CRLF": post(CODING, body=encode_chunk(BODY)[:-2] + b"XX" + LAST_CHUNK),
    "data longer than its size": post(CODING, body=b"1\r\n" + BODY + b"\r\n" + LAST_CHUNK),
    "no CRLF behind the last chunk": post(CODING, body=IN_CHUNKS[:-2]),
    "a bare LF behind the last chunk": post(CODING, body=IN_CHUNKS[:-2] + b"\n"),
    "a trailer that frames": post(CODING, body=IN_CHUNKS[:-2] + b"Content-Length: 0\r\n\r\n"),
    "trailers without end": post(CODING, body=IN_CHUNKS[:-2] + b"a: b\r\n" * 2000 + b"\r\n"),
    "two Hosts": post(b"Host: b", LENGTH),
    "a Host that is a path (CVE-2026-48746)": GOOD.replace(b"Host: localhost", b"Host: localhost/v1/models?"),
    "a second empty line": b"\r\n\r\n" + GOOD,
    "a version of tomorrow": GOOD.replace(b"HTTP/1.1", b"HTTP/3.0"),
}


async def open_and_send(house: TestHouse, data: bytes) -> bytes:
    """All that a connection receives until the gateway closes it."""
    client = await house.connect()
    client.send(data)
    return await client.wait_closed_by_peer()


def statuses(received: bytes) -> list[int]:
    """The status of every answer in what was received."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@pytest.mark.parametrize("name", SHAPES)
async def test_a_smuggling_shape_is_answered_once_and_nothing_is_forwarded(name: str) -> None:
    async with open_house() as house:
        received = await open_and_send(house, SHAPES[name] + GOOD)
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert json.loads(body)["error"]["code"] == "bad_http"
        assert statuses(received) in ([400], [505])
        assert house.engine.connections == 0
        assert house.streams == []


@pytest.mark.parametrize("name", SHAPES)
async def test_and_behind_a_good_request_only_that_one_is_served(name: str) -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED, in_chunks(*WHOLE))
        received = await open_and_send(house, GOOD + SHAPES[name] + GOOD)
        assert statuses(received) in ([200, 400], [200, 505])
        assert received.count(DONE) == 1
        assert len(house.engine.requests) == 1


async def test_good_requests_in_one_packet_are_all_served() -> None:
    """The measure for the tests above: what stands behind the shapes would be forwarded."""
    async with open_house() as house:
        for _ in range(3):
            house.engine.will_say(CHUNKED, in_chunks(*WHOLE))
        in_pieces = post(CODING, body=IN_CHUNKS.replace(b"\r\n", b";a=b\r\n", 1))
        received = await open_and_send(house, GOOD + b"\r\n" + in_pieces + post(LENGTH, b"Connection: close"))
        assert statuses(received) == [200, 200, 200]
        assert received.count(DONE) == 3
        assert [json.loads(body)["messages"] for _, body in house.engine.requests] == [json.loads(BODY)["messages"]] * 3


async def test_fields_in_disguise_do_not_reach_the_engine() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED, in_chunks(*WHOLE), FIN)
        client = await house.connect()
        client.send(post(LENGTH, b"X_Api_Key: k", b"Transfer_Encoding: chunked", b"X-Custom: 1"))
        assert (await client.answer()).status == 200
        await until(lambda: house.engine.requests, "the engine was asked")
        fields = dict(house.engine.requests[0][0].headers)
        assert fields[b"x-custom"] == b"1"
        assert not [name for name in fields if b"_" in name or b"key" in name]


async def test_a_second_content_type_is_refused_by_the_routes_that_read_it() -> None:
    async with open_house() as house:
        received = await open_and_send(house, post(LENGTH, b"Content-Type: text/html"))
        assert statuses(received) == [400]
        assert house.engine.connections == 0
