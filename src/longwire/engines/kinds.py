"""What each kind of engine can do: declared, because finding out costs requests and a wrong guess costs an answer.

What lives here: the table of kinds. What must not: how any of it is done (load_kinds.py reads the metrics).

``longwire check --engine URL`` finds the same out by asking, for an engine that is in no table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..words.settings import EngineSettings


class Continues(Enum):
    """How a kind of engine is asked to go on with a cut answer of its own."""

    NEVER = "never"
    FINAL_MESSAGE = "final_message"
    """``continue_final_message: true`` and ``add_generation_prompt: false``, the cut answer being the last message (vLLM;
    without the first it closes the message and begins a new one)."""
    PREFILL = "prefill"
    """The cut answer as the last message, with nothing else (llama.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """One kind. ``metrics_path`` is where it tells of its load; empty: nowhere."""

    continues: Continues = Continues.NEVER
    continues_reasoning: bool = False
    """A cut in the middle of its reasoning can be gone on with as reasoning (``reasoning_content`` of the last message)."""
    takes_token_ids: bool = False
    """A prompt of ``/v1/completions`` may be a list of token ids, and it gives those of its answer where it is asked to."""
    metrics_path: str = ""


KINDS: dict[str, Abilities] = {
    "openai": Abilities(),
    "vllm": Abilities(continues=Continues.FINAL_MESSAGE, takes_token_ids=True, metrics_path="/metrics"),
    "sglang": Abilities(continues=Continues.FINAL_MESSAGE, metrics_path="/metrics"),
    "llamacpp": Abilities(continues=Continues.PREFILL, metrics_path="/slots"),
    "tgi": Abilities(metrics_path="/metrics"),
    "triton": Abilities(metrics_path="/metrics"),
    "sim": Abilities(continues=Continues.FINAL_MESSAGE, continues_reasoning=True, metrics_path="/metrics"),
}


def kind_of(engine: EngineSettings) -> str:
    """The kind as it is set, or as it follows from what we start ourselves."""
    return engine.kind or {"local": "llamacpp", "sim": "sim"}.get(engine.url, "openai")
