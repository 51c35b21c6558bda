"""The openai package as a client, with its retries off.

What lives here: one long-lived client, and the count of its connections. What must not: anything about other clients.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import httpx
import openai
from openai import _streaming_cleanup

from longwire.sim.answer import answer_text

if TYPE_CHECKING:
    from .load import Load

REQUESTS = 3
TIMEOUT_S = 60.0

assert _streaming_cleanup._DRAIN_TIMEOUT > 0
_streaming_cleanup._DRAIN_TIMEOUT = TIMEOUT_S
"""Behind [DONE] the package waits 100 ms for the body's end and then gives up the connection: less than a pause."""


async def openai_client(load: Load, rng: random.Random) -> None:
    """Several answers, one after the other, over the one connection that the client keeps."""
    connects = 0

    async def trace(name: str, _: Any) -> None:
        nonlocal connects
        connects += name == "connection.connect_tcp.complete"

    async def watch(request: httpx.Request) -> None:
        request.extensions["trace"] = trace

    http = httpx.AsyncClient(event_hooks={"request": [watch]}, verify=False, timeout=TIMEOUT_S)
    base = f"http://127.0.0.1:{load.trial.port}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, http_client=http) as client:
        for _ in range(REQUESTS):
            question = load.ask(tokens := rng.randint(20, 60), 10)
            answer = await client.chat.completions.create(
                model=question.body["model"],
                messages=question.body["messages"],
                stream=True,
                extra_body={"sim": question.body["sim"]},
            )
            text = "".join([event.choices[0].delta.content or "" async for event in answer])
            assert text == answer_text(question.seed, tokens), text
    load.connections += connects
    load.clients += 1
