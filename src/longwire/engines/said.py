"""What a cut answer has said so far.

What lives here: reading it out of the answer's log, and the lead: what of it another request can be made to go on after.
What must not: requests (continuation.py), the second part (seam.py), sockets, the log itself.

An answer that cannot be gone on with exactly is told by an exception: to guess would be to make it up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .openai import DONE, is_error, parse_object, read_usage
from .plain import PlainForm, learn, read_fields

REASONING_NAMES = ("reasoning_content", "reasoning")
"""What engines call it; some send the same text under both."""
MAX_LEARNT_FORMS = 8
"""Frames change a few times in an answer (role, reasoning, content); one that changes in each event is not worth learning."""
MAX_NAME_CHARS = 64
"""Of an engine's own word that is repeated in a sentence."""

_NOT_TEXT = {
    "tool_calls": "It has begun to call a tool.",
    "function_call": "It has begun to call a function.",
    "audio": "It speaks in audio.",
    "refusal": "It is a refusal.",
}
_KNOWN_DELTA = frozenset({"role", "content", *REASONING_NAMES})
MAX_WORD_CHARS = 64
"""More than any token has, and most words. Where text has no spaces, nobody can tell where a token begins."""


class CannotContinue(Exception):
    """The answer cannot be gone on with exactly. ``why`` is one short sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Lead(NamedTuple):
    """What the next request is given to go on after.

    White space at its end is cut off: engines that get it begin another token than they would have, or strip it and say it
    again. What was cut off has been sent, though.
    """

    content: str
    reasoning: str
    content_cut: str
    reasoning_cut: str
    tokens: int


@dataclass(slots=True)
class Said:
    """An answer as far as it has come. ``content`` and ``reasoning`` are put together when they are asked for."""

    tokens: int = 0
    """Events with text; where events tell their token ids, those."""
    reasoning_tokens: int = 0
    token_ids: list[int] | None = field(default=None, repr=False)
    """The ids of all that was said; None where an event with text has told none."""
    prompt_token_ids: list[int] | None = field(default=None, repr=False)
    id: str | None = None
    created: int | None = None
    model: str | None = None
    fingerprint: str | None = None
    is_finished: bool = False
    is_done: bool = False
    """The end marker is in the log: another stream may go on with the answer, this one cannot."""
    is_billed: bool = False
    """The latest usage stood in an event of its own, as at an answer's end."""
    has_role: bool = False
    reasoning_names: tuple[str, ...] = ()
    # What was said is its tenant's: it does not belong in logs.
    _contents: list[str] = field(default_factory=list, repr=False)
    _reasonings: list[str] = field(default_factory=list, repr=False)
    _usage: dict[str, Any] | None = None
    _used: int = -1
    _used_tokens: int = 0
    """As many of :attr:`tokens` are in it."""
    _white_tokens: int = 0
    """Tokens of the white space at the end."""
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=2 * MAX_WORD_CHARS), repr=False)
    """Characters and tokens of the last pieces of the content."""
    _silent_events: int = 0
    """Events without text, where no ids are told: each is a token of a character that is not whole yet."""
    _silent_ids: list[int] = field(default_factory=list, repr=False)
    """Ids whose text is still to come: the engine holds it back, or it is half a character."""
    _form: PlainForm | None = field(default=None, repr=False)
    _form_is_thought: bool = False
    _learnt: int = 0

    @property
    def content(self) -> str:
        return _joined(self._contents)

    @property
    def reasoning(self) -> str:
        return _joined(self._reasonings)

    @property
    def usage(self) -> dict[str, Any] | None:
        """The largest that was told: counts only grow."""
        return read_usage(self._usage)

    @property
    def tokens_since_usage(self) -> int:
        """What was said behind the event that told it, or in all."""
        return self.tokens - self._used_tokens

    def add(self, block: bytes) -> None:
        """Note one event of the log. Comments and in-band errors say nothing of the answer.

        Raises:
            CannotContinue: nothing that has said this can be gone on with. Also for every event from the finish on, which are
                noted all the same.
        """
        if self._form is not None and (text := self._form.text(block)) is not None:
            self._note(*(("", text) if self._form_is_thought else (text, "")), None, is_silent=not text)
            return
        event = self._read(block)
        if event is None:
            return
        choice = only_choice(event)
        has_news = self._note_facts(event)
        if choice is not None:
            self._add_choice(block, event, choice)
        if has_news:
            self._used_tokens = self.tokens
        if self.is_finished:
            raise CannotContinue("It is finished.")

    def begin(self, content: str, reasoning: str) -> None:
        """Begin with what another answer has said: text to go on after, without tokens, ids or names."""
        if content:
            self._contents.append(content)
        if reasoning:
            self._reasonings.append(reasoning)

    def lead(self, *, to_words: bool = False) -> Lead:
        """What to go on after, and what had to be cut off for that.

        With ``to_words`` that is the last word, too: an engine that looks for stop strings holds back as many characters as
        they have, so that what it has told may end within a token. Going on after half a token makes another word of it.

        Raises:
            CannotContinue: the last word has no end in sight.
        """
        content, reasoning = self.content, self.reasoning
        lead = content.rstrip()
        word = len(lead.rsplit(None, 1)[-1]) if to_words and lead else 0
        if word > MAX_WORD_CHARS:
            raise CannotContinue("Nobody can tell where its last token begins.")
        lead = lead[: len(lead) - word].rstrip()
        # Reasoning that content has followed is over, and stays as it was said.
        is_over = bool(lead) or (bool(content) and not reasoning.isspace())
        thought = reasoning if is_over else reasoning.rstrip()
        cut = self._tokens_of_last(len(content) - len(lead)) if word else self._white_tokens
        return Lead(lead, thought, content[len(lead) :], reasoning[len(thought) :], max(0, self.tokens - cut))

    def _tokens_of_last(self, chars: int) -> int:
        """How many tokens the last so many characters of the content are, those that begin before them included."""
        count = 0
        for length, tokens in reversed(self._recent):
            if chars <= 0:
                break
            chars, count = chars - length, count + tokens
        return count

    # Inside.

    def _read(self, block: bytes) -> dict[str, Any] | None:
        name, data = read_fields(block)
        if data == DONE:
            self.is_done = True
            return None
        event = parse_object(data)
        if event is None:
            if data.startswith(b"{"):
                raise CannotContinue("An event of it is no JSON.")
            return None
        return None if name == b"error" or is_error(event) else event

    def _note_facts(self, event: dict[str, Any]) -> bool:
        """Whether its usage is news."""
        self.id = self.id or _text_or_none(event.get("id"))
        self.model = self.model or _text_or_none(event.get("model"))
        self.fingerprint = self.fingerprint or _text_or_none(event.get("system_fingerprint"))
        if self.created is None and isinstance(event.get("created"), int):
            self.created = event["created"]
        told = event.get("usage")
        used = (read_usage(told) or {}).get("completion_tokens", 0) if isinstance(told, dict) else None
        if has_news := isinstance(used, int) and used > self._used:
            self._usage, self._used = told, used
        if used == self._used:
            self.is_billed = not event.get("choices")
        if self.prompt_token_ids is None:
            self.prompt_token_ids = ids_in(event, "prompt_token_ids")
        return has_news

    def _add_choice(self, block: bytes, event: dict[str, Any], choice: dict[str, Any]) -> None:
        holder, key = text_place(choice)
        if holder is not choice:
            self._check_delta(holder)
            self.has_role |= bool(holder.get("role"))
        content = text_in(holder, key)
        names = thought_names(holder)
        thought = text_in(holder, names[0]) if names else ""
        self.reasoning_names = self.reasoning_names or names
        if self.prompt_token_ids is None:
            self.prompt_token_ids = ids_in(choice, "prompt_token_ids")
        ids = ids_in(choice, "token_ids")
        # An empty text that is no role and no finish is a token of a character that is not whole yet.
        is_silent = holder.get(key) == "" and not holder.get("role") and not choice.get("finish_reason")
        self._note(content, thought, ids, is_silent=is_silent)
        self.is_finished |= bool(choice.get("finish_reason"))
        if self.is_finished:
            self._form = None
        elif ids is None and bool(content) != bool(thought) and len(names) < 2 and self._learnt < MAX_LEARNT_FORMS:
            self._learnt += 1
            self._form = learn(block, event, names[0] if thought else key, content or thought)
            self._form_is_thought = bool(thought)

    def _check_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if value and name not in _KNOWN_DELTA:
                raise CannotContinue(_NOT_TEXT.get(name, f"It has said more than text: {name[:MAX_NAME_CHARS]}."))

    def _note(self, content: str, thought: str, ids: list[int] | None, *, is_silent: bool = False) -> None:
        if not content and not thought:
            self._silent_ids += ids or ()
            self._silent_events += is_silent
            return
        count = 1 + self._silent_events if ids is None else len(self._silent_ids) + len(ids)
        self._silent_events = 0
        self._note_ids(ids)
        self.tokens += count
        if thought:
            self.reasoning_tokens += count
            self._reasonings.append(thought)
        if content:
            if not self._contents:
                self._white_tokens = 0
            self._contents.append(content)
            self._recent.append((len(content), count))
        self._white_tokens = self._white_tokens + count if (content or thought).isspace() else 0

    def _note_ids(self, ids: list[int] | None) -> None:
        is_first = not self._contents and not self._reasonings
        if ids is None:
            self.token_ids = None
        elif is_first:
            self.token_ids = [*self._silent_ids, *ids]
        elif self.token_ids is not None:
            self.token_ids += [*self._silent_ids, *ids]
        self._silent_ids = []


# How an event is read, of the first part and of the second.


def only_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """The event's one choice; None where it has none.

    Raises:
        CannotContinue: there is another, or it is none.
    """
    choices = event.get("choices")
    if choices is None or choices == []:
        return None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict):
        raise CannotContinue("An event of it has several choices, or none that can be read.")
    if choice.get("index", 0) != 0:
        raise CannotContinue("It has more than one choice.")
    return choice


def text_place(choice: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Where a choice has its text: the object, and the key in it."""
    if "delta" not in choice:
        return choice, "text"
    if choice["delta"] is None:
        choice["delta"] = {}
    delta = choice["delta"]
    if not isinstance(delta, dict):
        raise CannotContinue("An event of it has a delta that cannot be read.")
    return delta, "content"


def text_in(holder: dict[str, Any], key: str) -> str:
    """A text, empty where there is none."""
    text = holder.get(key)
    if text is not None and not isinstance(text, str):
        raise CannotContinue("It has said something that is no text.")
    return text or ""


def thought_names(holder: dict[str, Any]) -> tuple[str, ...]:
    """Under which names there is reasoning in a delta."""
    return tuple(name for name in REASONING_NAMES if holder.get(name)) if "text" not in holder else ()


def ids_in(holder: dict[str, Any], key: str) -> list[int] | None:
    """A list of token ids, or None."""
    ids = holder.get(key)
    if isinstance(ids, list) and all(type(id) is int and id >= 0 for id in ids):
        return ids
    return None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _joined(pieces: list[str]) -> str:
    """All pieces as one, and the two halves of a character that came in two events as that character."""
    if len(pieces) > 1:
        text = "".join(pieces)
        if not _is_encodable(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        pieces[:] = [text]
    return pieces[0] if pieces else ""


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
