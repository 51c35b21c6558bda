"""One exchange without sockets: every phase and framing, what readers see when, and if the connection can be used again.

That no cut between reads changes anything is in tests/faults/test_framing.py; that each ending reaches clients truthfully in
tests/faults/test_endings.py.
"""

from __future__ import annotations

import json

import pytest
from tests.engines.fakes import Scene
from tests.engines.recorded import STYLES, play_back, recorded
from tests.house import CHUNKED, DONE, WHOLE, delta, head_of, in_chunks

from longwire.engines.exchange import HELD_BODY_BYTES, Expect, Phase
from longwire.engines.openai import ChatWatch, RelayWatch
from longwire.engines.opening import MAX_HELD_BYTES
from longwire.wire.chunked import LAST_CHUNK, encode_chunk
from longwire.words.reasons import CloseReason as Reason

A, B, FINISH = WHOLE[:3]
JSON = b'{"choices":[{"message":{"content":"all that there is to say, and a little more"}}],"usage":{}}'
BROKEN = ConnectionResetError()
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'


def json_head(*fields: bytes) -> bytes:
    return head_of(*fields, kind=b"application/json")


# Events: what readers see, and when.


def test_each_frame_is_seen_as_it_comes_from_the_first_token_on_and_marked_as_a_place_to_begin_anew() -> None:
    scene = Scene().feed(CHUNKED)
    assert (scene.blocks, scene.ended.began, scene.sink.first_byte) == ([], 1, 1)
    at = len(CHUNKED)
    for number, block in enumerate((ROLE, A, B), start=1):
        frame = encode_chunk(block)
        scene.feed(frame)
        at += len(frame)
        assert len(scene.blocks) == (number if number > 1 else 0), "a role alone says nothing"
        if number == 1:
            assert scene.sink.checkpoints == []
            continue
        # A second reading that begins behind an event knows of tokens seen, not of their absence.
        assert scene.sink.checkpoints[-1] == at
    assert [entry.framed for entry in scene.sink.entries] == [True, True, True]
    scene.feed(encode_chunk(FINISH))
    assert scene.sink.checkpoints[-1] == -1, "no checkpoint tells of a finish: behind one there is none"
    scene.feed(encode_chunk(DONE) + LAST_CHUNK)
    assert scene.blocks == [ROLE, *WHOLE]
    assert scene.ended.reason is Reason.COMPLETED and scene.ended.released == [True]


@pytest.mark.parametrize("last", [encode_chunk(DONE) + LAST_CHUNK, LAST_CHUNK])
def test_only_what_a_whole_answer_ends_with_is_said_to_be_the_last(last: bytes) -> None:
    """Readers are not woken for that: the end wakes them. After a break others may go on."""
    scene = Scene().feed(CHUNKED, encode_chunk(A), encode_chunk(FINISH))
    assert not scene.sink.is_last
    scene.feed(last)
    assert scene.sink.is_last and scene.ended.reason is Reason.COMPLETED
    broken = Scene().feed(CHUNKED, encode_chunk(A), last)
    assert not broken.sink.is_last and broken.ended.reason is Reason.UPSTREAM_INCOMPLETE


def test_a_half_frame_is_not_seen_and_no_place_to_begin() -> None:
    frame = encode_chunk(B)
    scene = Scene().feed(CHUNKED + encode_chunk(A), frame[:9])
    assert scene.blocks == [A] and max(scene.sink.checkpoints) == len(CHUNKED) + len(encode_chunk(A))
    scene.feed(frame[9:])
    assert scene.blocks == [A, B]
    assert scene.sink.checkpoints[-1] == len(CHUNKED + encode_chunk(A) + frame)


def test_the_first_token_is_the_first_that_says_something() -> None:
    scene = Scene().feed(CHUNKED, encode_chunk(ROLE))
    assert scene.sink.first_token_at is None
    scene.feed(encode_chunk(A))
    assert scene.sink.first_token_at is not None


def test_usage_that_the_client_did_not_ask_for_has_no_entry() -> None:
    for hides, count in ((True, 3), (False, 4)):
        scene = Scene(watch=ChatWatch(1, hides)).feed(CHUNKED + in_chunks(A, FINISH, USAGE, DONE))
        assert len(scene.blocks) == count and scene.watch.usage == {"prompt_tokens": 1, "completion_tokens": 2}


def test_a_comment_is_an_entry_without_seq() -> None:
    scene = Scene().feed(CHUNKED + in_chunks(b": ping\n\n", *WHOLE))
    assert [entry.silent for entry in scene.sink.entries] == [True, False, False, False, False]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_says_the_same(style: str) -> None:
    """Line ends, prefixes, chunks and framings are gone; the events are those of the plainest answer."""
    got = play_back(style, [recorded(style)], hides_usage=False)
    plain = play_back("lf", [recorded("lf")], hides_usage=False)
    assert got.reason is Reason.COMPLETED
    if style in ("n=2", "reasoning", "usage_in_choices"):
        return
    events = [block for block, silent in zip(got.blocks, got.silent, strict=True) if not silent]
    assert [_data(block) for block in events] == [_data(block) for block in plain.blocks]
    assert got.usage == plain.usage and got.tokenless == plain.tokenless


def _data(block: bytes) -> bytes:
    assert block.startswith(b"data:") and block.endswith(b"\n\n") and block.count(b"\n") == 2
    return block[5:].strip()


def test_an_event_over_the_cap_ends_the_answer_by_whichever_way_it_comes() -> None:
    limits = (2000, 1 << 20)
    large = encode_chunk(delta("x" * 2000))
    for pieces in (
        [CHUNKED + encode_chunk(A), large],
        [CHUNKED + encode_chunk(A) + large],
        [CHUNKED + encode_chunk(A), large[:500], large[500:]],
    ):
        scene = Scene(limits=limits).feed(*pieces)
        assert scene.blocks == [A] and scene.ended.reason is Reason.EVENT_TOO_LARGE
        assert scene.ended.released == [False]


def test_a_stream_over_its_cap_ends() -> None:
    scene = Scene(limits=(1 << 20, 3000)).feed(CHUNKED)
    for _ in range(100):
        scene.feed(encode_chunk(delta("x" * 100)))
    assert scene.ended.reason is Reason.STREAM_TOO_LARGE
    assert 3000 <= scene.sink.end < 3400


# The connection afterwards.


def test_behind_the_end_marker_the_last_chunk_is_waited_for_apart_from_the_sink() -> None:
    scene = Scene().feed(CHUNKED + in_chunks(*WHOLE, last=False))
    assert scene.ended.reason is Reason.COMPLETED, "the client does not wait for it"
    assert (scene.ended.drains, scene.ended.released) == (1, [])
    stored = scene.sink.end
    scene.feed(LAST_CHUNK[:2], LAST_CHUNK[2:])
    assert scene.ended.released == [True] and scene.sink.end == stored


@pytest.mark.parametrize(
    ("rest", "reusable"),
    [
        (LAST_CHUNK, True),
        (encode_chunk(DONE) + LAST_CHUNK, True),
        (encode_chunk(A) + LAST_CHUNK, True),
        (LAST_CHUNK + b"HTTP/1.1 200 OK\r\n", False),
        (b"no chunk\r\n", False),
        (encode_chunk(b"data: cut"), False),
    ],
    ids=["last", "marker_again", "a_straggler", "more_than_all", "garbage", "half_an_event"],
)
@pytest.mark.parametrize("apart", [True, False], ids=["in_a_read_of_its_own", "in_the_same_read"])
def test_what_follows_the_end_marker_decides_on_the_connection_only(rest: bytes, reusable: bool, apart: bool) -> None:
    scene = Scene()
    first = CHUNKED + in_chunks(*WHOLE, last=False)
    scene.feed(first, rest) if apart else scene.feed(first + rest)
    if not scene.ended.released:
        assert not reusable or not apart
        scene.exchange.abandon()
    assert scene.ended.reason is Reason.COMPLETED and scene.blocks == list(WHOLE)
    assert scene.ended.released == [reusable]


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (CHUNKED, True),
        (head_of(b"transfer-encoding: chunked", b"connection: close"), False),
        (head_of(b"content-length: %d" % len(b"".join(WHOLE))), True),
        (head_of(), False),
    ],
    ids=["chunked", "connection_close", "sized", "by_close"],
)
def test_a_connection_is_used_again_only_if_its_answer_was_read_to_the_end(head: bytes, reusable: bool) -> None:
    body = in_chunks(*WHOLE) if b"chunked" in head else b"".join(WHOLE)
    scene = Scene().feed(head + body)
    assert scene.ended.reason is Reason.COMPLETED and scene.ended.released == [reusable]


def test_a_surplus_behind_a_sized_stream_spoils_the_connection() -> None:
    body = b"".join(WHOLE)
    scene = Scene().feed(head_of(b"content-length: %d" % len(body)) + body + b"HTTP/1.1")
    assert scene.ended.reason is Reason.COMPLETED and scene.ended.released == [False]


def test_it_is_let_go_once_whatever_happens() -> None:
    scene = Scene().feed(CHUNKED + encode_chunk(A))
    scene.exchange.abandon()
    scene.exchange.abandon()
    scene.end(BROKEN)
    assert scene.ended.released == [False] and scene.ended.reason is None, "nobody wanted to know"
    assert "over" in repr(scene.exchange)


# Heads.


def test_a_head_may_come_byte_by_byte_behind_interim_ones() -> None:
    wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: </x>\r\n\r\n" + CHUNKED + in_chunks(*WHOLE)
    scene = Scene().feed(*(wire[at : at + 1] for at in range(len(wire))))
    assert scene.blocks == list(WHOLE) and scene.ended.began == 1


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 103 H\r\n\r\n" * 9, "interim"),
        (b"HTTP/2 200\r\n\r\n", "malformed"),
        (b"SSH-2.0-x\r\n", "HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (64 * 1024), "too large"),
        (b"HTTP/1.1 200 OK\r\nbad\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", ""),
    ],
)
def test_what_is_no_response_fails_before_anything_is_passed_on(wire: bytes, words: str) -> None:
    scene = Scene().feed(wire)
    assert scene.ended.reason is Reason.UPSTREAM_PROTOCOL and words in scene.ended.message
    assert scene.ended.released == [False]


@pytest.mark.parametrize("error", [None, BROKEN])
def test_only_a_connection_that_dies_without_a_byte_may_be_retried(error: Exception | None) -> None:
    nothing = Scene().end(error)
    assert nothing.ended.failure is not None and nothing.ended.failure.is_retryable_unsent
    for pieces in ([b"H"], [b"HTTP/1.1 103 H\r\n\r\n"], [CHUNKED], [json_head(b"content-length: 9")]):
        scene = Scene().feed(*pieces).end(error)
        assert scene.ended.failure is not None and not scene.ended.failure.is_retryable_unsent


def test_encoded_answers_are_refused_whatever_they_are() -> None:
    for status in (b"200 OK", b"400 Bad"):
        scene = Scene().feed(head_of(b"content-encoding: br", status=status))
        assert scene.ended.reason is Reason.UPSTREAM_PROTOCOL and "br" in scene.ended.message
    assert Scene().feed(head_of(b"content-encoding: identity") + A).blocks == [A]


# Bodies.


LARGE = JSON[:-1] + b" " * HELD_BODY_BYTES + b"}"


@pytest.mark.parametrize("body", [JSON, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("cut", [1, 64, -(HELD_BODY_BYTES // 2), -1])
def test_a_sized_body_is_passed_on_when_it_is_whole_or_too_large_to_be_held(body: bytes, cut: int) -> None:
    scene = Scene(Expect.JSON).feed(json_head(b"content-length: %d" % len(body)), body[:cut])
    assert (scene.ended.answer is not None) == (len(body[:cut]) >= HELD_BODY_BYTES)
    scene.feed(body[len(body[:cut]) :])
    assert b"".join(scene.blocks) == body and scene.ended.reason is Reason.COMPLETED
    assert scene.ended.released == [True] and scene.ended.answer is not None
    assert scene.ended.answer.content_length == len(body)


@pytest.mark.parametrize(("body", "is_failure"), [(JSON, True), (LARGE, False)])
def test_a_body_that_breaks_while_it_is_held_was_never_there(body: bytes, is_failure: bool) -> None:
    scene = Scene(Expect.JSON).feed(json_head(b"content-length: %d" % len(body)), body[:-1]).end(BROKEN)
    assert scene.ended.reason is Reason.UPSTREAM_RESET and (scene.ended.failure is not None) == is_failure
    assert scene.blocks == ([] if is_failure else scene.blocks) and (scene.ended.answer is None) == is_failure


def test_what_says_nothing_is_held_back_until_a_token_or_too_much_of_it_has_come() -> None:
    scene = Scene().feed(CHUNKED, encode_chunk(ROLE), encode_chunk(b": ping\n\n"))
    assert scene.blocks == [] and scene.sink.entries == []
    scene.feed(encode_chunk(A))
    assert scene.blocks == [ROLE, b": ping\n\n", A]
    count = MAX_HELD_BYTES // len(encode_chunk(ROLE))
    much = Scene().feed(CHUNKED, *[encode_chunk(ROLE)] * count)
    assert much.blocks == []
    assert len(much.feed(encode_chunk(ROLE)).blocks) == count + 1


@pytest.mark.parametrize("cut", [True, False])
def test_an_answer_that_breaks_before_its_first_token_was_never_there(cut: bool) -> None:
    scene = Scene().feed(CHUNKED, encode_chunk(ROLE)).end(BROKEN if cut else None)
    assert scene.ended.failure is not None and scene.sink.entries == []
    assert scene.ended.reason is Reason.UPSTREAM_RESET


def test_an_empty_answer_is_passed_on_at_its_end() -> None:
    scene = Scene().feed(CHUNKED, in_chunks(ROLE, FINISH, DONE))
    assert scene.blocks == [ROLE, FINISH, DONE] and scene.ended.reason is Reason.COMPLETED


def test_progress_that_a_client_asked_for_is_passed_on() -> None:
    progress = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":null}],"prompt_progress":{"total":9}}\n\n'
    assert Scene().feed(CHUNKED, in_chunks(ROLE, progress, last=False)).blocks == [ROLE, progress]


def test_a_short_body_is_an_answer_too() -> None:
    scene = Scene(Expect.JSON).feed(json_head(b"content-length: 3") + b"{}\n")
    assert b"".join(scene.blocks) == b"{}\n" and scene.ended.reason is Reason.COMPLETED


@pytest.mark.parametrize("body", [b"", b"  ", JSON[:-1], JSON[: len(JSON) // 2]])
def test_what_ends_in_good_order_but_is_no_whole_object_is_no_answer(body: bytes) -> None:
    """A body that ends with its connection cannot be told from one that was cut, but by what it says."""
    for head, is_open in ((json_head(b"content-length: %d" % len(body)), False), (json_head(), True)):
        scene = Scene(Expect.JSON).feed(head + body)
        if is_open:
            scene.end()
        assert scene.ended.reason is Reason.UPSTREAM_INCOMPLETE and scene.ended.failure is not None
        assert scene.blocks == []


def test_a_chunked_body_has_the_engine_s_pieces() -> None:
    pieces = [JSON[:30], JSON[30:70], JSON[70:]]
    wire = json_head(b"transfer-encoding: chunked") + in_chunks(*pieces)
    assert Scene(Expect.JSON).feed(wire).blocks == pieces
    assert Scene(Expect.JSON).feed(*(wire[at : at + 1] for at in range(len(wire)))).blocks == pieces


def test_a_close_delimited_body_ends_with_a_fin_and_breaks_with_a_reset() -> None:
    whole = Scene(Expect.JSON).feed(json_head() + JSON).end()
    assert whole.ended.reason is Reason.COMPLETED and whole.ended.released == [False]
    broken = Scene(Expect.JSON).feed(json_head() + JSON).end(BROKEN)
    assert broken.ended.reason is Reason.UPSTREAM_RESET and broken.ended.failure is not None


def test_a_surplus_behind_a_body_spoils_the_connection() -> None:
    for wire in (
        json_head(b"content-length: %d" % len(JSON)) + JSON + b"x",
        json_head(b"transfer-encoding: chunked") + in_chunks(JSON) + b"x",
    ):
        scene = Scene(Expect.JSON).feed(wire)
        assert scene.ended.released == [False] and b"".join(scene.blocks) == JSON


ERROR = json.dumps({"error": {"message": "no", "code": 503}, "pad": "x" * 80}).encode()


@pytest.mark.parametrize(
    "body", [ERROR, ERROR.replace(b": ", b":"), b"\n " + ERROR, b'{"object":"error","message":"no","code":503}']
)
def test_an_error_in_a_200_fails_and_is_not_passed_on(body: bytes) -> None:
    wire = json_head(b"content-length: %d" % len(body)) + body
    for pieces in ([wire], [wire[at : at + 1] for at in range(len(wire))]):
        scene = Scene(Expect.JSON).feed(*pieces)
        assert scene.ended.failure is not None and scene.ended.answer is None and scene.blocks == []
        assert (scene.ended.reason, scene.ended.message) == (Reason.UPSTREAM_ERROR_EVENT, "no")
        assert scene.ended.failure.status == 503 and scene.ended.released == [True]
    cut = Scene(Expect.JSON).feed(wire[:-3]).end(BROKEN)
    assert cut.ended.reason is Reason.UPSTREAM_RESET


def test_a_relayed_body_is_passed_on_unseen() -> None:
    scene = Scene(Expect.ANY, RelayWatch()).feed(json_head(b"content-length: %d" % len(ERROR)))
    assert scene.ended.answer is not None and scene.ended.answer.status == 200
    scene.feed(ERROR)
    assert scene.blocks == [ERROR] and scene.ended.reason is Reason.COMPLETED


def test_a_relayed_event_stream_is_a_stream_with_all_its_fields() -> None:
    block = b"event: x\nid: 3\ndata: 1\n\n"
    scene = Scene(Expect.ANY, RelayWatch()).feed(CHUNKED + in_chunks(block))
    assert scene.blocks == [block] and scene.ended.reason is Reason.COMPLETED and scene.ended.answer is None


def test_a_body_over_the_cap_of_a_stream_ends() -> None:
    scene = Scene(Expect.JSON, limits=(1 << 20, 500)).feed(json_head(b"content-length: 900") + JSON, b"x" * 500)
    assert scene.ended.reason is Reason.STREAM_TOO_LARGE and scene.ended.failure is not None


# Refusals.


@pytest.mark.parametrize("framing", ["sized", "chunked", "by_close", "cut"])
def test_a_refusal_keeps_status_type_words_and_when_to_come_back(framing: str) -> None:
    body = b'{"error":{"message":"no"}}'
    fields = [b"retry-after: 3", b"www-authenticate: Bearer", b"x-other: 1"]
    if framing == "sized":
        fields.append(b"content-length: %d" % len(body))
    elif framing == "chunked":
        fields.append(b"transfer-encoding: chunked")
    elif framing == "cut":
        fields.append(b"content-length: 999")
    wire = head_of(*fields, status=b"429 Busy", kind=b"application/json")
    scene = Scene().feed(wire + (in_chunks(body) if framing == "chunked" else body))
    if framing in ("by_close", "cut"):
        scene.end(None if framing == "by_close" else BROKEN)
    failure = scene.ended.failure
    assert failure is not None
    assert (failure.reason, failure.status, failure.body) == (Reason.UPSTREAM_REFUSED, 429, body)
    assert failure.content_type == b"application/json"
    assert failure.headers == [(b"retry-after", b"3"), (b"www-authenticate", b"Bearer")]
    assert scene.ended.began == 0 and scene.ended.released == [framing in ("sized", "chunked")]


@pytest.mark.parametrize("framing", [b"content-length: 900000", b"transfer-encoding: chunked", b"x: by close"])
def test_of_an_endless_error_page_a_bounded_part_is_kept(framing: bytes) -> None:
    scene = Scene().feed(head_of(framing, status=b"500 Oh"))
    piece = b"x" * 10_000
    for _ in range(20):
        scene.feed(encode_chunk(piece) if b"chunked" in framing else piece)
    failure = scene.ended.failure
    assert failure is not None and failure.reason is Reason.UPSTREAM_FAILED
    assert len(failure.body) == 64 * 1024 and scene.ended.released == [False]


def test_a_refusal_whose_chunks_break_is_still_a_refusal() -> None:
    scene = Scene().feed(
        head_of(b"transfer-encoding: chunked", status=b"404 No") + in_chunks(b"no", last=False) + b"none\r\n"
    )
    assert scene.ended.failure is not None and scene.ended.failure.status == 404
    assert scene.ended.failure.body == b"no" and scene.ended.released == [False]


# Taking over.


def test_primed_it_goes_on_from_between_two_events() -> None:
    scene = Scene()
    scene.exchange.prime()
    scene.feed(encode_chunk(A), in_chunks(*WHOLE[1:]))
    assert scene.blocks == list(WHOLE) and scene.ended.reason is Reason.COMPLETED
    assert scene.exchange.phase is Phase.OVER
    assert scene.sink.checkpoints[0] == len(encode_chunk(A))
