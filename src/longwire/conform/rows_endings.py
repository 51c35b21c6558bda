"""Rows on endings: every way in which an answer can break, and that none of them becomes a success.

What lives here: scripts that break, and what must come of them. What must not: refusals with a status of their own
(rows_errors.py).
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence

from ..wire.chunked import encode_chunk
from .answers import Answer
from .checks import (
    NOTHING,
    SENT_DONE,
    Check,
    answer_intact,
    both,
    error_arrives,
    honest,
    intact_without_done,
    no_success,
    server_error,
    told,
)
from .meaning import read_meaning
from .recording import Play, Recording
from .row import EVERY, STREAMED, WHOLE, Group, Row
from .saying import (
    CODED,
    DONE,
    Ask,
    Last,
    Pause,
    Script,
    coded,
    deltas,
    dump,
    event,
    finish,
    head,
    role,
    sized,
    whole_json,
    words,
)
from .stage import plain

WORDS = "the model fell over"
HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"


def broken(*tail: object, last: object = None, sends: str = NOTHING) -> Script:
    """Some events, then ``tail``. ``sends``: what of an ending the engine has sent."""

    def script(ask: Ask) -> Play:
        texts = words(ask, 3)
        begin = coded([*role(ask), *deltas(ask, texts)], last=False)
        steps = (CODED, *begin, Pause(0.05), *tail, *([last] if last is not None else []))
        return Play(steps, "".join(texts), sends)

    return script


def before_events(*steps: object) -> Script:
    """Nothing of an answer, only these."""
    return lambda _: Play(steps, "", NOTHING)


def inside_an_event(last: Last) -> Script:
    """The break comes in the middle of an event's bytes."""

    def script(ask: Ask) -> Play:
        texts = words(ask, 3)
        whole = b"".join(coded([*role(ask), *deltas(ask, texts)], last=False))
        half = deltas(ask, ["never whole"])[0][:30]
        return Play((CODED, whole, Pause(0.05), encode_chunk(half), Pause(0.05), last), "".join(texts), NOTHING)

    return script


def in_the_body(last: Last) -> Script:
    """A whole answer that is cut in the middle of its JSON."""

    def script(ask: Ask) -> Play:
        body = whole_json(ask, "".join(words(ask)))
        begin = sized(body)[: -len(body) // 2]
        return Play((begin, Pause(0.05), last), "", NOTHING)

    return script


def error_inside(body: bytes, *more: bytes) -> Script:
    """Some events, an error, and a clean end."""
    return broken(*coded([body, *more]))


def gzipped(ask: Ask) -> Play:
    """An answer in gzip that nobody has asked for."""
    texts = words(ask)
    plain_body = b"".join([*role(ask), *deltas(ask, texts), finish(ask), DONE])
    fields = ("Content-Encoding", "gzip")
    if not ask.streamed:
        return Play((sized(gzip.compress(whole_json(ask, "".join(texts)), mtime=0), fields),), "".join(texts))
    packed = gzip.compress(plain_body, mtime=0)
    cut = len(packed) // 2
    return Play((head(fields, coded=True), *coded([packed[:cut], packed[cut:]])), "".join(texts))


def readable_or_refused(recording: Recording) -> str:
    """The text, however it is packed, or an honest error; never a stream of rubbish."""
    answer = recording.answer
    if answer.status >= 500 or read_meaning(answer).errors or answer.end == "cut":
        return honest(recording)
    return answer_intact(answer, recording.play)


def json_for_a_stream(ask: Ask) -> Play:
    """The engine does not stream, although it was asked to."""
    text = "".join(words(ask))
    return Play((sized(whole_json(ask, text)),), text)


def text_or_error(recording: Recording) -> str:
    """The text in whatever form, or an honest error; not an empty answer."""
    answer: Answer = recording.answer
    if answer.end == "open":
        return "it does not end"
    meaning = read_meaning(answer)
    if answer.status >= 500 or meaning.errors or answer.end == "cut" or meaning.text == recording.play.text:
        return ""
    return f"status {answer.status} and {len(meaning.text)} characters of {len(recording.play.text)}"


def ends_soon(recording: Recording) -> str:
    """The answer is over although the engine holds its connection."""
    return "it does not end" if recording.answer.end == "open" else ""


NO_SUCCESS = (
    "an error, a status that says so, or a visible cut; no finish and no end marker that the engine did not send"
)
FAILURE = "5xx"


def _row(name: str, script: Script, texts: tuple[str, str], reports: Sequence[str] = (), **more: object) -> Row:
    """A row on endings. ``texts``: what is sent, and why it matters."""
    check = more.get("check", honest)
    group: Group = more.get("group", "endings")  # type: ignore[assignment]
    must = str(more.get("must", NO_SUCCESS))
    return Row(name, group, more.get("forms", STREAMED), plain(script), check, texts[0], must, texts[1], reports)  # type: ignore[arg-type]


_ERROR = {"error": {"message": WORDS, "type": "server_error", "param": None, "code": 500}}
_VLLM = {"object": "error", "message": WORDS, "type": "InternalServerError", "code": 500}
_ARRIVES: Check = error_arrives(WORDS)
_WORDS_ARRIVE = "the engine's words as an error"

ROWS: tuple[Row, ...] = (
    _row("reset-before-head", before_events(Last.RESET), (
        "a reset instead of an answer", "After a reset an empty `stop` with status 200 came out, once in fifteen requests.",
    ), ("litellm#33222",), forms=EVERY, check=server_error, must=FAILURE),
    _row("close-before-head", before_events(Last.FIN), (
        "a close instead of an answer", "An engine that is stopped closes first; clients must know that they can ask again.",
    ), ("litellm#33222",), forms=EVERY, check=server_error, must=FAILURE),
    _row("garbage-before-head", before_events(b"\x16\x03\x01\x02\x00no http\r\n\r\n", Last.FIN), (
        "bytes that are no HTTP", "A TLS port or another service at an engine's address answers like this.",
    ), forms=EVERY, check=server_error, must=FAILURE),
    _row("reset-before-first-event", before_events(CODED, Pause(0.05), Last.RESET), (
        "a head, then a reset", "It became an empty answer that looked whole.",
    ), ("litellm#33222",)),
    _row("reset-between-events", broken(last=Last.RESET), (
        "some events, then a reset", "It became `finish_reason: stop` and an end marker: half an answer, sold as a whole one.",
    ), ("litellm#33404",)),
    _row("reset-inside-event", inside_an_event(Last.RESET), (
        "a reset in the middle of an event", "Half an event is passed on as one, or hides the break.",
    ), ("litellm#33404",)),
    _row("close-between-events", broken(last=Last.FIN), (
        "some events, then a close without the last HTTP chunk",
        "An exception went to a log, and the writer closed as if all were said.",
    ), ("Portkey-AI/gateway#741",)),
    _row("close-inside-event", inside_an_event(Last.FIN), (
        "a close in the middle of an event", "Half an event is passed on as one, or hides the break.",
    ), ("Portkey-AI/gateway#741",)),
    _row("end-without-finish", broken(*coded([])), (
        "a clean end with neither finish nor end marker", "Added end markers make a cut answer look whole.",
    ), ("litellm#33404",)),
    _row("end-marker-without-finish", broken(*coded([DONE]), sends=SENT_DONE), (
        "an end marker without a finish", "A finish reason that nobody gave is a guess.",
    ), ("litellm#33404",)),
    _row("finish-without-end-marker", lambda ask: Play(
        (CODED, *coded([*role(ask), *deltas(ask, words(ask)), finish(ask)])), "".join(words(ask))), (
        "a finish and a clean end, without the end marker", "What was said whole must not be turned into an error.",
    ), check=intact_without_done, must="the text and the finish"),
    _row("empty-stream", before_events(CODED, *coded([])), (
        "200 and no event at all", "An idle engine ended as a 200 of no bytes.",
    ), ("grok2api#968",)),
    _row("garbage-in-body", broken(b"zz\r\nno http chunk\r\n", last=Last.FIN), (
        "a chunked body that breaks", "What cannot be read must not be passed over.",
    )),
    _row("length-too-long", lambda ask: Play(
        (head(length=100_000), *deltas(ask, words(ask, 3)), Pause(0.05), Last.FIN), "".join(words(ask, 3)), NOTHING), (
        "a close before the Content-Length is reached", "A client that counts no bytes takes it for the end.",
    )),
    _row("error-object", error_inside(event(dump(_ERROR))), (
        "an error object inside a 200, after events", "It was dropped, or came out as text.",
    ), ("mozilla-ai/any-llm#847", "block/goose#8031"), check=_ARRIVES, must=_WORDS_ARRIVE),
    _row("error-object-vllm", error_inside(event(dump(_VLLM)), DONE), (
        "vLLM's error object inside a 200, then the end marker", "Another shape of the same; the end marker hides it.",
    ), ("mozilla-ai/any-llm#847",), check=_ARRIVES, must=_WORDS_ARRIVE),
    _row("error-event", error_inside(b"event: error\n" + event(dump(_ERROR))), (
        "an event named `error`", "Who reads data lines only does not see the name.",
    ), ("mozilla-ai/any-llm#847",), check=_ARRIVES, must=_WORDS_ARRIVE),
    _row("error-object-first", before_events(CODED, *coded([event(dump(_ERROR)), DONE])), (
        "an error object as the first event", "Nothing was sent yet: it need not look like an answer at all.",
    ), ("mozilla-ai/any-llm#847",), check=_ARRIVES, must=_WORDS_ARRIVE + ", by status or in band"),
    _row("html-instead-of-stream", before_events(sized(HTML, kind="text/html")), (
        "a page of HTML with status 200", "A proxy's page became an empty answer.",
    ), check=no_success, must="no event stream is made of it"),
    _row("json-instead-of-stream", json_for_a_stream, (
        "a whole answer in JSON, though a stream was asked for", "Some engines do not stream; the text must not be lost.",
    ), check=text_or_error, must="the text in any form, or an error"),
    _row("compressed", gzipped, (
        "gzip that was not asked for, cut in two", "A new decompressor for each read gave no bytes at all.",
    ), ("envoyproxy/ai-gateway#1927",), forms=EVERY, check=readable_or_refused, must="the text, or an error"),
    _row("reset-in-body", in_the_body(Last.RESET), (
        "a whole answer, reset in the middle", "Half a JSON with status 200 and a length of its own looks whole.",
    ), forms=WHOLE),
    _row("close-in-body", in_the_body(Last.FIN), (
        "a whole answer, closed in the middle", "The same, by a close.",
    ), forms=WHOLE),
    _row("error-object-whole", lambda _: Play((sized(dump(_ERROR)),), "", NOTHING), (
        "an error object with status 200 instead of a whole answer", "Clients look for choices, and find none.",
    ), ("mozilla-ai/any-llm#847",), forms=WHOLE, check=_ARRIVES, must=_WORDS_ARRIVE),
    # What may be offered.
    _row("reset-is-told", broken(last=Last.RESET), (
        "some events, then a reset", "A cut connection says neither why nor what can be done.",
    ), ("litellm#33404",), group="in-band", check=both(honest, told), must="an error in band"),
    _row("missing-finish-is-told", broken(*coded([DONE]), sends=SENT_DONE), (
        "an end marker without a finish", "A client that counts on the end marker alone is told that something is missing.",
    ), group="in-band", check=both(honest, told), must="an error in band"),
    _row("ends-behind-error", broken(*coded([event(dump(_ERROR))], last=False), last=Last.HOLD), (
        "an error object; then the engine holds the connection open", "After the error the stream stayed open.",
    ), ("EricLBuehler/mistral.rs#1874",), group="in-band", check=both(_ARRIVES, ends_soon), must="the error, and an end"),
    _row("ends-behind-end-marker", lambda ask: Play(
        (CODED, *coded([*role(ask), *deltas(ask, words(ask)), finish(ask), DONE], last=False), Last.HOLD),
        "".join(words(ask))), (
        "a whole answer; then the engine holds the connection open", "What is over for the client should be over.",
    ), group="in-band", check=ends_soon, must="an end"),
)  # fmt: skip
