"""Where a command's settings come from on this machine.

What lives here: finding and reading the TOML file, taking the environment, and choosing an engine when none was named.
What must not: precedence and checks of values (words/config.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from longwire.words.config import Loaded, load
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings

from .options import settings_flags

DEFAULT_FILE = Path("longwire.toml")
MAX_FILE_BYTES = 1 << 20
"""A settings file is a page or two; anything larger is the wrong file."""

MAIN_FLAGS = ("host", "port", "admin_port", "shards", "state_dir", "allow_anonymous", "log_level")
ENGINE_HELP = (
    "An OpenAI-compatible server: URL or NAME=URL, or the words local (the embedded model) or sim; may be repeated."
)

F = TypeVar("F", bound=Callable[..., Any])


def configured(command: F) -> F:
    """Give a command ``--config``, ``--engine`` and a flag for every scalar setting; see :func:`load_configuration`."""
    command = settings_flags(Settings, shown=MAIN_FLAGS)(command)
    command = click.option("--engine", "engines", multiple=True, metavar="SPEC", help=ENGINE_HELP)(command)
    return click.option(
        "--config",
        "file",
        metavar="FILE",
        envvar="LONGWIRE_CONFIG",
        help="TOML file of settings.  [default: longwire.toml if there is one]",
    )(command)


def load_configuration(file: str | None, flags: Mapping[str, object]) -> Loaded:
    """The settings of file, environment and flags; files that settings name must be readable."""
    text, where = read_file(file)
    loaded = load(text, where, os.environ, flags)
    _check_files(loaded)
    return loaded


def read_file(file: str | None) -> tuple[str | None, str]:
    """The TOML text and the name to show; no file is no error unless one was asked for."""
    path = Path(file) if file else DEFAULT_FILE
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(
                f"This is larger than {MAX_FILE_BYTES} bytes and cannot be a settings file.", where=str(path)
            )
        return content.decode(), str(path)
    except UnicodeDecodeError:
        raise SettingsError("This is not UTF-8 text and cannot be a settings file.", where=str(path)) from None
    except FileNotFoundError:
        if not file:
            return None, str(path)
        raise SettingsError(
            "There is no such file; longwire config example prints one to start from.", where=file
        ) from None
    except OSError as error:
        raise SettingsError(f"This file cannot be read: {error.strerror}.", where=str(path)) from None


def _check_files(loaded: Loaded) -> None:
    """Say now, with the line, what would otherwise fail at the first request."""
    settings = loaded.settings
    named = {name: getattr(settings, name) for name in ("tls_cert_file", "tls_key_file", "keys_file")}
    for index, engine in enumerate(settings.engines):
        named |= {f"engines[{index}].{name}": getattr(engine, name) for name in ("ca_file", "urls_file")}
    for path, file in named.items():
        if file and not os.access(file, os.R_OK):
            raise SettingsError(f"{path}: the file {file} cannot be read.", where=loaded.origins.get(path, ""))
    for engine in settings.engines:
        if engine.urls_file:
            from longwire.engines.following import (
                read_urls_file,
                urls_file,
            )  # here: few commands need it, and it takes time

            read_urls_file(urls_file(engine))


def with_engine(settings: Settings) -> Settings:
    """The settings with the embedded engine where none was named.

    Raises:
        SettingsError: nothing was named and nothing is installed, or the embedded engine was named and is not installed.
    """
    if not settings.engines:
        if local_is_installed(settings):
            return replace(settings, engines=[EngineSettings(name="local", url="local")])
        raise SettingsError(
            "No engine: name one with --engine URL, try the stand-in with --engine sim, or run `longwire local install` "
            "for a small model on this machine."
        )
    if any(engine.url == "local" for engine in settings.engines) and not local_is_installed(settings):
        raise SettingsError("The embedded engine is not installed: run `longwire local install` first.")
    return settings


def local_is_installed(settings: Settings) -> bool:
    """Whether the embedded engine could start."""
    from longwire.engines.local import is_installed

    return is_installed(settings)
