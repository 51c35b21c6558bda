"""Flags made from the declarations of settings.

What lives here: the one decorator that turns a settings dataclass into flags, and the way back.
What must not: the meaning of any setting.

Flags are handed on as text and read by the same code as variables and the TOML file, so that a bad value gets the same
answer everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import click

from longwire.words.config import Declared, declared, read_value

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_METAVARS = {"bytes": "BYTES", "s": "SECONDS", "ms": "MS"}


def settings_flags(
    settings_class: type, *, only: Collection[str] | None = None, shown: Collection[str] | None = None
) -> Callable[[F], F]:
    """Add a flag for each setting (or for ``only`` some); those not in ``shown`` work, and are left out of the help."""

    def decorate(command: F) -> F:
        for setting in reversed(list(declared(settings_class).values())):
            wanted = setting.name in only if only is not None else setting.kind != "tables"
            if wanted:
                command = _flag(setting, hidden=shown is not None and setting.name not in shown)(command)
        return command

    return decorate


def _flag(setting: Declared, *, hidden: bool) -> Callable[[F], F]:
    bare = setting.kind == "bool" or setting.default in ("", [])
    help = setting.help if bare else f"{setting.help}  [default: {setting.shown(setting.default)}]"
    if setting.kind == "bool":
        pair = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.option(pair, setting.name, is_flag=True, default=None, help=help, hidden=hidden)
    metavar = _METAVARS.get(setting.unit) or ("N" if setting.kind in ("int", "float") else "TEXT")
    if setting.choices:
        metavar = "|".join(setting.choices)
    return click.option(
        setting.flag,
        setting.name,
        default=None,
        multiple=setting.kind == "list",
        metavar=metavar,
        help=help,
        hidden=hidden,
    )


def build(settings_class: type[T], flags: Mapping[str, object]) -> T:
    """A settings dataclass of its own from flags alone."""
    known = declared(cast(type, settings_class))
    given = {name: raw for name, raw in flags.items() if raw is not None and raw != ()}
    return settings_class(**{name: read_value(known[name], raw, known[name].flag) for name, raw in given.items()})
