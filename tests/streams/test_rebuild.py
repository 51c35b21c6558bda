"""Finding a reader's place in the bytes, from behind: exactly, or not at all."""

from __future__ import annotations

import pytest

from longwire.streams.arena import Arena
from longwire.streams.log import Log
from longwire.streams.rebuild import TAIL_BYTES, find_tail
from longwire.wire.chunked import encode_chunk

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def log_of(*pieces: bytes) -> Log:
    log = Log(Arena(4 << 20))
    log.upstream.append(b"".join(pieces))
    return log


def frames(count: int, pad: int = 0) -> list[bytes]:
    return [encode_chunk(b"data: %d%s\n\n" % (number, b"x" * pad)) for number in range(count)]


@pytest.mark.parametrize("pad", [0, 300, 40_000])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_frames_before_the_end_are_found(count: int, pad: int) -> None:
    pieces = [HEAD, *frames(30, pad)]
    log = log_of(*pieces)
    stop = log.upstream.end
    expected = stop - len(b"".join(pieces[-count:]))
    assert find_tail(log, stop, count) == (expected if (count + 1) * (pad + 20) < TAIL_BYTES[-1] else None)


def test_sizes_in_capitals_are_frames_too() -> None:
    pieces = [frame.replace(b"2c", b"2C") for frame in frames(9, 35)]
    assert b"2C\r\n" in pieces[0]
    log = log_of(HEAD, *pieces)
    assert find_tail(log, log.upstream.end, 2) == log.upstream.end - len(b"".join(pieces[-2:]))


def test_the_head_and_the_first_frame_are_no_place_to_begin() -> None:
    log = log_of(HEAD, *frames(3))
    assert find_tail(log, log.upstream.end, 1) is not None
    assert find_tail(log, log.upstream.end, 2) is None, "nothing before it shows that it is one"
    assert find_tail(log, log.upstream.end, 400) is None


def test_a_line_that_ends_in_a_chunk_of_its_own_is_no_end_of_an_event() -> None:
    event = b"event: a\ndata: 1\n\n"
    one_by_one = [encode_chunk(event[at : at + 1]) for at in range(len(event))]
    log = log_of(HEAD, *one_by_one * 20)
    assert b"\n\n\r\n" in b"".join(one_by_one), "what looks like one"
    assert find_tail(log, log.upstream.end, 1) is None
