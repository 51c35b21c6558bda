"""What a request asks of the stand-in.

What lives here: reading a JSON body, with the stand-in's own overrides in it, into one frozen value.
What must not: answers (chat.py, typed.py), what each fault does (faults.py).

Overrides come in the body's field ``sim`` (``{"sim": {"tokens": 5, "itl_ms": 0, "fault": "stall_after=3"}}``): a gateway that
forwards unknown fields brings them here unharmed, and one running stand-in serves a whole test suite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longwire.words.settings import SimSettings

from .answer import MAX_REASONING_TOKENS, REASONING_SEED, VOCABULARY, count_tokens, mix, token_ids, token_text
from .continuation import MODES, NOTHING, Begins, Begun, chat_begun
from .reply import refusal
from .stops import MAX_SEARCHED_TOKENS, Told, read_stops, tell

MAX_CHOICES = 128
"""OpenAI's own limit of ``n``."""

LEAST_SEED = -(2**53)
MAX_NESTING = 8
"""Levels at which text is looked for: a list of messages of lists of parts takes four."""
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
KNOWN_FIELDS = frozenset({
    "audio", "best_of", "dimensions", "echo", "encoding_format", "frequency_penalty", "function_call",
    "functions", "input", "instructions", "logit_bias", "logprobs", "max_completion_tokens",
    "max_output_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "prompt", "reasoning", "reasoning_effort",
    "response_format", "seed", "service_tier", "sim", "stop", "stop_sequences", "store", "stream",
    "stream_options", "suffix", "system", "temperature", "text", "thinking", "tool_choice", "tools", "top_k",
    "top_logprobs", "top_p", "truncation", "user", "verbosity",
})  # fmt: skip
"""Fields of the APIs; every other one is echoed in whole answers."""

ONLY_IN_REQUESTS: Mapping[str, str] = {
    "stamp": "Each content event says in `sim_ns` when it was made, in nanoseconds of its machine's monotonic clock.",
    "fault": "What goes wrong with this answer: a name or NAME=ARG, several in a list or with commas between. The server's own "
    "faults do not befall it then.",
}
"""Fields of the body's ``sim`` that are no flags, or more than those; the others (:class:`Overrides`) are and mean the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One generation: what to say, how fast, and in which details."""

    body: Mapping[str, Any]
    id: str
    created: int
    model: str
    stream: bool = False
    seed: int = 0
    tokens: int = 0
    start: int = 0
    """First token: more than 0 where a cut answer is continued."""
    lead: str = ""
    """The missing rest of the token in which the continued answer was cut; it is neither billed nor limited."""
    finish: str = "stop"
    choices: int = 1
    itl_s: float = 0.0
    ttft_s: float = 0.0
    jitter: float = 0.0
    prompt_tokens: int = 0
    begun: Begun = NOTHING
    """How far the answer had come before."""
    reasoning_tokens: int = 0
    reasoning_start: int = 0
    reasoning_lead: str = ""
    stops: tuple[str, ...] = ()
    told: tuple[Told, ...] = ()
    """How each choice ends, where there are stop strings."""
    holds_back: bool = True
    """What may be the beginning of a stop string is not sent before that is decided."""
    token_ids: bool = False
    """Each content event brings the ids of its tokens, and the first one those of the prompt."""
    stamp: bool = False
    """Each content event carries ``sim_ns``, the monotonic clock's nanoseconds at its making."""
    include_usage: bool = False
    continuous_usage: bool = False
    usage_in_choices: bool = False
    tools: tuple[str, ...] = ()
    """Names of the functions to call instead of answering."""
    echo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def billed_tokens(self) -> int:
        """Everything that is generated."""
        content = sum(told.tokens for told in self.told) if self.told else self.tokens * self.choices
        return content + self.reasoning_tokens * self.choices

    def stopped_by(self, choice: int = 0) -> str | None:
        """The stop string that ends a choice."""
        return self.told[choice].stop if self.told else None

    def finish_of(self, choice: int = 0) -> str:
        """Why a choice ends."""
        return "stop" if self.stopped_by(choice) is not None else self.finish


@dataclass(frozen=True, slots=True)
class Overrides:
    """The body's ``sim`` field, checked."""

    tokens: int
    itl_ms: float
    ttft_ms: float
    jitter: float
    seed: int
    stamp: bool
    continues: str


def parse_body(body: bytes) -> dict[str, Any]:
    """The body as one JSON object; the stand-in is as strict as the engines are."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise refusal(400, f"The body is not JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise refusal(400, "The body must be a JSON object.")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON value")


def read_overrides(body: Mapping[str, Any], settings: SimSettings) -> Overrides:
    """The settings as this request wants them."""
    sim = _object(body, "sim")
    return Overrides(
        tokens=int(_number(sim, "tokens", settings.tokens)),
        itl_ms=_number(sim, "itl_ms", settings.itl_ms),
        ttft_ms=_number(sim, "ttft_ms", settings.ttft_ms),
        jitter=_number(sim, "jitter", settings.jitter),
        seed=int(_number(sim, "seed", _number(body, "seed", settings.seed, LEAST_SEED), LEAST_SEED)),
        stamp=sim.get("stamp") is True,
        continues=_mode(sim, settings.continues),
    )


def named_faults(body: Mapping[str, Any]) -> list[str]:
    """The faults in the body's ``sim`` field: one as text, or a list."""
    fault = _object(body, "sim").get("fault")
    if fault is None:
        return []
    return list(map(str, fault)) if isinstance(fault, list) else [str(fault)]


def read_ask(
    body: Mapping[str, Any], settings: SimSettings, *, id: str, created: int, begins: Begins = chat_begun
) -> Ask:
    """The generation that a body asks for. ``begins`` knows how its API brings along what is said already."""
    over = read_overrides(body, settings)
    limit = _token_limit(body)
    thinks = min(int(over.tokens), MAX_REASONING_TOKENS) if body.get("reasoning") is True else 0
    begun = begins(body, over.seed, thinks, over.continues)
    left = max(0, over.tokens - begun.start)
    thoughts_left = max(0, thinks - begun.reasoning_start)
    # The limit is for what this request generates, reasoning first.
    reasoning_tokens = thoughts_left if limit is None else min(thoughts_left, limit)
    tokens = left if limit is None else min(left, limit - reasoning_tokens)
    options = _object(body, "stream_options")
    choices, stops = _choices(body), read_stops(body)
    return Ask(
        body=body,
        id=id,
        created=created,
        model=str(body.get("model") or settings.model),
        stream=body.get("stream") is True,
        seed=over.seed,
        tokens=tokens,
        start=begun.start,
        lead=begun.lead,
        finish="stop" if (tokens, reasoning_tokens) == (left, thoughts_left) else "length",
        choices=choices,
        itl_s=over.itl_ms / 1000,
        ttft_s=over.ttft_ms / 1000,
        jitter=over.jitter,
        prompt_tokens=count_prompt(body) - begun.words + begun.tokens,
        begun=begun,
        reasoning_tokens=reasoning_tokens,
        reasoning_start=begun.reasoning_start,
        reasoning_lead=begun.reasoning_lead,
        stops=stops,
        told=_tell(over.seed, begun.lead, range(begun.start, begun.start + tokens), choices, stops),
        token_ids=body.get("return_token_ids") is True,
        stamp=over.stamp,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        tools=_functions_to_call(body),
        echo={name: value for name, value in body.items() if name not in KNOWN_FIELDS},
    )


def _tell(seed: int, lead: str, tokens: range, choices: int, stops: tuple[str, ...]) -> tuple[Told, ...]:
    """How each choice ends; nothing where there are no stop strings, or too many tokens to look through."""
    if not stops or len(tokens) * choices > MAX_SEARCHED_TOKENS:
        return ()
    return tuple(tell(lead, (token_text(seed + choice, index) for index in tokens), stops) for choice in range(choices))


def count_prompt(body: Mapping[str, Any]) -> int:
    """A prompt's tokens: its words, or its ids where it is a list of them."""
    return len(_given_ids(body)) + count_tokens(prompt_text(body))


def prompt_ids(ask: Ask) -> list[int]:
    """A prompt's token ids: as they were given, or made of its words and of the answer's beginning that it holds."""
    if given := _given_ids(ask.body):
        return given
    begun = ask.begun
    words = prompt_text(ask.body).split()
    ids = [word_id(word) for word in words[: len(words) - begun.words]]
    thought = token_ids(ask.seed + REASONING_SEED, begun.reasoning_start)
    return ids + thought + token_ids(ask.seed, begun.start)


def word_id(word: str) -> int:
    """The id of a prompt's word; the same for the same word."""
    return mix(0, sum(word.encode())) % VOCABULARY


def _given_ids(body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return [id for id in prompt if isinstance(id, int)] if isinstance(prompt, list) else []


def prompt_text(body: Mapping[str, Any]) -> str:
    """All text of a request, whatever its API calls it."""
    texts: list[str] = []
    for name in ("system", "instructions", "prompt", "input", "messages"):
        _gather(body.get(name), texts, MAX_NESTING)
    return " ".join(texts)


def _gather(value: object, texts: list[str], levels: int) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list) and levels:
        for part in value:
            _gather(part, texts, levels - 1)
    elif isinstance(value, dict) and levels:
        _gather(value.get("content", value.get("text")), texts, levels - 1)


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object, or left out."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refusal(400, f"{name} must be an object.", name)
    return value


def _number(where: Mapping[str, Any], name: str, default: float, low: float = 0) -> float:
    value = where.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= 2**53:
        raise refusal(400, f"{name} must be a number of {low} or more.", name)
    return value


def _token_limit(body: Mapping[str, Any]) -> int | None:
    limit = next((body[name] for name in LIMIT_FIELDS if body.get(name) is not None), None)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise refusal(400, "The token limit must be a positive integer.", "max_tokens")
    return limit


def _choices(body: Mapping[str, Any]) -> int:
    choices = 1 if body.get("n") is None else body["n"]
    if isinstance(choices, bool) or not isinstance(choices, int) or not 1 <= choices <= MAX_CHOICES:
        raise refusal(400, f"n must be 1 to {MAX_CHOICES}.", "n")
    return choices


def _mode(sim: Mapping[str, Any], default: str) -> str:
    mode = sim.get("continues", default)
    if mode not in MODES:
        raise refusal(400, f"continues must be one of {', '.join(MODES)}.", "continues")
    return str(mode)


def _functions_to_call(body: Mapping[str, Any]) -> tuple[str, ...]:
    """A request with tools and a choice among them gets a call; two if it allows parallel ones."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice in (None, "none"):
        return ()
    if isinstance(choice, dict):
        return (str(choice.get("name") or (choice.get("function") or {}).get("name")),)
    names = [str((tool.get("function") or tool).get("name")) for tool in tools if isinstance(tool, dict)]
    return tuple(names[: 2 if body.get("parallel_tool_calls") else 1])
