"""Rows on clients: they leave, they are slow, they close one side, they send ahead.

What lives here: scenes in which the client does what is unusual. What must not: requests that are malformed (rows_requests.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from .checks import (
    Check,
    asked_once,
    both,
    freed,
    in_order,
    in_time,
    intact,
    intact_first,
    intact_others,
)
from .recording import Play, Recording
from .row import CHAT_BOTH, CHAT_STREAM, EVERY, STREAMED, WHOLE, Form, Row
from .saying import (
    CODED,
    DONE,
    Ask,
    Gate,
    Last,
    Pause,
    Script,
    coded,
    deltas,
    finish,
    head,
    role,
    said,
    sized,
    stream,
    well,
    whole_json,
    words,
)
from .stage import Answers, Do, Freed, Has, Part, Reached, Scene, Sleep, Stage, Step

LEFT_S = 2.0
"""How soon an engine must be free again: a token a second is slow, and two of them are lost."""
SLOWLY_S = 0.5
"""Long enough for a gateway to have left, or to have answered another request first."""
SLOW_BYTES = 3 << 20
TRICKLE_PIECES = 12


def talks_on(ask: Ask) -> Play:
    """Two events, and then more of them for as long as anybody listens."""
    texts = words(ask, 400)
    begin = coded([*role(ask), *deltas(ask, texts[:2])], last=False)
    more = [step for each in coded(deltas(ask, texts[2:]), last=False) for step in (Pause(0.03), each)]
    return said(texts, CODED, *begin, *more)


def falls_silent(ask: Ask) -> Play:
    """Two events, and then nothing."""
    texts = words(ask, 2)
    return said(texts, CODED, *coded([*role(ask), *deltas(ask, texts)], last=False), Last.HOLD)


def says_nothing(_: Ask) -> Play:
    """Not even a head: a long prompt is being read."""
    return Play((Last.HOLD,))


def begins_a_body(_: Ask) -> Play:
    """A whole answer of which only the beginning comes."""
    return Play((head(kind="application/json", length=5000), b'{"choices": [', Last.HOLD))


def leaving(script: Script, how: Do, until_word: bool = False) -> Scene:
    """The client leaves: once it has a word, or once the engine was asked."""

    def scene(stage: Stage) -> Sequence[Part]:
        request = stage.request(script)
        wait = Has(f"{request.nonce}.1") if until_word else Reached(request.nonce)
        steps: tuple[Step, ...] = (request.data, wait, Sleep(0.1), how, Freed(request.nonce))
        return (Part((request,), steps),)

    return scene


def slow_beside_quick(stage: Stage) -> Sequence[Part]:
    """A client that reads nothing for a while, and one that reads at once."""
    slow, quick = stage.request(long_stream), stage.request(gated)
    return (
        Part((slow,), (slow.data, Has(f"{slow.nonce}.0"), Do.STALL, Sleep(1.2), Do.READ, Answers()), True),
        Part((quick,), (Reached(slow.nonce), Sleep(0.3), quick.data, Answers())),
    )


def long_stream(ask: Ask) -> Play:
    """Mebibytes, as fast as they are taken."""
    texts = [f"{ask.nonce}.0 ", *(f"{i} " + "y" * 8180 for i in range(SLOW_BYTES // 8192))]
    return said(texts, CODED, *coded(stream(ask, texts)))


def gated(ask: Ask) -> Play:
    """Each event waits until the one before has arrived."""
    texts = words(ask, 6)
    steps: list[object] = [CODED, *coded(role(ask), last=False)]
    for text, each in zip(texts, deltas(ask, texts), strict=True):
        steps += [*coded([each], last=False), Gate(text.strip())]
    return said(texts, *steps, *coded([finish(ask), DONE]))


def half_closing(stage: Stage) -> Sequence[Part]:
    """The client closes its sending side as soon as it has asked."""
    request = stage.request(slowly)
    return (Part((request,), (request.data, Do.HALF_CLOSE, Answers(), Freed(request.nonce))),)


def slowly(ask: Ask) -> Play:
    """A little later than at once."""
    texts = words(ask)
    if not ask.streamed:
        return said(texts, Pause(SLOWLY_S), sized(whole_json(ask, "".join(texts))))
    return said(texts, Pause(SLOWLY_S), CODED, *coded(stream(ask, texts)))


def answered_or_freed(recording: Recording) -> str:
    """Both readings of a half-closed connection are known: it is answered, or the engine is left. A wait is neither."""
    visit = recording.visits[0]
    if visit.answers and visit.answer.end == "whole":
        return intact(recording)
    if visit.end == "open":
        return "neither answered nor closed"
    return "the engine was not left" if any(asked.left_s is None for asked in recording.asked) else ""


def pipelined(stage: Stage) -> Sequence[Part]:
    """Three requests in one write, the first of which takes longest."""
    first, second, third = (stage.request(script) for script in (slowly, well, well))
    data = first.data + second.data + third.data
    return (Part((first, second, third), (data, Answers(3))),)


def expecting(stage: Stage) -> Sequence[Part]:
    """The body comes only after the interim answer, or after a second without one."""
    request = stage.request(well, fields=(("Expect", "100-continue"),))
    first, body = request.data[: request.head_bytes], request.data[request.head_bytes :]
    return (Part((request,), (first, Do.BEGUN, body, Answers())),)


def told_to_go_on(recording: Recording) -> str:
    """100, or at once the final answer; and in the end the answer."""
    if "came" not in recording.visits[0].marks:
        return "neither 100 nor an answer within 1 s"
    return "" if recording.answer.status == 417 else intact(recording)


def one_after_another(stage: Stage) -> Sequence[Part]:
    """Three requests on one connection, each once the one before is answered."""
    requests = tuple(stage.request(well) for _ in range(3))
    steps = [step for i, request in enumerate(requests) for step in (request.data, Answers(i + 1))]
    return (Part(requests, tuple(steps)),)


def trickling(stage: Stage) -> Sequence[Part]:
    """A request in a dozen pieces, cut in its head and in its body."""
    request = stage.request(well)
    step = len(request.data) // TRICKLE_PIECES + 1
    pieces = [request.data[at : at + step] for at in range(0, len(request.data), step)]
    return (Part((request,), (*[each for piece in pieces for each in (piece, Sleep(0.02))], Answers())),)


def old_client(stage: Stage) -> Sequence[Part]:
    """HTTP/1.0, which knows no chunks."""
    request = stage.request(well, version="1.0")
    return (Part((request,), (request.data, Answers())),)


def not_coded(recording: Recording) -> str:
    """The answer, without HTTP/1.1's chunks."""
    if recording.answer.get("transfer-encoding"):
        return "Transfer-Encoding for an HTTP/1.0 client"
    return intact(recording)


def leaving_in_the_body(stage: Stage) -> Sequence[Part]:
    """One client leaves in the middle of its request; another asks then."""
    half, good = stage.request(well), stage.request(well)
    cut = len(half.data) - 3  # with all that a hasty reader could take for a prompt
    return (
        Part((half,), (half.data[:cut], Sleep(0.1), Do.LEAVE)),
        Part((good,), (Sleep(0.3), good.data, Answers())),
    )


def half_is_nothing(recording: Recording) -> str:
    """Half a request never reaches the engine, and the next one is answered."""
    if recording.asked_by(recording.visits[0].nonces[0]):
        return "the engine was asked with half a request"
    return intact_others(recording)


def _row(
    name: str,
    scene: Scene,
    check: Check,
    texts: tuple[str, str, str],
    reports: Sequence[str] = (),
    forms: Sequence[Form] = STREAMED,
) -> Row:
    sent, must, why = texts
    return Row(name, "clients", forms, scene, check, sent, must, why, reports)


FREE = f"the engine's connection is closed within {LEFT_S:g} s"

ROWS: tuple[Row, ...] = (
    _row("leaves-while-events-come", leaving(talks_on, Do.LEAVE, True), freed(LEFT_S),
         ("the client closes while events come", FREE, "The engine went on generating for nobody."),
         ("litellm#30244",)),
    _row("leaves-in-silence", leaving(falls_silent, Do.LEAVE, True), freed(LEFT_S),
         ("the client closes while the engine says nothing", FREE, "It was noticed with the next event only."),
         ("litellm#31499",)),
    _row("leaves-before-head", leaving(says_nothing, Do.LEAVE), freed(LEFT_S),
         ("the client closes before the engine has said anything", FREE,
          "A long prompt is read for minutes; whoever left in it kept its place."),
         ("litellm#31499", "sglang#30530")),
    _row("resets-while-events-come", leaving(talks_on, Do.RESET, True), freed(LEFT_S, "reset"),
         ("the client resets", FREE, "A killed client resets instead of closing."), ("litellm#30244",)),
    _row("leaves-whole", leaving(says_nothing, Do.LEAVE), freed(LEFT_S),
         ("the client closes while it waits for a whole answer", FREE, "Requests without a stream were never cancelled."),
         ("litellm#37140",), WHOLE),
    _row("leaves-in-whole-body", leaving(begins_a_body, Do.LEAVE), freed(LEFT_S),
         ("the client closes while a whole answer comes", FREE, "The same, in the middle of the answer."),
         ("litellm#37140",), WHOLE),
    _row("slow-reader-gets-all", slow_beside_quick, intact_first,
         ("3 MiB for a client that stops reading for a second", "every byte, in order",
          "What does not fit a buffer was dropped, or the client cut off."), (), CHAT_STREAM),
    _row("slow-reader-stalls-nobody", slow_beside_quick, both(in_time, intact_others),
         ("3 MiB for a client that does not read; another stream beside it", "the other's events, each at once",
          "One reader that is slow held up all who shared its worker."),
         ("vllm-project/production-stack#749",), CHAT_STREAM),
    _row("half-close", half_closing, answered_or_freed,
         ("the client closes its sending side behind the request", "the whole answer, or the engine is left; no wait",
          "Some clients close like this when they have asked, others when they have gone."), (), CHAT_BOTH),
    _row("pipelined", pipelined, in_order,
         ("three requests in one write, the first the slowest", "answers in the order of the requests (or a close)",
          "An answer that overtakes another goes to the wrong request."), (), CHAT_BOTH),
    _row("expect-continue", expecting, told_to_go_on,
         ("Expect: 100-continue, and the body after it", "100 at once, then the answer",
          "curl waits a second for it with every large prompt."), (), CHAT_BOTH),
    _row("keep-alive", one_after_another, in_order,
         ("three requests on one connection", "three answers, each to its request (or a close)",
          "A body whose end is misread shifts the answers."), (), EVERY),
    _row("trickled-request", trickling, both(intact, asked_once),
         ("a request in a dozen pieces", "the answer; the engine is asked once",
          "A head or a body that is cut on its way is the ordinary case."), (), CHAT_BOTH),
    _row("http-1.0", old_client, not_coded,
         ("an HTTP/1.0 request", "the answer without HTTP chunks, ended by length or close",
          "ApacheBench and older proxies speak 1.0, and show chunk sizes as text."), (), CHAT_BOTH),
    _row("leaves-in-request", leaving_in_the_body, half_is_nothing,
         ("a client that leaves in the middle of its body; another asks",
          "the engine never sees the half; the other is answered",
          "Half a body must not start a generation."), (), CHAT_BOTH),
)  # fmt: skip
