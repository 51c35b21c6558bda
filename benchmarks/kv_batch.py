"""A batching engine's scheduler with a KV cache that fills: who runs, who waits, who is thrown out again.

What lives here: the scheduler, step by step, after vLLM's: blocks, chunked prefill, first come first served, and preemption
by recomputation. What must not: sockets, time (a step is a step).

An engine admits a request when its *prompt* fits, and learns only while it generates that the answers do not. Then the request
that came last loses its blocks, waits in front of all others, and has everything it had computed anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
PREFILL_TOKENS = 2048
"""Of all prompts in one step; vLLM's common max_num_batched_tokens."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request at the engine."""

    prompt_tokens: int
    answer_tokens: int
    generated: int = 0
    computed: int = 0
    """Of prompt and what was generated, what the cache holds."""
    blocks: int = 0
    preempted: int = 0

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def is_over(self) -> bool:
        return self.generated >= self.answer_tokens


@dataclass(slots=True)
class KvBatch:
    """The scheduler. ``capacity_blocks`` is the cache, ``max_running`` the most that run at once."""

    capacity_blocks: int
    max_running: int = 256
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    free_blocks: int = 0
    preemptions: int = 0
    generated: int = 0
    computed_last: int = 0
    """Tokens of prompts in the last step: what made it longer than others."""

    def __post_init__(self) -> None:
        self.free_blocks = self.capacity_blocks

    @property
    def used_share(self) -> float:
        return 1.0 - self.free_blocks / self.capacity_blocks

    def enter(self, sequence: Sequence) -> None:
        """One more request."""
        self.waiting.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It is over, or its client has left."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def step(self) -> list[Sequence]:
        """One step; those that have one token more. Those that are over have left."""
        self.computed_last = 0
        budget = PREFILL_TOKENS
        preempted = self.preemptions
        for sequence in list(self.running):
            if sequence in self.running and self._grow(sequence, sequence.length + 1):
                budget -= self._compute(sequence, budget)
        if self.preemptions == preempted:
            self._admit(budget)
        moved = [each for each in self.running if each.computed >= each.length]
        for sequence in moved:
            sequence.generated += 1
            sequence.computed += 1
        self.generated += len(moved)
        for sequence in [each for each in moved if each.is_over]:
            self.leave(sequence)
        return moved

    def _admit(self, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            first = self.waiting[0]
            if not self._take(first, first.length + 1):
                return
            self.running.append(self.waiting.popleft())
            budget -= self._compute(first, budget)

    def _compute(self, sequence: Sequence, budget: int) -> int:
        """Read the prompt on, as far as this step allows; how much of that it took."""
        taken = max(0, min(budget, sequence.length - sequence.computed))
        sequence.computed += taken
        self.computed_last += taken
        return taken

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for so many tokens, if need be from those that came last; False: it was itself the last."""
        while not self._take(sequence, tokens):
            victim = self.running.pop()
            self._release(victim)
            victim.computed = 0
            victim.preempted += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _take(self, sequence: Sequence, tokens: int) -> bool:
        more = -(-tokens // BLOCK_TOKENS) - sequence.blocks
        if more > self.free_blocks:
            return False
        self.free_blocks -= max(0, more)
        sequence.blocks += max(0, more)
        return True

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0
