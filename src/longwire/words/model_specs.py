"""Which ``[[models]]`` table holds for a model, and what must hold of these tables.

What lives here: the one rule of patterns. What must not: what any of their settings does, where they stood (config.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .settings import ModelSettings


def find_model(models: Sequence[ModelSettings], name: str) -> ModelSettings | None:
    """The first table that fits a model's name as it is offered; None: nothing is different for it."""
    return next((each for each in models if fits(each.name, name)), None)


def fits(pattern: str, name: str) -> bool:
    """A name fits itself, and a pattern that ends in * all that begin so."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def find_bad_models(models: Sequence[ModelSettings]) -> Iterator[tuple[int, str, str]]:
    """What is wrong with the tables: the index, the setting, and a sentence."""
    for index, model in enumerate(models):
        covering = next((each.name for each in models[:index] if fits(each.name, model.name)), None)
        if "*" in model.name[:-1]:
            yield index, "name", f"A * stands at the end of a model's name or nowhere: {model.name[:200]}."
        elif covering == model.name:
            yield index, "name", f"There are two [[models]] tables for {model.name[:200]}: make one of them."
        elif covering is not None:
            message = f"{model.name[:200]} is never reached: {covering[:200]} stands before it and fits, too."
            yield index, "name", f"{message} Put it above that."
