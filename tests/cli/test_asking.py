"""Requests over real sockets: answers of every shape, and the bounds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from longwire.cli.asking import MAX_REQUESTS, WHOLE_LIMIT_S, Asker, OutOfBudget, Piece, Reply, note
from longwire.words.settings import EngineSettings

SHORT_S = 0.05
"""A request's limit where a test waits for it to be over."""


class Engine(ThreadingHTTPServer):
    """Answers everything with one planned answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.content_type = "text/event-stream; charset=utf-8"
        self.body = b""
        self.is_endless = False
        self.endless = event({"choices": [{"delta": {"content": " word"}}]})
        self.was_left = threading.Event()
        self.authorization: str | None = ""
        self.asked: Any = None

    def asker(self, **options: Any) -> Asker:
        return Asker(EngineSettings(name="a", url=f"http://127.0.0.1:{self.server_port}", api_key="s3cret"), **options)


class _Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.authorization = self.headers["Authorization"]
        self.send_response(self.server.status)
        self.send_header("Content-Type", self.server.content_type)
        self.end_headers()
        self.wfile.write(self.server.body)
        try:
            while self.server.is_endless:
                self.wfile.write(self.server.endless)
        except OSError:
            self.server.was_left.set()

    def do_POST(self) -> None:
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.is_endless = False
        server.shutdown()
        thread.join()


def test_a_stream_with_everything(engine: Engine) -> None:
    first = {"prompt_token_ids": [1, 2], "choices": [{"delta": {"role": "assistant", "content": ""}}]}
    second = {"choices": [{"delta": {"content": "Hi"}, "token_ids": [3]}], "usage": {"completion_tokens": 1}}
    third = {"choices": [{"delta": {}, "finish_reason": "length"}]}
    last = {"choices": [], "usage": {"completion_tokens": 2}}
    engine.body = b": ping\n\n" + b"".join(map(event, (first, second, third, last))) + b"data: [DONE]\n\n"
    reply = engine.asker().ask("/v1/chat/completions", {"model": "m"})
    assert (reply.texts, reply.events, reply.usages, reply.completion_tokens) == (["Hi"], 4, 2, 2)
    assert (reply.prompt_ids, reply.pieces[0].ids, reply.finish) == ((1, 2), (3,), "length")
    assert reply.is_good
    assert reply.is_ended
    assert engine.asked == {"model": "m"}
    assert engine.authorization == "Bearer s3cret"


@pytest.mark.parametrize(
    ("status", "content_type", "body", "error", "is_refused"),
    [
        (400, "application/json", b'{"error": {"message": "Not\\n both."}}', "400 Not both.", True),
        (422, "application/json", b'{"detail": [{"msg": "extra"}]}', "422 [{'msg': 'extra'}]", True),
        (404, "text/html", b"<h1>Not\nthere</h1>", "404 <h1>Not there</h1>", True),
        (429, "application/json", b'{"message": "Later."}', "429 Later.", False),
        (503, "text/plain", b"", "503", False),
        (200, "text/event-stream", event({"error": {"message": "Out of memory."}}), "Out of memory.", False),
        (200, "text/event-stream", b"data: {\n\n", "an event is no JSON", False),
        (500, "text/html", b"x" * 500, "500 " + "x" * 120 + "…", False),
    ],
)
def test_errors_in_the_engines_own_words(
    engine: Engine, status: int, content_type: str, body: bytes, error: str, is_refused: bool
) -> None:
    engine.status, engine.content_type, engine.body = status, content_type, body
    reply = engine.asker().ask("/v1/chat/completions", {})
    assert (reply.error, reply.is_refused, reply.is_good) == (error, is_refused, False)


def test_an_answer_that_is_no_stream(engine: Engine) -> None:
    engine.content_type = "application/json"
    engine.body = json.dumps({"choices": [{"message": {"content": "All."}, "finish_reason": "stop"}]}).encode()
    reply = engine.asker().ask("/v1/chat/completions", {})
    assert (reply.texts, reply.finish, reply.is_ended, reply.is_good) == (["All."], "stop", False, True)


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        {"choices": None},
        {"choices": [5]},
        {"choices": [{"delta": []}], "usage": []},
        {"choices": [{"text": 5, "token_ids": ["a", True]}]},
        {"usage": {"completion_tokens": "many"}},
    ],
)
def test_objects_of_no_known_shape_are_nothing(content: object) -> None:
    reply = Reply(status=200)
    note(reply, content, 0.0)
    assert (reply.pieces, reply.completion_tokens, reply.error) == ([], 0, "")


def test_reasoning_is_no_text() -> None:
    reply = Reply(status=200)
    note(reply, {"choices": [{"delta": {"reasoning_content": "Hm."}}]}, 0.0)
    note(reply, {"choices": [{"text": "So", "token_ids": [4]}]}, 1.5)
    assert reply.reasons
    assert reply.pieces == [Piece("So", (4,), 1.5)]


def test_leaving_closes_the_connection(engine: Engine) -> None:
    engine.is_endless = True
    seen: list[bool] = []
    reply = engine.asker().ask("/v1/chat/completions", {}, 3, lambda: seen.append(engine.was_left.is_set()))
    assert len(reply.pieces) == 3
    assert seen == [False]
    assert engine.was_left.wait(5)


def test_an_engine_that_never_ends_is_cut(engine: Engine) -> None:
    """Each byte comes in time, so that no socket's timeout would ever be met."""
    engine.is_endless, engine.endless = True, b"x"
    assert engine.asker(limit_s=SHORT_S).ask("/v1/chat/completions", {}).error == "no answer in time"
    assert engine.was_left.wait(5)


def test_nobody_there(closed_url: str) -> None:
    asker = Asker(EngineSettings(name="a", url=closed_url))
    assert asker.get("/v1/models").error == "nothing listens there"
    assert asker.ask("/v1/chat/completions", {}).error == "nothing listens there"


def test_the_whole_is_bounded_in_requests_and_in_time(closed_url: str) -> None:
    now = [0.0]
    asker = Asker(EngineSettings(name="a", url=closed_url), clock=lambda: now[0])
    for _ in range(MAX_REQUESTS):
        asker.get("/")
    with pytest.raises(OutOfBudget, match="requests"):
        asker.get("/")
    late = Asker(EngineSettings(name="a", url=closed_url), clock=lambda: now[0])
    now[0] = WHOLE_LIMIT_S
    with pytest.raises(OutOfBudget, match="240 s"):
        late.get("/")
    assert late.sent == 0
