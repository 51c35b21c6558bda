"""Which upstream serves a model.

What lives here: the list of upstreams, who of them may be chosen, and the merged list of models.
What must not: how one of several is chosen (policy.py), connections (pool.py), probing (probe.py), tenants.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..words.errors import NoEngine, UnknownModel
from ..words.model_specs import find_model
from ..words.settings import Settings
from .kinds import Continues
from .occupancy import UNBOUND, Bounding, Wanted
from .policy import POLICIES, Candidate, Occasion, take_turn
from .pool import Upstream
from .room import Bounds

MAX_NAMES_IN_ERROR = 20
"""How many models an error names; the whole list is at ``/v1/models``."""
MAX_PROBLEMS_TOLD = 4
"""Of upstreams, where all of them have one: the fifth is most likely the same."""
MAX_TURNS = 1000
"""Models whose turns are kept. Names come from clients where an engine lists none; with so many, all begin anew."""

ChangeHeard = Callable[[Upstream], object]
Fits = Callable[[Upstream], bool]


def _ignored(_: Upstream) -> None:
    """Nobody listens."""


def _anything(_: Upstream) -> bool:
    """Whoever asks does not care whether there is room."""
    return True


class Directory:
    """The upstreams in the order of their configuration; those that came later stand last."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        settings: Settings | None = None,
        dice: random.Random | None = None,
        shards: int = 1,
    ) -> None:
        """``shards`` is how many processes share what the upstreams can hold."""
        self.upstreams = list(upstreams)
        self.retired: list[Upstream] = []
        """Those that are no endpoints any more and of which something still runs."""
        self.on_added: ChangeHeard = _ignored
        self.on_retired: ChangeHeard = _ignored
        self._settings = settings = settings or Settings()
        share = settings.kv_reserve_percent / 100 / shards
        self._bounding = Bounding(settings.max_upstream_requests, settings.shed, share)
        self._dice = dice or random.Random()
        self._turns: dict[str, dict[str, float]] = {}

    def __repr__(self) -> str:
        return f"<Directory {self.upstreams!r}>"

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        return {"upstreams": len(self.upstreams), "retired": len(self.retired), "turns": len(self._turns)}

    # Choosing.

    def choose(
        self,
        model: str,
        may_use: Callable[[str], bool] = lambda _: True,
        *,
        key: bytes = b"",
        fits: Fits = _anything,
    ) -> Upstream:
        """The upstream for this model, by the model's policy where several list it.

        An upstream that lists no models takes any. One without weight is chosen where there is no other, one whose breaker is
        open where all are (a request is better refused by the engine than by a guess), one that is down where no other serves
        the model: it may be back. ``key`` is a hash of how the conversation begins. Those for which ``fits`` holds are
        preferred; one without weight is no place for what others have no room for.

        Raises:
            NoEngine: no upstream has been up yet.
            UnknownModel: none serves it; the message names those there are that the asker may use.
        """
        serving = [each for each in self.upstreams if each.serves(model)]
        up = [each for each in serving if each.is_up]
        if not up and not any(each.is_up for each in self.upstreams):
            raise NoEngine(f"No engine is up yet ({self.problems()}).", retry_after_s=2)
        if not serving:
            raise UnknownModel(
                f"No engine serves the model {model[:200]!r}. There are: {self._names(may_use)}.", param="model"
            )
        if trusted := [each for each in up or serving if each.breaker.may_try(each.now())]:
            return self._pick(model, trusted, key, fits)
        return min(_with_weight(up or serving), key=_badness)

    def choose_other(
        self,
        model: str,
        tried: Collection[str],
        *,
        key: bytes = b"",
        continues: bool = False,
        wish: str = "",
        fits: Fits = _anything,
    ) -> Upstream | None:
        """Another upstream for a request that one or more have failed, of which nothing speaks against it; or None. ``wish`` is
        the name of the one to be taken if it can be.

        With ``continues`` it must be able to go on with an answer, and that of the same model as those tried and wished for:
        behind one alias there may be two.
        """
        others = [each for each in self._ready(model) if each.name not in tried]
        if continues:
            meant = self._own_names(model, {*tried, wish} - {""})
            others = [
                each
                for each in others
                if each.abilities.continues is not Continues.NEVER and meant <= {each.own_name(model)}
            ]
        wished = next((each for each in others if each.name == wish), None)
        return wished or (self._pick(model, others, key, fits) if others else None)

    def choose_with_room(self, model: str, fits: Fits, *, key: bytes = b"") -> Upstream | None:
        """The upstream for a request that has waited; None: it waits on."""
        found = [each for each in self.possible(model) if fits(each)]
        return self._pick(model, found, key, _anything) if found else None

    def possible(self, model: str) -> Sequence[Upstream]:
        """The upstreams that requests for this model wait for."""
        return _with_weight(self._ready(model))

    def _ready(self, model: str) -> list[Upstream]:
        return [
            each for each in self.upstreams if each.is_up and each.serves(model) and each.breaker.may_try(each.now())
        ]

    # Room.

    def bounds(self, upstream: Upstream) -> Bounds:
        """What bounds this upstream now."""
        return self._bounding.bounds(upstream.occupancy, upstream.load, upstream.now())

    def has_room(self, upstream: Upstream, wanted: Wanted) -> bool:
        """Whether a request may be sent there now."""
        bounds = self.bounds(upstream)
        return bounds is UNBOUND or upstream.occupancy.has_room_for(wanted, bounds, upstream.now())

    def is_kept_for_others(self, upstream: Upstream, wanted: Wanted) -> bool:
        """Whether a request that may not be sent there could be, if its tenant had less than it has."""
        return upstream.occupancy.has_room(wanted, self.bounds(upstream))

    def _own_names(self, model: str, names: Collection[str]) -> set[str]:
        """What these upstreams call a model; where one of them is forgotten, whatever anybody calls it."""
        known = {each.name: each for each in (*self.retired, *self.upstreams)}
        found = {known[name].own_name(model) for name in names if name in known}
        if all(name in known for name in names):
            return found
        return found | {each.own_name(model) for each in self.upstreams if each.serves(model)}

    def _pick(self, model: str, upstreams: Sequence[Upstream], key: bytes, fits: Fits) -> Upstream:
        upstreams = _with_weight(upstreams)
        if len(upstreams) > 1:
            upstreams = [each for each in upstreams if fits(each)] or upstreams
        if len(upstreams) == 1:
            return upstreams[0]
        stale_s = self._settings.load_stale_s
        candidates = [_candidate(each, stale_s) for each in upstreams]
        owed = self._turns.get(model, {})
        chosen = POLICIES[self._policy(model)](candidates, Occasion(owed, self._dice, key))
        if model not in self._turns and len(self._turns) >= MAX_TURNS:
            self._turns.clear()
        self._turns[model] = take_turn(candidates, owed)
        return upstreams[candidates.index(chosen)]

    def _policy(self, model: str) -> str:
        table = find_model(self._settings.models, model)
        return table.balance if table is not None and table.balance else self._settings.balance

    # Coming and going.

    def add(self, upstream: Upstream) -> None:
        """One more."""
        self.upstreams.append(upstream)
        self.on_added(upstream)

    def retire(self, upstream: Upstream) -> None:
        """It is chosen no more; what runs there goes on to its end, and its idle connections are closed."""
        self.upstreams.remove(upstream)
        self.on_retired(upstream)
        upstream.retire()
        self.retired.append(upstream)
        self.purge_nowait()

    def purge_nowait(self) -> None:
        """Look after those that nobody probes any more, and forget those of which nothing runs."""
        for upstream in self.retired:
            upstream.purge_nowait()
        self.retired = [each for each in self.retired if not each.is_over]

    def close(self) -> None:
        """Close every connection."""
        for upstream in [*self.upstreams, *self.retired]:
            upstream.close()

    def recall(self, models: Mapping[str, tuple[str, ...]]) -> None:
        """What a process that has died knew of its upstreams, by name: those that were up are up until they are asked again."""
        for upstream in self.upstreams:
            if upstream.name in models:
                upstream.is_up, upstream.problem = True, ""
                if not upstream.engine.models:
                    upstream.models = models[upstream.name]

    # Telling.

    def problems(self) -> str:
        """What is wrong with the upstreams, for anybody: no addresses."""
        told = dict.fromkeys(f"{each.public_name}: {problem_of(each)}" for each in self.upstreams)
        return "; ".join(list(told)[:MAX_PROBLEMS_TOLD]) or "there is none"

    def models(self, may_use: Callable[[str], bool]) -> list[tuple[str, str]]:
        """``(model, engine)`` of every model that may be used, without repeats."""
        seen: dict[str, str] = {}
        for upstream in self.upstreams:
            for model in upstream.offered:
                if may_use(model):
                    seen.setdefault(model, upstream.public_name)
        return list(seen.items())

    def _names(self, may_use: Callable[[str], bool]) -> str:
        names = [model for model, _ in self.models(may_use)]
        shown = ", ".join(names[:MAX_NAMES_IN_ERROR]) or "none"
        return shown + (", …" if len(names) > MAX_NAMES_IN_ERROR else "")


def problem_of(upstream: Upstream) -> str:
    """Why it is not asked: what its probe found, and why its breaker opened; empty where nothing is wrong."""
    return "; ".join(part for part in (upstream.problem, upstream.breaker.why) if part)


def _with_weight(upstreams: Sequence[Upstream]) -> Sequence[Upstream]:
    """Those that have a weight, where any has."""
    return [each for each in upstreams if each.weight] or upstreams


def _badness(upstream: Upstream) -> tuple[int, float]:
    """Of those that none should be asked of: a trial under way is better than a rest, little to do than much."""
    return int(upstream.breaker.state), upstream.in_flight / (upstream.weight or 1)


def _candidate(upstream: Upstream, stale_s: float) -> Candidate:
    load = upstream.load
    kv_used = None if load is None or load.is_stale(upstream.now(), stale_s) else load.kv_used
    return Candidate(upstream.name, upstream.weight, upstream.in_flight, kv_used)
