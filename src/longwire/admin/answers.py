"""How the admin port words an answer.

What lives here: JSON bodies and the one shape of errors.
What must not: routes (app.py), what an error means (words).
"""

from __future__ import annotations

import json

from starlette.responses import Response

from ..words.errors import LongwireError


def encode_json(content: object) -> bytes:
    """Compact JSON in ASCII: a model's name may hold a lone surrogate, which UTF-8 could not carry."""
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer with a JSON body."""
    return Response(encode_json(content), status, headers, media_type="application/json")


def error_response(error: LongwireError) -> Response:
    """The OpenAI-shaped error, with its status and headers."""
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return json_response(error.body(), error.status, headers)
