"""Rows on framing: the same events, cut in every way in which a network and an engine can cut them.

What lives here: scripts whose bytes are right and unusual, and what must come of them. What must not: breaks (rows_endings.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ..wire.chunked import LAST_CHUNK, encode_chunk
from .checks import Check, both, intact, intact_without_done
from .meaning import read_meaning
from .recording import Play, Recording
from .row import CHAT_STREAM, EVERY, STREAMED, Row
from .saying import (
    CODED,
    DONE,
    Ask,
    Last,
    Pause,
    coded,
    deltas,
    dump,
    event,
    finish,
    head,
    payload,
    role,
    said,
    sized,
    spaced,
    stream,
    whole_json,
    words,
)
from .stage import plain

BIG_BYTES = 1 << 20
BURST_EVENTS = 2000
HIGH = "漢🙂🙂🙂é"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"


def _cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The bytes in pieces that begin at these places."""
    at = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(at) if end > start]


def _inside_code_points(data: bytes) -> list[int]:
    """One place inside each code point of several bytes: behind its first, second and third byte in turn."""
    places, turn = [], 0
    for at, byte in enumerate(data):
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 0
        if length:
            places.append(at + 1 + turn % (length - 1))
            turn += length == 4
    return places


def split_code_points(ask: Ask) -> Play:
    """Every code point of several bytes lies in two reads and in two pieces of the body."""
    texts = [f"{ask.nonce}.0 ", *HIGH, f" {ask.nonce}.1"]
    if not ask.streamed:
        body = whole_json(ask, "".join(texts))
        answer = sized(body)
        return said(texts, *spaced(_cut(answer, _inside_code_points(answer))))
    body = b"".join(stream(ask, texts))
    return said(texts, CODED, *spaced(coded(_cut(body, _inside_code_points(body)))))


def byte_by_byte(ask: Ask) -> Play:
    """Each byte of the body is a write of its own."""
    texts = [f"{ask.nonce}.0 ", "漢"]
    if not ask.streamed:
        body = whole_json(ask, "".join(texts))
        return said(texts, head(kind="application/json", length=len(body)), *spaced(_bytes(body), 0.0005))
    body = b"".join(coded(stream(ask, texts)))
    return said(texts, CODED, *spaced(_bytes(body), 0.0005))


def _bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def events_in_halves(ask: Ask) -> Play:
    """Each event's halves come in two writes and two pieces of the body."""
    texts = words(ask)
    halves = [half for each in stream(ask, texts) for half in _cut(each, [len(each) // 2])]
    return said(texts, CODED, *spaced(coded(halves)))


def line_ends_in_halves(ask: Ask) -> Play:
    """The empty line behind each event comes with the next event."""
    body = b"".join(stream(ask, texts := words(ask)))
    places = [at + 1 for at in range(len(body)) if body.startswith(b"\n\n", at)]
    return said(texts, CODED, *spaced(coded(_cut(body, places))))


def one_write(ask: Ask) -> Play:
    """Head, events and end in one write."""
    texts = words(ask, 12)
    return said(texts, CODED + b"".join(coded(stream(ask, texts))))


def one_piece(ask: Ask) -> Play:
    """All events in one piece of the chunked body."""
    texts = words(ask, 12)
    return said(texts, CODED, encode_chunk(b"".join(stream(ask, texts))), LAST_CHUNK)


def _with_line_ends(line_end: bytes) -> object:
    def script(ask: Ask) -> Play:
        texts = words(ask)
        body = [each.replace(b"\n", line_end) for each in stream(ask, texts)]
        return said(texts, CODED, *spaced(coded(body), 0.005))

    return script


def mixed_line_ends(ask: Ask) -> Play:
    """Each event ends its lines in another way, and a CRLF is cut between two writes."""
    texts, ends = words(ask, 6), (b"\n", b"\r\n", b"\r")
    events = [each.replace(b"\n", ends[i % 3]) for i, each in enumerate(stream(ask, texts))]
    body = b"".join(events)
    places = [at + 1 for at in range(len(body)) if body.startswith(b"\r\n", at)]
    return said(texts, CODED, *spaced(coded(_cut(body, places))))


def byte_order_mark(ask: Ask) -> Play:
    """A BOM before the first event."""
    first, *others = deltas(ask, texts := words(ask))
    return said(texts, CODED, *coded([b"\xef\xbb\xbf" + first, *others, finish(ask), DONE]))


def comments(ask: Ask) -> Play:
    """Comments between events, alone and inside an event's block."""
    texts = words(ask)
    body = [piece for each in stream(ask, texts) for piece in (b": ping\n\n", b":\n" + each)]
    return said(texts, CODED, *spaced(coded(body), 0.005))


def no_space(ask: Ask) -> Play:
    """No space behind the colon."""
    texts = words(ask)
    body = [each.replace(b"data: ", b"data:", 1) for each in stream(ask, texts)]
    return said(texts, CODED, *spaced(coded(body), 0.005))


def many_lines(ask: Ask) -> Play:
    """One event's JSON over three data lines."""
    texts = words(ask)
    lines = [b"data: " + payload(ask, text).replace(b', "', b',\ndata: "') + b"\n\n" for text in texts]
    return said(texts, CODED, *coded([*role(ask), *lines, finish(ask), DONE]))


def other_fields(ask: Ask) -> Play:
    """Events with an id, a name and a retry beside their data."""
    texts = words(ask)
    body = [b"id: %d\nevent: message\nretry: 10\n" % i + each for i, each in enumerate(stream(ask, texts))]
    return said(texts, CODED, *coded(body))


def large(ask: Ask) -> Play:
    """A mebibyte in one event, or in a whole answer."""
    texts = [f"{ask.nonce}.0 ", "x" * BIG_BYTES, f" {ask.nonce}.1"]
    if not ask.streamed:
        return said(texts, sized(whole_json(ask, "".join(texts))))
    return said(texts, CODED, *coded(stream(ask, texts)))


def burst(ask: Ask) -> Play:
    """Thousands of small events without a pause."""
    texts = words(ask, BURST_EVENTS)
    return said(texts, CODED, b"".join(coded(stream(ask, texts))))


def unended(ask: Ask) -> Play:
    """The last event, the end marker, lacks its empty line."""
    texts = words(ask)
    body = stream(ask, texts)
    return said(texts, CODED, *coded([*body[:-1], DONE.rstrip(b"\n")]))


def finish_unended(ask: Ask) -> Play:
    """The last event, with the finish, lacks its empty line, and there is no end marker."""
    texts = words(ask)
    return said(texts, CODED, *coded([*role(ask), *deltas(ask, texts), finish(ask).rstrip(b"\n")]))


def until_close(ask: Ask) -> Play:
    """The body ends with the connection."""
    texts = words(ask)
    if not ask.streamed:
        return said(texts, head(kind="application/json"), whole_json(ask, "".join(texts)), Last.FIN)
    return said(texts, head(), *spaced(stream(ask, texts), 0.005), Last.FIN)


def with_length(ask: Ask) -> Play:
    """A stream whose length is told."""
    texts = words(ask)
    body = b"".join(stream(ask, texts))
    return said(texts, head(length=len(body)), *spaced(_cut(body, range(40, len(body), 97)), 0.005))


def hostile_text(ask: Ask) -> Play:
    """Text that looks like framing, and code points that some languages take for line ends."""
    texts = [f"{ask.nonce}.0 ", "\u2028\u2029\u0085\u000b", "\n\ndata: [DONE]\n\n", '\\n\u0000"', "[DONE]"]
    if not ask.streamed:
        return said(texts, sized(whole_json(ask, "".join(texts))))
    return said(texts, CODED, *spaced(coded(stream(ask, texts)), 0.005))


def interim(ask: Ask) -> Play:
    """An interim answer (103) comes before the final one."""
    texts = words(ask)
    if not ask.streamed:
        return said(texts, INTERIM, Pause(), sized(whole_json(ask, "".join(texts))))
    return said(texts, INTERIM, Pause(), CODED, *coded(stream(ask, texts)))


def usage_last(ask: Ask) -> Play:
    """An event without choices, with the usage, behind the finish."""
    texts = words(ask)
    usage = {"prompt_tokens": 3, "completion_tokens": 41, "total_tokens": 44}
    last = event(dump({"id": f"cmpl-{ask.nonce}", "object": "chat.completion.chunk", "created": 1, "model": "conform",
                       "choices": [], "usage": usage}))  # fmt: skip
    return said(texts, CODED, *coded([*role(ask), *deltas(ask, texts), finish(ask) + last + DONE]))


def has_usage(recording: Recording) -> str:
    """The usage came, once."""
    used = [each["usage"] for each in read_meaning(recording.answer).objects if isinstance(each.get("usage"), dict)]
    tokens = [each.get("completion_tokens") for each in used]
    return "" if tokens.count(41) == 1 else f"usage {tokens or 'is missing'}"


CALLS = (("call_a", "first", '{"a": "漢'), ("call_b", "second", '{"b": [1'))
REST = ('字"}', ", 2]}")


def tool_calls(ask: Ask) -> Play:
    """Two tool calls whose arguments come in turns."""
    pieces: list[dict[str, object]] = [
        {"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": start}}
        for i, (id, name, start) in enumerate(CALLS)
    ] + [{"index": i, "function": {"arguments": rest}} for i, rest in enumerate(REST)]
    events = [event(payload(ask, "", tool_calls=[piece])) for piece in pieces]
    return Play((CODED, *coded([*role(ask), *events, finish(ask, "tool_calls"), DONE])), "", "tool_calls")


def has_calls(recording: Recording) -> str:
    """Both calls have their own arguments."""
    got: dict[int, str] = {}
    for value in read_meaning(recording.answer).objects:
        for call in (value.get("choices") or [{}])[0].get("delta", {}).get("tool_calls") or []:
            index = call.get("index", 0)
            got[index] = got.get(index, "") + (call.get("function", {}).get("arguments") or "")
    wanted = {i: start + rest for i, ((_, _, start), rest) in enumerate(zip(CALLS, REST, strict=True))}
    return "" if got == wanted else f"arguments {got}"


def reasoning(ask: Ask) -> Play:
    """Deltas with reasoning and no content, before the text."""
    texts = words(ask)
    thoughts = [event(payload(ask, "", reasoning_content=f"think{i} ")) for i in range(3)]
    return said(texts, CODED, *coded([*role(ask), *thoughts, *deltas(ask, texts), finish(ask), DONE]))


def has_reasoning(recording: Recording) -> str:
    """The reasoning came, in order."""
    got = "".join(
        (value.get("choices") or [{}])[0].get("delta", {}).get("reasoning_content") or ""
        for value in read_meaning(recording.answer).objects
    )
    return "" if got == "think0 think1 think2 " else f"reasoning {got!r}"


def _row(name: str, script: object, texts: tuple[str, str], reports: Sequence[str] = (), **more: object) -> Row:
    """A framing row. ``texts``: what is sent, and why it matters."""
    assert callable(script)
    check = more.get("check", intact)
    forms = more.get("forms", STREAMED)
    must = more.get("must", "the text, the finish and the end marker, once each and nothing else")
    scene = plain(script, changes=more.get("changes", {}))
    return Row(name, "framing", forms, scene, check, texts[0], str(must), texts[1], reports)  # type: ignore[arg-type]


_CHECKED: Check = both(intact, has_usage)

ROWS: tuple[Row, ...] = (
    _row("split-code-points", split_code_points, (
        "code points of two to four bytes, each cut between two reads (1|3, 2|2, 3|1)",
        "Who decodes each read by itself puts U+FFFD into Chinese text and emoji, or gives the stream up.",
    ), ("api7/aisix#111", "xberg-io/liter-llm#152"), forms=EVERY, must="every code point as it was"),
    _row("byte-by-byte", byte_by_byte, (
        "every byte of the body in a write of its own",
        "A slow link cuts anywhere; a parser that needs luck loses the last event, and its usage, first.",
    ), ("envoyproxy/ai-gateway#2162",), forms=EVERY, must="the same as in one write"),
    _row("events-in-halves", events_in_halves, (
        "each event in two reads and two HTTP chunks",
        "Who splits each read into lines throws half lines away.",
    ), ("higress#4620",)),
    _row("line-ends-in-halves", line_ends_in_halves, (
        "each event's empty line comes with the next event",
        "A search for two line feeds in one read misses the end of every event.",
    ), ("envoyproxy/ai-gateway#2162",)),
    _row("many-events-one-write", one_write, (
        "the head, 12 events and the end in one write",
        "Who takes one event per read loses the others.",
    ), ("higress#1606",)),
    _row("many-events-one-piece", one_piece, (
        "12 events in one HTTP chunk",
        "Who takes an HTTP chunk for an event parses twelve as one.",
    ), ("higress#1606",)),
    _row("crlf", _with_line_ends(b"\r\n"), (
        "lines that end in CRLF", "Only `\\n\\n` was known as an event's end, and nothing was ever found.",
    ), ("envoyproxy/ai-gateway#1398",)),
    _row("cr", _with_line_ends(b"\r"), (
        "lines that end in CR alone", "The format has three line ends; an engine behind a proxy may use any.",
    ), ("envoyproxy/ai-gateway#1398",)),
    _row("mixed-line-ends", mixed_line_ends, (
        "LF, CRLF and CR in turns, each CRLF cut between two reads",
        "The LF of a cut CRLF looks like an empty line, and ends an event too early.",
    ), ("envoyproxy/ai-gateway#1398",)),
    _row("byte-order-mark", byte_order_mark, (
        "a BOM before the first event", "The format allows one; with it the first line is not `data:` any more.",
    )),
    _row("comments", comments, (
        "comments between events and inside their blocks",
        "Engines send pings as comments; whoever takes them for events crashes, or crashes the client.",
    ), ("openai-python#2722",)),
    _row("no-space", no_space, (
        "`data:{` without the space", "The space is optional; without it events were ignored and the usage was 0.",
    ), ("envoyproxy/ai-gateway#2470",)),
    _row("many-data-lines", many_lines, (
        "one event's JSON over several data lines", "Lines of one event belong together; each alone is no JSON.",
    )),
    _row("other-fields", other_fields, (
        "events with id, event and retry lines", "Who expects `data:` first finds none.",
    ), ("openai-python#2722",)),
    _row("large-event", large, (
        "one event (or a whole answer) of a mebibyte",
        "Line readers give up at 64 or 128 KiB, and an image or a tool's arguments is longer than that.",
    ), ("ferro-labs/ai-gateway#129", "open-webui#10302"), forms=EVERY),
    _row("burst", burst, (
        "2,000 events without a pause", "What is queued per event overflows, or comes out of order.",
    )),
    _row("last-event-unended", unended, (
        "an end marker without its empty line", "The last event was dropped, and clients waited for the end marker.",
    ), ("higress#4620",), check=intact),
    _row("finish-unended", finish_unended, (
        "a last event, with the finish, that lacks its empty line, and no end marker",
        "The finish was dropped, so a whole answer looked like a broken one.",
    ), ("higress#4620",), check=intact_without_done, must="the text and the finish"),
    _row("until-close", until_close, (
        "a body that ends with the connection", "HTTP/1.0 engines and some proxies send no length at all.",
    ), forms=EVERY),
    _row("with-length", with_length, (
        "a stream with Content-Length", "A length that is kept on a stream framed anew cuts it.",
    ), ("envoyproxy/ai-gateway#2391",)),
    _row("hostile-text", hostile_text, (
        "text with U+2028, U+0085, `data: [DONE]` and a NUL in it",
        "Python's splitlines and others break lines where the format does not.",
    ), forms=EVERY),
    _row("interim-answer", interim, (
        "103 Early Hints before the answer", "An interim answer taken for the final one is an empty answer.",
    ), forms=EVERY),
    _row("usage-event", usage_last, (
        "finish, usage (with empty choices, asked for) and end marker in one read",
        "An empty list of choices crashes readers, and what shares its read was mangled.",
    ), ("gpustack#6155",), check=_CHECKED,
       changes={"stream_options": {"include_usage": True}}, must="all three, the usage once"),
    _row("tool-calls", tool_calls, (
        "two tool calls whose arguments come in turns",
        "Arguments added to whatever call came last become JSON that nobody can read.",
    ), ("bifrost#1829", "QwenLM/Qwen-Agent#943"), forms=CHAT_STREAM, check=both(intact, has_calls),
       must="each call with its own arguments"),
    _row("reasoning", reasoning, (
        "deltas with reasoning before the text", "Deltas of an unknown kind were held back: minutes of silence.",
    ), ("bifrost#5111",), forms=CHAT_STREAM, check=both(intact, has_reasoning), must="reasoning and text"),
)  # fmt: skip
