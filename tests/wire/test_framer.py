"""What goes out of an engine's body depends on the body alone: not on its HTTP framing, and not on how reads cut it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.cuts import TRAILING, count_calls, cut_anyhow, ways

from longwire.wire.chunked import LAST_CHUNK, ChunkedError, encode_chunk
from longwire.wire.framer import EventFramer, EventTooLarge, Found, is_whole_frame, one_frame, plain_run
from longwire.wire.sse import BOM, parse_event

# Bodies: (blocks as an engine may write them, blocks as they go out).

DELTA = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"

BODIES: dict[str, tuple[list[bytes], list[bytes]]] = {
    "LF": ([DELTA, b"data: b\n\n", DONE], [DELTA, b"data: b\n\n", DONE]),
    "CRLF": ([b"data: a\r\n\r\n", b"data: b\r\n\r\n"], [b"data: a\n\n", b"data: b\n\n"]),
    "CR": ([b"data: a\r\r", b"data: b\r\r"], [b"data: a\n\n", b"data: b\n\n"]),
    "mixed line ends": (
        [b"data: a\n\r\n", b"data: b\r\ndata: c\r\r", b"data: d\n\n", b"data: e\r\n\n"],
        [b"data: a\n\n", b"data: b\ndata: c\n\n", b"data: d\n\n", b"data: e\n\n"],
    ),
    "characters of 2, 3 and 4 bytes": ([f"data: é{text}🙂\n\n".encode() for text in "你好"],) * 2,
    "characters and CRLF": (["data: 🙂\r\n\r\n".encode()], ["data: 🙂\n\n".encode()]),
    "line ends that are none": (["data: a\u2028b\u0085c\v\f\n\n".encode()],) * 2,
    "a byte order mark": ([BOM + b"data: a\n\n", b"data: b\n\n"], [b"data: a\n\n", b"data: b\n\n"]),
    "a byte order mark and an empty line": ([BOM + b"\ndata: a\n\n"], [b"data: a\n\n"]),
    "a byte order mark and an empty CRLF line": ([BOM + b"\r\ndata: a\r\n\r\n"], [b"data: a\n\n"]),
    "nothing but a byte order mark": ([BOM], []),
    "a byte order mark later on": ([b"data: a\n\n", BOM + b"data: b\ndata: c\n\n"], [b"data: a\n\n", b"data: c\n\n"]),
    "comments": ([b": ping\n\n", b"data: a\n\n", b":\r\n\r\n"], [b": ping\n\n", b"data: a\n\n", b":\n\n"]),
    "several lines": ([b"event: x\ndata: a\ndata: b\n\n", b"data:c\n\n"],) * 2,
    "empty lines between": ([b"\n\r\n", b"data: a\n\n\n\n", b"\r\r", b"data: b\n\n"], [b"data: a\n\n", b"data: b\n\n"]),
    "other fields": (
        [b"id: 1\ndata: a\n\n", b"retry: 5\n\n", b"dataset: 1\r\ndata: b\r\nevent\r\n\r\n", b"event: x\n\n"],
        [b"data: a\n\n", b"data: b\nevent\n\n"],
    ),
    "no empty line at the end": ([b"data: a\n\n", b"data: b\n"], [b"data: a\n\n", b"data: b\n\n"]),
    "no line end at the end": ([b"data: a\n\n", b"data: b"], [b"data: a\n\n", b"data: b\n\n"]),
    "CR at the end": ([b"data: a\n\n", b"data: b\r"], [b"data: a\n\n", b"data: b\n\n"]),
    "empty data": ([b"data:\n\n", b"data: \n\n", b"data\n\n"],) * 2,
    "nothing": ([], []),
    "an event of three hex digits": ([b"data: " + b"x" * 248 + b"\n\n"],) * 2,
}


class Wire(NamedTuple):
    """A response body as it comes from the network."""

    data: bytes
    is_chunked: bool
    length: int | None = None


def chunks_of(body: bytes, size: int) -> Wire:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return Wire(b"".join(map(encode_chunk, pieces)) + LAST_CHUNK, True)


def sized_as(pattern: bytes, blocks: list[bytes]) -> Wire:
    sized = [pattern % len(block) + b"\r\n" + block + b"\r\n" for block in blocks]
    return Wire(b"".join(sized) + LAST_CHUNK, True)


def in_twos(blocks: list[bytes]) -> Wire:
    pairs = [b"".join(blocks[at : at + 2]) for at in range(0, len(blocks), 2)]
    return Wire(b"".join(map(encode_chunk, pairs)) + LAST_CHUNK, True)


FRAMINGS: dict[str, Callable[[list[bytes]], Wire]] = {
    "one event per HTTP chunk": lambda blocks: sized_as(b"%x", blocks),
    "two events per HTTP chunk": in_twos,
    "all events in one HTTP chunk": lambda blocks: chunks_of(b"".join(blocks), 1 << 20),
    "7 bytes per HTTP chunk": lambda blocks: chunks_of(b"".join(blocks), 7),
    "1 byte per HTTP chunk": lambda blocks: chunks_of(b"".join(blocks), 1),
    "upper-case sizes": lambda blocks: sized_as(b"%X", blocks),
    "leading zeros": lambda blocks: sized_as(b"%04x", blocks),
    "extensions and trailers": lambda blocks: sized_as(b"%x;a=b", blocks)._replace(
        data=sized_as(b"%x;a=b", blocks).data[:-2] + b"X: y\r\n\r\n"
    ),
    "delimited by close": lambda blocks: Wire(b"".join(blocks), False),
    "delimited by length": lambda blocks: Wire(b"".join(blocks), False, len(b"".join(blocks))),
}


class Rendered(NamedTuple):
    """What readers get: HTTP chunks, and which of them have no seq; and how the body ended."""

    frames: list[bytes]
    silent: list[bool]
    fault: str = ""
    done: bool = False

    @property
    def blocks(self) -> list[bytes]:
        return [frame[frame.index(b"\n") + 1 : -2] for frame in self.frames]


def render(
    wire: Wire, pieces: list[bytes], *, strip: bool = True, max_event_bytes: int = 1 << 20, ends: bool = True
) -> Rendered:
    """What an exchange makes of the pieces: whole frames go their short way, all else through the framer."""
    framer = EventFramer(wire.is_chunked, wire.length, strip=strip, max_event_bytes=max_event_bytes)
    stored = b""
    found: list[Found] = []
    fault = ""
    for piece in pieces:
        at = len(stored)
        stored += piece
        if framer.at_boundary and len(piece) <= max_event_bytes and is_whole_frame(piece):
            block = piece[piece.index(b"\n") + 1 : -2]
            found.append(Found(at, len(piece), True, False, None, block))
            continue
        try:
            found += framer.feed(piece, at)
        except (ChunkedError, EventTooLarge) as exc:
            found += framer.found
            fault = type(exc).__name__
            break
    if ends and not fault:
        found += framer.close()
    return Rendered([outgoing(event, stored) for event in found], [event.silent for event in found], fault, framer.done)


def outgoing(event: Found, stored: bytes) -> bytes:
    """The HTTP chunk that the event goes out as."""
    lying = stored[event.start : event.start + event.length]
    if event.framed:
        assert lying == encode_chunk(event.block)
        return lying
    block = lying if event.rewritten is None else event.rewritten
    assert block == event.block
    return encode_chunk(block)


def expected(name: str) -> Rendered:
    blocks = BODIES[name][1]
    return Rendered([encode_chunk(block) for block in blocks], [parse_event(block).data is None for block in blocks])


# Every body in every framing, cut in every way.


RECORDED = [
    pytest.param(name, framing, id=f"{name}, {framing}")
    for name in BODIES
    for framing in FRAMINGS
    if len(FRAMINGS[framing](BODIES[name][0]).data) < 1000  # longer ones are cut at random below
]


@pytest.mark.parametrize(("name", "framing"), RECORDED)
def test_a_body_gives_the_same_bytes_in_every_framing_and_cut(name: str, framing: str) -> None:
    wire = FRAMINGS[framing](BODIES[name][0])
    wanted = expected(name)._replace(done=wire.is_chunked or wire.length is not None)
    for pieces in ways(wire.data):
        assert render(wire, pieces) == wanted, pieces


@given(st.sampled_from(sorted(BODIES)), st.sampled_from(sorted(FRAMINGS)), st.data())
def test_and_at_random_sets_of_offsets(name: str, framing: str, data: st.DataObject) -> None:
    wire = FRAMINGS[framing](BODIES[name][0])
    wanted = expected(name)._replace(done=wire.is_chunked or wire.length is not None)
    assert render(wire, data.draw(cut_anyhow(wire.data))) == wanted


blocks_of_any_kind = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["data: a", "data:", "id: 7", "event: e", ": c", "data: 🙂", "x", "\ufeff"]), max_size=3),
        st.sampled_from(["\n", "\r\n", "\r"]),
        st.sampled_from(["\n", "\r\n", "\r", ""]),
    ).map(lambda parts: (parts[1].join([*parts[0], ""]) + parts[2]).encode()),
    max_size=6,
)  # fmt: skip


@given(blocks_of_any_kind, st.sampled_from(sorted(FRAMINGS)), st.booleans(), st.data())
def test_no_framing_and_no_cut_changes_what_goes_out(
    blocks: list[bytes], framing: str, strip: bool, data: st.DataObject
) -> None:
    blocks = [block for block in blocks if block]
    plain = Wire(b"".join(blocks), False)
    wire = FRAMINGS[framing](blocks)
    wanted = render(plain, [plain.data], strip=strip)
    assert render(wire, data.draw(cut_anyhow(wire.data)), strip=strip)._replace(done=False) == wanted


# Faults: what came before one does not depend on cuts either.

FAULTS: dict[str, tuple[bytes, str, list[bytes]]] = {
    "a size that is none": (encode_chunk(DELTA) + encode_chunk(DONE) + b"zz\r\n", "ChunkedError", [DELTA, DONE]),
    "a size in mid-event": (encode_chunk(DELTA) + b"5\r\ndata:\r\n-1\r\n", "ChunkedError", [DELTA]),
    "data beyond its size": (encode_chunk(DELTA) + b"e\r\ndata: [DONE]\n\nx\r\n", "ChunkedError", [DELTA, DONE]),
    "plain text after events": (encode_chunk(DELTA) * 2 + b"Internal Server Error\r\n", "ChunkedError", [DELTA, DELTA]),
    "a trailer that frames": (encode_chunk(DONE) + b"0\r\nContent-Length: 1\r\n\r\n", "ChunkedError", [DONE]),
    "an event too large": (encode_chunk(DELTA) + encode_chunk(b"data: " + b"x" * 60), "EventTooLarge", [DELTA]),
    "a whole event too large": (encode_chunk(DELTA) + encode_chunk(b"data: " + b"x" * 60 + b"\n\n"), "EventTooLarge", [DELTA]),
    "too large, then broken": (encode_chunk(DELTA) + encode_chunk(b"x" * 90) + b"zz\r\n", "EventTooLarge", [DELTA]),
    "a comment too large": (encode_chunk(DELTA + b":" * 90), "EventTooLarge", [DELTA]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_events_before_a_fault_are_the_same_however_it_came(name: str) -> None:
    data, fault, blocks = FAULTS[name]
    for pieces in ways(data):
        rendered = render(Wire(data, True), pieces, max_event_bytes=50)
        assert (rendered.blocks, rendered.fault) == (blocks, fault), pieces


@pytest.mark.parametrize("line_ends", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\r"])
def test_a_cap_is_the_same_cap_however_it_came(line_ends: bytes) -> None:
    block = b"data: a" + line_ends
    size = len(block) - block.endswith(b"\r\n")
    for wire in (Wire(block, False), Wire(encode_chunk(block), True), chunks_of(block, 1)):
        for pieces in ways(wire.data):
            assert render(wire, pieces, max_event_bytes=size).fault == "", pieces
            assert render(wire, pieces, max_event_bytes=size - 1).fault == "EventTooLarge", pieces


def test_4_mib_in_one_line_pass() -> None:
    block = b"data: " + b"x" * (4 << 20) + b"\n\n"
    wire = Wire(encode_chunk(block) + LAST_CHUNK, True)
    pieces = [wire.data[at : at + 65_536] for at in range(0, len(wire.data), 65_536)]
    assert render(wire, pieces, max_event_bytes=16 << 20) == Rendered([encode_chunk(block)], [False], done=True)


def test_an_endless_event_is_refused_as_soon_as_it_is_too_large() -> None:
    framer = EventFramer(False, None, strip=True, max_event_bytes=100)
    framer.feed(b"data: " + b"x" * 94, 0)
    with pytest.raises(EventTooLarge):
        framer.feed(b"x", 100)
    assert framer.found == []


# Which way an event goes out.


def test_a_frame_read_whole_goes_out_as_it_lies() -> None:
    data = encode_chunk(DELTA) + encode_chunk(DONE)
    for pieces in ([data], [encode_chunk(DELTA), encode_chunk(DONE)]):
        framer = EventFramer(True, None, strip=True, max_event_bytes=100)
        found = [event for index, piece in enumerate(pieces) for event in framer.feed(piece, len(pieces[0]) * index)]
        assert [(event.framed, event.start, event.length) for event in found] == [(True, 0, 53), (True, 53, 19)]
        assert [event.block for event in found] == [DELTA, DONE]


def test_behind_a_frame_that_reads_have_cut_whole_ones_are_found_again() -> None:
    """What is framed is neither parsed nor looked into; a read of much at once begins and ends anywhere."""
    frame = encode_chunk(DELTA)
    framer = EventFramer(True, None, strip=True, max_event_bytes=1000)
    data = frame * 5
    cut = len(frame) + 9
    first, second = framer.feed(data[:cut], 0), framer.feed(data[cut:-3], cut)
    assert [(found.framed, found.block) for found in first] == [(True, DELTA)]
    assert [(found.framed, found.block) for found in second] == [(False, DELTA), (True, DELTA), (True, DELTA)]
    assert [data[found.start : found.start + found.length] for found in second[1:]] == [frame, frame]
    assert data[second[0].start : second[0].start + second[0].length] == DELTA


@pytest.mark.parametrize("data", [encode_chunk(DELTA + DONE), sized_as(b"%04x", [DELTA, DONE]).data])
def test_an_event_in_one_piece_is_not_copied(data: bytes) -> None:
    framer = EventFramer(True, None, strip=True, max_event_bytes=100)
    found = framer.feed(data, 1000)
    assert [(event.framed, event.rewritten) for event in found] == [(False, None)] * 2
    assert [data[event.start - 1000 :][: event.length] for event in found] == [DELTA, DONE]


@pytest.mark.parametrize("block", [b"data: a\r\n\r\n", BOM + b"data: a\n\n", b"id: 1\ndata: a\n\n"])
def test_an_event_in_another_form_is_written_anew(block: bytes) -> None:
    framer = EventFramer(True, None, strip=True, max_event_bytes=100)
    (event,) = framer.feed(encode_chunk(block), 0)
    assert event == Found(0, 0, False, False, b"data: a\n\n", b"data: a\n\n")


@pytest.mark.parametrize(
    ("block", "stripped", "kept"),
    [
        (b"data: a\n\n", b"data: a\n\n", b"data: a\n\n"),
        (b"event: x\ndata: a\n\n", b"event: x\ndata: a\n\n", b"event: x\ndata: a\n\n"),
        (b"id: 1\ndata: a\n\n", b"data: a\n\n", b"id: 1\ndata: a\n\n"),
        (b"retry: 1\nid: 1\ndata: a\nid\n\n", b"data: a\n\n", b"retry: 1\nid: 1\ndata: a\nid\n\n"),
        (b"database: 1\ndata: a\n\n", b"data: a\n\n", b"database: 1\ndata: a\n\n"),
        (b": c\nid: 1\ndata: a\n\n", b"data: a\n\n", b": c\nid: 1\ndata: a\n\n"),
        (b": c\ndata: a\n\n", b": c\ndata: a\n\n", b": c\ndata: a\n\n"),
        (b": c\n\n", b": c\n\n", b": c\n\n"),
        (b"id: 1\n\n", None, b"id: 1\n\n"),
        (b"retry: 1\n\n", None, b"retry: 1\n\n"),
        (b"event: ping\n\n", None, b"event: ping\n\n"),
    ],
)
def test_fields_that_openai_clients_do_not_survive_are_dropped_where_that_is_asked(
    block: bytes, stripped: bytes | None, kept: bytes
) -> None:
    """openai-python 2722, 3833: an event without data, or an id before a comment, ends its stream with an error."""
    wire = Wire(encode_chunk(block) + LAST_CHUNK, True)
    assert render(wire, [wire.data], strip=True).blocks == ([] if stripped is None else [stripped])
    assert render(wire, [wire.data], strip=False).blocks == [kept]


# States.


def test_it_is_at_a_boundary_only_between_chunks_and_events_behind_the_first() -> None:
    framer = EventFramer(True, None, strip=True, max_event_bytes=100)
    assert not framer.at_boundary, "a byte order mark may come, which only a feed takes off"
    for piece, at_boundary in [
        (encode_chunk(DELTA), True),
        (b"9\r\ndata: ", False),
        (b"a\n\n", False),
        (b"\r\n", True),
        (encode_chunk(b"data: a"), False),
        (encode_chunk(b"\n\n"), True),
        (encode_chunk(b"data: a\r\r"), False),
        (encode_chunk(b"\n"), True),
        (b"0\r\n", False),
        (b"\r\n", False),
    ]:
        framer.feed(piece, 0)
        assert framer.at_boundary is at_boundary, piece
    assert framer.done


def test_a_body_without_chunks_has_no_boundaries() -> None:
    framer = EventFramer(False, None, strip=True, max_event_bytes=100)
    framer.feed(DELTA, 0)
    assert not framer.at_boundary
    assert not framer.done


def test_it_knows_what_it_holds_of_an_unfinished_event() -> None:
    framer = EventFramer(False, None, strip=True, max_event_bytes=100)
    framer.feed(DELTA + b"data", 0)
    assert framer.partial_bytes == 4


@pytest.mark.parametrize("framing", ["one event per HTTP chunk", "7 bytes per HTTP chunk", "delimited by length"])
def test_what_lies_behind_the_end_of_a_body_is_none_of_it(framing: str) -> None:
    wire = FRAMINGS[framing]([DELTA, DONE])
    longer = wire._replace(data=wire.data + TRAILING + b"\n\n" + encode_chunk(DELTA))
    for pieces in ways(longer.data):
        assert render(longer, pieces) == Rendered([encode_chunk(DELTA), encode_chunk(DONE)], [False, False], done=True)


def test_an_empty_body_is_done_before_it_begins() -> None:
    assert EventFramer(False, 0, strip=True, max_event_bytes=100).done
    assert not EventFramer(False, 1, strip=True, max_event_bytes=100).done


@pytest.mark.parametrize("pieces", [1, 1 << 20])
def test_one_byte_chunks_cost_the_same_each_however_many_there_are(pieces: int) -> None:
    def cost(events: int) -> int:
        data = chunks_of(b"data: abc\n\n" * events, 1).data
        framer = EventFramer(True, None, strip=True, max_event_bytes=100)
        return count_calls(lambda: [framer.feed(data[at : at + pieces], at) for at in range(0, len(data), pieces)])

    few, many = cost(20), cost(80)
    assert many < 4.2 * few


# Whole frames.


def is_frame(data: bytes) -> bool:
    """The rule in plain words: what our encoder makes of one single-line data event."""
    block = data[data.find(b"\n") + 1 : -2]
    inside = block[len(b"data:") : -len(b"\n\n")]
    has_form = block.startswith(b"data:") and block.endswith(b"\n\n") and b"\n" not in inside and b"\r" not in inside
    return has_form and data == encode_chunk(block)


frames = st.one_of(
    st.binary(max_size=40).map(lambda data: encode_chunk(b"data:" + data + b"\n\n")),
    st.sampled_from([0, 1, 8, 9, 10, 247, 248, 249, 250, 4070, 4075, 4081, 4085, 4088, 4089, 4100, 65_536]).map(
        lambda size: encode_chunk(b"data:" + b"x" * size + b"\n\n")
    ),
    st.sampled_from([b"data: a\n\ndata: b\n\n", b"data: a\r\n\r\n", b"data: a\n", b"id: 1\n\n", b":\n\n", b"\n\n"]).map(
        encode_chunk
    ),
    st.sampled_from([b"0", b"00", b"0009", b"9;a", b" 9", b"9 ", b"A", b"+9"]).map(lambda size: size + b"\r\ndata: a\n\n\r\n"),
    st.sampled_from([6, 20, 21, 22, 261, 262, 263, 4095, 4096, 4103]).map(lambda size: bytes(size - 4) + b"\n\n\r\n"),
    st.sampled_from([6, 21, 262, 4103]).map(lambda size: b"\0" + b"x" * (size - 5) + b"\n\n\r\n"),
)  # fmt: skip


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """A frame with a few bytes gone, changed or added."""
    data = bytearray(draw(frames))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(
            st.one_of(st.integers(0, len(data)), st.integers(0, 12), st.integers(max(0, len(data) - 6), len(data)))
        )
        at = min(at, len(data))
        patch = draw(st.one_of(st.sampled_from([b"", b"\r", b"\n", b"\0", b"\r\n", b"0", b"a"]), st.binary(max_size=2)))
        data[at : at + draw(st.integers(0, 2))] = patch
    return bytes(data)


@given(st.one_of(near_misses(), frames, st.binary(max_size=60)))
def test_the_quick_check_and_the_rule_agree(data: bytes) -> None:
    assert is_whole_frame(data) is (one_frame(data, 0) == len(data) != 0) is is_frame(data)


@pytest.mark.parametrize("size", [21, 262, 4103])
def test_a_length_that_no_frame_has_is_no_frame_whatever_it_holds(size: int) -> None:
    for first in range(256):
        data = bytes([first]) + b"x" * (size - 5) + b"\n\n\r\n"
        assert not is_whole_frame(data)


@given(frames, frames, st.integers(0, 5))
def test_a_frame_is_found_wherever_it_begins(first: bytes, second: bytes, before: int) -> None:
    data = b"x" * before + first + second
    end = one_frame(data, before)
    assert end == (before + len(first) if is_frame(first) else 0) or is_frame(data[before:end])
    assert one_frame(data[: before + len(first) - 1], before) == 0 or not is_frame(first)


@pytest.mark.parametrize(
    "odd", [b"", b"5\r\ndata:\r\n", b"8\r\ndata: \r\n\n\n\r\n", b"9\r\ndata: y\n\n\r\n", b"b\r\ndata: m\n\nx\n\n\r\n"]
)
def test_a_run_of_frames_is_what_the_short_way_takes_one_by_one(odd: bytes) -> None:
    frames = [b"%x\r\n%b\r\n" % (len(block), block) for n in range(40) if (block := b"data: m%s\n\n" % (b"x" * n))]
    run = plain_run(b"".join(frames) + odd + frames[0] + b"b\r\ndata: m", b"m")
    assert run == [len(frame) for frame in (frames if odd else [*frames, frames[0]])]
    assert all(is_whole_frame(frame) for frame in frames)
