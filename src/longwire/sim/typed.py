"""Answers of /v1/responses (OpenAI) and /v1/messages (Anthropic): streams whose events have a type.

What lives here: their events in order, and whole answers.
What must not: how events go out (reply.py), the chat API (chat.py).

Both name each event on an ``event:`` line and again in its JSON, and neither ends with ``[DONE]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

from longwire.wire.sse import encode_event

from .answer import encode_inner, encode_json, token_table, token_text
from .ask import Ask
from .chat import said
from .reply import Event, Items, Kind
from .stops import release
from .template import MARK, Pace, Template

SEQUENCE_MARK = 9_007_199_254_740_991
"""Stands for a sequence number in a template; the largest integer that JSON readers agree on."""


def _typed(kind: Kind, type: str, **payload: object) -> Event:
    return Event(kind, encode_event(encode_json({"type": type, **payload}), type.encode()))


# The responses API.


def response_events(ask: Ask, pace: Pace | None = None) -> Items:
    """A response as a stream: each event has the next sequence number."""
    number = count()
    pace = pace or Pace(ask)

    def event(kind: Kind, type: str, **payload: object) -> Event:
        return _typed(kind, type, sequence_number=next(number), **payload)

    where = {"item_id": _item_id(ask), "output_index": 0, "content_index": 0}
    started = {**whole_response(ask), "status": "in_progress", "output": [], "usage": None}
    yield event(Kind.OPEN, "response.created", response=started)
    yield event(Kind.OPEN, "response.in_progress", response=started)
    yield ask.ttft_s
    yield event(
        Kind.OPEN,
        "response.output_item.added",
        output_index=0,
        item={**_item(ask), "status": "in_progress", "content": []},
    )
    yield event(Kind.OPEN, "response.content_part.added", **where, part=_part(""))
    yield from _text_deltas(ask, where, number, pace.pauses)
    yield event(Kind.FINISH, "response.output_text.done", **where, text=said(ask), logprobs=[])
    yield event(Kind.FINISH, "response.content_part.done", **where, part=_part(said(ask)))
    yield event(Kind.FINISH, "response.output_item.done", output_index=0, item=_item(ask))
    ending = "response.completed" if ask.finish_of() == "stop" else "response.incomplete"
    yield event(Kind.DONE, ending, response=whole_response(ask))


def _text_deltas(ask: Ask, where: dict[str, object], number: Iterator[int], pace: Iterator[float]) -> Items:
    type = "response.output_text.delta"
    payload = {"type": type, "sequence_number": SEQUENCE_MARK, **where, "delta": MARK, "logprobs": []}
    template = Template(payload, type.encode())
    inner = token_table(ask.seed).inner
    mark = b"%d" % SEQUENCE_MARK
    for text in _inner_texts(ask, inner):
        kind, block = template.fill(text)
        yield Event(kind, block.replace(mark, b"%d" % next(number), 1))
        yield next(pace)


def _inner_texts(ask: Ask, inner: Callable[[int], bytes]) -> Iterator[bytes]:
    if ask.told:
        texts = (token_text(ask.seed, index) for index in range(ask.start, ask.start + ask.told[0].tokens))
        whole = list(chain([ask.lead], texts) if ask.lead else texts)
        yield from map(encode_inner, release(whole, ask.told[0], ask.stops, holds_back=ask.holds_back))
        return
    if ask.lead:
        yield encode_inner(ask.lead)
    for index in range(ask.start, ask.start + ask.tokens):
        yield inner(index)


def whole_response(ask: Ask) -> dict[str, Any]:
    """A response that is no stream."""
    complete = ask.finish_of() == "stop"
    return {
        "id": ask.id,
        "object": "response",
        "created_at": ask.created,
        "status": "completed" if complete else "incomplete",
        "error": None,
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "instructions": None,
        "metadata": {},
        "model": ask.model,
        "output": [_item(ask)],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": ask.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": ask.billed_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": ask.prompt_tokens + ask.billed_tokens,
        },
    }


def _item_id(ask: Ask) -> str:
    return ask.id.replace("resp", "msg", 1)


def _item(ask: Ask) -> dict[str, Any]:
    return {
        "id": _item_id(ask),
        "type": "message",
        "status": "completed" if ask.finish_of() == "stop" else "incomplete",
        "role": "assistant",
        "content": [_part(said(ask))],
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# The messages API.


def message_events(ask: Ask, pace: Pace | None = None) -> Items:
    """A message as a stream."""
    pauses = (pace or Pace(ask)).pauses
    started = {**whole_message(ask), "content": [], "stop_reason": None, "stop_sequence": None}
    started["usage"] = {"input_tokens": ask.prompt_tokens, "output_tokens": 0}
    yield ask.ttft_s
    yield _typed(Kind.OPEN, "message_start", message=started)
    yield _typed(Kind.OPEN, "content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield _typed(Kind.OPEN, "ping")
    type = "content_block_delta"
    template = Template({"type": type, "index": 0, "delta": {"type": "text_delta", "text": MARK}}, type.encode())
    for text in _inner_texts(ask, token_table(ask.seed).inner):
        yield template.fill(text)
        yield next(pauses)
    yield _typed(Kind.FINISH, "content_block_stop", index=0)
    delta = {"stop_reason": _stop_reason(ask), "stop_sequence": ask.stopped_by()}
    yield _typed(Kind.FINISH, "message_delta", delta=delta, usage={"output_tokens": ask.billed_tokens})
    yield _typed(Kind.DONE, "message_stop")


def whole_message(ask: Ask) -> dict[str, Any]:
    """A message that is no stream."""
    return {
        "id": ask.id,
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": [{"type": "text", "text": said(ask)}],
        "stop_reason": _stop_reason(ask),
        "stop_sequence": ask.stopped_by(),
        "usage": {"input_tokens": ask.prompt_tokens, "output_tokens": ask.billed_tokens},
    }


def _stop_reason(ask: Ask) -> str:
    if ask.stopped_by() is not None:
        return "stop_sequence"
    return "end_turn" if ask.finish == "stop" else "max_tokens"
