"""Where an answer goes on that an earlier request has begun.

What lives here: finding how much of the seed's answer a request brings along, in each API's own way.
What must not: what is said then (chat.py, typed.py).

Real engines go on at the *token* in which a prefix ends, and tokens begin with their space. A prefix that ends in white space
therefore is none that they would have come to by themselves: most chat templates strip it, and the next token brings its space
again. So it is here: trailing white space is taken for not being there, and whoever sends it has it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .answer import REASONING_SEED, count_tokens, position_after, token_id, token_text
from .reply import refusal

NEVER, FINAL_MESSAGE, PREFILL = "never", "final_message", "prefill"
"""The modes, named as the kinds of engines are: none; when asked to, as vLLM; unasked, as llama.cpp."""
MODES = (NEVER, FINAL_MESSAGE, PREFILL)
MAX_CANDIDATES = 64
"""Places in a prompt at which the answer may begin that are looked at: a prompt of first tokens must not cost its square."""
LEAST_PARTIAL = 3
"""Characters of a cut first token that tell it from the prompt's own last word."""


class Begun(NamedTuple):
    """How far an answer has come."""

    start: int = 0
    """The next token of the content."""
    lead: str = ""
    """The missing rest of the token in which the content was cut."""
    reasoning_start: int = 0
    reasoning_lead: str = ""
    tokens: int = 0
    """Tokens of it that the prompt holds, a cut one counted whole."""
    words: int = 0
    """As how many words they stand in the prompt's text."""


Begins = Callable[[Mapping[str, Any], int, int, str], Begun]
"""From body, seed, how many tokens of reasoning the answer has, and mode."""

NOTHING = Begun()


def chat_begun(body: Mapping[str, Any], seed: int, reasoning_tokens: int, mode: str) -> Begun:
    """An assistant message at the end, where the engine is of that kind or asked to go on with it."""
    asked = body.get("continue_final_message")
    if mode == FINAL_MESSAGE:
        # As vLLM does: without the second field it would both close the message and go on with it.
        if asked is True and body.get("add_generation_prompt") is not False:
            raise refusal(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        goes_on = asked is True
    else:
        goes_on = mode == PREFILL and asked is not False
    return message_begun(body, seed, reasoning_tokens, mode) if goes_on else NOTHING


def message_begun(body: Mapping[str, Any], seed: int, reasoning_tokens: int, mode: str) -> Begun:
    """An assistant message at the end; for /v1/messages that alone is the wish to go on."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if mode == NEVER or not isinstance(last, dict) or last.get("role") != "assistant":
        return NOTHING
    content = _text(last.get("content"))
    thought = _text(last.get("reasoning_content") or last.get("reasoning")) if reasoning_tokens else ""
    start, lead = position_after(seed, content.rstrip())
    thought_start, thought_lead = position_after(seed + REASONING_SEED, thought.rstrip())
    if thought and content and (thought_lead or thought_start < reasoning_tokens):
        return NOTHING  # An answer after half a thought is none of this seed's.
    return Begun(
        start=start,
        lead=lead,
        reasoning_start=thought_start,
        reasoning_lead=thought_lead,
        tokens=start + thought_start,
        words=count_tokens(content) if start else 0,
    )


def prompt_begun(body: Mapping[str, Any], seed: int, _: int, mode: str) -> Begun:
    """A prompt that ends in the answer's beginning, as text or as token ids; nothing in it says where the answer begins."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if mode == NEVER:
        return NOTHING
    if isinstance(prompt, str):
        return _text_begun(prompt.rstrip(), seed)
    if isinstance(prompt, list):
        tokens = _ids_begun(prompt, seed)
        return Begun(start=tokens, tokens=tokens, words=tokens)
    return NOTHING


def nothing_begun(_: Mapping[str, Any], __: int, ___: int, ____: str) -> Begun:
    """An API through which no answer can be gone on with."""
    return NOTHING


def _text_begun(prompt: str, seed: int) -> Begun:
    """The longest end of ``prompt`` that is a beginning of the answer."""
    first = token_text(seed, 0)
    at = prompt.find(first)
    for _ in range(MAX_CANDIDATES):
        if at < 0:
            break
        start, lead = position_after(seed, prompt[at:])
        if start:
            return Begun(start=start, lead=lead, tokens=start, words=count_tokens(prompt[at:]))
        at = prompt.find(first, at + 1)
    for length in range(len(first) - 1, LEAST_PARTIAL - 1, -1):
        if prompt.endswith(first[:length]):
            return Begun(start=1, lead=first[length:], tokens=1, words=count_tokens(first[:length]))
    return NOTHING


def _ids_begun(prompt: list[Any], seed: int) -> int:
    """How many ids at the end of ``prompt`` are the answer's first ones."""
    first = token_id(seed, 0)
    candidates = (at for at, id in enumerate(prompt) if id == first)
    for at, _ in zip(candidates, range(MAX_CANDIDATES), strict=False):
        if all(id == token_id(seed, index) for index, id in enumerate(prompt[at:])):
            return len(prompt) - at
    return 0


def _text(content: object) -> str:
    """A message's text, be it one string or parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
