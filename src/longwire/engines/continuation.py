"""Going on with a cut answer at another engine: whether it can be, and what is asked for then.

What lives here: which requests' answers can be gone on with, and the request for the rest.
What must not: what was said (said.py), how the two parts are joined (seam.py), sockets, who decides to do it.

Nothing is added but the answer's own beginning: no prompt, no instruction. Where that would not give the same answer, it is
refused (CannotContinue), and the answer ends truthfully.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from .kinds import Abilities, Continues
from .openai import parse_object
from .request import encode_body
from .said import CannotContinue, Lead, Said

__all__ = ["CannotContinue", "Said", "check_request", "continued_body", "continues_by_ids", "stops_of"]

MAX_STOPS = 64
"""More than any API takes (OpenAI: 4, SGLang and vLLM: no limit); each is looked for at the seam."""
MAX_STOP_CHARS = 256
"""A longer one is no stop string but a document."""

LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict")
"""What engines call the most that an answer may have."""

_STRUCTURE = "It is bound to a structure, of which an engine would begin anew."
_PROBABILITIES = "Its probabilities would be told twice at the seam, and of other tokens."
_SEVERAL = "It asks for several answers."
_PROMPT_IN_ANSWER = "It wants its prompt in the answer."

_REFUSED_IF_GIVEN: dict[str, str] = {
    "structured_outputs": _STRUCTURE,
    "structural_tag": _STRUCTURE,
    "grammar": _STRUCTURE,
    "json_schema": _STRUCTURE,
    "regex": _STRUCTURE,
    "ebnf": _STRUCTURE,
    "logprobs": _PROBABILITIES,  # 0 is a wish for them too, in completions
    "prompt_logprobs": _PROBABILITIES,
    "logprob_token_ids": _PROBABILITIES,
    "prediction": "It brings along a prediction of its whole answer.",
    "audio": "It asks for audio.",
    "suffix": "Its answer stands between two texts.",
    "prompt_embeds": "Its prompt is no text.",
    "truncate_prompt_tokens": "Its prompt would be truncated elsewhere.",
    "logits_processors": "What it does with each token depends on what this request has generated.",
    "custom_logit_processor": "What it does with each token depends on what this request has generated.",
}
_REFUSED_IF_TRUE: dict[str, str] = {
    "echo": _PROMPT_IN_ANSWER,
    "n_probs": _PROBABILITIES,
    "use_beam_search": _SEVERAL,
}


def check_request(route_or_target: str | bytes, body: dict[str, Any]) -> None:
    """Whether answers to such a request can be gone on with at all, by any engine.

    Raises:
        CannotContinue: they cannot.
    """
    is_chat(route_or_target)
    for name, why in _REFUSED_IF_GIVEN.items():
        if _is_given(body.get(name)):
            raise CannotContinue(why)
    for name, why in _REFUSED_IF_TRUE.items():
        if body.get(name):
            raise CannotContinue(why)
    if any(name.startswith("guided_") and _is_given(value) for name, value in body.items()):
        raise CannotContinue(_STRUCTURE)
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise CannotContinue(_SEVERAL)
    _check_format(body)
    _check_tools(body)
    _check_prompt(body.get("prompt"))
    _check_stops(body.get("stop"))


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ""


def _check_format(body: dict[str, Any]) -> None:
    form = body.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        raise CannotContinue(_STRUCTURE)
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise CannotContinue("It asks for more than text.")


def _check_tools(body: dict[str, Any]) -> None:
    if body.get("tool_choice") not in (None, "auto", "none") or body.get("function_call") not in (None, "auto", "none"):
        raise CannotContinue("It must call a tool.")


def _check_prompt(prompt: object) -> None:
    if isinstance(prompt, list) and len(prompt) > 1 and any(isinstance(each, (str, list)) for each in prompt):
        raise CannotContinue("It has several prompts.")


def _check_stops(stop: object) -> None:
    given = stop if isinstance(stop, list) else [stop]
    if len(given) > MAX_STOPS or any(isinstance(each, str) and len(each) > MAX_STOP_CHARS for each in given):
        raise CannotContinue("Its stop strings are too many or too long to be looked for at the seam.")


def stops_of(body: dict[str, Any]) -> tuple[str, ...]:
    """The stop strings of a request, as many and as long as :func:`check_request` lets pass."""
    stop = body.get("stop")
    given = stop if isinstance(stop, list) else [stop]
    return tuple(each for each in given[:MAX_STOPS] if isinstance(each, str) and 0 < len(each) <= MAX_STOP_CHARS)


def is_chat(route_or_target: str | bytes) -> bool:
    """Whether it is chat or text completion, by route (``chat_completions``) or by a target under any base path.

    Raises:
        CannotContinue: it is neither.
    """
    target = route_or_target.decode("latin-1") if isinstance(route_or_target, bytes) else route_or_target
    name = target.partition("?")[0].replace("/", "_")
    if name.endswith("chat_completions"):
        return True
    if name == "completions" or name.endswith("_completions"):
        return False
    raise CannotContinue("Answers of this API cannot be gone on with.")


# The request for the rest.


def continued_body(target: bytes, body: bytes, said: Said, abilities: Abilities) -> bytes | None:
    """The request for what is still to be said; None where nothing is: as many tokens were said as were asked for.

    In that case the answer is whole, and ends with finish reason ``length``.

    Raises:
        CannotContinue: the engine is not known to go on exactly, or not with this.
    """
    if said.is_finished:
        raise CannotContinue("It is finished.")
    fields = _fields_of(body)
    by_ids = _goes_by_ids(target, fields, said, abilities)
    lead = said.lead(to_words=bool(stops_of(fields)) and not by_ids)
    if not by_ids and not lead.content and not lead.reasoning:
        return body  # Only white space, or nothing: the seam leaves out what comes again.
    if abilities.continues is Continues.NEVER:
        raise CannotContinue(
            "The engine is not known to go on with an answer; where it does, its configuration should name its kind."
        )
    _check_text(lead)
    tokens = len(said.token_ids or ()) if by_ids else lead.tokens
    lowered = _lowered(fields, tokens)
    if lowered is None:
        return None
    if is_chat(target):
        return encode_body(_with_message(lowered, said, lead, abilities))
    return encode_body({**lowered, "prompt": _ids(fields, said) if by_ids else _text(fields, said, lead)})


def continues_by_ids(target: bytes, body: bytes, said: Said, abilities: Abilities) -> bool:
    """Whether :func:`continued_body` goes on by token ids: then nothing is cut off, and the seam has nothing to leave out."""
    return _goes_by_ids(target, _fields_of(body), said, abilities)


def _goes_by_ids(target: bytes, fields: dict[str, Any], said: Said, abilities: Abilities) -> bool:
    """An engine that looks for stop strings holds text back whose ids it has told: then only the text is sure."""
    return bool(
        abilities.takes_token_ids
        and abilities.continues is not Continues.NEVER
        and not is_chat(target)
        and said.token_ids
        and said.prompt_token_ids
        and not stops_of(fields)
    )


def _fields_of(body: bytes) -> dict[str, Any]:
    fields = parse_object(body)
    if fields is None:
        raise CannotContinue("The request is no JSON object.")
    return fields


def _check_text(lead: Lead) -> None:
    try:
        f"{lead.content}{lead.reasoning}".encode()
    except UnicodeEncodeError:
        raise CannotContinue("It was cut inside a character.") from None


def _lowered(fields: dict[str, Any], tokens: int) -> dict[str, Any] | None:
    """The same fields with limits for the rest only; None where a limit has been reached."""
    lowered = dict(fields)
    for name in LIMITS:
        most = _count(fields.get(name))
        if most > 0:
            lowered[name] = most - tokens
            if most <= tokens:
                return None
    least = _count(fields.get("min_tokens"))
    if least > 0:
        lowered["min_tokens"] = max(0, least - tokens)
    return lowered


def _count(value: object) -> int:
    """A number of tokens; 0 for what is none. Negative ones mean that there is no limit."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and isfinite(value) else 0


def _ids(fields: dict[str, Any], said: Said) -> list[int] | list[list[int]]:
    ids = [*(said.prompt_token_ids or ()), *(said.token_ids or ())]
    prompt = fields.get("prompt")
    is_nested = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list))
    return [ids] if is_nested else ids


def _text(fields: dict[str, Any], said: Said, lead: Lead) -> str | list[str]:
    if said.reasoning:
        raise CannotContinue("Its reasoning has no place in a prompt.")
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return [prompt[0] + lead.content]
    if not isinstance(prompt, str):
        raise CannotContinue("Its prompt is given by token ids, and the answer's are not known.")
    return prompt + lead.content


def _with_message(fields: dict[str, Any], said: Said, lead: Lead, abilities: Abilities) -> dict[str, Any]:
    """A chat request that ends in the answer's beginning, and asks the engine in its own way to go on with it."""
    if said.reasoning and not abilities.continues_reasoning:
        raise CannotContinue("The engine is not known to go on with reasoning.")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise CannotContinue("Its messages cannot be read.")
    asked = fields.get("continue_final_message")
    if asked not in (None, False, True):
        raise CannotContinue("It asks to go on with a message in an unknown way.")
    is_prefill = abilities.continues is Continues.PREFILL
    is_begun = bool(asked) or (is_prefill and asked is None and messages[-1].get("role") == "assistant")
    if is_begun:
        told = [*messages[:-1], _merged(messages[-1], lead)]
    else:
        thought = {"reasoning_content": lead.reasoning} if lead.reasoning else {}
        told = [*messages, {"role": "assistant", "content": lead.content, **thought}]
    continued = {**fields, "messages": told}
    if not is_prefill or asked is False:
        # The second too, also for an engine of the other kind: to have both is refused by all of them.
        continued |= {"continue_final_message": True, "add_generation_prompt": False}
    return continued


def _merged(message: dict[str, Any], lead: Lead) -> dict[str, Any]:
    """The message that the client has begun, as far as it has come now."""
    if message.get("role") != "assistant" or message.get("tool_calls"):
        raise CannotContinue("It goes on with a message that is no assistant's text.")
    if not lead.reasoning:
        return {**message, "content": _appended(message.get("content"), lead.content)}
    begun = message.get("reasoning_content") or ""
    if message.get("content") or message.get("reasoning") or not isinstance(begun, str):
        raise CannotContinue("It has reasoned after a message had begun.")
    return {**message, "content": lead.content, "reasoning_content": begun + lead.reasoning}


def _appended(content: object, lead: str) -> str | list[Any]:
    """Text at the end of a message's content. A part of its own would be joined with a line end by some templates."""
    if content is None or isinstance(content, str):
        return (content or "") + lead
    last = content[-1] if isinstance(content, list) and content else None
    if not isinstance(content, list) or not isinstance(last, dict) or not isinstance(last.get("text"), str):
        raise CannotContinue("It goes on with a message that does not end in text.")
    return [*content[:-1], {**last, "text": last["text"] + lead}]
