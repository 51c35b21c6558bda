"""Rows on requests: what is no request is refused without harm, what is an unusual one arrives.

What lives here: the requests, and what must come of them. What must not: how clients behave (rows_clients.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..wire.chunked import LAST_CHUNK, encode_chunk
from .checks import (
    Check,
    asked_once,
    both,
    client_error,
    intact,
    intact_others,
    never_asked,
    not_left_waiting,
    refused,
)
from .recording import Recording
from .row import CHAT_BOTH, CHAT_STREAM, EVERY, STREAMED, Form, Row
from .saying import refusal, well
from .stage import Answers, Part, Scene, Sleep, Stage, plain

HEAD_BYTES = 1 << 20
PROMPT_BYTES = 1 << 20
HARD_PROMPT = '漢字 🙂 \u2028 " \\ \t é \u0000 end'
BAD = refusal("400 Bad Request", "This is no JSON.")


def beside_a_good_one(bad: Scene) -> Scene:
    """The scene, and another client that asks a moment later: a refusal must not harm anybody else."""

    def scene(stage: Stage) -> Sequence[Part]:
        good = stage.request(well)
        return (*bad(stage), Part((good,), (Sleep(0.1), good.data, Answers())))

    return scene


def large_head(stage: Stage) -> Sequence[Part]:
    """A head of a mebibyte that does not end."""
    start = stage.head("POST", "/v1/chat/completions").removesuffix(b"\r\n")
    request = stage.request(well)._replace(data=b"")
    filler = b"".join(b"X-Filler-%d: %s\r\n" % (i, b"z" * 1000) for i in range(HEAD_BYTES // 1024))
    return (Part((request,), (start + filler, Answers())),)


def no_json(_: str, body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()[:-1] + b", oh"


def two_lengths(stage: Stage) -> Sequence[Part]:
    """Content-Length twice, with two values: the second one hides the start of another request."""
    good = stage.request(well)
    body = good.data[good.head_bytes :]
    framing = (("Content-Length", str(len(body))), ("Content-Length", str(len(body) + 4)))
    head = stage.head("POST", "/v1/chat/completions", stage.target.fields, framing)
    return (Part((good,), (head + body + b"GET ", Answers(), Sleep(0.2))),)


def length_and_coding(stage: Stage) -> Sequence[Part]:
    """Content-Length and Transfer-Encoding at once, with a second request inside what one of them takes for the body."""
    hidden = stage.request(well)
    body = LAST_CHUNK + hidden.data
    framing = (("Content-Length", str(len(body))), ("Transfer-Encoding", "chunked"))
    head = stage.head("POST", "/v1/chat/completions", stage.target.fields, framing)
    # The answer to the outer request says nothing about what becomes of the hidden one: a close does, or a second answer.
    return (Part((hidden,), (head + body, Answers(2))),)


def coded_body(stage: Stage) -> Sequence[Part]:
    """A request's body in chunks of 100 bytes."""
    good = stage.request(well, framing=(("Transfer-Encoding", "chunked"),))
    head, body = good.data[: good.head_bytes], good.data[good.head_bytes :]
    pieces = [encode_chunk(body[at : at + 100]) for at in range(0, len(body), 100)]
    paced = [each for piece in pieces for each in (piece, Sleep(0.01))]
    return (Part((good,), (head, Sleep(0.02), *paced, LAST_CHUNK, Answers())),)


def prompt_is(words: str) -> Check:
    """The engine got the prompt as it was sent."""

    def check(recording: Recording) -> str:
        for asked in recording.asked:
            try:
                body = json.loads(asked.body)
            except ValueError:
                return "the engine was sent no JSON"
            got = body["messages"][-1]["content"] if "messages" in body else body.get("prompt")
            got = got if isinstance(got, str) else "".join(part.get("text", "") for part in got or ())
            if not got.endswith(words):
                return f"the engine got a prompt of {len(got)} characters that ends in {got[-20:]!r}"
        return "" if recording.asked else "the engine was never asked"

    return check


def garbage(stage: Stage) -> Sequence[Part]:
    """Bytes that are no HTTP, as a TLS client or a scanner sends."""
    request = stage.request(well)._replace(data=b"")
    return (Part((request,), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", Answers())),)


def _row(name: str, scene: Scene, check: Check, texts: tuple[str, str, str], forms: Sequence[Form] = CHAT_BOTH) -> Row:
    sent, must, why = texts
    return Row(name, "requests", forms, scene, check, sent, must, why)


def first_refused(check: Check) -> Check:
    """The first visit is refused so, and the second one answered."""

    def first(recording: Recording) -> str:
        bad = set(recording.visits[0].nonces)
        asked = tuple(each for each in recording.asked if each.nonce in bad)
        return check(replace(recording, visits=recording.visits[:1], asked=asked))

    return both(first, intact_others)


ROWS: tuple[Row, ...] = (
    _row("oversized-head", beside_a_good_one(large_head), first_refused(both(refused, never_asked)),
         ("a head of 1 MiB that does not end; another client asks", "4xx or a close at once; the other is answered",
          "A head without a bound is memory for whoever wants it."), CHAT_STREAM),
    _row("garbage", beside_a_good_one(garbage), first_refused(both(refused, never_asked)),
         ("bytes that are no HTTP; another client asks", "4xx or a close at once; the other is answered",
          "Scanners and TLS clients come to every port."), CHAT_STREAM),
    _row("bad-json", plain(BAD, body=no_json), client_error,
         ("a body that is no JSON", "4xx", "A client's mistake told as 500 is tried again, and counted against the engine."),
         EVERY),
    _row("two-lengths", two_lengths, both(refused, never_asked),
         ("Content-Length twice, with two values", "4xx or a close; the engine is not asked",
          "Two servers that choose differently are how requests are smuggled (RFC 9112 6.3)."), CHAT_STREAM),
    _row("length-and-chunked", length_and_coding, both(never_asked, not_left_waiting),
         ("Content-Length beside Transfer-Encoding, and a second request inside the body",
          "the hidden request never reaches the engine; an answer or a close",
          "The same; the second request would be anybody's (RFC 9112 6.1)."), CHAT_STREAM),
    _row("chunked-body", coded_body, both(intact, asked_once),
         ("a request's body in chunks", "the answer; the engine is asked once",
          "Clients that make a body as they go know no length.")),
    _row("unknown-path", plain(refusal("404 Not Found", "no"), path="/v1/no-such-thing"), client_error,
         ("a path that there is not", "4xx", "An SDK of another version asks for what is not there; 200 or 500 misleads it."),
         CHAT_STREAM),
    _row("wrong-method", plain(refusal("405 Method Not Allowed", "no"), method="DELETE"), client_error,
         ("DELETE on a completion", "4xx", "The same with a method."), CHAT_STREAM),
    _row("large-prompt", plain(well, words="p" * PROMPT_BYTES + " end"), both(intact, prompt_is("p end")),
         ("a prompt of 1 MiB", "the answer; the engine gets the whole prompt",
          "Long contexts are ordinary; a bound of 1 MiB on bodies is common and silent."), EVERY),
    _row("hard-prompt", plain(well, words=HARD_PROMPT), both(intact, prompt_is(HARD_PROMPT)),
         ("a prompt with code points of all lengths, U+2028 and NUL", "the engine gets what was sent",
          "A prompt that is encoded twice or trimmed gives another answer, and nobody sees why."), EVERY),
    _row("streams-only-when-asked", plain(well), intact,
         ("a request of each form", "a stream for who asked for one, JSON for who did not",
          "Everything else stands on this."), (*STREAMED, *CHAT_BOTH[1:], ("text", False))),
)  # fmt: skip
