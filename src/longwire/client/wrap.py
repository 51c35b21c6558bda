"""Turning an openai client into one whose streams resume.

What lives here: :func:`resumable`, which shadows ``create`` on a copy of the client.
What must not: what happens in a stream (reader.py and its skins).

The copy is a real ``OpenAI`` client, so ``isinstance`` and type checkers see what they know, everything that is not shadowed
is the original, and openai's own helpers that call ``create`` inside (``chat.completions.stream()``) resume as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import openai

from .aio import AsyncCall
from .backoff import Backoff
from .calls import Settings, wants_resumption
from .sync import SyncCall

ClientT = TypeVar("ClientT", bound=openai.OpenAI | openai.AsyncOpenAI)


def resumable(
    client: ClientT,
    *,
    grace_s: float | None = 30.0,
    backoff: Backoff | None = None,
    sleep: Callable[[float], Any] | None = None,
) -> ClientT:
    """A copy of ``client`` whose chat and text completion streams survive their own connection.

    ``create(..., stream=True)`` on it returns a :class:`ResumableStream` (or :class:`AsyncResumableStream`): the same objects
    in the same order, each exactly once, over as many connections as it takes. All other calls are untouched, and so are
    streams of a server that is no Longwire. The copy shares the client's connections: closing either closes both.

    Args:
        client: an ``OpenAI`` or ``AsyncOpenAI`` whose ``base_url`` is the gateway's.
        grace_s: how long the gateway keeps generating while no connection is there. What is beyond the operator's limits
            is cut down to them; None asks for nothing and takes the gateway's default for requests with an
            Idempotency-Key.
        backoff: how often and how long to try.
        sleep: what waits (an async function for an async client); tests put their own here.
    """
    settings = Settings(grace_s=grace_s, backoff=backoff or Backoff())
    if sleep is not None:
        settings = Settings(grace_s, settings.backoff, sync_sleep=sleep, async_sleep=sleep)
    return _equip(cast(ClientT, client.copy()), settings)


def _equip(client: ClientT, settings: Settings) -> ClientT:
    """Shadow ``create``, and ``copy`` so that ``with_options(...)`` does not lose it."""
    wrap = _wrap_async if isinstance(client, openai.AsyncOpenAI) else _wrap_sync
    for resource in (client.chat.completions, client.completions):
        _shadow(resource, "create", wrap(client, settings, resource.create))
    plain_copy = client.copy

    @functools.wraps(plain_copy)
    def copy(**options: Any) -> ClientT:
        return _equip(cast(ClientT, plain_copy(**options)), settings)

    _shadow(client, "copy", copy)
    _shadow(client, "with_options", copy)
    return client


def _shadow(owner: object, name: str, value: object) -> None:
    vars(owner)[name] = value


def _wrap_sync(client: Any, settings: Settings, create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_resumable(*positional: Any, **arguments: Any) -> Any:
        if positional or not wants_resumption(arguments):
            return create(*positional, **arguments)
        return SyncCall(client, settings, arguments).open(create)

    return create_resumable


def _wrap_async(client: Any, settings: Settings, create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    async def create_resumable(*positional: Any, **arguments: Any) -> Any:
        if positional or not wants_resumption(arguments):
            return await create(*positional, **arguments)
        return await AsyncCall(client, settings, arguments).open(create)

    return create_resumable
