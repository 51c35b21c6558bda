"""An engine whose tokens are letters, and whose answer is known: small enough to be believed.

What lives here: its answers to whole and to continued requests. What must not: anything of the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engines.joining import block_of

PROMPT_TOKENS = 7
PROMPT = "Say it"
DONE = b"data: [DONE]\n\n"
NO_LIMIT = 1 << 30


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Start and end of the stop string that is complete first; of several, the one that begins first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (min(found)[1], min(found)[0]) if found else None


@dataclass
class Letters:
    """One engine. ``size`` letters come in each event; ``name`` tells it from others."""

    whole: str
    thought: str = ""
    size: int = 1
    name: str = "one"
    kind: str = "final_message"
    usage_all_along: bool = False
    asked: str = ""

    def __call__(self, body: bytes) -> list[bytes]:
        """The events of an answer."""
        self.asked = body.decode()
        fields = json.loads(body)
        is_chat = "messages" in fields
        said, thought = self._begun(fields)
        assert self.whole.startswith(said), (self.whole, said)
        assert self.thought.startswith(thought), (self.thought, thought)
        given = PROMPT_TOKENS + len(said) + len(thought)
        return list(self._say(fields, is_chat, self.thought[len(thought) :], self.whole[len(said) :], given))

    def _begun(self, fields: dict[str, Any]) -> tuple[str, str]:
        if "messages" not in fields:
            prompt = fields["prompt"]
            if isinstance(prompt, list):
                assert prompt[:PROMPT_TOKENS] == [0] * PROMPT_TOKENS
                return "".join(map(chr, prompt[PROMPT_TOKENS:])), ""
            assert prompt.startswith(PROMPT)
            return prompt[len(PROMPT) :], ""
        last = fields["messages"][-1]
        asked = (fields.get("continue_final_message"), fields.get("add_generation_prompt"))
        goes_on = asked == (True, False) if self.kind == "final_message" else asked[0] is not False
        if not goes_on or last["role"] != "assistant":
            return "", ""
        return last["content"], last.get("reasoning_content", "")

    def _say(self, fields: dict[str, Any], is_chat: bool, thought: str, text: str, given: int) -> Iterator[bytes]:
        limit = fields.get("max_tokens", NO_LIMIT)
        stops = fields.get("stop") or []
        found = first_stop(text, stops)
        start, end = found or (len(text), len(text))
        end = max(0, min(end, limit - len(thought)))
        is_cut = len(thought) + len(text[: found[1]] if found else text) >= limit + bool(found)
        content = text[:end] if is_cut or fields.get("include_stop_str_in_output") else text[:start]
        if is_chat:
            yield self._event(is_chat, {"role": "assistant", "content": ""})
        told = 0
        for key, words in (("reasoning_content", thought[:limit]), ("content", content)):
            for at in range(0, len(words), self.size):
                piece = words[at : at + self.size]
                told += len(piece)
                yield self._event(is_chat, {key: piece}, ids=fields.get("return_token_ids"), used=(given, told))
        stopped_by = {"stop_reason": text[start:end]} if found and not is_cut else {}
        yield self._event(is_chat, {}, finish="length" if is_cut else "stop", choice=stopped_by)
        if (fields.get("stream_options") or {}).get("include_usage"):
            used = self._usage(given, len(thought[:limit]) + (end if not found or is_cut else len(content)))
            yield block_of({**self._top(is_chat), "choices": [], "usage": used})
        yield DONE

    def _top(self, is_chat: bool) -> dict[str, Any]:
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        return {"id": self.name, "object": kind, "created": len(self.name), "model": f"model-{self.name}"}

    def _event(self, is_chat: bool, delta: dict[str, str], finish: str | None = None, **told: Any) -> bytes:
        place: dict[str, Any] = {"delta": delta} if is_chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **place, "logprobs": None, "finish_reason": finish, **told.get("choice", {})}
        if told.get("ids"):
            choice["token_ids"] = list(map(ord, delta["content"]))
            choice["prompt_token_ids"] = [0] * PROMPT_TOKENS
        event = {**self._top(is_chat), "choices": [choice]}
        if self.usage_all_along and "used" in told:
            event["usage"] = self._usage(*told["used"])
        return block_of(event)

    def _usage(self, given: int, generated: int) -> dict[str, int]:
        return {"prompt_tokens": given, "completion_tokens": generated, "total_tokens": given + generated}
