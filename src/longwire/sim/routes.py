"""Which answer belongs to which path.

What lives here: the table of routes and the small whole answers.
What must not: sockets, the streamed APIs' frames (chat.py, typed.py).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from longwire.words.settings import SimSettings

from .answer import encode_json, mix
from .ask import Ask, prompt_text
from .chat import chat_events, completion_events, whole_chat, whole_completion
from .fault import FaultError
from .metrics import PROMETHEUS, render_metrics
from .reply import EVENT_STREAM, Event, Items, Kind, Reply, chunked, refusal
from .typed import message_events, response_events, whole_message, whole_response

MAX_MODEL_LEN = 131_072
EMBEDDING_FLOATS = 8
MAX_EMBEDDING_FLOATS = 4096


class Engine(Protocol):
    """What answers about the engine itself are made of."""

    settings: SimSettings

    def statistics(self) -> dict[str, int]:
        """All counters."""

    def fail_next(self, *faults: str) -> None:
        """Faults for one of the next generations."""

    def seen_requests(self) -> list[dict[str, object]]:
        """What arrived lately."""


class Route(NamedTuple):
    """How one path is answered."""

    method: str
    respond: Callable[[Ask, Engine], Reply]
    id_prefix: str = ""
    generates: bool = False
    """The settings' faults befall it."""
    reads_json: bool = True


def json_reply(value: object) -> Reply:
    """A whole JSON answer at once."""
    return Reply(iter([Event(Kind.BODY, encode_json(value))]))


# Generations.


def generation(id_prefix: str, stream: Callable[[Ask], Items], whole: Callable[[Ask], Mapping[str, Any]]) -> Route:
    """A route that generates: a stream, or a whole answer after the time that it takes."""

    def after_work(ask: Ask) -> Items:
        yield ask.ttft_s + ask.tokens * ask.itl_s
        yield Event(Kind.BODY, encode_json({**whole(ask), "sim_echo": dict(ask.echo)}))

    def respond(ask: Ask, _: Engine) -> Reply:
        reply = Reply(stream(ask), content_type=EVENT_STREAM, framing=chunked) if ask.stream else Reply(after_work(ask))
        reply.generates = True
        reply.prompt_tokens = ask.prompt_tokens
        reply.answer_tokens = ask.billed_tokens
        return reply

    return Route("POST", respond, id_prefix, generates=True)


# About the engine.


def models(_: Ask, engine: Engine) -> Reply:
    """The one model."""
    entry = {"id": engine.settings.model, "object": "model", "created": 1_700_000_000, "owned_by": "longwire-sim"}
    return json_reply({"object": "list", "data": [{**entry, "max_model_len": MAX_MODEL_LEN}]})


def health(_: Ask, engine: Engine) -> Reply:
    """Always well."""
    return json_reply({"status": "ok", **engine.statistics()})


def metrics(_: Ask, engine: Engine) -> Reply:
    """What Prometheus asks for."""
    text = render_metrics(engine.settings.model, engine.statistics())
    return Reply(iter([Event(Kind.BODY, text)]), content_type=PROMETHEUS)


# Other APIs.


def embeddings(ask: Ask, _: Engine) -> Reply:
    """A vector per input, made of its bytes alone."""
    given = ask.body.get("input", "")
    inputs = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    size = ask.body.get("dimensions") or EMBEDDING_FLOATS
    if not isinstance(size, int) or not 1 <= size <= MAX_EMBEDDING_FLOATS:
        raise refusal(400, f"dimensions must be 1 to {MAX_EMBEDDING_FLOATS}.", "dimensions")
    in_base64 = ask.body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _in_base64(vector) if in_base64 else vector}
        for index, vector in enumerate(embedding(text, size) for text in inputs)
    ]
    usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    return json_reply({"object": "list", "data": data, "model": ask.model, "usage": usage, "sim_echo": dict(ask.echo)})


def embedding(value: object, size: int = EMBEDDING_FLOATS) -> list[float]:
    """The vector of a text (or of token ids): -1 to 1 in steps that a 32-bit float holds exactly."""
    seed = 0
    for byte in encode_json(value):
        seed = mix(seed, byte)
    return [(mix(seed, index) >> 16) / 32768 - 1 for index in range(size)]


def _in_base64(vector: Iterable[float]) -> str:
    floats = list(vector)
    return base64.b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode("ascii")


def rerank(ask: Ask, _: Engine) -> Reply:
    """Documents in an order made of their bytes alone."""
    documents = ask.body.get("documents")
    if not isinstance(documents, list):
        raise refusal(400, "documents must be a list.", "documents")
    scores = [(embedding(document, 1)[0], index) for index, document in enumerate(documents)]
    results = [{"index": index, "relevance_score": score} for score, index in sorted(scores, reverse=True)]
    return json_reply({"id": ask.id, "model": ask.model, "results": results})


def tokenize(ask: Ask, _: Engine) -> Reply:
    """A token is a word, its id a hash of it."""
    ids = [mix(0, sum(word.encode())) for word in prompt_text(ask.body).split()]
    return json_reply({"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids})


def transcription(_: Ask, __: Engine) -> Reply:
    """Speech is not understood here; that the upload arrived is what counts."""
    return json_reply({"text": "It was said."})


# For tests that run the stand-in in another process.


def fail_next(ask: Ask, engine: Engine) -> Reply:
    """POST {"next": ["status=503", "die_idle"]}: one entry for each of the next generations."""
    wanted = ask.body.get("next")
    if not isinstance(wanted, list):
        raise refusal(400, "next must be a list of faults.", "next")
    try:
        for fault in wanted:
            engine.fail_next(str(fault))
    except FaultError as exc:
        raise refusal(400, str(exc), "next") from exc
    return json_reply({"queued": len(wanted)})


def seen(_: Ask, engine: Engine) -> Reply:
    """GET: the latest requests as they arrived."""
    return Reply(iter([Event(Kind.BODY, json.dumps({"data": engine.seen_requests()}).encode())]))


ROUTES: dict[str, Route] = {
    "/v1/chat/completions": generation("chatcmpl", chat_events, whole_chat),
    "/v1/completions": generation("cmpl", completion_events, whole_completion),
    "/v1/responses": generation("resp", response_events, whole_response),
    "/v1/messages": generation("msg", message_events, whole_message),
    "/v1/models": Route("GET", models),
    "/v1/embeddings": Route("POST", embeddings),
    "/v1/rerank": Route("POST", rerank, "rerank"),
    "/v1/audio/transcriptions": Route("POST", transcription, reads_json=False),
    "/tokenize": Route("POST", tokenize),
    "/health": Route("GET", health),
    "/metrics": Route("GET", metrics),
    "/sim/next": Route("POST", fail_next),
    "/sim/requests": Route("GET", seen),
}
