"""The public port's routes, as a table.

What lives here: paths, methods and the name of what serves them.
What must not: serving them (handlers.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from ..words.errors import MethodNotAllowed, NotFound


class Match(NamedTuple):
    """A request's route. ``argument`` is the variable part of the path; ``query`` its decoded parameters, in order."""

    name: str
    argument: str
    query: list[tuple[str, str]]


_POST = ("POST", "OPTIONS")
_GET = ("GET", "HEAD", "OPTIONS")

# (path, {method: route name}); the first match wins, so the relay comes last.
ROUTES: list[tuple[re.Pattern[str], dict[str, str]]] = [
    (re.compile(r"/v1/chat/completions\Z"), {"POST": "chat_completions"}),
    (re.compile(r"/v1/completions\Z"), {"POST": "completions"}),
    (re.compile(r"/v1/models\Z"), {"GET": "models"}),
    (re.compile(r"/v1/streams\Z"), {"GET": "stream_list"}),
    (re.compile(r"/v1/streams/([A-Za-z0-9_]{1,64})\Z"), {"GET": "stream_read", "DELETE": "stream_delete"}),
    (re.compile(r"/v1/streams/([A-Za-z0-9_]{1,64})/continue\Z"), {"POST": "stream_continue"}),
    (re.compile(r"/healthz\Z"), {"GET": "healthz"}),
    (re.compile(r"/readyz\Z"), {"GET": "readyz"}),
    (re.compile(r"/openapi\.json\Z"), {"GET": "openapi"}),
    (re.compile(r"/v1/((?!streams(?:/|\Z))[A-Za-z0-9_-]{1,64}(?:/[A-Za-z0-9_.:-]{1,64}){0,5})\Z"), {"POST": "relay"}),
]

MAX_QUERY_FIELDS = 16
"""No route of ours takes more than one."""


def find_route(method: str, target: bytes) -> Match:
    """The route of a request.

    ``.`` and ``..`` segments and encoded slashes match no route: the path that is checked is the path that is served.

    Raises:
        NotFound: no such path.
        MethodNotAllowed: the path has other methods; the error carries them.
    """
    path, _, query = target.decode("latin-1").partition("?")
    for pattern, methods in ROUTES:
        match = pattern.match(path)
        if match is None or "/." in path:
            continue
        name = methods.get("GET" if method == "HEAD" else method)
        if method == "OPTIONS":
            name = "options"
        if name is None:
            allow = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
            raise MethodNotAllowed(f"{method} is not served here.", allow=tuple(allow))
        return Match(name, match[1] if match.groups() else "", _parse_query(query))
    raise NotFound("There is nothing at this path; the API is under /v1.")


def methods_of(target: bytes) -> tuple[str, ...]:
    """The methods of a path, for OPTIONS."""
    path = target.decode("latin-1").partition("?")[0]
    for pattern, methods in ROUTES:
        if pattern.match(path):
            return (*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS")
    return ("OPTIONS",)


def _parse_query(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as exc:
        raise NotFound("The query has too many fields.") from exc
