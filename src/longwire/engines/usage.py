"""What an answer has used whose engine did not tell it at the end: one of two parts, or one that ends with the gateway's words.

What lives here: sums of what engines have told. What must not: how it is read (openai.py) or sent (seam.py).
"""

from __future__ import annotations

from typing import Any

from .said import Said


def whole_usage(said: Said, second: dict[str, Any], lead_tokens: int) -> dict[str, Any] | None:
    """The usage of both parts: the prompt once, then all that was generated. None where the second part's tells too little.

    The second prompt holds the first and what was said after it, so that the sum is the second's.
    """
    given, generated = second.get("prompt_tokens"), second.get("completion_tokens")
    if not isinstance(given, int) or not isinstance(generated, int):
        return None
    first = said.usage or {}
    prompt = first.get("prompt_tokens")
    if not isinstance(prompt, int):
        prompt = len(said.prompt_token_ids) if said.prompt_token_ids else given - lead_tokens
    prompt = max(0, min(prompt, given))
    whole = {**second, "prompt_tokens": prompt, "completion_tokens": given + generated - prompt}
    whole["total_tokens"] = given + generated
    of_prompt = _group(first, "prompt_tokens_details") or _group(second, "prompt_tokens_details")
    if of_prompt:
        whole["prompt_tokens_details"] = {key: min(count, prompt) for key, count in of_prompt.items()}
    of_answer = _sum_details(said, first, _group(second, "completion_tokens_details"))
    if of_answer:
        whole["completion_tokens_details"] = of_answer
    return whole


def usage_so_far(said: Said) -> dict[str, Any] | None:
    """The usage of an answer of which nothing is left to be said: as it was told last, and what was said since. How long the
    prompt is, only engines know: by their count, or by the ids that they have told of it. None where they have done neither,
    because nothing is made up."""
    told = said.usage
    prompt = (told or {}).get("prompt_tokens", len(said.prompt_token_ids or ()) or None)
    if told is None and prompt is None:
        return None
    told = told or {}
    generated = told.get("completion_tokens", 0) + said.tokens_since_usage
    if prompt is None:
        return {**told, "completion_tokens": generated}
    return {**told, "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _sum_details(said: Said, first: dict[str, Any], second: dict[str, int]) -> dict[str, int]:
    """Groups that neither part has told stay untold; what the first has not told of its reasoning is counted."""
    told = _group(first, "completion_tokens_details")
    if "reasoning_tokens" in second:
        told = {"reasoning_tokens": said.reasoning_tokens, **told}
    # An engine may foretell them: more than was generated they cannot have been.
    generated = first.get("completion_tokens", 0)
    most = max(said.tokens, generated if isinstance(generated, int) else 0)
    return {key: min(told.get(key, 0), most) + second.get(key, 0) for key in {**told, **second}}


def _group(usage: dict[str, Any], name: str) -> dict[str, int]:
    group = usage.get(name)
    return group if isinstance(group, dict) else {}
