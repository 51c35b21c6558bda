"""Each fault by name: what it puts on the wire, and how it ends."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.fault import FAULTS, FaultError, Stage
from longwire.sim.faults import choose
from longwire.sim.reply import TURN, Ending
from longwire.sim.server import SimServer
from longwire.wire.chunked import ChunkedDecoder, ChunkedError
from longwire.wire.framer import EventFramer
from longwire.wire.http1 import Http1Error, parse_response_head
from longwire.wire.sse import parse_event

TEXT = answer_text(3, 5)


def ask(server: SimServer, *faults: str, **body: Any) -> Played:
    return play(server, encode_request({"stream": True, "messages": [], "sim": {"fault": list(faults)}, **body}))


def canonical(played: Played) -> list[bytes]:
    """The events as the gateway's own framer finds them, however they are written and cut."""
    head = played.head
    body = played.raw.partition(b"\r\n\r\n")[2]
    framer = EventFramer(head.chunked, head.content_length, strip=True, max_event_bytes=1 << 24)
    found = framer.feed(body, 0) + framer.close()
    return [data for event in found if not event.silent and (data := parse_event(event.block).data) is not None]


@pytest.fixture
def sound(server: SimServer) -> list[bytes]:
    """The events of an answer without faults."""
    return masked(ask(server).data)


def masked(data: list[bytes]) -> list[bytes]:
    """Without what tells one answer from the next: its number and time."""
    return [re.sub(rb'"id":"[^"]*"|"created":\d+', b"", payload) for payload in data]


# The table.


def test_each_fault_says_in_one_line_what_it_does() -> None:
    assert len(FAULTS) >= 40
    for name, fault in FAULTS.items():
        assert fault.name == name
        assert 10 < len(str(fault)) < 100
        assert "\n" not in fault.help and not fault.help.endswith(".")
        assert (fault.to_ask is None) == (fault.stage is not Stage.ASK)


def test_names_are_read_with_dashes_and_several_at_once() -> None:
    chosen = choose(["stall-after=3, crlf", "no_done"])
    assert [(choice.fault.name, choice.arg) for choice in chosen] == [("no_done", 0), ("stall_after", 3), ("crlf", 0)]
    assert choose(["none"]) == choose([]) == choose([""]) == []


@pytest.mark.parametrize(
    "text", ["stal_after=3", "stall_after", "stall_after=x", "stall_after=-1", "status=200", "split_chunks=0"]
)
def test_a_wrong_name_or_argument_is_one_sentence(text: str) -> None:
    with pytest.raises(FaultError, match=r"^[A-Z s].*\.$"):
        choose([text])


def test_every_fault_ends(server: SimServer) -> None:
    """Whatever it is, a client sees an end or a silence, for streams and whole answers alike."""
    for name, fault in FAULTS.items():
        if name == "endless_event":
            continue
        text = name if fault.default is not None else f"{name}={max(fault.low, 2)}"
        for stream in (True, False):
            assert ask(server, text, stream=stream).ending is not None, name


@pytest.mark.parametrize("other", ["crlf", "split_chunks=7", "many_per_chunk=3", "one_byte", "ids", "content_length"])
def test_faults_mean_the_same_in_any_order(server: SimServer, other: str) -> None:
    one, two = ask(server, "stall_after=3", other), ask(server, other, "stall_after=3")
    assert masked(one.data) == masked(two.data)
    assert len(one.writes) == len(two.writes)
    assert one.ending is two.ending is Ending.STALL


# Endings.


@pytest.mark.parametrize(
    ("name", "ending"), [("stall_after", Ending.STALL), ("reset_after", Ending.RESET), ("close_after", Ending.CLOSE)]
)
@pytest.mark.parametrize("after", [0, 1, 4, 100])
def test_cut_after_n_events(server: SimServer, sound: list[bytes], name: str, ending: Ending, after: int) -> None:
    played = ask(server, f"{name}={after}")
    assert masked(played.data) == sound[:after]
    assert played.ending is ending
    assert not played.raw.endswith(b"0\r\n\r\n")


def test_comments_do_not_count_as_events(server: SimServer, sound: list[bytes]) -> None:
    assert masked(ask(server, "close_after=3", "comments").data) == sound[:3]


def test_headers_then_stall(server: SimServer) -> None:
    played = ask(server, "headers_then_stall")
    assert played.head.status == 200
    assert (played.body, played.ending) == (b"", Ending.STALL)


def test_hang(server: SimServer) -> None:
    played = ask(server, "hang")
    assert (played.raw, played.ending) == (b"", Ending.STALL)


def test_garbage_instead_of_http(server: SimServer) -> None:
    played = ask(server, "garbage")
    assert played.ending is Ending.CLOSE
    with pytest.raises(Http1Error):
        parse_response_head(played.raw)


def test_garbage_in_place_of_a_chunk(server: SimServer) -> None:
    played = ask(server, "garbage_after=2")
    assert played.ending is Ending.CLOSE
    body = played.raw.partition(b"\r\n\r\n")[2]
    with pytest.raises(ChunkedError):
        ChunkedDecoder().feed(body)
    assert body.count(b"data: ") == 2


def test_half_head(server: SimServer) -> None:
    whole, played = ask(server), ask(server, "half_head")
    head = whole.writes[0]
    assert played.writes == [head[: len(head) // 2]]
    assert played.ending is Ending.CLOSE


# Events.


def test_no_done(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "no_done")
    assert masked(played.data) == sound[:-1]
    assert played.ending is Ending.DONE and played.raw.endswith(b"0\r\n\r\n")


def test_no_finish(server: SimServer, sound: list[bytes]) -> None:
    assert masked(ask(server, "no_finish").data) == [*sound[:-2], b"[DONE]"]


def test_two_done(server: SimServer, sound: list[bytes]) -> None:
    assert masked(ask(server, "two_done").data) == [*sound, b"[DONE]"]


def test_after_done(server: SimServer, sound: list[bytes]) -> None:
    assert masked(ask(server, "after_done").data) == [*sound, sound[1]]


def test_empty(server: SimServer) -> None:
    played = ask(server, "empty")
    assert played.head.get(b"content-type") == b"text/event-stream; charset=utf-8"
    assert (played.body, played.ending) == (b"", Ending.DONE)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_error_event(server: SimServer, sound: list[bytes], after: int) -> None:
    *before, error = ask(server, f"error_event={after}").data
    assert masked(before) == sound[:after]
    assert json.loads(error)["error"]["code"] == "sim_error"


def test_vllm_error_event(server: SimServer, sound: list[bytes]) -> None:
    *before, error, done = ask(server, "vllm_error_event=2").data
    assert masked(before) == sound[:2]
    assert json.loads(error)["object"] == "error"
    assert done == b"[DONE]"


@pytest.mark.parametrize("size", [256, 5000, 1 << 20])
def test_big_event(server: SimServer, sound: list[bytes], size: int) -> None:
    played = ask(server, f"big_event={size}")
    assert len(played.blocks[1]) == size
    assert json.loads(played.data[1])["choices"][0]["delta"]["content"].strip("x") == ""
    assert masked([played.data[0], *played.data[2:]]) == sound


def test_endless_event(server: SimServer) -> None:
    played = play(server, encode_request({"stream": True, "sim": {"fault": "endless_event"}}), most_steps=22)
    assert played.ending is None
    endless = played.body.split(b"\n\n")[1]
    assert len(endless) > 1_000_000 and b"\n" not in endless


def test_comments(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "comments")
    assert played.blocks[::2] == [b": ping\n\n"] * len(sound)
    assert masked(played.data) == sound


def test_usage_in_choices(server: SimServer) -> None:
    played = ask(server, "usage_in_choices", stream_options={"include_usage": True})
    assert played.frames[-1]["choices"][0]["finish_reason"] == "stop"
    assert played.frames[-1]["usage"]["completion_tokens"] == 5
    assert sum("usage" in frame for frame in played.frames) == 1


def test_continuous_usage(server: SimServer) -> None:
    assert sum("usage" in frame for frame in ask(server, "continuous_usage").frames) == 5


def test_no_usage(server: SimServer) -> None:
    assert not any("usage" in frame for frame in ask(server, "no_usage", stream_options={"include_usage": True}).frames)


def test_refuse_stream_options(server: SimServer) -> None:
    assert ask(server, "refuse_stream_options").head.status == 200
    played = ask(server, "refuse_stream_options", stream_options={"include_usage": True})
    assert played.head.status == 400
    assert "stream_options" in played.json["error"]["message"]


@pytest.mark.parametrize("code", [400, 401, 404, 429, 500, 503, 529])
def test_status(server: SimServer, code: int) -> None:
    played = ask(server, f"status={code}")
    assert played.head.status == code
    assert played.json["error"]["code"] == f"sim_{code}"
    assert played.ending is Ending.DONE


@pytest.mark.parametrize(("text", "code"), [("html", 200), ("html=502", 502)])
def test_html(server: SimServer, text: str, code: int) -> None:
    played = ask(server, text)
    assert (played.head.status, played.head.get(b"content-type")) == (code, b"text/html; charset=utf-8")
    assert played.body.startswith(b"<!DOCTYPE html>")


# Time.


def test_slow_first_token_sends_the_head_at_once(server: SimServer) -> None:
    played = ask(server, "slow_first_token=9000")
    assert played.pauses[0] == 9.0
    assert played.writes[0].endswith(b"\r\n\r\n")


def test_slow_headers_comes_before_the_head(server: SimServer) -> None:
    assert ask(server, "slow_headers=700").pauses[:2] == [0.7, 0.05]
    assert ask(server, "slow_headers", "status=500").pauses == [1.0]


# How events are written: whatever it is, the same events are found.


@pytest.mark.parametrize("name", ["crlf", "cr", "mixed", "bom", "ids", "no_space", "comments"])
@pytest.mark.parametrize(
    "cut", ["none", "split_chunks=1", "split_chunks=11", "many_per_chunk=3", "content_length", "close_delimited"]
)
def test_styles_change_the_bytes_and_not_the_events(server: SimServer, sound: list[bytes], name: str, cut: str) -> None:
    played = ask(server, name, cut)
    assert masked(canonical(played)) == sound
    assert played.body != ask(server).body


def test_line_ends(server: SimServer) -> None:
    assert b"\n" not in ask(server, "crlf").body.replace(b"\r\n", b"")
    assert b"\n" not in ask(server, "cr").body
    body = ask(server, "mixed").body
    assert all(end in body for end in (b"}\r\n", b"}\n", b"}\r\r\n"))


def test_ids(server: SimServer) -> None:
    assert ask(server, "ids").blocks[2].startswith(b"id: 2\nretry: 1000\ndata: {")


def test_a_byte_order_mark_comes_once(server: SimServer) -> None:
    body = ask(server, "bom").body
    assert body.startswith(b"\xef\xbb\xbfdata: ") and body.count(b"\xef\xbb\xbf") == 1


def test_whole_answers_keep_their_json(server: SimServer) -> None:
    for name in ("crlf", "cr", "mixed", "bom", "ids", "no_space", "comments", "many_per_chunk=2", "split_chunks=9"):
        played = ask(server, name, stream=False)
        body = played.body.replace(b": ping\n\n", b"")
        assert json.loads(body)["choices"][0]["message"]["content"] == TEXT, name


# How they are cut and framed.


def http_chunks(played: Played) -> list[bytes]:
    """The HTTP chunks' contents, one by one."""
    rest = played.raw.partition(b"\r\n\r\n")[2]
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return found


def test_many_per_chunk(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "many_per_chunk=3")
    assert [chunk.count(b"data: ") for chunk in http_chunks(played)] == [3, 3, 2, 0]
    assert masked(played.data) == sound


def test_split_chunks(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "split_chunks=10")
    assert max(len(chunk) for chunk in http_chunks(played)) == 10
    assert masked(played.data) == sound


def test_pieces_are_made_in_the_order_that_is_asked_for(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "many_per_chunk=3", "split_chunks=400")
    assert any(chunk.count(b"data: ") == 2 for chunk in http_chunks(played))
    assert masked(played.data) == sound


def test_what_is_held_back_is_sent_before_a_cut(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "many_per_chunk=10", "reset_after=4")
    assert masked(played.data) == sound[:4]


def test_gzip(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "gzip")
    assert played.head.get(b"content-encoding") == b"gzip"
    assert gzip.decompress(played.body).count(b"data: ") == len(sound)
    whole = ask(server, "gzip", stream=False)
    assert json.loads(gzip.decompress(whole.body))["choices"]


def test_content_length(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "content_length")
    assert played.head.content_length == len(played.body)
    assert masked(played.data) == sound
    assert played.ending is Ending.DONE


def test_a_cut_body_falls_short_of_its_content_length(server: SimServer) -> None:
    played = ask(server, "content_length", "stall_after=2")
    assert played.head.content_length is not None and played.head.content_length > len(played.body)
    assert played.ending is Ending.STALL


def test_wrong_length(server: SimServer) -> None:
    played = ask(server, "wrong_length=7", stream=False)
    assert played.head.content_length == len(played.body) + 7
    assert played.ending is Ending.CLOSE


def test_a_body_without_end_is_not_gathered_for_ever(server: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longwire.sim.reply.MAX_SIZED_BYTES", 1 << 20)
    assert ask(server, "content_length", "endless_event").head.content_length is not None


def test_close_delimited(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "close_delimited")
    assert (played.head.minor, played.head.content_length, played.head.keep_alive) == (0, None, False)
    assert masked(played.data) == sound
    assert played.ending is Ending.CLOSE


def test_upper_hex(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "upper_hex")
    sizes = re.findall(rb"^([0-9A-Fa-f]+)\r\n", played.raw.partition(b"\r\n\r\n")[2], re.MULTILINE)
    assert any(size.isupper() and size.startswith(b"00") for size in sizes)
    assert masked(played.data) == sound


def test_wrong_type(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "wrong_type")
    assert played.head.get(b"content-type") == b"application/json"
    assert masked(played.data) == sound


# The wire.


def test_one_byte(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "one_byte")
    assert {len(write) for write in played.writes} == {1}
    assert played.pauses.count(TURN) == len(played.writes)
    assert masked(played.data) == sound


def test_early_hints(server: SimServer) -> None:
    raw = ask(server, "early_hints").raw
    hints, final = raw.split(b"\r\n\r\n")[:2], raw.split(b"\r\n\r\n", 2)[2]
    assert [hint.split(b" ")[1] for hint in hints] == [b"102", b"103"]
    assert final.startswith(b"HTTP/1.1 200 OK\r\n")


def test_reuse_bytes(server: SimServer) -> None:
    played = ask(server, "reuse_bytes", stream=False)
    surplus = played.body[played.head.content_length :]
    assert surplus.startswith(b"HTTP/1.1 200 OK\r\n") and surplus.endswith(b'{"sim":"smuggled"}')
    assert played.ending is Ending.DONE
    head, _, body = surplus.partition(b"\r\n\r\n")
    assert parse_response_head(head + b"\r\n\r\n").content_length == len(body)


def test_die_idle_answers_first(server: SimServer, sound: list[bytes]) -> None:
    played = ask(server, "die_idle")
    assert masked(played.data) == sound
    assert played.ending is Ending.DONE
