"""One call through one skin: run it against a scripted gateway, and give what the program got."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import openai
from tests.client.fake_gateway import OPENAI_LIBRARY, FakeGateway, Turn, chat_events

from longwire.client import Backoff, resumable

WORDS = ["The ", "cat ", "sät ", "on ", "猫", "."]
LIBRARIES = [OPENAI_LIBRARY, *(["httpx"] if OPENAI_LIBRARY == "httpx2" and importlib.util.find_spec("httpx") else [])]


@dataclass
class Outcome:
    """What a program got."""

    items: list[Any]
    error: Exception | None
    stream: Any
    gateway: FakeGateway
    waits_s: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(item.choices[0].delta.content for item in self.items)


@dataclass
class Skin:
    """Runs one call in one of the two ways and gives what came of it."""

    is_async: bool
    library: str

    def run(
        self,
        turns: Iterable[Turn] = (),
        *,
        events: list[bytes] | None = None,
        call: Callable[[Any], Any] | None = None,
        use: Callable[[Any], Any] | None = None,
        backoff: Backoff | None = None,
        **options: Any,
    ) -> Outcome:
        gateway = FakeGateway(self.library, events or chat_events(WORDS), turns)
        backoff = backoff or Backoff(attempts=3, first_s=1.0, random=lambda: 1.0)
        play = self._play_async if self.is_async else self._play_sync
        return play(gateway, backoff, call or create_chat, use, options)

    def _play_sync(
        self, gateway: FakeGateway, backoff: Backoff, call: Any, use: Any, options: dict[str, Any]
    ) -> Outcome:
        outcome = Outcome([], None, None, gateway)
        with gateway.sync_client(**options) as plain:
            client = resumable(plain, backoff=backoff, sleep=outcome.waits_s.append)
            try:
                outcome.stream = call(client)
                for item in outcome.stream:
                    outcome.items.append(item)
                    if use:
                        use(outcome.stream)
            except openai.OpenAIError as error:
                outcome.error = error
        return outcome

    def _play_async(
        self, gateway: FakeGateway, backoff: Backoff, call: Any, use: Any, options: dict[str, Any]
    ) -> Outcome:
        outcome = Outcome([], None, None, gateway)

        async def sleep(delay_s: float) -> None:
            outcome.waits_s.append(delay_s)

        async def main() -> None:
            async with gateway.async_client(**options) as plain:
                client = resumable(plain, backoff=backoff, sleep=sleep)
                try:
                    outcome.stream = await call(client)
                    async for item in outcome.stream:
                        outcome.items.append(item)
                        if use and (waiting := use(outcome.stream)):
                            await waiting
                except openai.OpenAIError as error:
                    outcome.error = error

        asyncio.run(main())
        return outcome


def create_chat(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True, **more)
