"""A request as one upstream gets it.

What lives here: the model under the engine's own name. What must not: sockets, what else a request means.
"""

from __future__ import annotations

import json


def with_model(body: bytes, offered: str, own: str) -> bytes:
    """The body for an engine that has the model under another name. A body that names no model is left as it is."""
    if offered == own:
        return body
    fields = json.loads(body)
    if not isinstance(fields, dict) or "model" not in fields:
        return body
    return json.dumps({**fields, "model": own}, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
