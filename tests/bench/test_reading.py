"""Answers of the stand-in, fault by fault, read with times that the test gives: what is noted is exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.playing import play

from longwire.bench.checking import Checker
from longwire.bench.doors import DOORS
from longwire.bench.outcomes import Cause, Outcome
from longwire.bench.reading import GAP_NS, AnswerReader, State
from longwire.bench.records import Cut, Record
from longwire.sim import SimServer
from longwire.words.clock import VirtualClock
from longwire.words.settings import SimSettings

MS = 1_000_000
TOKENS = 12
START_NS = 1_000_000 * MS


def never(_: int, __: int) -> bool:
    return False


def written(fault: str = "", most_steps: int = 100_000, **sim: Any) -> tuple[list[bytes], str]:
    """The stand-in's writes, and how it ended."""
    server = SimServer(SimSettings(port=0, tokens=TOKENS), clock=VirtualClock())
    fields = {"tokens": TOKENS, **({"fault": fault} if fault else {}), **sim}
    body = json.dumps(
        {"stream": True, "sim": fields, "messages": [], "stream_options": {"include_usage": True}}
    ).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    played = play(server, head + body, most_steps)
    return played.writes, str(played.ending and played.ending.value)


def read(
    writes: Iterable[bytes], door: str = "sse", step_ns: int = 10 * MS, was_late: Callable[[int, int], bool] = never
) -> AnswerReader:
    """Each write is one read, ``step_ns`` after the one before."""
    record = Record(0, START_NS)
    reader = AnswerReader(record, DOORS[door], was_late)
    reader.check = Checker(record, 0, TOKENS)
    for number, data in enumerate(writes):
        reader.receive_data(data, START_NS + number * step_ns)
    return reader


def test_a_whole_answer() -> None:
    writes, _ = written()
    reader = read(writes)
    record = reader.record
    assert reader.outcome is Outcome.COMPLETE and reader.state is State.OVER and reader.reusable
    assert len(record.times) == record.told_tokens == record.tokens == TOKENS
    assert (record.lost, record.wrong, record.duplicates, record.disorders, record.gaps) == (0, 0, 0, 0, [])
    # The head, the role, and then a token in each read.
    assert record.head_ns == START_NS and record.body_ns == START_NS + 10 * MS
    assert list(record.times) == [START_NS + (2 + token) * 10 * MS for token in range(TOKENS)]
    assert record.events == TOKENS + 4, "role, finish, usage and end marker"


@pytest.mark.parametrize(
    "fault",
    ["crlf", "cr", "mixed", "no_space", "comments", "bom", "one_byte", "split_chunks=7", "many_per_chunk=3", "upper_hex",
     "split_code_points", "close_delimited", "content_length", "ids", "early_hints", "two_done", "continuous_usage"],
)  # fmt: skip
def test_however_it_is_written(fault: str) -> None:
    reader = read(written(fault)[0], step_ns=MS)
    if reader.state is not State.OVER:
        reader.receive_eof(is_reset=False)
    record = reader.record
    assert reader.outcome is Outcome.COMPLETE
    assert (len(record.times), record.lost, record.wrong, record.duplicates) == (TOKENS, 0, 0, 0)


def test_all_of_it_in_one_read_and_byte_by_byte() -> None:
    whole = b"".join(written()[0])
    for pieces in ([whole], [whole[at : at + 1] for at in range(len(whole))]):
        reader = read(pieces, step_ns=1)
        assert reader.outcome is Outcome.COMPLETE and len(reader.record.times) == TOKENS and reader.record.lost == 0


@pytest.mark.parametrize(
    ("fault", "is_reset", "outcome"),
    [
        ("reset_after=5", True, Outcome.RESET),
        ("reset_inside=5", True, Outcome.RESET),
        ("close_after=5", False, Outcome.CUT_SHORT),
        ("close_inside=5", False, Outcome.CUT_SHORT),
        ("no_done", False, Outcome.CUT_SHORT),
        ("error_event=5", False, Outcome.TOLD),
        ("vllm_error_event=5", False, Outcome.TOLD),
        ("garbage_after=5", False, Outcome.MALFORMED),
        ("garbage", False, Outcome.NO_HTTP),
        ("half_head", False, Outcome.NO_HTTP),
        ("close", False, Outcome.DROPPED),
        ("reset", True, Outcome.DROPPED),
        ("status=503", False, Outcome.SHED),
        ("status=429", False, Outcome.SHED),
        ("status=500", False, Outcome.STATUS),
        ("wrong_type", False, Outcome.NO_STREAM),
        ("html", False, Outcome.NO_STREAM),
        ("empty", False, Outcome.CUT_SHORT),
        ("short_length=20", False, Outcome.CUT_SHORT),
    ],
)
def test_each_bad_ending_has_its_class(fault: str, is_reset: bool, outcome: Outcome) -> None:
    reader = read(written(fault)[0])
    reader.receive_eof(is_reset=is_reset)
    assert reader.outcome is outcome
    assert not reader.record.times or outcome.breaks


def test_what_stays_open_after_the_end_marker_is_complete() -> None:
    reader = read(written("stay_open")[0])
    assert reader.is_done and reader.state is State.BODY and reader.outcome is Outcome.COMPLETE
    assert reader.record.lost == 0


# Gaps.


def with_pause(at_write: int, pause_ns: int, stamp_ns: int = 0, was_late: Callable[[int, int], bool] = never) -> Record:
    """A silence before one write; with a stamp, the event behind it says when it was made."""
    record = Record(0, START_NS)
    reader = AnswerReader(record, DOORS["sse"], was_late)
    now_ns = START_NS
    for number, data in enumerate(written()[0]):
        now_ns += pause_ns if number == at_write else 10 * MS
        if stamp_ns and number == at_write:
            piece = (
                data.split(b"\r\n", 1)[1].removesuffix(b"\r\n").replace(b'"object"', b'"sim_ns":%d,"object"' % stamp_ns)
            )
            data = b"%x\r\n%b\r\n" % (len(piece), piece)
        reader.receive_data(data, now_ns)
    return record


def test_a_gap_is_more_than_500_ms_between_two_content_events() -> None:
    assert with_pause(5, GAP_NS).gaps == []
    record = with_pause(5, GAP_NS + 1)
    assert record.gaps == [(3, Cause.UNKNOWN)] and record.is_interrupted
    assert with_pause(2, 2 * GAP_NS).gaps == [], "before the first content it is the TTFT's matter"
    assert with_pause(14, 2 * GAP_NS).gaps == [], "and after the last one nobody waits for content"


def test_comments_do_not_end_a_gap() -> None:
    writes, _ = written("comments")
    record = read(writes, step_ns=GAP_NS // 2 + 1).record
    assert len(record.gaps) == TOKENS - 1


def test_the_cause_of_a_gap() -> None:
    late_ns = START_NS + 4 * 10 * MS + 600 * MS
    assert with_pause(5, 600 * MS, stamp_ns=late_ns).gaps == [(3, Cause.ENGINE)]
    assert with_pause(5, 600 * MS, stamp_ns=late_ns - 400 * MS).gaps == [(3, Cause.GATEWAY)]
    assert with_pause(5, 600 * MS, stamp_ns=late_ns, was_late=lambda _, __: True).gaps == [(3, Cause.CLIENT)]


# Order.


def content_writes() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """What comes before the tokens, the tokens, what comes after."""
    writes, _ = written()
    return writes[:2], writes[2 : 2 + TOKENS], writes[2 + TOKENS :]


def test_duplicates_losses_and_disorder_are_counted_exactly() -> None:
    head, tokens, tail = content_writes()
    record = read([*head, *tokens[:5], tokens[2], tokens[4], *tokens[5:], *tail]).record
    assert (record.duplicates, record.lost, record.disorders, record.wrong) == (2, 0, 0, 0)
    record = read([*head, *tokens[:3], *tokens[6:10], *tail]).record
    assert (record.duplicates, record.lost, record.disorders, record.wrong) == (0, 5, 0, 0)
    record = read([*head, *tokens[:3], tokens[4], tokens[3], *tokens[5:], *tail]).record
    assert (record.duplicates, record.lost, record.disorders, record.wrong) == (0, 0, 1, 0)
    record = read([*head, *(token.replace(b'content":" ', b'content":"_') for token in tokens), *tail]).record
    assert (record.wrong, record.lost) == (TOKENS, TOKENS)


def test_texts_that_a_gateway_wrote_anew_or_put_together_are_the_same() -> None:
    record = Record(0, 0)
    check = Checker(record, 0, TOKENS)
    from longwire.sim.answer import token_text

    for text in (
        token_text(0, 0),
        token_text(0, 1) + token_text(0, 2),
        "".join(token_text(0, n) for n in range(3, TOKENS)),
    ):
        check.take(json.dumps(text).encode(), 1)
    check.finish()
    assert (record.lost, record.wrong, record.duplicates) == (0, 0, 0)
    check.take(b'\\ud8"', 0)
    check.take(b' stone99999999999999"', 0)
    assert record.wrong == 2


# Resuming.


def as_get(block: bytes, seq: int) -> bytes:
    data = block.split(b"\r\n", 1)[1].removesuffix(b"\r\n")
    piece = b"id: 0-%d\n%b" % (seq, data)
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@pytest.mark.parametrize(("first", "duplicates", "lost"), [(4, 0, 0), (2, 2, 0), (6, 0, 2)])
def test_a_resumed_answer_goes_on_where_it_was_cut(first: int, duplicates: int, lost: int) -> None:
    head, tokens, tail = content_writes()
    record = Record(0, 0)
    reader = AnswerReader(record, DOORS["sse"], never)
    for number, data in enumerate([*head, *tokens[:3]]):
        reader.receive_data(data, number * MS)
    assert record.events == 4
    record.cuts.append(Cut(len(record.times), 7 * MS, 0))
    again = AnswerReader(record, DOORS["sse"], never, is_resumed=True)
    again.receive_data(head[0], 2000 * MS)
    for number, data in enumerate([head[1], *tokens, *tail[:3]]):
        if number >= first:
            again.receive_data(as_get(data, number), 2001 * MS)
    assert again.outcome is Outcome.COMPLETE
    assert (record.duplicates, record.lost) == (duplicates, lost)
    assert len(record.times) == TOKENS - lost
    assert record.cuts == [(3, 7 * MS, 2001 * MS)]
    assert record.gaps == [], "the gap is the cut's"


# The door of HTTP chunks.


def test_chunk_by_chunk_the_last_one_is_the_end() -> None:
    writes, _ = written("no_done")
    reader = read(writes, "chunked")
    assert reader.outcome is Outcome.COMPLETE and len(reader.record.times) == TOKENS
    reader = read(writes[:8], "chunked")
    reader.receive_eof(is_reset=False)
    assert reader.outcome is Outcome.CUT_SHORT and len(reader.record.times) == 6


@pytest.mark.parametrize("fault", ["many_per_chunk=3", "no_done", ""])
def test_by_chunks_too_each_event_counts_wherever_http_cuts(fault: str) -> None:
    """A proxy frames anew what it reads at once: two events are one HTTP chunk then."""
    writes, _ = written(fault)
    reader = read([b"".join(writes)], "chunked")
    record = reader.record
    assert (reader.outcome, len(record.times), record.lost, record.wrong) == (Outcome.COMPLETE, TOKENS, 0, 0)


def test_by_chunks_too_what_has_not_come_is_lost() -> None:
    writes, _ = written("no_done")
    tokens = [write for write in writes if b"content" in write and b"event-stream" not in write]
    reader = read([write for write in writes if write is not tokens[4]], "chunked")
    assert (reader.outcome, reader.record.lost) == (Outcome.COMPLETE, 1)


def test_of_plain_text_each_chunk_is_content_however_it_is_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"5\r\n one1\r\n6\r\n two22\r\n0\r\n\r\n"
    for pieces in ([head + body], [head, *(body[at : at + 1] for at in range(len(body)))]):
        record = Record(0, 0)
        reader = AnswerReader(record, DOORS["chunked"], never)
        for number, data in enumerate(pieces):
            reader.receive_data(data, number)
        assert reader.outcome is Outcome.COMPLETE and reader.reusable and len(record.times) == 2


# However it is cut.


@pytest.mark.parametrize(
    "fault", ["", "crlf", "comments", "reset_inside=6", "error_event=5", "many_per_chunk=3", "no_done", "ids"]
)
@given(cuts=st.sets(st.integers(1, 4000), max_size=12))
def test_what_is_noted_does_not_depend_on_how_reads_were_cut(fault: str, cuts: set[int]) -> None:
    whole = b"".join(written(fault)[0])
    places = [0, *sorted(at for at in cuts if at < len(whole)), len(whole)]
    found = []
    for pieces in ([whole], [whole[start:end] for start, end in pairwise(places)]):
        reader = read(pieces, step_ns=1)
        reader.receive_eof(is_reset=fault.startswith("reset"))
        record = reader.record
        found.append((reader.outcome, len(record.times), record.events, record.told_tokens, record.lost, record.wrong))
    assert found[0] == found[1]
