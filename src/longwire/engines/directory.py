"""Which upstream serves a model.

What lives here: the list of upstreams, choosing one, and the merged list of models.
What must not: connections (pool.py), probing (probe.py), tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..words.errors import NoEngine, UnknownModel
from .pool import Upstream

MAX_NAMES_IN_ERROR = 20
"""How many models an error names; the whole list is at ``/v1/models``."""


class Directory:
    """The upstreams in the order of their configuration."""

    def __init__(self, upstreams: Iterable[Upstream]) -> None:
        self.upstreams = list(upstreams)
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Directory {self.upstreams!r}>"

    def choose(self, model: str, may_use: Callable[[str], bool] = lambda _: True) -> Upstream:
        """The upstream for this model; several that list it take turns.

        An upstream that lists no models takes any. One that is down is chosen only where no other serves the model: it may be
        back.

        Raises:
            NoEngine: no upstream has been up yet.
            UnknownModel: none serves it; the message names those there are that the asker may use.
        """
        serving = [u for u in self.upstreams if self._serves(u, model)]
        up = [u for u in serving if u.is_up]
        if not up and not any(u.is_up for u in self.upstreams):
            problems = "; ".join(f"{u.name}: {u.problem}" for u in self.upstreams[:4])
            raise NoEngine(f"No engine is up yet ({problems}).", retry_after_s=2)
        candidates = up or serving
        if not candidates:
            raise UnknownModel(
                f"No engine serves the model {model[:200]!r}. There are: {self._names(may_use)}.", param="model"
            )
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def recall(self, models: Mapping[str, tuple[str, ...]]) -> None:
        """What a process that has died knew of its upstreams, by name: those that were up are up until they are asked again."""
        for upstream in self.upstreams:
            if upstream.name in models:
                upstream.is_up, upstream.problem = True, ""
                if not upstream.engine.models:
                    upstream.models = models[upstream.name]

    @staticmethod
    def _serves(upstream: Upstream, model: str) -> bool:
        if not model:
            return upstream.is_up
        return model in upstream.models if upstream.models else upstream.is_up

    def models(self, may_use: Callable[[str], bool]) -> list[tuple[str, str]]:
        """``(model, engine)`` of every model that may be used, without repeats."""
        seen: dict[str, str] = {}
        for upstream in self.upstreams:
            for model in upstream.models:
                if may_use(model):
                    seen.setdefault(model, upstream.name)
        return list(seen.items())

    def _names(self, may_use: Callable[[str], bool]) -> str:
        names = [model for model, _ in self.models(may_use)]
        shown = ", ".join(names[:MAX_NAMES_IN_ERROR]) or "none"
        return shown + (", …" if len(names) > MAX_NAMES_IN_ERROR else "")
