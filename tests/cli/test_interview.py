"""The whole examination of scripted engines, and of the stand-in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from longwire.cli.abilities import ASKED, NO, UNKNOWN, YES, Judgement
from longwire.cli.asking import MAX_REQUESTS, Asker, Got, OutOfBudget, Piece, Reply
from longwire.cli.gauges import WATCH_S
from longwire.cli.interview import CUTS, interview
from longwire.cli.questions import LONG_TOKENS, TOKENS
from longwire.sim.server import SimServer
from longwire.words.settings import EngineSettings, SimSettings

FINAL, PREFILL, COMPLETIONS = "continues, final_message", "continues, prefill", "continues, completions"
PACE_S = 0.02
PROMPT_IDS = (9001, 9002)


@dataclass
class Scripted(Asker):
    """An engine with the abilities that a test gives it, on a clock of its own. Its tokens are the words of one text."""

    owner: str = ""
    family: str = "vllm"
    ways: frozenset[str] = frozenset({FINAL, COMPLETIONS})
    refuses: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    gives_ids: bool = True
    stops_when_left: bool = True
    is_thinking: bool = False
    gone_after: int = 10_000
    tokens: int = 200
    now_s: float = 0.0
    running: int = 0
    made: int = 0
    bodies: list[Mapping[str, Any]] = field(default_factory=list)
    sent: int = 0

    def clock(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.made += self.running * round(seconds / PACE_S)

    def get(self, path: str) -> Got:
        self._count()
        if path == "/v1/models":
            return Got(200, json.dumps({"data": [{"id": "m1", "owned_by": self.owner}]}).encode(), "", "")
        if path == "/metrics" and self.family == "vllm":
            text = f"vllm:num_requests_running {self.running}\nvllm:generation_tokens_total {self.made}\n"
            return Got(200, text.encode(), "", "")
        if path == "/slots" and self.family == "llamacpp":
            slot = {"is_processing": bool(self.running), "next_token": [{"n_decoded": self.made}]}
            return Got(200, json.dumps([slot]).encode(), "", "")
        return Got(404, b"", "", "")

    def ask(
        self, path: str, body: Mapping[str, Any], leave_after: int = 0, before_leaving: Callable[[], None] | None = None
    ) -> Reply:
        self._count()
        self.bodies.append(body)
        asked = set(body) | set(body.get("stream_options", ()))
        if refused := self.refuses & asked:
            return Reply(status=400, error=f"400 {min(refused)} is unknown")
        start = self._start(path, body)
        if leave_after:
            return self._left(leave_after, before_leaving)
        return self._whole(body, start, asked - self.ignores)

    def _left(self, leave_after: int, before_leaving: Callable[[], None] | None) -> Reply:
        self.running = 1
        reply = Reply(status=200)
        for index in range(leave_after):
            self.pause(PACE_S)
            reply.pieces.append(Piece(f" word{index}", (), self.now_s))
        assert before_leaving is not None
        before_leaving()
        self.running = 0 if self.stops_when_left else 1
        return reply

    def _whole(self, body: Mapping[str, Any], start: int, asked: set[str]) -> Reply:
        end = min(self.tokens, start + body["max_tokens"])
        reply = Reply(status=200, content_type="text/event-stream", events=end - start + 2, is_ended=True)
        if self.is_thinking and "chat_template_kwargs" not in body:
            reply.reasons, reply.finish = True, "length"
            return reply
        ids = self.gives_ids and "return_token_ids" in asked
        reply.pieces = [Piece(f" word{at}", (at,) if ids else (), self.now_s) for at in range(start, end)]
        reply.prompt_ids = PROMPT_IDS if ids else ()
        reply.finish = "stop" if end == self.tokens else "length"
        reply.usages = reply.events if "continuous_usage_stats" in asked else int("include_usage" in asked)
        reply.completion_tokens = end - start if reply.usages else 0
        return reply

    def _start(self, path: str, body: Mapping[str, Any]) -> int:
        """Where it goes on: at the beginning, unless it knows this way of being asked."""
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            assert tuple(prompt[:2]) == PROMPT_IDS
            return len(prompt) - 2
        if isinstance(prompt, str):
            return prompt.count(" word") if COMPLETIONS in self.ways else 0
        last = body["messages"][-1]
        way = FINAL if body.get("continue_final_message") else PREFILL
        return last["content"].count(" word") if last["role"] == "assistant" and way in self.ways else 0

    def _count(self) -> None:
        if self.sent >= self.gone_after:
            raise OutOfBudget("the time was over")
        self.sent += 1


def examine(engine: Scripted, model: str = "") -> tuple[Judgement, dict[str, str]]:
    """The judgement, and each row's verdict."""
    judgement = interview(engine, model, lambda stage: None, engine.clock, engine.pause)
    assert [row.ability for row in judgement.abilities] == list(ASKED)
    return judgement, {row.ability: row.verdict for row in judgement.abilities}


def found(judgement: Judgement, name: str) -> str:
    return next(row.found for row in judgement.abilities if row.ability == name)


def test_an_engine_that_can_do_everything() -> None:
    engine = Scripted()
    judgement, verdicts = examine(engine)
    assert {name for name, verdict in verdicts.items() if verdict != YES} == {PREFILL}
    assert found(judgement, FINAL) == "exact: identical in 8 of 8 cuts"
    assert found(judgement, PREFILL) == "begins anew: in 8 of 8 cuts word for word"
    assert (judgement.answers, judgement.model, judgement.kind) == (True, "m1", "vllm")


def test_what_it_costs() -> None:
    engine = Scripted(stops_when_left=False, refuses=frozenset({"include_usage", "ignore_eos"}), ways=frozenset())
    examine(engine)
    assert len(engine.bodies) <= 45
    assert engine.sent <= MAX_REQUESTS
    assert [body["max_tokens"] for body in engine.bodies if body["max_tokens"] > TOKENS] == [LONG_TOKENS] * 2
    cuts = [body for body in engine.bodies if body.get("continue_final_message")]
    assert len(cuts) == CUTS
    assert all(body["add_generation_prompt"] is False for body in cuts)
    assert all(not body["messages"][-1]["content"].endswith(" ") for body in cuts)


def test_every_answer_is_greedy_and_from_the_model_that_was_named() -> None:
    engine = Scripted()
    assert examine(engine, "mine")[0].model == "mine"
    asked = {(body["model"], body["temperature"], body["stream"], "seed" in body) for body in engine.bodies}
    assert asked == {("mine", 0, True, True)}


@pytest.mark.parametrize(
    ("engine", "kind", "expected"),
    [
        (
            Scripted(owner="llamacpp", family="llamacpp", ways=frozenset({PREFILL}), gives_ids=False),
            "llamacpp",
            {FINAL: NO, PREFILL: YES, "token ids": NO, "stops when left": YES},
        ),
        (Scripted(owner="vllm", ways=frozenset()), "openai", {FINAL: NO, PREFILL: NO, COMPLETIONS: NO}),
        (
            Scripted(family="", ways=frozenset(), refuses=frozenset({"continue_final_message", "return_token_ids"})),
            "openai",
            {FINAL: NO, "token ids": NO, "metrics": NO, "stops when left": UNKNOWN},
        ),
        (Scripted(family="", gives_ids=False), "sglang", {FINAL: YES, "metrics": NO}),
        (Scripted(owner="longwire-sim"), "sim", {FINAL: YES}),
        (Scripted(stops_when_left=False), "vllm", {"stops when left": NO}),
        (Scripted(refuses=frozenset({"ignore_eos"})), "vllm", {"stops when left": YES}),
        (Scripted(refuses=frozenset({"include_usage"})), "vllm", {"usage in stream": NO, "same answer twice": YES}),
        (
            Scripted(ignores=frozenset({"continuous_usage_stats"})),
            "vllm",
            {"usage in stream": YES, "usage in every event": NO},
        ),
        (Scripted(tokens=20), "vllm", {FINAL: YES, "token ids": YES}),
        (Scripted(is_thinking=True), "vllm", {FINAL: YES}),
        (Scripted(tokens=0), "openai", {FINAL: UNKNOWN, PREFILL: UNKNOWN, "token ids": NO}),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value,
)
def test_engines_that_can_do_less(engine: Scripted, kind: str, expected: dict[str, str]) -> None:
    judgement, verdicts = examine(engine)
    assert {name: verdicts[name] for name in expected} == expected
    assert (judgement.kind, judgement.answers) == (kind, True)
    assert judgement.why


def test_a_model_that_thinks_is_told_not_to() -> None:
    engine = Scripted(is_thinking=True)
    examine(engine)
    assert all(
        "chat_template_kwargs" in body
        for body in engine.bodies[1:]
        if body.get("max_tokens") == TOKENS and "messages" in body
    )


def test_an_engine_that_goes_on_is_watched_for_no_longer_than_it_takes() -> None:
    engine = Scripted(stops_when_left=False)
    judgement, _ = examine(engine)
    assert found(judgement, "stops when left") == "still at work 3 s after"
    assert engine.now_s <= WATCH_S + 1


@pytest.mark.parametrize("gone_after", range(0, 60, 3))
def test_out_of_budget_anywhere_the_rest_is_unknown(gone_after: int) -> None:
    judgement, verdicts = examine(Scripted(gone_after=gone_after, stops_when_left=False))
    assert judgement.answers == (gone_after >= 4)  # the model list, two looks for metrics, a whole answer
    if gone_after < 50:
        assert verdicts["stops when left"] == UNKNOWN
        assert found(judgement, "stops when left") == "the time was over"


@pytest.mark.parametrize(("status", "verdict", "says"), [(400, NO, "as a prompt refused"), (503, UNKNOWN, "503")])
def test_ids_that_are_given_and_not_taken(
    status: int, verdict: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Scripted()
    ask = engine.ask

    def refuse_ids(path: str, body: Mapping[str, Any], *leaving: Any) -> Reply:
        is_ids = isinstance(body.get("prompt"), list)
        return Reply(status=status, error=f"{status} no") if is_ids else ask(path, body, *leaving)

    monkeypatch.setattr(engine, "ask", refuse_ids)
    judgement, verdicts = examine(engine)
    assert (verdicts["token ids"], says in found(judgement, "token ids")) == (verdict, True)
    assert judgement.kind == "vllm"


# Engines that are not there, over real sockets


def test_nobody_there(closed_url: str) -> None:
    asker = Asker(EngineSettings(name="a", url=closed_url))
    judgement = interview(asker, "", lambda stage: None)
    assert (judgement.answers, judgement.kind, asker.sent) == (False, "", 1)
    assert found(judgement, "answers") == "nothing listens there: start it, or mend the URL"
    assert {row.verdict for row in judgement.abilities[1:]} == {UNKNOWN}


@pytest.mark.parametrize(
    ("status", "models", "advice"),
    [(401, {}, "--api-key-env"), (404, {}, "--model"), (200, {"data": []}, "--model"), (200, ["odd"], "--model")],
)
def test_an_engine_that_lists_nothing(
    status: int, models: object, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Scripted()
    monkeypatch.setattr(engine, "get", lambda path: Got(status, json.dumps(models).encode(), "", ""))
    judgement, _ = examine(engine)
    assert advice in found(judgement, "answers")
    assert not judgement.answers
    if status != 401:
        assert examine(engine, "m1")[0].answers


# The stand-in


async def test_the_stand_in() -> None:
    """It is asked over real sockets, as any engine."""
    server = SimServer(SimSettings(port=0, itl_ms=0, ttft_ms=0))
    await server.start()
    asker = Asker(EngineSettings(name="sim", url=server.url))
    judgement = await asyncio.to_thread(interview, asker, "", lambda stage: None)
    await server.close()
    verdicts = {row.ability: row.verdict for row in judgement.abilities}
    certain = ("answers", "streams", "usage in stream", "usage in every event", "same answer twice", FINAL, "metrics")
    assert {verdicts[name] for name in certain} == {YES}
    assert found(judgement, FINAL) == "exact: identical in 8 of 8 cuts"
    assert (judgement.model, judgement.kind) == ("sim", "sim")
