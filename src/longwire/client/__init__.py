"""A client that resumes by itself.

What lives here: the public names. ``resumable(OpenAI(...))`` is all that most programs need.
What must not: anything of the server side.

::

    from openai import OpenAI
    from longwire.client import resumable

    client = resumable(OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="..."))
    for event in client.chat.completions.create(model="...", messages=[...], stream=True):
        ...  # each event once, in order, however often the connection breaks
"""

from __future__ import annotations

try:
    import openai as _openai  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "openai":
        raise
    raise ImportError("longwire.client needs the openai package: pip install openai.") from None

from .aio import AsyncResumableStream
from .backoff import Backoff
from .errors import ResumeError, StreamGone
from .sync import ResumableStream
from .wrap import resumable

__all__ = ["AsyncResumableStream", "Backoff", "ResumableStream", "ResumeError", "StreamGone", "resumable"]
