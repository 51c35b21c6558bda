"""A stored request that goes on with an answer of another stream: what that had said, folded into the body.

What lives here: folding and unfolding. What must not: what is asked of an engine (continuation.py): no engine sees this form.

The other stream may be forgotten while this one runs, and its process may die; so what it had said lies beside the request.
"""

from __future__ import annotations

import json

from .continuation import LIMITS, CannotContinue
from .request import encode_body
from .said import Said

KEY = "longwire_begun"
"""Of the stored body. A client's own field of this name is left out."""


def fold(body: bytes, said: Said, *, was_folded: bool) -> bytes:
    """The body to be stored: with all that was said so far, and limits for the rest. ``was_folded``: it has a beginning.

    Raises:
        CannotContinue: as much was said as was asked for, or the answer is whole.
    """
    if said.is_finished:
        raise CannotContinue("It is finished.")
    fields = json.loads(body)
    before = fields.pop(KEY, None) if was_folded else None
    fields.pop(KEY, None)
    for name in LIMITS:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            fields[name] = value - said.tokens
            if fields[name] <= 0:
                raise CannotContinue("It has said as much as was asked for.")
    begun = before if isinstance(before, dict) else {"content": "", "reasoning": ""}
    told = {"content": begun["content"] + said.content, "reasoning": begun["reasoning"] + said.reasoning}
    return encode_body({**fields, KEY: told})


def unfold(body: bytes) -> tuple[bytes, Said]:
    """The client's body, and what was said before this stream began. It counts for nothing here: its tokens were another's."""
    fields = json.loads(body)
    begun = fields.pop(KEY, {})
    said = Said()
    said.begin(str(begun.get("content", "")), str(begun.get("reasoning", "")))
    return encode_body(fields), said
