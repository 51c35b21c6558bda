"""The questions of ``longwire check --engine`` in their order, and what they need of one another.

What lives here: which request follows which. What must not: HTTP (asking.py), and what answers mean (abilities.py, seams.py,
gauges.py).

All answers but one are short, greedy and read to their end, so that no question finds the engine busy with another; the long
one comes last, because an engine that does not notice goes on with it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial

from .abilities import (
    NO,
    UNKNOWN,
    WAYS,
    YES,
    Ability,
    Judgement,
    ability,
    fill,
    judge_continuous,
    judge_ids,
    judge_stream,
    judge_usage,
    suggest_kind,
)
from .asking import Asker, Clock, OutOfBudget, Reply
from .gauges import LOOKS_S, OWNERS, PATHS, Load, Source, Watch, judge_watch, recognise
from .questions import LONG_TOKENS, NO_THINKING, TOKENS, Questions, tokens_left
from .seams import Seam, Whole, cut_places, join, judge_seam, judge_seams

CUTS = 8
ID_CUTS = 4
"""Ids go on exactly or not at all: there are no words to be divided otherwise."""
IDLE_LOOKS = 3
IDLE_PAUSE_S = 0.5
"""So often, and so far apart, is an engine looked at that is still busy with what came before."""
ANNOUNCEMENT = "about 40 short answers and one long one that is left"

Tell = Callable[[str], None]


def interview(
    asker: Asker, model: str, tell: Tell, clock: Clock = time.monotonic, pause: Callable[[float], None] = time.sleep
) -> Judgement:
    """Everything that can be found out about one engine."""
    talk = Interview(asker, model, tell, clock, pause)
    why = "not asked"
    try:
        why = talk.run()
    except OutOfBudget as error:
        why = str(error)
    verdicts = {name: row.verdict for name, row in talk.found.items()}
    answers = talk.whole is not None and talk.whole.is_good
    kind, because = suggest_kind(talk.looks_like, verdicts) if answers else ("", why)
    return Judgement(answers, talk.model, fill(talk.found, why), kind, because)


class Interview:
    """One engine, and what it has said so far."""

    def __init__(self, asker: Asker, model: str, tell: Tell, clock: Clock, pause: Callable[[float], None]) -> None:
        self._questions = Questions(asker, model)
        self._tell = tell
        self._clock = clock
        self._pause = pause
        self.found: dict[str, Ability] = {}
        self.looks_like = ""
        self.whole: Reply | None = None
        self._repeats: bool | None = None
        self._source: Source | None = None

    def __repr__(self) -> str:
        return f"Interview({self._questions!r}, found={list(self.found)})"

    def run(self) -> str:
        """Ask everything; why what is missing then was not asked."""
        self._tell("its models and metrics")
        if why := self._ask_models():
            return why
        self._ask_metrics()
        self._tell("a whole answer")
        if why := self._ask_whole():
            return why
        self._ask_usage()
        self._ask_continuations()
        self._ask_ids()
        self._tell("a long answer that is left")
        self._ask_leaving()
        return "not asked"

    @property
    def model(self) -> str:
        """The one that is asked: as named, or the first that is listed."""
        return self._questions.model

    # What it is.

    def _ask_models(self) -> str:
        got = self._questions.asker.get("/v1/models")
        models = _read_models(got.body) if got.status == 200 else {}
        owner = models.get(self._questions.model, next(iter(models.values()), ""))
        self.looks_like = OWNERS.get(owner, "llamacpp" if got.server == "llama.cpp" else "")
        self._questions.model = self._questions.model or next(iter(models), "")
        if got.status == 200 and models:
            shown = ", ".join(list(models)[:3]) + (", …" if len(models) > 3 else "")
            self._note(ability("answers", YES, f"lists {shown}"))
        else:
            said = got.error or (f"answered {got.status}" if got.status != 200 else "lists no models")
            self._note(ability("answers", NO, said + _advice(got.status, self._questions.model)))
        if not got.status:
            return "it does not answer"
        return "" if self._questions.model else "no model to ask"

    def _ask_metrics(self) -> None:
        seen = [source for path in PATHS if (source := self._look(path)) is not None]
        if not seen:
            self._note(ability("metrics", NO, "nothing known at " + " or ".join(PATHS)))
            return
        self._note(ability("metrics", YES, "; ".join(map(str, seen))))
        self.looks_like = self.looks_like or seen[0].kind
        self._source = next((source for source in reversed(seen) if source.load.running is not None), None)

    def _look(self, path: str) -> Source | None:
        got = self._questions.asker.get(path)
        return recognise(path, got.status, got.body)

    # What it streams.

    def _ask_whole(self) -> str:
        whole = self._questions.tell({})
        if whole.is_good and not join(whole.texts) and whole.reasons:
            quiet = self._questions.tell(NO_THINKING)
            if quiet.is_good and join(quiet.texts):
                whole, self._questions.extra = quiet, dict(NO_THINKING)
        self.whole = whole
        if not whole.is_good:
            self._note(ability("streams", UNKNOWN, whole.error))
            return f"it gives no answer: {whole.error}"
        self._note(judge_stream(whole.content_type, whole.events, is_ended=whole.is_ended))
        return ""

    def _ask_usage(self) -> None:
        assert self.whole is not None
        asked = again = self._questions.tell({"stream_options": {"include_usage": True}})
        if asked.is_good or asked.is_refused:
            refused = asked.error if asked.is_refused else ""
            self._note(judge_usage(unasked=self.whole.usages > 0, refused=refused, asked=asked.usages > 0))
        if not again.is_good:
            again = self._questions.tell({})
        self._note(self._judge_repeat(again))
        self.whole.completion_tokens = self.whole.completion_tokens or again.completion_tokens
        every = self._questions.tell({"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        if every.is_good or every.is_refused:
            refused = every.error if every.is_refused else ""
            self._note(judge_continuous(refused=refused, usages=every.usages, events=every.events))

    def _judge_repeat(self, again: Reply) -> Ability:
        assert self.whole is not None
        name, one, other = "same answer twice", join(self.whole.texts), join(again.texts)
        if not again.is_good or not one:
            return ability(name, UNKNOWN, again.error or "the answer is empty")
        self._repeats = one == other
        return ability(name, YES if self._repeats else NO, f"{len(one)} characters" if self._repeats else "they differ")

    # How it goes on.

    def _ask_continuations(self) -> None:
        assert self.whole is not None
        for way, name in WAYS.items():
            self._note(self._judge_way(name, self.whole, partial(self._questions.go_on, way)))
        whole = self._questions.complete("", TOKENS)
        self._note(self._judge_way("continues, completions", whole, self._questions.complete))

    def _judge_way(self, name: str, whole: Reply, go_on: Callable[[str, int], Reply]) -> Ability:
        """One way of asking, at all cuts of one answer."""
        if not whole.is_good:
            return _judge_failed(name, whole)
        uncut = Whole(join(whole.texts), whole.finish == "length")
        places = cut_places(whole.texts, CUTS)
        if not places:
            reasoning = "it thinks for as long as it was let; try another --model"
            return ability(name, UNKNOWN, reasoning if whole.reasons else "the answer is too short to cut")
        seams: list[Seam] = []
        for index, at in enumerate(places):
            self._tell(f"{name}: cut {index + 1} of {len(places)}")
            reply = go_on(uncut.text[:at], tokens_left(whole, at / len(uncut.text)))
            if not reply.is_good:
                return _judge_failed(name, reply)
            seams.append(judge_seam(uncut, at, join(reply.texts), is_open=reply.finish == "length"))
        return ability(name, *judge_seams(seams, repeats=self._repeats))

    def _ask_ids(self) -> None:
        self._tell("token ids")
        whole = self._questions.tell({"return_token_ids": True})
        if not whole.is_good:
            self._note(_judge_failed("token ids", whole))
            return
        given = len(whole.prompt_ids) and sum(len(piece.ids) for piece in whole.pieces)
        seams: list[Seam] = []
        for cut in _id_cuts(len(whole.pieces)) if given else ():
            reply, seam = self._cut_at_ids(whole, cut)
            if not reply.is_good:
                row = _judge_failed("token ids", reply)
                self._note(judge_ids(given=given, refused=reply.error, exact=0, cuts=0) if reply.is_refused else row)
                return
            seams.append(seam)
        self._note(judge_ids(given=given, refused="", exact=seams.count(Seam.EXACT), cuts=len(seams)))

    def _cut_at_ids(self, whole: Reply, cut: int) -> tuple[Reply, Seam]:
        """The answer to the prompt's ids and those of the first ``cut`` pieces."""
        uncut = Whole(join(whole.texts), whole.finish == "length")
        at = len(join(whole.texts[:cut]))
        ids = [each for piece in whole.pieces[:cut] for each in piece.ids]
        reply = self._questions.complete_ids(
            [*whole.prompt_ids, *ids], tokens_left(whole, at / max(1, len(uncut.text)))
        )
        return reply, judge_seam(uncut, at, join(reply.texts), is_open=reply.finish == "length")

    # Whether it notices.

    def _ask_leaving(self) -> None:
        source = self._source
        if source is None:
            self._note(ability("stops when left", UNKNOWN, "no metrics that say what runs"))
            return
        before = self._wait_idle(source.path)
        during: list[Load] = []
        reply = self._questions.leave({"ignore_eos": True}, lambda: during.append(self._load(source.path)))
        if reply.is_refused:
            reply = self._questions.leave({}, lambda: during.append(self._load(source.path)))
        left_at_s = self._clock()
        if not during:
            self._note(ability("stops when left", UNKNOWN, reply.error or "the answer ended before it could be left"))
            return
        after: list[tuple[float, Load]] = []
        for look_s in LOOKS_S:
            self._pause(max(0.0, left_at_s + look_s - self._clock()))
            load = self._load(source.path)
            after.append((self._clock() - left_at_s, load))
            if load.running is not None and before.running is not None and load.running <= before.running:
                break
        pace_s = (reply.pieces[-1].at_s - reply.pieces[0].at_s) / (len(reply.pieces) - 1)
        left_s = pace_s * (LONG_TOKENS - len(reply.pieces))
        self._note(judge_watch(Watch(before, during[0], tuple(after), left_s)))

    def _wait_idle(self, path: str) -> Load:
        load = self._load(path)
        for _ in range(IDLE_LOOKS):
            if not load.running:
                break
            self._pause(IDLE_PAUSE_S)
            load = self._load(path)
        return load

    def _load(self, path: str) -> Load:
        source = self._look(path)
        return source.load if source else Load(None, None)

    def _note(self, row: Ability) -> None:
        self.found[row.ability] = row


def _id_cuts(pieces: int) -> range:
    """Up to ID_CUTS places between the pieces of an answer."""
    return range(1, pieces, max(1, math.ceil((pieces - 1) / ID_CUTS)))


def _judge_failed(name: str, reply: Reply) -> Ability:
    """A question that got no answer: a refusal is one, and what else went wrong says nothing."""
    return ability(name, NO, f"refused: {reply.error}") if reply.is_refused else ability(name, UNKNOWN, reply.error)


def _read_models(body: bytes) -> dict[str, str]:
    """Each model's owner."""
    try:
        return {str(model["id"]): str(model.get("owned_by", "")) for model in json.loads(body)["data"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _advice(status: int, model: str) -> str:
    if status in (401, 403):
        return ": name the variable that holds its key with --api-key-env"
    if not status:
        return ": start it, or mend the URL"
    return "" if model else ": name one with --model"
