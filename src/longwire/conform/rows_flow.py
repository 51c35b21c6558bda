"""Rows on headers and concurrency: what stands around a stream lets it flow, and streams leave each other alone.

What lives here: scenes on time and on many clients at once. What must not: optional groups (rows_offered.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .checks import Check, both, field_has, field_is, field_is_absent, in_time, intact
from .recording import Play, Recording
from .row import STREAMED, WHOLE, Form, Group, Row
from .rows_clients import gated
from .rows_endings import broken
from .saying import (
    CODED,
    DONE,
    JSON,
    Ask,
    Last,
    Pause,
    coded,
    deltas,
    finish,
    head,
    role,
    said,
    sized,
    well,
    whole_json,
    words,
)
from .stage import Answers, Part, Scene, Stage, plain

STREAMS = 64
WHOLES = 32
BROKEN = 12


def with_fields(ask: Ask) -> Play:
    """An engine that names fields of its connection, and says that nothing is to be cached."""
    texts = words(ask)
    fields = (("Cache-Control", "no-cache"), ("Connection", "keep-alive, X-Of-This-Hop"), ("X-Of-This-Hop", "1"))
    if not ask.streamed:
        return said(texts, sized(whole_json(ask, "".join(texts)), *fields))
    return said(texts, head(*fields, coded=True), *coded([*role(ask), *deltas(ask, texts), finish(ask), DONE]))


def paced(ask: Ask) -> Play:
    """Events a moment apart."""
    texts = words(ask, 12)
    events = [step for each in coded([*role(ask), *deltas(ask, texts)], last=False) for step in (each, Pause(0.02))]
    return said(texts, CODED, *events, *coded([finish(ask), DONE]))


def later(ask: Ask) -> Play:
    """A whole answer that takes a while."""
    text = "".join(words(ask))
    return Play((Pause(0.2), sized(whole_json(ask, text))), text)


def many(count: int, *scripts: object) -> Scene:
    """So many clients at once, with these scripts in turn."""

    def scene(stage: Stage) -> Sequence[Part]:
        requests = [stage.request(scripts[i % len(scripts)]) for i in range(count)]  # type: ignore[arg-type]
        return [Part((request,), (request.data, Answers())) for request in requests]

    return scene


def well_beside_broken(stage: Stage) -> Sequence[Part]:
    """Streams that are well beside as many that are reset in the middle."""
    return [*many(BROKEN, paced)(stage), *many(BROKEN, broken(last=Last.RESET))(stage)]


def half_are_intact(recording: Recording) -> str:
    """Those whose engine did not break."""
    return intact(replace(recording, visits=recording.visits[:BROKEN]))


def _row(
    name: str, group: Group, scene: Scene, check: Check, texts: tuple[str, str, str], reports: Sequence[str] = ()
) -> Row:
    sent, must, why = texts
    return Row(name, group, STREAMED, scene, check, sent, must, why, reports)


def _of(row: Row, forms: Sequence[Form]) -> Row:
    return replace(row, forms=forms)


ROWS: tuple[Row, ...] = (
    _row("no-buffering", "headers", plain(gated), both(intact, in_time),
         ("events, each only once the client has the one before", "each event at once",
          "A whole stream arrived at its end: the time to the first token was that of the last."),
         ("litellm#26102", "Kong/kong#14425")),
    _row("content-type", "headers", plain(well), both(field_is("content-type", "text/event-stream"), intact),
         ("a stream", "Content-Type: text/event-stream", "Browsers' EventSource refuses anything else.")),
    _of(_row("content-type-whole", "headers", plain(well), both(field_is("content-type", JSON), intact),
             ("a whole answer", "Content-Type: application/json", "Clients choose their parser by it.")), WHOLE),
    _row("cache-control", "headers", plain(with_fields), field_has("cache-control", "no-cache", "no-store"),
         ("a stream with Cache-Control: no-cache", "no-cache or no-store",
          "Caches on the way hold streams back, or keep them."),
         ("litellm#26102",)),
    _of(_row("hop-fields", "headers", plain(with_fields), both(field_is_absent("x-of-this-hop"), intact),
             ("a field that the engine's Connection names", "not passed on (RFC 9110 7.6.1)",
              "What belongs to one connection breaks the framing of the next."), ("envoyproxy/ai-gateway#2391",)),
        (*STREAMED, *WHOLE)),
    _row("streams-beside-each-other", "concurrency", many(STREAMS, paced), intact,
         (f"{STREAMS} streams at once, event by event", "each stream whole, and no byte of another",
          "Pooled buffers put one user's text into another's stream.")),
    _of(_row("wholes-beside-each-other", "concurrency", many(WHOLES, later), intact,
             (f"{WHOLES} whole answers at once", "each its own",
              "The same without streams.")), WHOLE),
    _row("broken-beside-well", "concurrency", well_beside_broken, half_are_intact,
         (f"{BROKEN} streams, and {BROKEN} that are reset in the middle", "the others are whole",
          "One engine's failure must not be another request's."), ("vllm-project/production-stack#749",)),
)  # fmt: skip
