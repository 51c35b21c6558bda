"""Answers of /v1/chat/completions and /v1/completions.

What lives here: their frames, in the order in which vLLM sends them, and whole answers.
What must not: how frames go out (reply.py), other APIs (typed.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from longwire.wire.sse import encode_event

from .answer import (
    REASONING_SEED,
    answer_text,
    encode_inner,
    encode_json,
    token_id,
    token_ids,
    token_table,
    token_text,
)
from .ask import Ask, prompt_ids
from .reply import Event, Items, Kind
from .stops import Told, release
from .template import MARK, STAMP, Pace, Template

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


def chat_events(ask: Ask, pace: Pace | None = None) -> Items:
    """A chat answer as a stream."""
    return _events(ask, ChatFrames(ask), (pace or Pace(ask)).pauses)


def completion_events(ask: Ask, pace: Pace | None = None) -> Items:
    """A text completion as a stream."""
    return _events(ask, CompletionFrames(ask), (pace or Pace(ask)).pauses)


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

    def tell_prompt(self, payload: dict[str, Any], ids: list[int]) -> None:
        """Put the prompt's ids into the first frame of a choice, where vLLM has them for this API."""
        payload["choices"][0]["prompt_token_ids"] = ids


class ChatFrames(CompletionFrames):
    """The frames of /v1/chat/completions."""

    kind = "chat.completion.chunk"

    def frame(self, choice: int, finish: str | None, **delta: object) -> dict[str, Any]:
        return {**self.top, "choices": [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    def opening(self) -> Items:
        for choice in range(self.ask.choices):
            payload = self.frame(choice, None, role="assistant", content="")
            if self.ask.token_ids:
                payload["prompt_token_ids"] = prompt_ids(self.ask)
            yield _event(Kind.OPEN, payload)

    def tell_prompt(self, payload: dict[str, Any], ids: list[int]) -> None:
        """Nothing: the role frame has told them already."""


def _event(kind: Kind, payload: dict[str, Any]) -> Event:
    return Event(kind, encode_event(encode_json(payload)))


def _events(ask: Ask, frames: CompletionFrames, pace: Iterator[float]) -> Items:
    """Role frames, reasoning, content or calls, finish frames, usage, end marker."""
    yield ask.ttft_s
    yield from frames.opening()
    if ask.reasoning_tokens or ask.reasoning_lead:
        yield from _texts(ask, frames, pace, thoughts(ask))
    if ask.tools:
        yield from _calls(ask, frames, pace)
    else:
        yield from _texts(
            ask, frames, pace, Passage("content", ask.seed, ask.start, ask.tokens, ask.lead, ask.reasoning_tokens)
        )
    for choice in range(ask.choices):
        payload = frames.frame(choice, "tool_calls" if ask.tools else ask.finish_of(choice))
        _add_stop(payload["choices"][0], ask, choice)
        if ask.usage_in_choices:
            payload["usage"] = usage(ask)
        yield _event(Kind.FINISH, payload)
    if ask.include_usage and not ask.usage_in_choices:
        yield _event(Kind.USAGE, {**frames.top, "choices": [], "usage": usage(ask)})
    yield DONE


def _add_stop(choice: dict[str, Any], ask: Ask, number: int) -> None:
    """Which string has stopped it, as vLLM says it; a field that is left out where nothing has."""
    stop = None if ask.tools else ask.stopped_by(number)
    if stop is not None:
        choice["stop_reason"] = stop


class Passage(NamedTuple):
    """A run of tokens and the field that they are sent in."""

    field: str
    seed: int
    start: int
    tokens: int
    lead: str = ""
    before: int = 0
    """Tokens that this answer has had before it."""


def thoughts(ask: Ask) -> Passage:
    """The reasoning."""
    seed = ask.seed + REASONING_SEED
    return Passage("reasoning_content", seed, ask.reasoning_start, ask.reasoning_tokens, ask.reasoning_lead)


def _texts(ask: Ask, frames: CompletionFrames, pace: Iterator[float], passage: Passage) -> Items:
    """One event per token and choice; each choice says something of its own."""
    if ask.token_ids or (ask.told and passage.field == "content"):
        yield from _careful_texts(ask, frames, pace, passage)
        return
    frame_extra = {"sim_ns": STAMP} if ask.stamp else {}
    templates = [
        (Template({**frames.frame(n, None, **{passage.field: MARK}), **frame_extra}), token_table(passage.seed + n))
        for n in range(ask.choices)
    ]
    if passage.lead:
        for template, _ in templates:
            yield template.fill(encode_inner(passage.lead))
        yield next(pace)
    past = passage.start - passage.before
    for index in range(passage.start, passage.start + passage.tokens):
        for template, table in templates:
            event = template.fill(table.inner(index))
            yield with_usage(event, usage(ask, index + 1 - past)) if ask.continuous_usage else event
        yield next(pace)


def _careful_texts(ask: Ask, frames: CompletionFrames, pace: Iterator[float], passage: Passage) -> Items:
    """The same where stop strings or ids are asked for: choices end at different tokens, and texts may be held back."""
    for step, pieces in enumerate(zip_longest(*(_pieces(ask, passage, n) for n in range(ask.choices)))):
        for choice, piece in enumerate(pieces):
            if piece is not None and (piece.text or ask.token_ids):
                yield _event(Kind.CONTENT, _careful_frame(frames, passage, choice, piece, step))
        yield next(pace)


def _careful_frame(frames: CompletionFrames, passage: Passage, choice: int, piece: Piece, step: int) -> dict[str, Any]:
    ask = frames.ask
    payload = frames.frame(choice, None, **{passage.field: piece.text})
    if ask.token_ids:
        payload["choices"][0]["token_ids"] = piece.ids
        if step == 0 and passage.field == "content":
            frames.tell_prompt(payload, prompt_ids(ask))
    if ask.stamp:
        payload["sim_ns"] = time.monotonic_ns()
    if ask.continuous_usage:
        payload["usage"] = usage(ask, passage.before + step + (not passage.lead))
    return payload


class Piece(NamedTuple):
    """What one step of the engine adds to a choice."""

    text: str
    ids: list[int]


def _pieces(ask: Ask, passage: Passage, choice: int) -> Iterator[Piece]:
    """The steps of one choice."""
    seed = passage.seed + choice
    told = ask.told[choice] if ask.told and passage.field == "content" else Told(passage.tokens, 0)
    indices = range(passage.start, passage.start + told.tokens)
    texts: Iterator[str] = (token_text(seed, index) for index in indices)
    ids: Iterator[list[int]] = ([token_id(seed, index)] for index in indices)
    if passage.lead:
        texts, ids = chain([passage.lead], texts), chain([[]], ids)
    if ask.told and passage.field == "content":
        texts = release(list(texts), told, ask.stops, holds_back=ask.holds_back)
    return map(Piece, texts, ids)


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
        if ask.reasoning_tokens or ask.reasoning_lead:
            thought = thoughts(ask)
            message["reasoning_content"] = thought.lead + answer_text(
                thought.seed + choice, thought.tokens, thought.start
            )
        if ask.tools:
            arguments = "".join(argument_pieces(ask))
            message["content"] = None
            message["tool_calls"] = [
                {"id": call_id(ask, call), "type": "function", "function": {"name": name, "arguments": arguments}}
                for call, name in enumerate(ask.tools)
            ]
        finish = "tool_calls" if ask.tools else ask.finish_of(choice)
        choices.append({"index": choice, "message": message, "logprobs": None, "finish_reason": finish})
    whole = _whole(ask, "chat.completion", choices)
    return {**whole, "prompt_token_ids": prompt_ids(ask)} if ask.token_ids else whole


def whole_completion(ask: Ask) -> dict[str, Any]:
    """A text completion that is no stream."""
    choices: list[dict[str, Any]] = [
        {"index": choice, "text": said(ask, choice), "logprobs": None, "finish_reason": ask.finish_of(choice)}
        for choice in range(ask.choices)
    ]
    if ask.token_ids:
        for entry in choices:
            entry["prompt_token_ids"] = prompt_ids(ask)
    return _whole(ask, "text_completion", choices)


def said(ask: Ask, choice: int = 0) -> str:
    """The text of one choice."""
    text = ask.lead + answer_text(ask.seed + choice, ask.tokens, ask.start)
    return text[: ask.told[choice].length] if ask.told else text


def said_ids(ask: Ask, choice: int = 0) -> list[int]:
    """The ids of all that one choice has generated."""
    thought = thoughts(ask)
    tokens = ask.told[choice].tokens if ask.told else ask.tokens
    thought_ids = token_ids(thought.seed + choice, thought.tokens, thought.start)
    return thought_ids + token_ids(ask.seed + choice, tokens, ask.start)


def _whole(ask: Ask, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    for number, choice in enumerate(choices):
        _add_stop(choice, ask, number)
        if ask.token_ids:
            choice["token_ids"] = said_ids(ask, number)
    return {
        "id": ask.id,
        "object": kind,
        "created": ask.created,
        "model": ask.model,
        "choices": choices,
        "usage": usage(ask),
    }
