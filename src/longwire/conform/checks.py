"""What must come, as functions from a recording to what is wrong with it; nothing is wrong where that is empty.

What lives here: judgement. What must not: sockets, clocks, and anything that is not in the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .answers import Answer
from .meaning import Meaning, read_meaning
from .recording import Play, Recording, Visit

Check = Callable[[Recording], str]

SHOWN = 60
"""So much of a text is shown where two differ."""


def both(*checks: Check) -> Check:
    """All of them; what is wrong first is told."""
    return lambda recording: next((wrong for check in checks if (wrong := check(recording))), "")


# A whole answer.


def intact(recording: Recording) -> str:
    """Each request of each visit is answered in order with what the engine said, no more and no less."""
    for visit in recording.visits:
        if wrong := _visit_intact(recording, visit):
            return wrong
    return ""


def intact_first(recording: Recording) -> str:
    """The same for the first visit alone."""
    return _visit_intact(recording, recording.visits[0])


def intact_others(recording: Recording) -> str:
    """The same for all but the first."""
    return intact(replace(recording, visits=recording.visits[1:]))


def _visit_intact(recording: Recording, visit: Visit) -> str:
    if len(visit.answers) < len(visit.nonces):
        return f"{len(visit.answers)} answers to {len(visit.nonces)} requests{_failed(visit)}"
    if len(visit.answers) > len(visit.nonces):
        return f"{len(visit.answers)} answers to {len(visit.nonces)} requests"
    for nonce, answer in zip(visit.nonces, visit.answers, strict=True):
        wrong = answer_intact(answer, recording.plays.get(nonce, Play(()))) or _form_differs(recording, answer)
        if wrong:
            return wrong
    return ""


def _form_differs(recording: Recording, answer: Answer) -> str:
    if recording.streamed is None or answer.is_stream == recording.streamed:
        return ""
    return f"{answer.get('content-type') or 'no type'} for who asked for {'a stream' if recording.streamed else 'none'}"


def _failed(visit: Visit) -> str:
    return "".join(f", {mark}" for mark in visit.marks if mark.startswith("failed"))


def answer_intact(answer: Answer, play: Play, *, needs_done: bool = True) -> str:
    """One answer against what was to be said."""
    if wrong := _status_is_not(answer, 200) or _is_broken(answer):
        return wrong
    meaning = read_meaning(answer)
    return (
        _text_differs(meaning, play)
        or _finish_differs(meaning, play)
        or (_end_marker_is_wrong(meaning) if needs_done and answer.is_stream else "")
    )


def in_order(recording: Recording) -> str:
    """Answers in the order of the requests; a server may close behind any of them."""
    visit = recording.visits[0]
    if not visit.answers:
        return "no answer"
    if len(visit.answers) > len(visit.nonces):
        return f"{len(visit.answers)} answers to {len(visit.nonces)} requests"
    if len(visit.answers) < len(visit.nonces) and visit.end == "open":
        return f"{len(visit.answers)} answers to {len(visit.nonces)} requests, and no close"
    for nonce, answer in zip(visit.nonces, visit.answers, strict=False):
        if wrong := answer_intact(answer, recording.plays.get(nonce, Play(()))):
            return wrong
    return ""


def intact_without_done(recording: Recording) -> str:
    """A whole answer whose engine sent no end marker; adding it is no lie, since there was a finish."""
    return answer_intact(recording.answer, recording.play, needs_done=False)


def _status_is_not(answer: Answer, *wanted: int) -> str:
    if answer.status in wanted:
        return ""
    return f"status {answer.status}" if answer.status else "no answer"


def _is_broken(answer: Answer) -> str:
    if answer.faults:
        return answer.faults[0]
    return {"open": "it does not end", "cut": "it is cut", "whole": ""}[answer.end]


def _text_differs(meaning: Meaning, play: Play) -> str:
    if meaning.errors:
        return f"an error: {str(meaning.errors[0])[:SHOWN]}"
    if meaning.stray:
        return f"no JSON: {meaning.stray[0][:SHOWN]!r}"
    if meaning.text == play.text:
        return ""
    if "\ufffd" in meaning.text and "\ufffd" not in play.text:
        return "a code point was replaced (U+FFFD)"
    at = next((i for i, (a, b) in enumerate(zip(meaning.text, play.text, strict=False)) if a != b), None)
    if at is None:
        return f"{len(meaning.text)} characters instead of {len(play.text)}"
    return f"{meaning.text[at : at + SHOWN]!r} instead of {play.text[at : at + SHOWN]!r}"


def _finish_differs(meaning: Meaning, play: Play) -> str:
    return "" if meaning.finish == play.finish else f"finish_reason {meaning.finish!r} instead of {play.finish!r}"


def _end_marker_is_wrong(meaning: Meaning) -> str:
    if meaning.dones != 1:
        return f"{meaning.dones} end markers"
    return "events after the end marker" if meaning.after_done else ""


# Endings.


def honest(recording: Recording) -> str:
    """Where the engine broke no success is made up: an error, a status, or an end that a client can tell from one."""
    answer = recording.answer
    if answer.end == "open" and answer.status:
        return "it does not end"
    if answer.status == 0:
        return "" if recording.visits[0].end != "open" else "no answer"
    if answer.status >= 500:
        return ""
    if answer.status != 200:
        return f"status {answer.status}"
    meaning, play = read_meaning(answer), recording.play
    if not play.text.startswith(meaning.text):
        return f"{meaning.text[-SHOWN:]!r} was never said"
    if meaning.errors or answer.end == "cut":
        return ""
    if not answer.is_stream:
        return "half a body is passed on as a whole one"
    return _made_up(meaning, play)


def _made_up(meaning: Meaning, play: Play) -> str:
    """A finish or an end marker that the engine did not send. ``play.finish`` tells what it sent of them."""
    if meaning.finish and meaning.finish != play.finish:
        return f"finish_reason {meaning.finish!r} is made up"
    if meaning.dones and play.finish != SENT_DONE:
        return "the end marker is made up"
    return ""


SENT_DONE = "[DONE] only"
"""In :attr:`Play.finish`: the engine sent an end marker, and no finish."""
NOTHING = ""
"""In :attr:`Play.finish`: neither."""


def told(recording: Recording) -> str:
    """The failure is told in words: an in-band error, or a status."""
    answer = recording.answer
    if answer.status >= 500 or read_meaning(answer).errors:
        return ""
    return "it was cut without a word" if answer.end == "cut" else "it ended without a word"


def keeps_what_was_said(recording: Recording) -> str:
    """What had come before the break is not lost with it."""
    answer = recording.answer
    if answer.status != 200:
        return f"status {answer.status} instead of the beginning" if answer.status else "no answer"
    text = read_meaning(answer).text
    return "" if text == recording.play.text else f"{len(text)} characters of {len(recording.play.text)}"


def error_arrives(words: str) -> Check:
    """The engine's own error is an error for the client, with its words, and no success beside it."""

    def check(recording: Recording) -> str:
        answer = recording.answer
        if answer.end == "open":
            return "it does not end"
        if answer.status >= 400:
            return "" if words.encode() in answer.body else f"status {answer.status}, without the engine's words"
        meaning = read_meaning(answer)
        if any(words in str(error) for error in meaning.errors):
            return ""
        return "the engine's error is no error any more" if answer.status else "no answer"

    return check


def no_success(recording: Recording) -> str:
    """What the engine sent is no answer: it must not arrive as one."""
    answer = recording.answer
    if answer.end == "open" and answer.status:
        return "it does not end"
    if answer.status == 0:
        return "no answer" if recording.visits[0].end == "open" else ""
    if answer.status != 200 or answer.end == "cut" or not answer.is_stream:
        return ""
    meaning = read_meaning(answer)
    if meaning.errors:
        return ""
    return "an event stream was made of it" if meaning.claims_success() or meaning.objects else ""


def status(*wanted: int) -> Check:
    """A whole answer with one of these."""
    return lambda recording: _status_is_not(recording.answer, *wanted) or _is_broken(recording.answer)


def server_error(recording: Recording) -> str:
    """A whole answer with 5xx."""
    answer = recording.answer
    if not 500 <= answer.status < 600:
        return f"status {answer.status}" if answer.status else "no answer"
    return _is_broken(answer)


def body_has(words: str) -> Check:
    """The body has these words in it."""
    return lambda recording: "" if words.encode() in recording.answer.body else f"without {words!r}"


def field_is(name: str, *wanted: str) -> Check:
    """A field begins with one of these."""

    def check(recording: Recording) -> str:
        value = recording.answer.get(name).lower()
        return "" if value.startswith(wanted) else f"{name}: {value or 'missing'}"

    return check


def field_has(name: str, *wanted: str) -> Check:
    """A field has one of these in it."""

    def check(recording: Recording) -> str:
        value = recording.answer.get(name).lower()
        return "" if any(each in value for each in wanted) else f"{name}: {value or 'missing'}"

    return check


def field_is_absent(*names: str) -> Check:
    """No such field."""
    return lambda recording: next((f"{name}: {value}" for name in names if (value := recording.answer.get(name))), "")


# What the engine saw.


def in_time(recording: Recording) -> str:
    """Whatever the engine waited for had reached the client."""
    for asked in recording.asked:
        if asked.missed:
            return f"event {asked.missed[0]} was not there before the next was made"
    return ""


def freed(limit_s: float, mark: str = "leave") -> Check:
    """The engine was left soon after the client had left."""

    def check(recording: Recording) -> str:
        visit = recording.visits[0]
        if mark not in visit.marks:
            return f"the client could not begin{_failed(visit)}"
        asked = recording.asked_by(visit.nonces[0])
        if not asked:
            return "the engine was never asked"
        late = [each for each in asked if each.left_s is None or each.left_s - visit.marks[mark] > limit_s]
        return f"the engine was not left within {limit_s:g} s" if late else ""

    return check


def asked_once(recording: Recording) -> str:
    """The engine saw each request, and once."""
    for visit in recording.visits:
        for nonce in visit.nonces:
            if (count := len(recording.asked_by(nonce))) != 1:
                return f"the engine was asked {count} times"
    return ""


def never_asked(recording: Recording) -> str:
    """Nothing of it reached the engine."""
    return f"it reached the engine: {recording.asked[0].target}" if recording.asked else ""


def not_left_waiting(recording: Recording) -> str:
    """Whatever is thought of the request, its client learns of it."""
    return "" if recording.answer.status or recording.visits[0].end != "open" else "neither an answer nor an end"


def refused(recording: Recording) -> str:
    """4xx, or a closed connection where what follows cannot be trusted; never a wait. A reset may destroy the answer's body."""
    answer = recording.answer
    if 400 <= answer.status < 500:
        return "" if answer.end != "open" else "it does not end"
    if answer.status == 0 and recording.visits[0].end in ("closed", "reset"):
        return ""
    return f"status {answer.status}" if answer.status else "neither an answer nor an end"


def client_error(recording: Recording) -> str:
    """A whole answer with 4xx."""
    answer = recording.answer
    return (
        _is_broken(answer)
        if 400 <= answer.status < 500
        else f"status {answer.status}"
        if answer.status
        else "no answer"
    )


def secret_is_kept(*names: str) -> Check:
    """The engine was sent the client's secret in none of these fields."""

    def check(recording: Recording) -> str:
        secret = recording.play.secret
        for asked in recording.asked:
            told = [name for name in names if secret in asked.get(name)]
            if told:
                return f"the engine was sent it in {told[0]}"
        return "" if recording.asked else "the engine was never asked"

    return check
