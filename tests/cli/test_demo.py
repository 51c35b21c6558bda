"""The demonstration against a tiny gateway that tells the truth, and against ones that do not."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from longwire.cli.demo import demo
from longwire.cli.demo import gateway as own
from longwire.cli.demo.crash import Crash, Victim
from longwire.cli.demo.gateway import serve_command
from longwire.cli.demo.story import Typewriter, make_request, rate, run_demo
from longwire.cli.demo.wire import DONE, Block, StreamClient, WireError, differences, digest, seq_of

STREAM_ID = "lw_" + "0" * 34
CUT_AFTER, KILL_AFTER = 4, 2
WORDS = ["The", " sky", " is", " blue", " because", " of", " Rayleigh", " scattering."]


@pytest.mark.parametrize("url", ["https://h", "http://", "http://[::1", "http://h:x", "http://h:65536", "http://a..b"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(WireError, match="The demonstration"):
        StreamClient(url)


def delta(text: str) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


DATA = [delta(""), *map(delta, WORDS), b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', DONE]
STATE = {
    "status": "ended",
    "events": len(DATA),
    "epoch": 1,
    "usage": {"completion_tokens": 9},
    "usage_estimated": False,
    "first_token_ms": 100,
    "last_event_ms": 200,
}


class FakeGateway(ThreadingHTTPServer):
    """Serves one stream. ``resumed`` and ``replayed`` say what comes behind a cursor and from the start."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = list(DATA)
        self.replayed: list[bytes] | None = None
        self.skip_on_resume = 0
        self.models = ["tiny"]
        self.status = 200
        self.body: dict[str, Any] = {}
        self.key = ""
        self.asked: dict[str, Any] = {}
        self.headers_seen: list[dict[str, str]] = []
        self.pid, self.shard_state = 100, "serving"
        self.killed = threading.Event()
        self.killed.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that cuts its connection is what this is about."""


class Handler(BaseHTTPRequestHandler):
    server: FakeGateway
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers_seen.append(dict(self.headers))
        self.stream([b"data: " + data + b"\n\n" for data in self.server.data])

    def do_GET(self) -> None:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.reply(self.server.body, 401)
        elif self.server.status != 200:
            self.reply(self.server.body, self.server.status)
        elif self.path == "/v1/shards":
            self.reply([{"index": 0, "pid": self.server.pid, "state": self.server.shard_state}])
        elif self.path in ("/readyz", "/v1/models"):
            self.reply({"data": [{"id": name} for name in self.server.models]})
        elif "event-stream" not in self.headers["Accept"]:
            self.reply(STATE)
        else:
            cursor = self.headers["Last-Event-ID"]
            start = int(cursor.partition("-")[2]) + 1 + self.server.skip_on_resume if cursor else 0
            data = self.server.data if cursor else self.server.replayed or self.server.data
            self.stream([b"id: 1-%d\ndata: %s\n\n" % (seq, data[seq]) for seq in range(start, len(data))])

    def reply(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, blocks: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Stream-Id", STREAM_ID)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, block in enumerate([b": a comment\n\n", *blocks]):
            if place == KILL_AFTER + 1:
                self.server.killed.wait(10)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with serving(FakeGateway()) as server:
        yield server


@contextmanager
def serving(server: FakeGateway) -> Iterator[FakeGateway]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def play(gateway: FakeGateway, crash: Crash | None = None) -> int:
    return run_demo(gateway.url, cut_after=CUT_AFTER, away_s=0, crash=crash)


class FakeCrash(Crash):
    """Kills nobody: the gateway has another pid from then on, and goes on with its answer."""

    def __init__(self, gateway: FakeGateway) -> None:
        super().__init__(gateway.url)
        self.gateway = gateway
        gateway.killed.clear()

    def kill(self, victim: Victim) -> None:
        assert victim == (0, 100)
        self.gateway.pid = 200
        self.gateway.killed.set()


# The story.


def test_it_proves_an_honest_gateway(gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(gateway) == 0
    out = capsys.readouterr().out
    assert "after event 3" in out
    assert "Last-Event-ID: 1-3" in out
    assert "11 events: 4 before the cut, 7 after it; a full replay has 11." in out
    assert out.count(digest([Block("", data) for data in DATA])) == 2
    assert "80 tokens/s (9 tokens)" in out
    assert "Nothing was lost and nothing was repeated" in out


def test_the_whole_answer_is_shown_with_the_place_of_the_cut(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    play(gateway)
    whole = capsys.readouterr().out.split("The whole answer")[1]
    assert "The sky is ✂ blue because of Rayleigh scattering." in whole


def test_the_process_is_killed_in_mid_answer_and_its_successor_goes_on(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(gateway, FakeCrash(gateway)) == 0
    out = capsys.readouterr().out
    assert "Process 100, which serves this stream, is killed after event 1." in out
    assert "Process 200 goes on: event 2 came" in out and "over the same connection (port " in out
    assert "The ☠ sky is ✂ blue because of Rayleigh scattering." in out.split("The whole answer")[1]


def test_without_a_successor_it_says_so(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longwire.cli.demo.crash.SUCCESSOR_LIMIT_S", 0)
    gateway.shard_state = "down"
    with pytest.raises(WireError, match="Slot 0 was not served again"):
        Crash(gateway.url).wait_successor(Victim(0, 100))


def test_it_asks_to_outlive_its_connection_and_sends_a_system_message(gateway: FakeGateway) -> None:
    play(gateway)
    assert gateway.headers_seen[0]["Longwire-On-Disconnect"] == "grace=30"
    assert gateway.asked["model"] == "tiny"
    assert gateway.asked["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"skip_on_resume": 1}, "event 4 should have come, and 5 came"),
        ({"skip_on_resume": -1}, "event 4 should have come, and 3 came"),
        ({"replayed": [*DATA[:5], delta(" green"), *DATA[6:]]}, "Event 5 was received as"),
        ({"replayed": DATA[:-1]}, "11 events were received, and the replay has 10"),
        ({"data": DATA[:-1]}, "did not end with its end marker"),
        (
            {"data": [*DATA[:-1], b'{"error":{"message":"gone","code":"upstream_reset"}}', DONE]},
            "gone (upstream_reset)",
        ),
    ],
)
def test_it_fails_and_says_what_differed(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str], lie: dict[str, Any], said: str
) -> None:
    for name, value in lie.items():
        setattr(gateway, name, value)
    assert play(gateway) == 1
    out = capsys.readouterr().out
    assert said in out
    assert "The proof FAILED" in out


# The command.


def test_the_command_works_with_a_gateway_that_runs(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longwire.cli.demo.story.time.sleep", lambda seconds: None)
    gateway.data = [delta("")] + [delta(" word")] * 60 + [DONE]
    result = CliRunner().invoke(demo, ["--url", gateway.url], standalone_mode=False)
    assert result.return_value == 0, result.output


def test_an_answer_too_short_to_cut_is_one_sentence(gateway: FakeGateway) -> None:
    result = CliRunner().invoke(demo, ["--url", gateway.url])
    assert result.exit_code == 1
    assert "ended after 11 events" in result.output


def test_a_gateway_that_is_not_there_is_one_sentence() -> None:
    with serving(FakeGateway()) as server:
        url = server.url
    result = CliRunner().invoke(demo, ["--url", url])
    assert result.exit_code == 1
    assert "connection to the gateway failed" in result.output


def test_an_error_is_a_sentence(gateway: FakeGateway) -> None:
    gateway.status, gateway.body = 503, {"error": {"message": "No engine is up yet.", "code": "no_engine_ready"}}
    with pytest.raises(WireError, match=r"^The gateway answered 503: No engine is up yet\.$"):
        StreamClient(gateway.url).first_model()
    assert not StreamClient(gateway.url).is_ready()
    gateway.status, gateway.body = 404, {"detail": "Not Found"}
    with pytest.raises(WireError, match=r"^The gateway answered 404: .*is this a Longwire gateway\?$"):
        StreamClient(gateway.url).first_model()


def test_a_key_that_is_missing_is_asked_for_and_one_that_is_given_is_sent(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longwire.cli.demo.story.time.sleep", lambda seconds: None)
    gateway.data = [delta("")] + [delta(" word")] * 60 + [DONE]
    gateway.key = "sk-demo"
    gateway.body = {"error": {"message": "This request has no key.", "code": "invalid_api_key"}}
    refused = CliRunner().invoke(demo, ["--url", gateway.url])
    assert refused.exit_code == 1 and "This request has no key. Give its key in LONGWIRE_API_KEY." in refused.output
    assert "{" not in refused.output
    for arguments, environment in ((["--api-key", "sk-demo"], {}), ([], {"LONGWIRE_API_KEY": "sk-demo"})):
        result = CliRunner().invoke(demo, ["--url", gateway.url, *arguments], env=environment, standalone_mode=False)
        assert result.return_value == 0, result.output


def test_its_own_gateway_takes_no_settings_from_around_it(tmp_path: Path) -> None:
    """No file, no variable, no package of the folder where the command is run."""
    command = serve_command("sim", str(tmp_path))
    assert command[1:4] == ["-P", "-m", "longwire"]
    assert command[command.index("--config") + 1] == str(tmp_path / "longwire.toml")
    assert command[command.index("--state-dir") + 1] == str(tmp_path)


@pytest.mark.parametrize(("engine", "step"), [("local", "loading the model"), ("sim", "waiting for the engine")])
def test_its_own_gateway_starts_in_a_clean_place(
    engine: str, step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def start(command: list[str], **options: Any) -> SimpleNamespace:
        config = Path(command[command.index("--config") + 1])
        seen.append((config.read_text(), options["env"]))
        return SimpleNamespace()

    def wait(process: object, log: str, step: str) -> tuple[str, str]:
        seen.append(step)
        return "http://here", "http://there"

    monkeypatch.chdir(tmp_path)
    (tmp_path / "longwire.toml").write_text("port = 1\n")
    monkeypatch.setenv("LONGWIRE_PORT", "1")
    monkeypatch.setattr(own.subprocess, "Popen", start)
    monkeypatch.setattr(own, "wait_ready", wait)
    monkeypatch.setattr(own, "stop", lambda process: None)
    with own.own_gateway(engine) as urls:
        assert urls == ("http://here", "http://there")
    (text, environment), told = seen
    assert text == "" and not [name for name in environment if name.startswith("LONGWIRE_")] and told == step


def test_without_a_model_it_says_so(gateway: FakeGateway) -> None:
    gateway.models = []
    with pytest.raises(WireError, match="lists no model"):
        StreamClient(gateway.url).first_model()


def test_another_scheme_is_refused() -> None:
    with pytest.raises(WireError, match="plain http"):
        StreamClient("https://example.com")


# The parts.


def test_a_digest_tells_two_splits_of_the_same_bytes_apart() -> None:
    assert digest([Block("", b"ab"), Block("", b"c")]) != digest([Block("", b"a"), Block("", b"bc")])


def test_an_id_is_read_as_its_last_number() -> None:
    assert [seq_of(Block(text, b"")) for text in ("1-12", "12", "", "1-x")] == [12, 12, -1, -1]


def test_equal_parts_have_no_differences() -> None:
    blocks = [Block(f"1-{seq}", data) for seq, data in enumerate(DATA)]
    assert differences(blocks[:3], blocks[3:], blocks) == []


def test_an_empty_stream_is_never_proven() -> None:
    assert differences([], [], []) == ["the stream did not end with its end marker"]


@pytest.mark.parametrize("missing", ["usage", "first_token_ms", "last_event_ms"])
def test_a_rate_that_cannot_be_known_is_not_made_up(missing: str) -> None:
    assert "could not tell" in rate({**STATE, missing: None})


def test_the_request_is_the_same_each_time() -> None:
    assert make_request("m", "q") == make_request("m", "q")
    assert make_request("m", "q")["temperature"] == 0


def test_text_is_wrapped_as_it_arrives() -> None:
    out = io.StringIO()
    text = Typewriter(out, indent="  ", columns=12)
    for piece in ("The", " sky", " is", " bl", "ue.\n\nYes", " it", " is"):
        text.write(piece)
    text.finish()
    assert out.getvalue() == "  The sky is\n  blue.\n\n  Yes it is\n"
