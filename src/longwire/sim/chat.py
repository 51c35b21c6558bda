"""Answers of /v1/chat/completions and /v1/completions.

What lives here: their frames, in the order in which vLLM sends them, and whole answers.
What must not: how frames go out (reply.py), other APIs (typed.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from longwire.wire.sse import encode_event

from .answer import REASONING_SEED, answer_text, encode_inner, encode_json, token_table, token_text
from .ask import Ask
from .reply import Event, Items, Kind
from .template import MARK, STAMP, Template, pauses

DONE = Event(Kind.DONE, encode_event(b"[DONE]"))


def usage(ask: Ask, tokens: int | None = None) -> dict[str, Any]:
    """What is billed, after all of the answer or after ``tokens`` tokens of it."""
    completion = ask.billed_tokens if tokens is None else tokens * ask.choices
    bill: dict[str, Any] = {
        "prompt_tokens": ask.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": ask.prompt_tokens + completion,
    }
    if ask.reasoning_tokens:
        bill["completion_tokens_details"] = {"reasoning_tokens": ask.reasoning_tokens * ask.choices}
    return bill


def chat_events(ask: Ask) -> Items:
    """A chat answer as a stream."""
    return _events(ask, ChatFrames(ask))


def completion_events(ask: Ask) -> Items:
    """A text completion as a stream."""
    return _events(ask, CompletionFrames(ask))


class CompletionFrames:
    """The frames of /v1/completions."""

    kind = "text_completion"

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.top: dict[str, Any] = {"id": ask.id, "object": self.kind, "created": ask.created, "model": ask.model}

    def frame(self, choice: int, finish: str | None, **delta: object) -> dict[str, Any]:
        """One frame for one choice."""
        text = delta.get("content", "")
        return {**self.top, "choices": [{"index": choice, "text": text, "logprobs": None, "finish_reason": finish}]}

    def opening(self) -> Items:
        """What comes before the first token."""
        return iter(())


class ChatFrames(CompletionFrames):
    """The frames of /v1/chat/completions."""

    kind = "chat.completion.chunk"

    def frame(self, choice: int, finish: str | None, **delta: object) -> dict[str, Any]:
        return {**self.top, "choices": [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    def opening(self) -> Items:
        for choice in range(self.ask.choices):
            yield _event(Kind.OPEN, self.frame(choice, None, role="assistant", content=""))


def _event(kind: Kind, payload: dict[str, Any]) -> Event:
    return Event(kind, encode_event(encode_json(payload)))


def _events(ask: Ask, frames: CompletionFrames) -> Items:
    """Role frames, reasoning, content or calls, finish frames, usage, end marker."""
    pace = pauses(ask)
    yield ask.ttft_s
    yield from frames.opening()
    if ask.reasoning_tokens:
        yield from _texts(
            ask, frames, pace, Passage("reasoning_content", ask.seed + REASONING_SEED, 0, ask.reasoning_tokens)
        )
    if ask.tools:
        yield from _calls(ask, frames, pace)
    else:
        yield from _texts(ask, frames, pace, Passage("content", ask.seed, ask.start, ask.tokens, ask.lead))
    for choice in range(ask.choices):
        payload = frames.frame(choice, "tool_calls" if ask.tools else ask.finish)
        if ask.usage_in_choices:
            payload["usage"] = usage(ask)
        yield _event(Kind.FINISH, payload)
    if ask.include_usage and not ask.usage_in_choices:
        yield _event(Kind.USAGE, {**frames.top, "choices": [], "usage": usage(ask)})
    yield DONE


class Passage(NamedTuple):
    """A run of tokens and the field that they are sent in."""

    field: str
    seed: int
    start: int
    tokens: int
    lead: str = ""


def _texts(ask: Ask, frames: CompletionFrames, pace: Iterator[float], passage: Passage) -> Items:
    """One event per token and choice; each choice says something of its own."""
    frame_extra = {"sim_ns": STAMP} if ask.stamp else {}
    templates = [
        (Template({**frames.frame(n, None, **{passage.field: MARK}), **frame_extra}), token_table(passage.seed + n))
        for n in range(ask.choices)
    ]
    if passage.lead:
        for template, _ in templates:
            yield template.fill(encode_inner(passage.lead))
        yield next(pace)
    for index in range(passage.start, passage.start + passage.tokens):
        for template, table in templates:
            event = template.fill(table.inner(index))
            yield with_usage(event, usage(ask, index + 1 - passage.start)) if ask.continuous_usage else event
        yield next(pace)


def with_usage(event: Event, bill: dict[str, Any]) -> Event:
    """The same event with a usage object in its frame."""
    head, brace, end = event.block.rpartition(b"}")
    return Event(event.kind, head + b',"usage":' + encode_json(bill) + brace + end)


def _calls(ask: Ask, frames: CompletionFrames, pace: Iterator[float]) -> Items:
    """Tool calls one after the other: name and id first, then the arguments token by token."""
    for call, name in enumerate(ask.tools):
        first = {
            "index": call,
            "id": call_id(ask, call),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        for choice in range(ask.choices):
            yield _event(Kind.CONTENT, frames.frame(choice, None, tool_calls=[first]))
        for piece in argument_pieces(ask):
            yield next(pace)
            delta = {"index": call, "function": {"arguments": piece}}
            for choice in range(ask.choices):
                yield _event(Kind.CONTENT, frames.frame(choice, None, tool_calls=[delta]))
    yield next(pace)


def call_id(ask: Ask, call: int) -> str:
    """The id of a call, known to whoever knows the seed."""
    return f"call_{ask.seed}_{call}"


def argument_pieces(ask: Ask) -> Iterator[str]:
    """The arguments ``{"text": "…"}`` of a call, cut where the tokens are."""
    yield '{"text": "'
    for index in range(ask.tokens):
        yield encode_inner(token_text(ask.seed, index)).decode()
    yield '"}'


# Whole answers.


def whole_chat(ask: Ask) -> dict[str, Any]:
    """A chat answer that is no stream."""
    choices = []
    for choice in range(ask.choices):
        message: dict[str, Any] = {"role": "assistant", "content": said(ask, choice)}
        if ask.reasoning_tokens:
            message["reasoning_content"] = answer_text(ask.seed + REASONING_SEED + choice, ask.reasoning_tokens)
        if ask.tools:
            arguments = "".join(argument_pieces(ask))
            message["content"] = None
            message["tool_calls"] = [
                {"id": call_id(ask, call), "type": "function", "function": {"name": name, "arguments": arguments}}
                for call, name in enumerate(ask.tools)
            ]
        finish = "tool_calls" if ask.tools else ask.finish
        choices.append({"index": choice, "message": message, "logprobs": None, "finish_reason": finish})
    return _whole(ask, "chat.completion", choices)


def whole_completion(ask: Ask) -> dict[str, Any]:
    """A text completion that is no stream."""
    choices = [
        {"index": choice, "text": said(ask, choice), "logprobs": None, "finish_reason": ask.finish}
        for choice in range(ask.choices)
    ]
    return _whole(ask, "text_completion", choices)


def said(ask: Ask, choice: int = 0) -> str:
    """The text of one choice."""
    return ask.lead + answer_text(ask.seed + choice, ask.tokens, ask.start)


def _whole(ask: Ask, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": kind,
        "created": ask.created,
        "model": ask.model,
        "choices": choices,
        "usage": usage(ask),
    }
