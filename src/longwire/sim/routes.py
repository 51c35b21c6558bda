"""Which answer belongs to which path.

What lives here: the table of routes and the small whole answers.
What must not: sockets, the streamed APIs' frames (chat.py, typed.py).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from longwire.words.settings import SimSettings

from .answer import encode_json, mix
from .ask import Ask, prompt_text, word_id
from .chat import chat_events, completion_events, whole_chat, whole_completion
from .continuation import Begins, chat_begun, message_begun, nothing_begun, prompt_begun
from .fault import FaultError
from .metrics import BLOCK_TOKENS, PROMETHEUS, render_metrics
from .reply import EVENT_STREAM, Event, Items, Kind, Reply, chunked, refusal
from .template import Pace
from .typed import message_events, response_events, whole_message, whole_response

MAX_MODEL_LEN = 131_072
EMBEDDING_FLOATS = 8
MAX_EMBEDDING_FLOATS = 4096
WORK_PAUSES = 16
"""Pauses that a whole answer's work is divided into: so fine is its progress seen from outside."""
MAX_PREEMPTION_MS = 3_600_000
"""An hour; longer is no preemption."""
LEAST_SLOTS = 4
"""Slots that /slots shows of an engine without a limit; llama.cpp's own default."""


class Engine(Protocol):
    """What answers about the engine itself are made of."""

    settings: SimSettings

    def statistics(self) -> dict[str, int]:
        """All counters."""

    def fail_next(self, *faults: str) -> None:
        """Faults for one of the next generations."""

    def preempt(self, pause_s: float) -> None:
        """All answers under way pause."""

    def hurry(self) -> None:
        """What is left of all answers under way comes at once."""

    def slots(self) -> list[tuple[int, int, int]]:
        """Of each answer that runs: the prompt's tokens, those generated, those still to come."""

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
    begins: Begins = nothing_begun
    """How a request says that it goes on with an answer."""


def json_reply(value: object) -> Reply:
    """A whole JSON answer at once."""
    return Reply(iter([Event(Kind.BODY, encode_json(value))]))


# Generations.


def generation(
    id_prefix: str, stream: Callable[[Ask, Pace], Items], whole: Callable[[Ask], Mapping[str, Any]], begins: Begins
) -> Route:
    """A route that generates: a stream, or a whole answer after the time that it takes."""

    def after_work(ask: Ask) -> Items:
        yield ask.ttft_s
        work_s = ask.tokens * ask.itl_s
        if work_s:
            yield from repeat(work_s / WORK_PAUSES, WORK_PAUSES)
        yield Event(Kind.BODY, encode_json({**whole(ask), "sim_echo": dict(ask.echo)}))

    def respond(ask: Ask, _: Engine) -> Reply:
        billed = ask.billed_tokens
        if ask.stream:
            pace = Pace(ask)
            reply = Reply(stream(ask, pace), content_type=EVENT_STREAM, framing=chunked)
            reply.progress = lambda _: min(billed, pace.taken * ask.choices)
        else:
            reply = Reply(after_work(ask))
            reply.progress = _worked
        reply.generates = True
        reply.prompt_tokens = ask.prompt_tokens
        reply.answer_tokens = billed
        return reply

    return Route("POST", respond, id_prefix, generates=True, begins=begins)


def _worked(reply: Reply) -> int:
    """The tokens of a whole answer that there are so far: the first pause is the prompt's."""
    return reply.answer_tokens * min(WORK_PAUSES, max(0, reply.pauses_over - 1)) // WORK_PAUSES


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
    text = render_metrics(engine.settings.model, engine.settings.kv_blocks, engine.statistics())
    return Reply(iter([Event(Kind.BODY, text)]), content_type=PROMETHEUS)


def slots(_: Ask, engine: Engine) -> Reply:
    """llama.cpp's view of the load: what each slot does, without the prompts."""
    running = engine.slots()
    count = engine.settings.max_running or max(LEAST_SLOTS, len(running))
    size = engine.settings.kv_blocks * BLOCK_TOKENS // count
    shown: list[dict[str, Any]] = [
        {"id": id, "n_ctx": size, "speculative": False, "is_processing": id < len(running)} for id in range(count)
    ]
    for slot, (prompt_tokens, generated, left) in zip(shown, running, strict=False):
        slot |= {
            "id_task": slot["id"],
            "n_prompt_tokens": prompt_tokens + generated,
            "n_prompt_tokens_processed": prompt_tokens,
            "n_prompt_tokens_cache": 0,
            "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": left, "n_decoded": generated}],
        }
    return json_reply(shown)


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
    ids = [word_id(word) for word in prompt_text(ask.body).split()]
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


def preempt(ask: Ask, engine: Engine) -> Reply:
    """POST {"ms": 500}: all answers pause for so long."""
    pause_ms = ask.body.get("ms")
    if isinstance(pause_ms, bool) or not isinstance(pause_ms, (int, float)) or not 0 <= pause_ms <= MAX_PREEMPTION_MS:
        raise refusal(400, f"ms must be a number of 0 to {MAX_PREEMPTION_MS}.", "ms")
    engine.preempt(pause_ms / 1000)
    return json_reply({"preempted_ms": pause_ms})


def hurry(_: Ask, engine: Engine) -> Reply:
    """POST {}: what is left of all answers under way comes at once."""
    engine.hurry()
    return json_reply({"hurried": engine.statistics()["open_streams"]})


def seen(_: Ask, engine: Engine) -> Reply:
    """GET: the latest requests as they arrived."""
    return Reply(iter([Event(Kind.BODY, json.dumps({"data": engine.seen_requests()}).encode())]))


ROUTES: dict[str, Route] = {
    "/v1/chat/completions": generation("chatcmpl", chat_events, whole_chat, chat_begun),
    "/v1/completions": generation("cmpl", completion_events, whole_completion, prompt_begun),
    "/v1/responses": generation("resp", response_events, whole_response, nothing_begun),
    "/v1/messages": generation("msg", message_events, whole_message, message_begun),
    "/v1/models": Route("GET", models),
    "/v1/embeddings": Route("POST", embeddings),
    "/v1/rerank": Route("POST", rerank, "rerank"),
    "/v1/audio/transcriptions": Route("POST", transcription, reads_json=False),
    "/tokenize": Route("POST", tokenize),
    "/health": Route("GET", health),
    "/metrics": Route("GET", metrics),
    "/slots": Route("GET", slots),
    "/sim/next": Route("POST", fail_next),
    "/sim/preempt": Route("POST", preempt),
    "/sim/hurry": Route("POST", hurry),
    "/sim/requests": Route("GET", seen),
}
