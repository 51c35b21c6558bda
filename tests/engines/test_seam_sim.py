"""Answers of the engine stand-in, cut after every event and gone on with: they read as if nobody had cut them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engines.joining import CHAT, COMPLETIONS, join, read
from tests.sim.playing import encode_request, play

from longwire.engines.continuation import CannotContinue
from longwire.engines.kinds import Abilities, Continues
from longwire.sim.answer import expected_reasoning, expected_text, token_ids
from longwire.sim.server import SimServer
from longwire.words.settings import SimSettings

SEED, TOKENS = 3, 24
TOKENS_OF_LIMIT = 7
HELLO = [{"role": "user", "content": "hello there world"}]
WHOLE = expected_text(SEED, TOKENS)
FINAL = Abilities(continues=Continues.FINAL_MESSAGE, continues_reasoning=True)
PREFILL = Abilities(continues=Continues.PREFILL, continues_reasoning=True)
IDS = Abilities(continues=Continues.FINAL_MESSAGE, takes_token_ids=True)
USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
STOPS: list[Any] = [None, WHOLE[40:43], [WHOLE[60:70], "no such thing"], WHOLE[:2], ["\n", "zzz"]]


def engine_of(abilities: Abilities, target: bytes) -> Any:
    mode = "prefill" if abilities.continues is Continues.PREFILL else "final_message"
    server = SimServer(SimSettings(tokens=TOKENS, itl_ms=0, ttft_ms=0, seed=SEED, continues=mode))

    def answer(body: bytes) -> list[bytes]:
        played = play(server, encode_request(body, target.decode()))
        assert played.head.status == 200, played.body
        return played.blocks

    return answer


def request_of(target: bytes, **fields: Any) -> bytes:
    asked = {"messages": HELLO} if target == CHAT else {"prompt": "hello there world"}
    given = {name: value for name, value in fields.items() if value is not None}
    return json.dumps({"model": "m", **asked, "stream": True, **given}).encode()


def cuts_of(blocks: list[bytes]) -> range:
    """After every event before the finish."""
    return range(next(n for n, block in enumerate(blocks) if b'"finish_reason":null' not in block))


CASES = [
    pytest.param(CHAT, FINAL, id="chat as vLLM"),
    pytest.param(CHAT, PREFILL, id="chat as llama.cpp"),
    pytest.param(COMPLETIONS, FINAL, id="text"),
    pytest.param(COMPLETIONS, IDS, id="text by ids"),
]


@pytest.mark.parametrize("options", [USAGE, CONTINUOUS], ids=["usage at the end", "usage all along"])
@pytest.mark.parametrize("stop", STOPS, ids=repr)
@pytest.mark.parametrize("limit", [None, TOKENS_OF_LIMIT])
@pytest.mark.parametrize(("target", "abilities"), CASES)
def test_a_joined_answer_is_the_uncut_one(
    target: bytes, abilities: Abilities, limit: int | None, stop: Any, options: dict[str, Any]
) -> None:
    engine = engine_of(abilities, target)
    ids = True if abilities.takes_token_ids else None
    body = request_of(target, stop=stop, max_tokens=limit, stream_options=options, return_token_ids=ids)
    blocks = engine(body)
    uncut = read(blocks)
    for cut in cuts_of(blocks):
        joined = read(join(blocks[:cut], body, target, abilities, engine))
        assert (joined.content, joined.finishes, joined.dones) == (uncut.content, uncut.finishes, 1)
        assert joined.roles == uncut.roles and len(joined.ids) == 1
        assert joined.usages[-1:] == uncut.usages[-1:] or (not joined.usages and cut >= TOKENS_OF_LIMIT == limit)
        if ids and not stop:
            assert joined.token_ids == token_ids(SEED, limit or TOKENS)
            assert joined.prompts_told == 1


@pytest.mark.parametrize("options", [USAGE, CONTINUOUS], ids=["usage at the end", "usage all along"])
@pytest.mark.parametrize("limit", [None, 10, 20])
@pytest.mark.parametrize("abilities", [FINAL, PREFILL], ids=["as vLLM", "as llama.cpp"])
def test_reasoning_goes_on_as_reasoning(abilities: Abilities, limit: int | None, options: dict[str, Any]) -> None:
    engine = engine_of(abilities, CHAT)
    body = request_of(CHAT, reasoning=True, max_tokens=limit, stream_options=options)
    blocks = engine(body)
    uncut = read(blocks)
    if limit is None:
        assert uncut.reasoning == expected_reasoning(SEED, TOKENS)
    for cut in cuts_of(blocks):
        joined = read(join(blocks[:cut], body, CHAT, abilities, engine))
        assert (joined.reasoning, joined.content) == (uncut.reasoning, uncut.content)
        assert joined.finishes == uncut.finishes
        for ours, theirs in zip(joined.usages[-1:], uncut.usages[-1:], strict=True):
            assert {**theirs, **ours} == theirs


def test_an_answer_is_gone_on_with_again_and_again() -> None:
    """Each part ends after three events, and the next goes on after what is in the log by then."""
    engine = engine_of(FINAL, CHAT)
    body = request_of(CHAT, stream_options=USAGE, max_tokens=TOKENS + 5)
    log = engine(body)[:3]
    for _ in range(TOKENS):
        length = len(log)
        joined = join(log, body, CHAT, FINAL, engine)
        log = joined[: length + 3]
        if read(log).finishes:
            break
    log = joined
    seen = read(log)
    assert (seen.content, seen.finishes, seen.dones, seen.roles) == (WHOLE, ["stop"], 1, 1)
    assert seen.usages == read(engine(body)).usages


def test_an_engine_that_cannot_is_not_asked() -> None:
    engine = engine_of(FINAL, CHAT)
    body = request_of(CHAT)
    with pytest.raises(CannotContinue, match="not known to go on"):
        join(engine(body)[:5], body, CHAT, Abilities(), engine)
    # Before the first token it is the same request again.
    assert read(join(engine(body)[:1], body, CHAT, Abilities(), engine)).content == WHOLE
