"""Clients of all kinds at once, each kind again and again until the trial is over.

What lives here: who runs, what was asked, received and broken. What must not: what a client does (readers.py).
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .answers import Question
from .processes import Trial
from .readers import KINDS, Kind
from .sdk import openai_client
from .wire import Wire

FRAIL_SHARE = 0.25
"""Of all answers that may be asked of the engine that fails, whoever asks; some clients ask for no others (readers.py)."""
FAULTS_IN_CONTENT = (
    "reset_after",
    "close_after",
    "half_close_after",
    "reset_inside",
    "close_inside",
    "error_event",
    "garbage_after",
)
LAST_FAULTY_EVENT = 90
"""Most answers are longer; in the others nothing befalls some."""
FAULTS_BEFORE_CONTENT = ("reset", "close", "status=500", "status=503", "garbage", "half_head", "empty", "reset_after=1")
BEFORE_CONTENT_SHARE, WELL_SHARE = 0.2, 0.2
FAULTS = 4000
"""More than the engine is asked for; then it fails in one way only (processes.py)."""

CLIENT_S = 60.0
"""No client takes a tenth of it. One that waits for what never comes is broken."""
KILL_S = 3.0
"""The longest wait for a kill by a client that wants one between two of its steps."""
SDK_CLIENTS = 1


class Load:
    """``clients`` and ``connections`` count what has ended well or badly, ``asked`` the generations, ``frail`` holds those of
    them whose engine fails."""

    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial = trial
        self.clients = self.connections = self.asked = self.asked_to_retry = 0
        self.ended: Counter[str] = Counter()
        self.broken: list[str] = []
        self.kills = 0
        self.kills_coming = 0
        """That may have happened already, but are not noted: an answer that ends now may have lived through them."""
        self.frail: dict[int, Question] = {}
        self._rng = random.Random(seed)
        self._shown: dict[str, Question] = {}
        self._killed = asyncio.Event()
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._wires: dict[asyncio.Task[object], list[Wire]] = {}

    # For clients.

    async def connect(self, *, window: int = 0) -> Wire:
        """The one connection of a client."""
        self.clients += 1
        wire = await Wire.connect(self.trial.port, window=window)
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._wires.setdefault(task, []).append(wire)
        return wire

    def ask(
        self,
        tokens: int,
        itl_ms: float,
        *,
        stream: bool = True,
        padding: int = 0,
        ttft_ms: float = 5,
        is_frail: bool | None = None,
    ) -> Question:
        """A generation that is about to be asked for; where it is left open, of the engine that fails or of the other."""
        self.asked += 1
        if is_frail is None:
            is_frail = stream and not padding and self._rng.random() < FRAIL_SHARE
        question = Question(tokens, itl_ms, stream=stream, padding=padding, ttft_ms=ttft_ms, is_frail=is_frail)
        if is_frail:
            question.kills_before = self.kills
            self.frail[question.seed] = question
        return question

    @contextmanager
    def shown(self, stream_id: str, question: Question) -> Iterator[None]:
        """As long as a stream is read, others may read it, too."""
        self._shown[stream_id] = question
        try:
            yield
        finally:
            del self._shown[stream_id]
            question.kills_until = self.most_kills

    def pick(self, rng: random.Random) -> tuple[str, Question] | None:
        """A stream that is being read."""
        return rng.choice(list(self._shown.items())) if self._shown else None

    async def wait_kill(self) -> None:
        """Until something has been killed, or nothing is any more."""
        if not self._is_over:
            try:
                await asyncio.wait_for(self._killed.wait(), KILL_S)
            except TimeoutError:
                pass

    # For the trial.

    @property
    def most_kills(self) -> int:
        return self.kills + self.kills_coming

    def note_kills(self, count: int) -> None:
        self.kills += count
        self.kills_coming = 0
        killed, self._killed = self._killed, asyncio.Event()
        killed.set()

    def faults(self) -> list[str]:
        """What is to befall the engine that fails, answer by answer."""
        rng, faults = self._rng, []
        for _ in range(FAULTS):
            lot = rng.random()
            if lot < WELL_SHARE:
                faults.append("none")
            elif lot < WELL_SHARE + BEFORE_CONTENT_SHARE:
                faults.append(rng.choice(FAULTS_BEFORE_CONTENT))
            else:
                faults.append(f"{rng.choice(FAULTS_IN_CONTENT)}={rng.randint(2, LAST_FAULTY_EVENT)}")
        return faults

    def start(self) -> None:
        kinds: list[Kind] = [kind for kind, count in KINDS.items() for _ in range(count)]
        for kind in kinds + [openai_client] * SDK_CLIENTS:
            self._tasks.append(asyncio.create_task(self._run(kind, random.Random(self._rng.random()))))

    async def _run(self, kind: Kind, rng: random.Random) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._is_over:
            try:
                async with asyncio.timeout(CLIENT_S):
                    await kind(self, rng)
            except Exception:  # noqa: BLE001 - whatever it was, this client was broken by it
                self.broken.append(f"{kind.__name__}, after {self.kills} kills: {traceback.format_exc(limit=-4)}")
            else:
                self.ended[kind.__name__] += 1
            for wire in self._wires.pop(task, ()):
                wire.close()

    async def finish(self) -> None:
        """Let every client come to its end."""
        self._is_over = True
        self.note_kills(0)
        await asyncio.gather(*self._tasks)
