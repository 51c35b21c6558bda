"""Which answer belongs to which path.

What lives here: the table of routes and the small whole answers.
What must not: sockets, the streamed APIs' frames (chat.py, typed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from longwire.words.settings import SimSettings

from .answer import encode_json
from .ask import Ask
from .chat import chat_events, completion_events, whole_chat, whole_completion
from .reply import EVENT_STREAM, Event, Items, Kind, Reply


class Engine(Protocol):
    """What answers about the engine itself are made of."""

    settings: SimSettings

    def statistics(self) -> dict[str, int]:
        """All counters."""


Respond = Callable[[Ask, Engine], Reply]


class Route(NamedTuple):
    """How one path is answered."""

    method: str
    respond: Respond
    id_prefix: str = ""
    generates: bool = False
    """It is counted as a stream, and the settings' faults befall it."""
    reads_json: bool = True


def json_reply(value: object) -> Reply:
    """A whole JSON answer at once."""
    return Reply(iter([Event(Kind.BODY, encode_json(value))]))


def generation(id_prefix: str, stream: Callable[[Ask], Items], whole: Callable[[Ask], Mapping[str, Any]]) -> Route:
    """A route that generates: a stream, or a whole answer after the time that it takes."""

    def after_work(ask: Ask) -> Items:
        yield ask.ttft_s + ask.tokens * ask.itl_s
        yield Event(Kind.BODY, encode_json({**whole(ask), "sim_echo": dict(ask.echo)}))

    def respond(ask: Ask, _: Engine) -> Reply:
        reply = Reply(stream(ask), content_type=EVENT_STREAM) if ask.stream else Reply(after_work(ask))
        reply.generates = True
        return reply

    return Route("POST", respond, id_prefix, generates=True)


def models(_: Ask, engine: Engine) -> Reply:
    """The one model."""
    entry = {
        "id": engine.settings.model,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "longwire-sim",
        "max_model_len": 131_072,
    }
    return json_reply({"object": "list", "data": [entry]})


def health(_: Ask, engine: Engine) -> Reply:
    """Always well."""
    return json_reply({"status": "ok", **engine.statistics()})


ROUTES: dict[str, Route] = {
    "/v1/chat/completions": generation("chatcmpl", chat_events, whole_chat),
    "/v1/completions": generation("cmpl", completion_events, whole_completion),
    "/v1/models": Route("GET", models),
    "/health": Route("GET", health),
}
