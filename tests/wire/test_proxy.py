"""The PROXY protocol header: each vector whole, byte by byte and with trailing bytes; malformed ones refused at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.wire.http1 import NEED_DATA
from longwire.wire.proxy import MAX_V1_BYTES, MAX_V2_PAYLOAD_BYTES, ProxyHeader, parse_proxy_header
from longwire.words.errors import BadHttp

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = bytes([192, 0, 2, 1, 198, 51, 100, 1]) + b"\xdc\x04\x01\xbb"
V6 = bytes.fromhex("20010db8" + "00" * 11 + "01") + bytes.fromhex("20010db8" + "00" * 11 + "02") + b"\xdc\x04\x01\xbb"
UNIX = b"/run/a.sock".ljust(108, b"\0") + b"/run/b.sock".ljust(108, b"\0")
TLVS = b"\x01\x00\x02h2" + b"\x02\x00\x0bexample.org" + b"\xea\x00\x04\x01vpc"
MAPPED = bytes.fromhex("00" * 10 + "ffff" + "c0000201") + V6[16:]


def v2(command: int, family: int, payload: bytes, size: int | None = None) -> bytes:
    return SIGNATURE + bytes([command, family]) + (len(payload) if size is None else size).to_bytes(2, "big") + payload


GOOD = {
    "v1 IPv4": (b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", ("192.0.2.1", 56324)),
    "v1 IPv4, port 0": (b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", ("0.0.0.0", 0)),
    "v1 IPv6": (b"PROXY TCP6 2001:DB8::1 2001:db8::2 56324 443\r\n", ("2001:db8::1", 56324)),
    "v1 IPv6, full length": (
        b"PROXY TCP6 "
        + b" ".join([b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff%d" % n for n in (1, 2)])
        + b" 65535 65535\r\n",
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1", 65535),
    ),
    "v1 mapped IPv4": (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", ("192.0.2.1", 1)),
    "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", None),
    "v1 UNKNOWN, the rest ignored": (b"PROXY UNKNOWN ffff::1 what \xff ever\r\n", None),
    "v1 UNKNOWN of 107 bytes": (b"PROXY UNKNOWN " + b"x" * (MAX_V1_BYTES - 16) + b"\r\n", None),
    "v2 IPv4": (v2(0x21, 0x11, V4), ("192.0.2.1", 56324)),
    "v2 IPv4 over UDP": (v2(0x21, 0x12, V4), ("192.0.2.1", 56324)),
    "v2 IPv4 with TLVs": (v2(0x21, 0x11, V4 + TLVS), ("192.0.2.1", 56324)),
    "v2 IPv6": (v2(0x21, 0x21, V6), ("2001:db8::1", 56324)),
    "v2 IPv6 with TLVs": (v2(0x21, 0x21, V6 + TLVS), ("2001:db8::1", 56324)),
    "v2 mapped IPv4": (v2(0x21, 0x21, MAPPED), ("192.0.2.1", 56324)),
    "v2 Unix": (v2(0x21, 0x31, UNIX), None),
    "v2 unspecified": (v2(0x21, 0x00, b""), None),
    "v2 unspecified with TLVs": (v2(0x21, 0x00, TLVS), None),
    "v2 LOCAL": (v2(0x20, 0x00, b""), None),
    "v2 LOCAL, family and payload ignored": (v2(0x20, 0xFF, b"\xff" * 7), None),
    "v2 of the largest size": (v2(0x21, 0x11, V4.ljust(MAX_V2_PAYLOAD_BYTES, b"\0")), ("192.0.2.1", 56324)),
}

BAD = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00",
    "lower case": b"proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 two spaces": b"PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 tab": b"PROXY\tTCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 trailing space": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
    "v1 no ports": b"PROXY TCP4 192.0.2.1 192.0.2.2\r\n",
    "v1 a field too many": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
    "v1 unknown family": b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 UNKNOWN glued": b"PROXY UNKNOWNS 192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 nothing": b"PROXY \r\n",
    "v1 IPv6 as TCP4": b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
    "v1 IPv4 as TCP6": b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
    "v1 octal address": b"PROXY TCP4 192.0.2.010 192.0.2.2 1 2\r\n",
    "v1 short address": b"PROXY TCP4 192.0.2 192.0.2.2 1 2\r\n",
    "v1 big octet": b"PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
    "v1 bad destination": b"PROXY TCP4 192.0.2.1 192.0.2.x 1 2\r\n",
    "v1 zone": b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
    "v1 big port": b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
    "v1 big destination port": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
    "v1 octal port": b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
    "v1 signed port": b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
    "v1 empty port": b"PROXY TCP4 192.0.2.1 192.0.2.2  2\r\n",
    "v1 non-ASCII digits": "PROXY TCP4 192.0.2.1 192.0.2.2 \u0661 2\r\n".encode(),
    "v1 non-ASCII address": b"PROXY TCP4 192.0.2.\xff 192.0.2.2 1 2\r\n",
    "v1 bare LF": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
    "v1 bare CR": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rGET",
    "v1 CR CR LF": b"PROXY UNKNOWN\r\r\n",
    "v1 LF in UNKNOWN": b"PROXY UNKNOWN a\nb\r\n",
    "v1 of 108 bytes": b"PROXY UNKNOWN " + b"x" * (MAX_V1_BYTES - 15) + b"\r\n",
    "v1 without end": b"PROXY UNKNOWN " + b"x" * 200,
    "v2 version 1": v2(0x11, 0x11, V4),
    "v2 unknown command": v2(0x22, 0x11, V4),
    "v2 unknown family": v2(0x21, 0x41, V4),
    "v2 unknown transport": v2(0x21, 0x13, V4),
    "v2 family without transport": v2(0x21, 0x10, V4),
    "v2 too short for IPv4": v2(0x21, 0x11, V4[:-1]),
    "v2 too short for IPv6": v2(0x21, 0x21, V4),
    "v2 too short for Unix": v2(0x21, 0x31, V6),
    "v2 too large": v2(0x21, 0x11, b"", size=MAX_V2_PAYLOAD_BYTES + 1),
    "v2 LOCAL too large": v2(0x20, 0x00, b"", size=0xFFFF),
    "v2 broken signature": SIGNATURE[:-1] + b"\r" + v2(0x21, 0x11, V4)[12:],
}


def outcome(data: bytes) -> object:
    """What the parser makes of the bytes; BadHttp as a word, and any other exception fails the test."""
    try:
        return parse_proxy_header(data)
    except BadHttp:
        return "bad"


def first_outcome(data: bytes) -> object:
    """The first answer that is not NEED_DATA when bytes come one at a time."""
    answers = (outcome(data[:size]) for size in range(len(data) + 1))
    return next((answer for answer in answers if answer is not NEED_DATA), NEED_DATA)


@pytest.mark.parametrize("name", GOOD)
def test_a_header_is_read_whole_byte_by_byte_and_with_trailing_bytes(name: str) -> None:
    data, source = GOOD[name]
    expected = ProxyHeader(len(data), source)
    for size in range(len(data)):
        assert parse_proxy_header(data[:size]) is NEED_DATA
    assert parse_proxy_header(data) == expected
    assert parse_proxy_header(data + b"GET / HTTP/1.1\r\n\r\n") == expected
    assert parse_proxy_header(data + data) == expected
    assert parse_proxy_header(memoryview(bytearray(data))) == expected


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_header_is_refused_however_it_arrives(name: str) -> None:
    assert outcome(BAD[name]) == "bad"
    assert first_outcome(BAD[name]) == "bad"


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        (b"G", "not a header's first byte"),
        (b"PROXX", "not the word"),
        (b"PROXY UNKNOWN".ljust(MAX_V1_BYTES), "107 bytes and no end of line"),
        (SIGNATURE + b"\x31", "version 3"),
        (SIGNATURE + b"\x21\x99", "no such family"),
        (SIGNATURE + b"\x21\x11\xff\xff", "its size alone is over the bound"),
        (SIGNATURE + b"\x21\x21\x00\x01", "its size alone is too small"),
    ],
)
def test_a_bad_byte_is_refused_at_once_and_not_after_a_wait_for_more(prefix: bytes, why: str) -> None:
    assert outcome(prefix[:-1]) is NEED_DATA, why
    assert outcome(prefix) == "bad", why


def test_a_refusal_does_not_echo_what_was_sent() -> None:
    with pytest.raises(BadHttp) as caught:
        parse_proxy_header(b"PROXY TCP4 <script>\x1b[31m 192.0.2.2 1 2\r\n")
    assert "script" not in str(caught.value)


headers = st.sampled_from([data for data, _ in GOOD.values()] + list(BAD.values()))


@st.composite
def mutated_headers(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(headers)[:300])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@given(st.one_of(mutated_headers(), st.binary(max_size=64), st.binary(max_size=300).map(SIGNATURE.__add__)))
def test_no_bytes_raise_anything_but_bad_http_and_arrival_never_changes_the_answer(data: bytes) -> None:
    answer = outcome(data)
    assert first_outcome(data) == answer
    if isinstance(answer, ProxyHeader):
        assert 0 < answer.length <= len(data)
