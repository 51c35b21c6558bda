"""Where the second part of an answer is joined to the first.

What lives here: rewriting the second engine's events so that both parts read as one answer.
What must not: requests (continuation.py), calls, the log, when an answer is gone on with.

A stop string may begin in the first part and end in the second, where no engine sees it. Whether it does is decided by the
first characters of the second part; until it is, they are held back. What lies wholly in the second part is its engine's
matter. Reasoning is not looked through: most engines stop at nothing in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..wire.sse import encode_event
from .openai import DONE, is_error, parse_object, read_usage
from .plain import PlainForm, holder_of, learn, read_fields
from .said import (
    MAX_LEARNT_FORMS,
    REASONING_NAMES,
    CannotContinue,
    Said,
    ids_in,
    only_choice,
    text_in,
    text_place,
    thought_names,
)
from .usage import whole_usage


class Seam:
    """The second part, event by event. ``by_ids``: it was asked for by token ids, so that nothing had been cut off.

    ``is_ended``: a stop string that spans the seam has ended the answer; nothing follows but the end marker.
    """

    __slots__ = (
        "_content_cut", "_event", "_forms", "_has_cut", "_held", "_is_other_prompt", "_lead_tokens", "_learnt",
        "_reasoning_cut", "_rests", "hides_usage", "include_stop", "is_ended", "said", "usage",
    )  # fmt: skip

    def __init__(
        self,
        said: Said,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        hides_usage: bool = False,
        by_ids: bool = False,
    ) -> None:
        self.said = said
        self.include_stop = include_stop
        self.hides_usage = hides_usage
        self.is_ended = False
        self.usage: dict[str, Any] | None = None
        """What the whole answer has used, as far as it is known."""
        lead = said.lead(to_words=bool(stops) and not by_ids)
        self._content_cut = "" if by_ids else lead.content_cut
        self._reasoning_cut = "" if by_ids else lead.reasoning_cut
        self._has_cut = bool(self._content_cut or self._reasoning_cut)
        if by_ids:
            self._lead_tokens = len(said.token_ids or ())
        else:
            self._lead_tokens = lead.tokens if lead.content or lead.reasoning else 0
        self._is_other_prompt = bool(self._lead_tokens or said.prompt_token_ids)
        self._rests = rests_of(said.content, stops)
        self._held = ""
        self._event: tuple[dict[str, Any], bytes | None] | None = None
        self._forms: tuple[PlainForm, PlainForm] | None = None
        self._learnt = 0

    def __repr__(self) -> str:
        return f"<Seam after {self._lead_tokens} tokens, held {len(self._held)}, ended {self.is_ended}>"

    def rewrite(self, block: bytes) -> list[bytes]:
        """The events to be appended for one of the second engine: one, none, or two.

        Raises:
            CannotContinue: it cannot be a part of this answer. What was appended before stays true.
        """
        if self.is_ended:
            return []
        if self._forms is not None and self._forms[0].text(block) is not None:
            theirs, ours = self._forms
            return [ours.head + block[len(theirs.head) : len(block) - len(theirs.tail)] + ours.tail]
        name, data = read_fields(block)
        if data == DONE:
            return [*self.flush(), block]
        if not data:
            return [block]
        event = parse_object(data)
        if event is None:
            if data.startswith(b"{"):
                raise CannotContinue("An event of the second part is no JSON.")
            return []
        if name == b"error" or is_error(event):
            return [block]
        return self._rewritten(block, event, name)

    def whole(self, second: dict[str, Any]) -> dict[str, Any] | None:
        """The usage of the whole answer, by what the second engine tells of its own."""
        return whole_usage(self.said, second, self._lead_tokens)

    def flush(self) -> list[bytes]:
        """What is still held back, where no more will come to decide what it is."""
        if not self._held or self._event is None or self.is_ended:
            return []
        event, name = self._event
        holder, key = text_place(event["choices"][0])
        holder[key] = self._held
        self._held, self._rests = "", ()
        return [_encode(event, name)]

    # Inside.

    def _rewritten(self, block: bytes, event: dict[str, Any], name: bytes | None) -> list[bytes]:
        choice = only_choice(event)
        self._identify(event)
        self._sum_up(event)
        if choice is None:
            is_usage = event.get("choices") == []
            return [] if is_usage and (self.hides_usage or not event.get("usage")) else [_encode(event, name)]
        self._drop_ids(event, choice)
        holder, key = text_place(choice)
        had_role = self.said.has_role and holder is not choice and holder.pop("role", None) is not None
        raw, raw_thought = text_in(holder, key), self._rewrite_thought(holder)
        text = self._skip(raw)
        stop = self._stop_at(text, choice)
        if stop is not None:
            return [self._stopped(event, name, stop, text)]
        text = self._decided(text, choice, holder, key)
        if text or raw:
            holder[key] = text
        if (had_role or text != raw or raw_thought) and _says_nothing(event, choice, holder, key):
            self._remember(event, name)
            return []
        rewritten = _encode(event, name)
        self._remember(event, name)
        self._learn(block, rewritten, text)
        return [rewritten]

    def _identify(self, event: dict[str, Any]) -> None:
        said = self.said
        told = {"id": said.id, "created": said.created, "model": said.model}
        event |= {key: value for key, value in told.items() if value is not None}
        if said.fingerprint is not None:
            event["system_fingerprint"] = said.fingerprint
        elif said.id is not None:
            event.pop("system_fingerprint", None)

    def _sum_up(self, event: dict[str, Any]) -> None:
        told = event.get("usage")
        if told is None:
            return
        second = read_usage(told)
        whole = self.whole(second) if second is not None else None
        if whole is None:
            del event["usage"]
            return
        self.usage = whole
        event["usage"] = {**told, **whole}

    def _drop_ids(self, event: dict[str, Any], choice: dict[str, Any]) -> None:
        """The prompt's where it is another prompt or told already; the answer's where they are not those of its text, because
        something had been cut off."""
        if self._is_other_prompt:
            event.pop("prompt_token_ids", None)
            choice.pop("prompt_token_ids", None)
        if self._has_cut:
            choice.pop("token_ids", None)

    def _rewrite_thought(self, holder: dict[str, Any]) -> bool:
        """Reasoning under the first part's names, without what had been cut off; say whether all of it was that."""
        names = thought_names(holder)
        if not names:
            return False
        thought = text_in(holder, names[0])
        rest, self._reasoning_cut = without_start(thought, self._reasoning_cut)
        ours = self.said.reasoning_names or names
        if ours != names:
            for each in names:
                del holder[each]
        for each in ours:
            holder[each] = rest
        return not rest

    def _skip(self, text: str) -> str:
        if text:
            self._reasoning_cut = ""  # It is over.
        if not text or not self._content_cut:
            return text
        cut = self._content_cut
        rest, self._content_cut = without_start(text, cut)
        if rest and cut[len(text) - len(rest) :].strip():
            raise CannotContinue("It goes on with another word than it had begun.")
        return rest

    def _stop_at(self, text: str, choice: dict[str, Any]) -> tuple[str, str] | None:
        """The stop string that the first characters complete, and the end of it that lies in this part."""
        if not self._rests:
            return None
        seen = self._held + text
        stopped_by = choice.get("stop_reason")
        if choice.get("finish_reason") and isinstance(stopped_by, str) and not self.include_stop:
            # The engine has left out a stop string of its own part. One over the seam may have been complete before it.
            seen += without_start(stopped_by, self._content_cut)[0]
        return min(
            ((rest, stop) for rest, stop in self._rests if seen.startswith(rest)),
            key=lambda found: len(found[0]),
            default=None,
        )

    def _decided(self, text: str, choice: dict[str, Any], holder: dict[str, Any], key: str) -> str:
        """What of the text can be said now: all of it, or nothing while it may be the end of a stop string."""
        seen = self._held + text
        if not self._rests or not seen:
            return text
        is_last = bool(choice.get("finish_reason")) or any(
            value for name, value in holder.items() if holder is not choice and name != key
        )
        if not is_last and any(rest.startswith(seen) for rest, _ in self._rests):
            self._held = seen
            return ""
        self._held, self._rests = "", ()
        return seen

    def _stopped(self, event: dict[str, Any], name: bytes | None, stop: tuple[str, str], text: str) -> bytes:
        self.is_ended = True
        rest, whole = stop
        said = rest if self.include_stop else ""
        self._held = ""
        choice = event["choices"][0]
        if "delta" in choice:
            thought = {each: choice["delta"][each] for each in REASONING_NAMES if choice["delta"].get(each)}
            choice["delta"] = {**thought, "content": said} if said else thought
        else:
            choice["text"] = said
        choice["finish_reason"] = "stop"
        choice["stop_reason"] = whole
        return _encode(event, name)

    def _remember(self, event: dict[str, Any], name: bytes | None) -> None:
        """An event to put out in what is held back, should no other come."""
        if not self._held:
            return
        event.pop("usage", None)
        if "token_ids" in event["choices"][0]:
            event["choices"][0]["token_ids"] = []  # They have been told with the event that the text was held back of.
        self._event = (event, name)

    def _learn(self, block: bytes, rewritten: bytes, text: str) -> None:
        """How events go on from here where nothing but their text changes."""
        if not text or self._rests or self._content_cut or self._reasoning_cut or self._learnt >= MAX_LEARNT_FORMS:
            return
        self._learnt += 1
        forms = [_form_of(each, text) for each in (block, rewritten)]
        if forms[0] is not None and forms[1] is not None:
            self._forms = (forms[0], forms[1])


def finish_event(said: Said, reason: str, *, is_chat: bool) -> bytes:
    """The finish of an answer of which nothing is left to be said."""
    place: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    choice = {"index": 0, **place, "logprobs": None, "finish_reason": reason}
    return _encode({**_top(said, is_chat), "choices": [choice]}, None)


def usage_event(said: Said, usage: dict[str, Any], *, is_chat: bool) -> bytes:
    """The usage of an answer of which nothing is left to be said, where its one engine had told it before the end."""
    return _encode({**_top(said, is_chat), "choices": [], "usage": usage}, None)


def _top(said: Said, is_chat: bool) -> dict[str, Any]:
    told = {
        "id": said.id,
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": said.created,
        "model": said.model,
        "system_fingerprint": said.fingerprint,
    }
    return {key: value for key, value in told.items() if value is not None}


def rests_of(said: str, stops: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each way in which the end of ``said`` begins a stop string: what of the string is still to come, and the string."""
    return tuple((stop[size:], stop) for stop in stops for size in range(1, len(stop)) if said.endswith(stop[:size]))


def without_start(text: str, cut: str) -> tuple[str, str]:
    """``text`` without as much of ``cut`` as it begins with, and what of ``cut`` may still come in the next event."""
    same = 0
    while same < min(len(text), len(cut)) and text[same] == cut[same]:
        same += 1
    return text[same:], cut[same:] if same == len(text) else ""


def _says_nothing(event: dict[str, Any], choice: dict[str, Any], holder: dict[str, Any], key: str) -> bool:
    if choice.get("finish_reason") or event.get("usage") or ids_in(choice, "token_ids"):
        return False
    return not holder.get(key) and (holder is choice or not any(holder.values()))


def _form_of(block: bytes, text: str) -> PlainForm | None:
    event = parse_object(read_fields(block)[1])
    holder = holder_of(event)
    if event is None or holder is None or event["choices"][0].get("finish_reason") or event.get("usage"):
        return None
    return learn(block, event, "text" if "text" in holder else "content", text)


def _encode(event: dict[str, Any], name: bytes | None) -> bytes:
    try:
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # Half a surrogate pair, which UTF-8 has no form for, stays escaped.
        return encode_event(text.encode("utf-8", "backslashreplace"), name)
    except (ValueError, RecursionError) as exc:
        raise CannotContinue("An event of the second part cannot be written as JSON.") from exc
