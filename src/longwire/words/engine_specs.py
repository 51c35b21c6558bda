"""How an engine is named in one word or a URL, in any layer of the settings.

What lives here: reading ``URL``, ``NAME=URL``, ``local`` and ``sim``, and the words in which a wrong one is refused.
What must not: which settings there are (settings.py), files and variables (config.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from .errors import SettingsError
from .settings import EngineSettings
from .tenancy import NAME

ENGINE_WORDS = ("local", "sim")
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
    from urllib.parse import urlsplit

    if "@" in url:
        raise SettingsError("An engine's URL must hold no password: put the key into api_key.", where=where)
    given = shown(url.partition("?")[0])
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"The engine's URL {given} has a bad host or port.", where=where) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\x00-\x20\x7f?#]", url):
        near = nearest(url, ENGINE_WORDS) or (f"http://{url}" if re.match(r"[\w.-]+:\d+", url) else None)
        end = f"; did you mean {near}?" if near else "."
        message = f"Engine {given} must be URL or NAME=URL (such as http://127.0.0.1:8000), local or sim{end}"
        raise SettingsError(message, where=where)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown_port = "" if port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{port}"
    path = re.sub(r"/v1(/chat/completions|/completions|/models)?\Z", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{host}{shown_port}{path.rstrip('/')}"
