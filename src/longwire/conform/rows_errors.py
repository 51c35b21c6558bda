"""Rows on errors: an engine that refuses or fails with a status of its own, before any event.

What lives here: those statuses, and what must be kept of them. What must not: breaks in mid-stream (rows_endings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .checks import Check, answer_intact, body_has, both, field_is, in_order, no_success, server_error, status
from .recording import Play, Recording
from .row import CHAT_BOTH, EVERY, Form, Row
from .saying import JSON, Ask, Last, Pause, Script, refusal, sized, well
from .stage import Answers, Part, Scene, Sleep, Stage, plain

WORDS = "max_tokens is too large"
SURPLUS = sized(b'{"choices": [{"index": 0, "text": "another one\'s"}]}', kind=JSON)
PAGE = b"<html><head><title>500</title></head><body><h1>Internal Server Error</h1></body></html>"


def kept(code: int) -> Check:
    """The status and the engine's words."""
    return both(status(code), body_has(WORDS))


def page(line: str) -> Script:
    """A proxy's page of HTML."""
    return lambda _: Play((sized(PAGE, status=line, kind="text/html"),))


def error_then_well(stage: Stage) -> Sequence[Part]:
    """An error, and on the same connection a request that is well."""
    first, second = stage.request(refusal("400 Bad Request", WORDS)), stage.request(well)
    return (Part((first, second), (first.data, Answers(1), second.data, Answers(2))),)


def with_surplus(ask: Ask) -> Play:
    """A whole answer, and behind it another one that nobody has asked for."""
    play = well(ask)
    return play._replace(steps=(b"".join(step for step in play.steps if isinstance(step, bytes)) + SURPLUS,))


def then_closed(ask: Ask) -> Play:
    """A whole answer on a connection that is to be kept, and its close a moment later."""
    play = well(ask)
    return play._replace(steps=(*play.steps, Pause(0.05), Last.FIN))


def twice(script: Script, pause_s: float = 0.0) -> Scene:
    """This script, and then a request that is well, again and again: one of them meets what the first one left."""

    def scene(stage: Stage) -> Sequence[Part]:
        requests = (stage.request(script), *(stage.request(well) for _ in range(3)))
        steps = [step for i, one in enumerate(requests) for step in (one.data, Answers(i + 1), Sleep(pause_s))]
        return (Part(requests, tuple(steps)),)

    return scene


def second_is_well(recording: Recording) -> str:
    """The second request is answered as if nothing had been; a closed connection is a right of any server's."""
    visit = recording.visits[0]
    if visit.answer.status != 400:
        return f"status {visit.answer.status} first"
    if len(visit.answers) == 1 and visit.end in ("closed", "reset"):
        return ""
    if len(visit.answers) != 2:
        return f"{len(visit.answers)} answers"
    return answer_intact(visit.answers[1], recording.plays[visit.nonces[1]])


def _row(
    name: str,
    scene: Scene,
    check: Check,
    texts: tuple[str, str, str],
    reports: Sequence[str] = (),
    forms: Sequence[Form] = EVERY,
) -> Row:
    sent, must, why = texts
    return Row(name, "errors", forms, scene, check, sent, must, why, reports)


def _alone(name: str, scene: Scene, check: Check, texts: tuple[str, str, str], reports: Sequence[str] = ()) -> Row:
    """A row that leaves its traces on connections that others would use."""
    return replace(_row(name, scene, check, texts, reports, CHAT_BOTH), is_alone=True)


def _refused(code: int, phrase: str, why: str, reports: Sequence[str] = ()) -> Row:
    line = f"{code} {phrase}"
    texts = (f"{line} with a JSON error", f"{code} with the engine's words", why)
    return _row(f"status-{code}", plain(refusal(line, WORDS)), kept(code), texts, reports)


ROWS: tuple[Row, ...] = (
    _refused(400, "Bad Request", "A client can mend its request only if it learns what is wrong with it.",
             ("Helicone/ai-gateway#181",)),
    _refused(404, "Not Found", "A model that is not there is no failure of the engine's."),
    _refused(413, "Content Too Large", "A prompt that does not fit must be told from a failure, or it is sent again."),
    _refused(422, "Unprocessable Content", "vLLM and FastAPI answer what does not validate like this."),
    _row("status-429", plain(refusal("429 Too Many Requests", WORDS, ("Retry-After", "7"))),
         both(kept(429), field_is("retry-after", "7")),
         ("429 with Retry-After: 7", "429, with Retry-After and the engine's words",
          "Without its time a client comes back at once, and makes it worse."), ()),
    _row("status-500", plain(refusal("500 Internal Server Error", WORDS)), server_error,
         ("500 with a JSON error", "5xx", "A failure inside a 200 is taken for an answer."), ("Helicone/ai-gateway#181",)),
    _row("status-503", plain(refusal("503 Service Unavailable", WORDS)), server_error,
         ("503 with a JSON error", "5xx", "Clients and balancers try again after a 5xx, and never after a 200.")),
    _row("html-500", plain(page("500 Internal Server Error")), both(server_error, no_success),
         ("500 with a page of HTML", "5xx, and no event stream", "A proxy between gateway and engine answers in HTML.")),
    _row("html-502", plain(page("502 Bad Gateway")), both(server_error, no_success),
         ("502 with a page of HTML", "5xx, and no event stream", "The same, while an engine is being restarted.")),
    _row("error-then-well", error_then_well, second_is_well,
         ("400, and on the same connection a good request", "the second answer, whole (or a close)",
          "An answer whose end is not found shifts every later answer by one."), forms=CHAT_BOTH),
    _alone("surplus-answer", twice(with_surplus), in_order,
         ("an answer with another one behind it that nobody asked for; then good requests",
          "each request its own answer (or a close)",
          "An engine's connection that is kept with bytes on it gives them to whoever comes next.")),
    _alone("stale-connection", twice(then_closed, 0.1), in_order,
         ("an answer, then the engine closes the kept connection; then good requests", "each request its answer",
          "An engine keeps idle connections shorter than its gateway does: whoever takes one that is dead fails."),
         ("duolahypercho/codex-router#165",)),
)  # fmt: skip
