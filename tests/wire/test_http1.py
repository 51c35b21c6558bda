"""HTTP/1.1 requests and heads: read one way only, refused at the first bad byte, the same however they are cut."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.cuts import TRAILING, count_calls, cut_anyhow, pieces_at, ways

from longwire.wire.chunked import MAX_TRAILER_BYTES
from longwire.wire.http1 import (
    MAX_HEADERS,
    NEED_DATA,
    PAUSED,
    REASONS,
    Headers,
    Http1Error,
    RequestHead,
    RequestReader,
    ResponseHead,
    encode_request_head,
    encode_response_head,
    parse_request_head,
    parse_response_head,
)

MAX_HEAD_BYTES = 2048
MAX_BODY_BYTES = 100

HOST = (b"host", b"a")


def head_of(method: str = "GET", target: bytes = b"/", headers: Headers | None = None, **fields: object) -> RequestHead:
    """A head as it is read, with what most of them share."""
    plain: dict[str, object] = {
        "minor": 1,
        "content_length": 0,
        "chunked": False,
        "keep_alive": True,
        "expects_continue": False,
    }
    return RequestHead(method, target, headers=[HOST] if headers is None else headers, **{**plain, **fields})  # type: ignore[arg-type]


# (wire, head, body): what our encoder writes and the reader reads back.
ENCODED: dict[str, tuple[bytes, RequestHead, bytes]] = {
    "GET": (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", head_of(), b""),
    "a query": (b"GET /a?b=c&d HTTP/1.1\r\nhost: a\r\n\r\n", head_of(target=b"/a?b=c&d"), b""),
    "a body": (
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc",
        head_of("POST", headers=[HOST, (b"content-length", b"3")], content_length=3),
        b"abc",
    ),
    "an empty body": (
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        head_of("POST", headers=[HOST, (b"content-length", b"0")]),
        b"",
    ),
    "a chunked body": (
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
        head_of("POST", headers=[HOST, (b"transfer-encoding", b"chunked")], chunked=True),
        b"abc",
    ),
    "a field twice": (
        b"GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\ny: 2\r\nx: 3\r\n\r\n",
        head_of(headers=[HOST, (b"x", b"1"), (b"y", b"2"), (b"x", b"3")]),
        b"",
    ),
    "an empty value": (b"GET / HTTP/1.1\r\nhost: a\r\nx: \r\n\r\n", head_of(headers=[HOST, (b"x", b"")]), b""),
    "bytes beyond ASCII": (
        b"GET / HTTP/1.1\r\nhost: a\r\nx: \xc3\xa9\xff\r\n\r\n",
        head_of(headers=[HOST, (b"x", b"\xc3\xa9\xff")]),
        b"",
    ),
    "a tab inside": (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\tb\r\n\r\n", head_of(headers=[HOST, (b"x", b"a\tb")]), b""),
    "every character of a name": (
        b"GET / HTTP/1.1\r\nhost: a\r\n!#$%&'*+-.^`|~09az: x\r\n\r\n",
        head_of(headers=[HOST, (b"!#$%&'*+-.^`|~09az", b"x")]),
        b"",
    ),
    "Connection: close": (
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        head_of(headers=[HOST, (b"connection", b"close")], keep_alive=False),
        b"",
    ),
    "Expect": (
        b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx",
        head_of(
            "POST",
            headers=[HOST, (b"expect", b"100-continue"), (b"content-length", b"1")],
            content_length=1,
            expects_continue=True,
        ),
        b"x",
    ),
}

# (wire, head, body): what others may send and we never do.
READ: dict[str, tuple[bytes, RequestHead, bytes]] = {
    "names in any case, values trimmed": (
        b"GET / HTTP/1.1\r\nHoSt:a\r\nX-Y: \t b c \t\r\n\r\n",
        head_of(headers=[HOST, (b"x-y", b"b c")]),
        b"",
    ),
    "one empty line before": (b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", head_of(), b""),
    "HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", head_of(headers=[], minor=0, keep_alive=False), b""),
    "HTTP/1.0, kept alive": (
        b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
        head_of(headers=[(b"connection", b"Keep-Alive")], minor=0),
        b"",
    ),
    "HTTP/1.0 with a body": (
        b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
        head_of("POST", headers=[(b"content-length", b"2")], minor=0, content_length=2, keep_alive=False),
        b"ab",
    ),
    "HTTP/1.0 expects nothing": (
        b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
        head_of(headers=[(b"expect", b"100-continue")], minor=0, keep_alive=False),
        b"",
    ),
    "close among other options": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n",
        head_of(headers=[HOST, (b"connection", b"x, Close")], keep_alive=False),
        b"",
    ),
    "close in a second field": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: close\r\n\r\n",
        head_of(headers=[HOST, (b"connection", b"x"), (b"connection", b"close")], keep_alive=False),
        b"",
    ),
    "an option that only contains the word": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: disclose\r\n\r\n",
        head_of(headers=[HOST, (b"connection", b"disclose")]),
        b"",
    ),
    "an offer to upgrade, not taken": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        head_of(headers=[HOST, (b"connection", b"upgrade"), (b"upgrade", b"websocket")]),
        b"",
    ),
    "chunked in other case": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\nx: y\r\n\r\n",
        head_of("POST", headers=[HOST, (b"transfer-encoding", b"Chunked")], chunked=True),
        b"",
    ),
    "absolute form": (b"GET http://b/c?d HTTP/1.1\r\nHost: a\r\n\r\n", head_of(target=b"/c?d"), b""),
    "absolute form without a path": (b"GET HTTPS://b HTTP/1.1\r\nHost: a\r\n\r\n", head_of(target=b"/"), b""),
    "absolute form with a query only": (b"GET http://b?c HTTP/1.1\r\nHost: a\r\n\r\n", head_of(target=b"/?c"), b""),
    "asterisk form": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", head_of("OPTIONS", b"*"), b""),
    "fields with an underscore are left out": (
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\nx_api_key: k\r\n\r\n",
        head_of(),
        b"",
    ),
    "a host with a port": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", head_of(headers=[(b"host", b"[::1]:80")]), b""),
    "an empty host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", head_of(headers=[(b"host", b"")]), b""),
}


def get(*fields: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def post(*fields: bytes, body: bytes = b"abc") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: 3"

# What two servers may read differently is how a request is smuggled: each shape is refused.
REFUSED: dict[str, bytes] = {
    "Content-Length and Transfer-Encoding": post(LENGTH, CHUNKED, body=b"0\r\n\r\n"),
    "Transfer-Encoding and Content-Length": post(CHUNKED, LENGTH, body=b"0\r\n\r\n"),
    "two lengths": post(LENGTH, b"Content-Length: 4"),
    "two equal lengths": post(LENGTH, LENGTH),
    "a list of lengths": post(b"Content-Length: 3, 3"),
    "a length of two numbers": post(b"Content-Length: 3 3"),
    "an empty length": post(b"Content-Length:"),
    "a length with a plus sign": post(b"Content-Length: +3"),
    "a negative length": post(b"Content-Length: -3"),
    "a length in hex": post(b"Content-Length: 0x3"),
    "a length with a letter": post(b"Content-Length: 3a"),
    "a length with an underscore": post(b"Content-Length: 1_0"),
    "a length of 19 digits": post(b"Content-Length: 1111111111111111111"),
    "a length in other digits": post(b"Content-Length: \xd9\xa3"),
    "two codings": post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"),
    "a list of codings": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunked, identity": post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked, chunked": post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "a list with an empty member": post(b"Transfer-Encoding: , chunked", body=b"0\r\n\r\n"),
    "identity": post(b"Transfer-Encoding: identity"),
    "xchunked": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "an empty coding": post(b"Transfer-Encoding:"),
    "a coding with a parameter": post(b"Transfer-Encoding: chunked;a=b", body=b"0\r\n\r\n"),
    "a quoted coding": post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "a coding behind a vertical tab": post(b"Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n"),
    "a coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "white space before a colon": post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "a tab before a colon": post(b"Content-Length\t: 3"),
    "a folded field": get(b"X: a\r\n b"),
    "a field folded by a tab": get(b"X: a\r\n\tb"),
    "a first field that is folded": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "a field without a colon": get(b"Transfer-Encoding"),
    "a field without a name": get(b": x"),
    "a name in quotes": get(b'"X": a'),
    "a name beyond ASCII": get(b"\xc3\xa9: a"),
    "NUL in a name": get(b"X\0: a"),
    "NUL in a value": get(b"X: a\0b"),
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL in the method": b"GET\0 / HTTP/1.1\r\nHost: a\r\n\r\n",
    "BEL in a value": get(b"X: a\x07b"),
    "DEL in a value": get(b"X: a\x7fb"),
    "bare CR in a value": get(b"X: a\rTransfer-Encoding: chunked"),
    "bare CR behind a value": get(b"X: a\r"),
    "bare LF in a value": get(b"X: a\nTransfer-Encoding: chunked"),
    "bare LF behind the request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LF for the empty line": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "bare LF everywhere": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare CR everywhere": b"GET / HTTP/1.1\rHost: a\r\r",
    "CR before the request": b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "LF before the request": b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two empty lines before the request": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "white space before the request": b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces before the target": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces behind the target": b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space behind the version": b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "tabs for spaces": b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\nHost: a\r\n\r\n",
    "no version (HTTP/0.9)": b"GET /\r\n\r\n",
    "a version in lower case": b"GET / http/1.1\r\nHost: a\r\n\r\n",
    "a version of one digit": b"GET / HTTP/1\r\nHost: a\r\n\r\n",
    "a version of another protocol": b"GET / HTTPS/1.1\r\nHost: a\r\n\r\n",
    "a version with letters": b"GET / HTTP/1.1x\r\nHost: a\r\n\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method with a colon": b"GET: / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method that nobody knows": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method without end": b"A" * 40 + b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target beyond ASCII": "GET /é HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    "a target that is no path": b"GET a/b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target of another scheme": b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute form without a host": b"GET http:///v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    "authority form": b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
    "asterisk form of another method": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": get(b"Host: a"),
    "Host with a path (CVE-2026-48746)": b"GET / HTTP/1.1\r\nHost: a/v1/models\r\n\r\n",
    "Host with a query": b"GET / HTTP/1.1\r\nHost: a?b\r\n\r\n",
    "Host with a fragment": b"GET / HTTP/1.1\r\nHost: a#b\r\n\r\n",
    "Host with a user": b"GET / HTTP/1.1\r\nHost: b@a\r\n\r\n",
    "Host with white space": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a list of Hosts": b"GET / HTTP/1.1\r\nHost: a, b:80x\r\n\r\n",
    "Host with a long port": b"GET / HTTP/1.1\r\nHost: a:123456\r\n\r\n",
    "Host with an open bracket": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "an HTTP chunk's size as 0x": post(CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a negative size": post(CHUNKED, body=b"-3\r\nabc\r\n0\r\n\r\n"),
    "a size with a plus sign": post(CHUNKED, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "a size of 17 digits": post(CHUNKED, body=b"00000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a size and white space": post(CHUNKED, body=b"3 \r\nabc\r\n0\r\n\r\n"),
    "an extension with LF": post(CHUNKED, body=b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    "an extension without end": post(CHUNKED, body=b"3;" + b"a" * 1000 + b"\r\nabc\r\n0\r\n\r\n"),
    "data without its CRLF": post(CHUNKED, body=b"3\r\nabc0\r\n\r\n"),
    "data with two other bytes": post(CHUNKED, body=b"3\r\nabcXX0\r\n\r\n"),
    "a last chunk without its CRLF": post(CHUNKED, body=b"0\r\n" + get()),
    "trailers too large": post(CHUNKED, body=b"0\r\n" + b"a: b\r\n" * (MAX_TRAILER_BYTES // 6 + 1) + b"\r\n"),
    "a trailer that frames": post(CHUNKED, body=b"0\r\nContent-Length: 3\r\n\r\n"),
    "a trailer that names a host": post(CHUNKED, body=b"0\r\nHost: b\r\n\r\n"),
}

# What is refused in other words than 400.
REFUSED_OTHERWISE: dict[str, tuple[bytes, int]] = {
    "a length over the bound": (post(b"Content-Length: 101"), 413),
    "the largest length there is": (post(b"Content-Length: 999999999999999999"), 413),
    "an HTTP chunk over the bound": (post(CHUNKED, body=b"65\r\n"), 413),
    "HTTP chunks over the bound together": (post(CHUNKED, body=b"3\r\nabc\r\n62\r\n"), 413),
    "the largest size there is": (post(CHUNKED, body=b"ffffffffffffffff\r\n"), 413),
    "another expectation": (post(b"Expect: more", LENGTH), 417),
    "a second expectation": (post(b"Expect: 100-continue", b"Expect: more", LENGTH), 417),
    "a head over the bound": (get(b"X: " + b"a" * MAX_HEAD_BYTES), 431),
    "a target over the bound": (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    "too many fields": (get(*[b"a:"] * MAX_HEADERS), 431),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
    "HTTP/0.9 by name": (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
    "a version of many digits": (b"GET / HTTP/" + b"1" * 99 + b".1\r\nHost: a\r\n\r\n", 505),
}


class Outcome(NamedTuple):
    """The events that came, and how it ended: a status, or what the reader waits for."""

    events: list[RequestHead | bytes]
    status: int
    """0 where nothing was refused."""
    left_bytes: int = 0
    is_between: bool = True
    why: str = ""


def read(pieces: list[bytes]) -> Outcome:
    """All events until the connection's end, as a server reads them; any exception but Http1Error fails the test."""
    reader = RequestReader(MAX_HEAD_BYTES, MAX_BODY_BYTES)
    events: list[RequestHead | bytes] = []
    try:
        for piece in pieces:
            reader.receive_data(piece)
            while (event := reader.next_event()) is not NEED_DATA:
                if event is PAUSED:
                    reader.start_next_cycle()
                else:
                    assert isinstance(event, RequestHead | bytes)
                    events.append(event)
    except Http1Error as exc:
        return Outcome(events, exc.status, why=exc.why)
    return Outcome(events, 0, reader.buffered_bytes, reader.is_between_requests)


def read_every_way(wire: bytes) -> Outcome:
    """Read whole, byte by byte and cut in two at every offset: all must agree."""
    whole = read([wire])
    cuts = ways(wire) if len(wire) < 400 else iter([pieces_at(wire, set(range(len(wire))))])
    for pieces in cuts:
        assert read(pieces) == whole, pieces
    return whole


# Vectors.


@pytest.mark.parametrize("name", ENCODED)
def test_what_is_encoded_is_read_back(name: str) -> None:
    wire, head, body = ENCODED[name]
    encoded = encode_request_head(head.method.encode(), head.target, head.headers)
    assert wire.startswith(encoded)
    assert parse_request_head(encoded) == head
    assert read_every_way(wire) == Outcome([head, body], 0)


@pytest.mark.parametrize("name", READ)
def test_what_the_rfc_allows_is_read(name: str) -> None:
    wire, head, body = READ[name]
    assert read_every_way(wire) == Outcome([head, body], 0)


@pytest.mark.parametrize("name", [*ENCODED, *READ])
def test_what_follows_a_request_is_left_for_the_next(name: str) -> None:
    wire, head, body = {**ENCODED, **READ}[name]
    for pieces in ([wire + TRAILING], [bytes([byte]) for byte in wire + TRAILING], [wire, TRAILING]):
        assert read(pieces) == Outcome([head, body], 0, len(TRAILING), is_between=False)
    assert read_every_way(wire + wire) == Outcome([head, body] * 2, 0)


@pytest.mark.parametrize("name", [*ENCODED, *READ])
def test_a_request_without_its_last_byte_is_not_whole(name: str) -> None:
    wire, head, _ = {**ENCODED, **READ}[name]
    outcome = read([wire[:-1]])
    assert outcome.status == 0
    assert outcome.events in ([], [head])
    assert not outcome.is_between


@pytest.mark.parametrize("name", REFUSED)
def test_a_shape_that_could_be_read_two_ways_is_refused(name: str) -> None:
    outcome = read_every_way(REFUSED[name])
    assert outcome.status == 400
    assert not any(isinstance(event, bytes) for event in outcome.events), "a request came of it"


@pytest.mark.parametrize("name", REFUSED)
def test_and_so_it_is_behind_a_good_request(name: str) -> None:
    good = post(LENGTH)
    outcome = read([good + REFUSED[name]])
    assert outcome.status == 400 or REFUSED[name].startswith(b"\r\n")
    assert outcome == read([bytes([byte]) for byte in good + REFUSED[name]])
    assert len([event for event in outcome.events if isinstance(event, bytes)]) == 1


@pytest.mark.parametrize("name", REFUSED_OTHERWISE)
def test_what_is_too_much_or_not_spoken_is_refused_in_its_own_words(name: str) -> None:
    wire, status = REFUSED_OTHERWISE[name]
    assert read_every_way(wire).status == status


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_OTHERWISE])
def test_a_refusal_says_why_and_does_not_echo_what_was_sent(name: str) -> None:
    wire = REFUSED[name] if name in REFUSED else REFUSED_OTHERWISE[name][0]
    outcome = read([wire.replace(b"Host: a", b"Host: qqqq").replace(b"X: a", b"X: qqqq").replace(b"a: b", b"qqqq: b")])
    assert outcome.status in REASONS
    assert outcome.why.endswith(".")
    assert "qqqq" not in outcome.why


# Bounds.


def test_a_head_as_large_as_it_may_be_is_read() -> None:
    wire = get(b"X: " + b"a" * (MAX_HEAD_BYTES - len(get(b"X: "))))
    assert len(wire) == MAX_HEAD_BYTES
    assert read([wire]).status == 0
    assert read([b"\r\n" + wire]).status == 0, "an empty line before it does not count"
    assert read([wire.replace(b"X: ", b"X: a")]).status == 431


def test_a_body_as_large_as_it_may_be_is_read() -> None:
    body = b"x" * MAX_BODY_BYTES
    assert read([post(b"Content-Length: 100", body=body)]).events[1] == body
    assert read([post(CHUNKED, body=b"5f\r\n" + body[:95] + b"\r\n5\r\nxxxxx\r\n0\r\n\r\n")]).events[1] == body


def test_as_many_fields_as_there_may_be_are_read() -> None:
    assert len(read([get(*[b"a:"] * (MAX_HEADERS - 1))]).events) == 2


@pytest.mark.parametrize(
    ("prefix", "status", "why"),
    [
        (b"GET / HTTP/1.1\n", 400, "a bare LF"),
        (b"G\0", 400, "a NUL"),
        (b"GET / HTTP/1.1\rX", 400, "a bare CR"),
        (b"GET /\r\n", 400, "the request line is whole and is none"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", 400, "a header that was not asked for"),
        (b"PRI * HTTP/2.0\r\n", 505, "another version"),
        (b"\r\n\r\n", 400, "a second empty line"),
        (b"x" * (MAX_HEAD_BYTES + 1), 431, "too many bytes"),
        (post(b"Content-Length: 101", body=b""), 413, "its length, before a byte of the body"),
        (post(CHUNKED, body=b"65\r\n"), 413, "its first size, before a byte of the body"),
    ],
)
def test_a_bad_request_is_refused_at_its_first_bad_byte_and_not_after_a_wait_for_more(
    prefix: bytes, status: int, why: str
) -> None:
    assert read([prefix[:-1]]).status == 0, why
    assert read([prefix]).status == status, why


def test_faults_are_found_in_the_order_of_their_bytes() -> None:
    for wire, status in [
        (b"GET / HTTP/2.0\r\nHost: a\n\r\n", 505),
        (b"GET / HTTP/2.0\nHost: a\r\n\r\n", 400),
        (get(b"X: \0" + b"a" * MAX_HEAD_BYTES), 400),
        (get(b"X: " + b"a" * MAX_HEAD_BYTES + b"\0"), 431),
        (post(CHUNKED, body=b"65\r\nzz\r\n"), 413),
        (post(CHUNKED, body=b"zz\r\n65\r\n"), 400),
    ]:
        assert read_every_way(wire).status == status


# The cycle.


def test_events_come_in_turn_and_the_next_request_waits_for_its_cycle() -> None:
    reader = RequestReader(MAX_HEAD_BYTES, MAX_BODY_BYTES)
    assert reader.is_between_requests
    assert reader.next_event() is NEED_DATA
    reader.receive_data(memoryview(post(LENGTH, body=b"ab")))
    assert reader.next_event() == head_of("POST", headers=[HOST, (b"content-length", b"3")], content_length=3)
    assert reader.next_event() is NEED_DATA
    assert not reader.is_between_requests
    reader.receive_data(memoryview(b"c" + get()))
    assert reader.next_event() == b"abc"
    assert reader.next_event() is PAUSED
    reader.receive_data(get()[:5])
    assert reader.next_event() is PAUSED
    assert reader.buffered_bytes == len(get()) + 5
    reader.start_next_cycle()
    assert not reader.is_between_requests
    assert reader.next_event() == head_of()
    assert reader.next_event() == b""
    reader.start_next_cycle()
    assert reader.next_event() is NEED_DATA
    assert repr(reader) == "<RequestReader 5 bytes held, head unread>"


def test_a_head_answers_for_its_fields() -> None:
    head = parse_request_head(get(b"X: 1", b"Y: 2", b"x: 3"))
    assert (head.get(b"x"), head.get(b"z")) == (b"1", None)
    assert (head.get_all(b"x"), head.get_all(b"z")) == ([b"1", b"3"], [])


# Responses.

RESPONSES: dict[str, tuple[bytes, ResponseHead]] = {
    "a length": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
        ResponseHead(200, 1, [(b"content-length", b"3")], 3, False, True),
    ),
    "chunked": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ResponseHead(200, 1, [(b"transfer-encoding", b"chunked")], None, True, True),
    ),
    "delimited by close": (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", ResponseHead(429, 1, [], None, False, True)),
    "closing": (
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n",
        ResponseHead(503, 1, [(b"connection", b"close")], None, False, False),
    ),
    "a status without a name here": (
        b"HTTP/1.1 599 Status\r\nx: y\r\n\r\n",
        ResponseHead(599, 1, [(b"x", b"y")], None, False, True),
    ),
}

RESPONSES_READ: dict[str, tuple[bytes, ResponseHead]] = {
    "no reason phrase": (b"HTTP/1.1 200\r\n\r\n", ResponseHead(200, 1, [], None, False, True)),
    "an empty reason phrase": (b"HTTP/1.1 200 \r\n\r\n", ResponseHead(200, 1, [], None, False, True)),
    "a reason phrase beyond ASCII": (b"HTTP/1.1 404 \xe4\xb8\x8d\r\n\r\n", ResponseHead(404, 1, [], None, False, True)),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nX_y: z\r\n\r\n", ResponseHead(200, 0, [(b"x_y", b"z")], None, False, False)),
    "an interim response": (b"HTTP/1.1 100 Continue\r\n\r\n", ResponseHead(100, 1, [], None, False, True)),
}

RESPONSES_REFUSED: dict[str, bytes] = {
    "another version": b"HTTP/2 200\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a status below 100": b"HTTP/1.1 099 OK\r\n\r\n",
    "plain text": b"Internal Server Error\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nx: y\r\n\r\n",
    "a folded field": b"HTTP/1.1 200 OK\r\nx: y\r\n z\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n",
    "white space before a colon": b"HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "length and coding": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    "a coding in HTTP/1.0": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "more behind the head": b"HTTP/1.1 200 OK\r\n\r\nx",
    "an unfinished head": b"HTTP/1.1 200 OK\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_head_that_is_encoded_is_read_back(name: str) -> None:
    wire, head = RESPONSES[name]
    assert encode_response_head(head.status, head.headers) == wire
    assert parse_response_head(wire) == head


@pytest.mark.parametrize("name", RESPONSES_READ)
def test_response_heads_that_the_rfc_allows_are_read(name: str) -> None:
    wire, head = RESPONSES_READ[name]
    assert parse_response_head(wire) == head


@pytest.mark.parametrize("name", RESPONSES_REFUSED)
def test_a_bad_response_head_is_the_engines_fault(name: str) -> None:
    with pytest.raises(Http1Error) as caught:
        parse_response_head(RESPONSES_REFUSED[name])
    assert caught.value.status == 502


def test_a_response_head_answers_for_its_fields() -> None:
    head = parse_response_head(b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\n\r\n")
    assert (head.get(b"x"), head.get(b"y")) == (b"1", None)


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\n", b"\r", b"\0", b"\x07", b"\x7f"])
def test_a_value_that_would_forge_a_field_is_never_written(value: bytes) -> None:
    with pytest.raises(ValueError, match="control byte"):
        encode_response_head(200, [(b"x", value)])
    with pytest.raises(ValueError, match="control byte"):
        encode_request_head(b"GET", b"/", [(b"x", value)])


# Cost.


@pytest.mark.parametrize("field", [b"a:\r\n", b"abcdefgh: ijklmnop\r\n"])
def test_a_head_that_comes_byte_by_byte_costs_each_byte_once(field: bytes) -> None:
    def cost(fields: int) -> int:
        wire = b"GET / HTTP/1.1\r\n" + field * fields
        reader = RequestReader(1 << 20, 0)

        def work() -> None:
            for at in range(len(wire)):
                reader.receive_data(wire[at : at + 1])
                assert reader.next_event() is NEED_DATA

        return count_calls(work)

    few, many = cost(50), cost(200)
    assert many < 4.2 * few


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_body_of_one_byte_chunks_costs_the_same_for_each(piece_bytes: int) -> None:
    def cost(chunks: int) -> int:
        wire = post(CHUNKED, body=b"1\r\nx\r\n" * chunks)
        reader = RequestReader(MAX_HEAD_BYTES, 1 << 20)

        def work() -> None:
            for at in range(0, len(wire), piece_bytes):
                reader.receive_data(wire[at : at + piece_bytes])
                while reader.next_event() is not NEED_DATA:
                    pass

        return count_calls(work)

    few, many = cost(100), cost(400)
    assert many < 4.2 * few


# Properties.

fragments = st.sampled_from(
    [
        *(
            b"GET / HTTP/1.1\r\n",
            b"POST / HTTP/1.1\r\n",
            b"OPTIONS * HTTP/1.1\r\n",
            b"GET http://a HTTP/1.0\r\n",
            b"HTTP/2.0",
        ),
        *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
        *(
            b"Connection: close\r\n",
            b"X: y\r\n",
            b"x_y: z\r\n",
            b"abc",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b'1;a="b"\r\n',
            b"5a\r\n",
        ),
        *(b"\r\n", b"\r", b"\n", b" ", b":", b"\0", b"\xff", b"a" * 700),
    ]
)
requests = st.sampled_from([*(wire for wire, _, _ in [*ENCODED.values(), *READ.values()]), *REFUSED.values()])


@st.composite
def mutated_requests(draw: st.DrawFn) -> bytes:
    data = bytearray(b"".join(draw(st.lists(requests, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.one_of(fragments, st.binary(max_size=2)))
    return bytes(data)


@given(st.one_of(mutated_requests(), st.lists(fragments, max_size=12).map(b"".join), st.binary(max_size=80)), st.data())
def test_no_bytes_raise_anything_but_http1_error_and_no_cut_changes_the_events(
    wire: bytes, data: st.DataObject
) -> None:
    assert read(data.draw(cut_anyhow(wire))) == read([wire])


@given(st.lists(st.one_of(fragments, st.binary(max_size=9)), max_size=6).map(b"".join))
def test_no_head_of_an_engine_raises_anything_but_http1_error(head: bytes) -> None:
    for wire in (head, b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"):
        with suppress(Http1Error):
            assert parse_response_head(wire).status >= 100


names = st.from_regex(rb"[!#$%&'*+.^`|~0-9a-z-]{1,12}", fullmatch=True).filter(
    lambda name: name not in {b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"}
)
values = st.from_regex(rb"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?", fullmatch=True)


@given(st.lists(st.tuples(names, values), max_size=8))
def test_any_fields_survive_encoding(fields: Headers) -> None:
    head = parse_request_head(encode_request_head(b"POST", b"/v1/x", [HOST, *fields]))
    assert head == head_of("POST", b"/v1/x", [HOST, *fields])
    assert parse_response_head(encode_response_head(200, fields)).headers == fields
