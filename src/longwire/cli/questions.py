"""What is asked of an engine under examination, word for word.

What lives here: the requests' bodies. What must not: their order (interview.py), and HTTP (asking.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longwire.engines.kinds import Continues

from .asking import Asker, Reply

TOKENS = 48
"""Long enough for eight cuts that say something, short enough to cost nothing."""
SPARE_TOKENS = 8
"""Beyond what the rest of an answer took: the same text may take other tokens after a cut."""
LONG_TOKENS = 1024
"""Seconds on any engine, so that one that stops is told from one that is done."""
LEAVE_AFTER = 4
"""Pieces of the long answer that are read: enough to know its pace."""
SEED = 7

QUESTION = "Tell a short story about a lighthouse keeper and a storm. Begin at once, in plain prose."
"""Prose, because any model goes on with a list of numbers, whether it was asked to or not."""
BEGINNING = "The lighthouse keeper had seen many storms, but when he climbed the stairs that evening"
COUNTING = "Count from one to one thousand in words, and leave nothing out."

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
"""A model that thinks for all of its 48 tokens has no answer to cut; most that do can be told not to."""

Body = dict[str, Any]

CONTINUING: Mapping[Continues, Body] = {
    Continues.FINAL_MESSAGE: {"continue_final_message": True, "add_generation_prompt": False},
    Continues.PREFILL: {},
}
"""What goes with the cut answer as the last message."""


class Questions:
    """Requests for one model. ``extra`` goes into every chat."""

    def __init__(self, asker: Asker, model: str) -> None:
        self.asker = asker
        self.model = model
        self.extra: Body = {}

    def __repr__(self) -> str:
        return f"Questions({self.asker!r}, {self.model!r})"

    def tell(self, options: Mapping[str, Any]) -> Reply:
        """The whole answer."""
        return self._ask(CHAT, {"messages": [_user(QUESTION)], **self.extra, **options})

    def go_on(self, way: Continues, prefix: str, tokens: int) -> Reply:
        """The rest of an answer that was cut after ``prefix``."""
        messages = [_user(QUESTION), {"role": "assistant", "content": prefix}]
        return self._ask(CHAT, {"messages": messages, "max_tokens": tokens, **self.extra, **CONTINUING[way]})

    def complete(self, prefix: str, tokens: int) -> Reply:
        """A text, or its rest, without the frame of a chat."""
        return self._ask(COMPLETIONS, {"prompt": BEGINNING + prefix, "max_tokens": tokens})

    def complete_ids(self, ids: Sequence[int], tokens: int) -> Reply:
        """The rest of an answer by the ids of all that comes before it."""
        return self._ask(COMPLETIONS, {"prompt": list(ids), "max_tokens": tokens})

    def leave(self, options: Mapping[str, Any], before_leaving: Callable[[], None]) -> Reply:
        """A long answer, left after a few pieces."""
        body = {"messages": [_user(COUNTING)], "max_tokens": LONG_TOKENS, **options}
        return self.asker.ask(CHAT, self._body(body), LEAVE_AFTER, before_leaving)

    def _ask(self, path: str, options: Mapping[str, Any]) -> Reply:
        return self.asker.ask(path, self._body(options))

    def _body(self, options: Mapping[str, Any]) -> Body:
        return {"model": self.model, "stream": True, "temperature": 0, "seed": SEED, "max_tokens": TOKENS, **options}


def tokens_left(whole: Reply, share: float) -> int:
    """What the rest of an answer, after that share of it, took of its tokens, and some to spare."""
    made = whole.completion_tokens or (TOKENS if whole.finish == "length" else len(whole.pieces))
    return min(TOKENS, math.ceil(made * (1 - share)) + SPARE_TOKENS)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
