"""How an engine is named in one word or a URL, in any layer of the settings, and what must hold of its table.

What lives here: reading ``URL``, ``NAME=URL``, ``local`` and ``sim``, the rules between one table's settings, and the words in
which a wrong one is refused.
What must not: which settings there are (settings.py), files and variables (config.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .errors import SettingsError
from .settings import EngineSettings
from .tenancy import NAME

ENGINE_WORDS = ("local", "sim")
MAX_ENDPOINTS = 256
"""Of one engine: each is probed, and has series of its own in the metrics."""
_ALIAS = re.compile(r"[^=\x00-\x1f\x7f]{1,256}=[^\x00-\x1f\x7f]{1,256}\Z")
MAX_SHOWN_CHARS = 60  # of a wrong value: enough to recognise it, one line in a log


def shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def nearest(name: str, known: Any) -> str | None:
    """The known name that a wrong one was most likely meant to be."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)), None)


def parse_engine_spec(spec: str, where: str = "--engine") -> EngineSettings:
    """``URL``, ``NAME=URL``, ``local`` or ``sim`` as an engine; the URL is kept without its ``/v1``."""
    name, equals, url = spec.partition("=")
    if not equals or not NAME.match(name):
        name, url = "", spec
    return finish_engine(EngineSettings(name=name, url=url), where)


def finish_engine(engine: EngineSettings, where: str) -> EngineSettings:
    """Normalise the URL, and make a name from it where none was given."""
    if engine.name and not NAME.match(engine.name):
        raise SettingsError("An engine's name is up to 64 letters, digits, dots, dashes and underscores.", where=where)
    url = engine.url.strip()
    if url not in ENGINE_WORDS:
        url = normalise_url(url, where)
    return replace(engine, url=url, name=engine.name or url.partition("://")[2] or url)


def normalise_url(url: str, where: str) -> str:
    """``HTTP://Host:80/v1/`` -> ``http://host``; a base URL to which ``/v1/...`` is added.

    Raises:
        SettingsError: it is no plain http or https URL. One with a password in it is refused and not repeated: URLs are
            logged, keys are not.
    """
    from .addresses import split_address

    if "@" in url:
        raise SettingsError("An engine's URL must hold no password: put the key into api_key.", where=where)
    given = shown(url.partition("?")[0])
    try:
        parts = split_address(url)
    except ValueError:
        raise SettingsError(f"The engine's URL {given} has a bad host or port.", where=where) from None
    has_scheme = "://" in url and parts.scheme in ("http", "https")
    if not has_scheme or not parts.hostname or re.search(r"[\x00-\x20\x7f?#]", url):
        near = nearest(url, ENGINE_WORDS) or (f"http://{url}" if re.match(r"[\w.-]+:\d+", url) else None)
        end = f"; did you mean {near}?" if near else "."
        message = f"Engine {given} must be URL or NAME=URL (such as http://127.0.0.1:8000), local or sim{end}"
        raise SettingsError(message, where=where)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown_port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{parts.port}"
    path = re.sub(r"/v1(/chat/completions|/completions|/models)?\Z", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{host}{shown_port}{path.rstrip('/')}"


# What must hold of a table.


def find_bad_engines(engines: Sequence[EngineSettings]) -> Iterator[tuple[int, str, str]]:
    """What is wrong with engines' tables: the index, the setting, and a sentence."""
    for index, engine in enumerate(engines):
        yield from ((index, setting, message) for setting, message in (*_bad_places(engine), *_bad_aliases(engine)))


def _bad_places(engine: EngineSettings) -> Iterator[tuple[str, str]]:
    from urllib.parse import urlsplit

    if engine.url in ENGINE_WORDS:
        for setting in ("urls", "urls_file", "resolve_s"):
            if getattr(engine, setting):
                yield setting, f"{setting} needs an engine with a URL: {engine.url} is one process of this machine."
        return
    if len(engine.urls) >= MAX_ENDPOINTS:
        yield "urls", f"An engine has at most {MAX_ENDPOINTS} endpoints."
    places = [urlsplit(url).netloc for url in (engine.url, *engine.urls)]
    for place in dict.fromkeys(place for index, place in enumerate(places) if place in places[:index]):
        yield "urls", f"Engine {engine.name} has the endpoint {shown(place)} twice."


def _bad_aliases(engine: EngineSettings) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for alias in engine.aliases:
        offered, _, own = alias.partition("=")
        if not _ALIAS.match(alias) or offered != offered.strip() or own != own.strip():
            yield "aliases", f"An alias must be OFFERED=MODEL, such as chat=llama-3.1-8b, not {shown(alias)}."
        elif offered == own:
            yield "aliases", f"The alias {shown(alias)} is the model's own name: leave it out."
        elif offered in seen:
            yield "aliases", f"Engine {engine.name} has two models for the alias {shown(offered)}: which one is meant?"
        elif engine.models and own not in engine.models:
            near = nearest(own, engine.models)
            end = f"; did you mean {near}?" if near else "."
            yield "aliases", f"The alias {shown(alias)} is for a model that is not among the engine's models{end}"
        seen.add(offered)
