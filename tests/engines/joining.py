"""What the tests of continuations share: an answer cut somewhere, gone on with, and read as its client reads it.

What lives here: the joining as a gateway does it, and what a client makes of the events. What must not: engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from longwire.engines.continuation import check_request, continued_body, continues_by_ids, stops_of
from longwire.engines.kinds import Abilities
from longwire.engines.said import Said
from longwire.engines.seam import Seam, finish_event
from longwire.wire.sse import encode_event, parse_event

CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"

Engine = Callable[[bytes], Sequence[bytes]]
"""From a request's body to its events."""


def block_of(value: object) -> bytes:
    """One event."""
    return encode_event(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    )


@dataclass
class Read:
    """What a client has read."""

    content: str = ""
    reasoning: str = ""
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    token_ids: list[int] = field(default_factory=list)
    prompts_told: int = 0
    dones: int = 0


def read(blocks: Sequence[bytes]) -> Read:
    """Read events as a client does."""
    seen = Read()
    for block in blocks:
        data = parse_event(block).data
        if data is None:
            continue
        if data == b"[DONE]":
            seen.dones += 1
            continue
        frame = json.loads(data)
        seen.ids.add(frame["id"])
        if frame.get("usage"):
            seen.usages.append(frame["usage"])
        seen.prompts_told += "prompt_token_ids" in frame
        for choice in frame["choices"]:
            _read_choice(seen, choice)
    return seen


def _read_choice(seen: Read, choice: dict[str, Any]) -> None:
    delta = choice.get("delta", {})
    seen.content += delta.get("content") or choice.get("text") or ""
    seen.reasoning += delta.get("reasoning_content") or ""
    seen.roles += "role" in delta
    seen.prompts_told += "prompt_token_ids" in choice
    seen.token_ids += choice.get("token_ids") or []
    if choice.get("finish_reason"):
        assert not seen.finishes
        seen.finishes.append(choice["finish_reason"])


def say(blocks: Sequence[bytes]) -> Said:
    """What a log of these events has said."""
    said = Said()
    for block in blocks:
        said.add(block)
    return said


def join(
    first: Sequence[bytes],
    body: bytes,
    target: bytes,
    abilities: Abilities,
    engine: Engine,
    *,
    hides_usage: bool = False,
) -> list[bytes]:
    """The log of an answer that was cut after ``first`` and gone on with at ``engine``.

    Raises:
        CannotContinue: as the gateway would end it then.
    """
    fields = json.loads(body)
    check_request(target, fields)
    said = say(first)
    rest = continued_body(target, body, said, abilities)
    is_chat = target == CHAT
    if rest is None:
        return [*first, finish_event(said, "length", is_chat=is_chat), b"data: [DONE]\n\n"]
    seam = Seam(
        said,
        stops_of(fields),
        include_stop=fields.get("include_stop_str_in_output") is True,
        hides_usage=hides_usage,
        by_ids=continues_by_ids(target, body, said, abilities),
    )
    log = list(first)
    for block in engine(rest):
        log += seam.rewrite(block)
        if seam.is_ended:
            return [*log, b"data: [DONE]\n\n"]
    return log + seam.flush()


# What a broken or hostile engine may send.

KEYS = ["choices", "delta", "content", "text", "index", "usage", "id", "error", "finish_reason", "role", "reasoning",
        "token_ids", "prompt_tokens", "completion_tokens", "completion_tokens_details", "tool_calls"]  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
FRAMES = st.fixed_dictionaries(
    {"id": st.just("two")},
    optional={
        "usage": JSON,
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "delta": st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), "index": st.sampled_from([0, 0, 1, "0"]),
                    "text": JSON, "finish_reason": st.sampled_from([None, "stop", 5]), "token_ids": JSON,
                },
            ),
            max_size=2,
        ),
    },
)  # fmt: skip
BLOCKS: st.SearchStrategy[bytes] = (FRAMES | JSON).map(
    lambda value: b"data: " + json.dumps(value).encode() + b"\n\n"
) | st.binary(max_size=40)
