"""The engine stand-in as a process, and what real clients make of it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvloop

from longwire.sim import SimServer
from longwire.sim.answer import answer_text, token_text
from longwire.words.settings import SimSettings

pytestmark = pytest.mark.e2e

SRC = Path(__file__).parents[2] / "src"
TIMEOUT_S = 10.0
"""For what should take milliseconds; a test that needs it has failed."""


def start(*flags: str) -> tuple[subprocess.Popen[str], str]:
    """A stand-in in a process of its own, and its base URL."""
    command = [sys.executable, "-m", "longwire.sim", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SRC)})
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"(http://\S+)/v1", line)
    assert match, line
    return process, match[1]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = start("--tokens", "12", "--itl-ms", "1", "--ttft-ms", "1", "--seed", "4")
    yield url
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def sim(**fields: Any) -> dict[str, Any]:
    return {"sim": fields}


HELLO: Any = [{"role": "user", "content": "hello there"}]


# openai


def test_openai_streams_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=HELLO, stream=True, stream_options={"include_usage": True}, seed=9
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer_text(9, 12)
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_openai_reads_whole_answers_and_tool_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=HELLO)
    assert answer.choices[0].message.content == answer_text(4, 12)
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    called = client.chat.completions.create(model="sim", messages=HELLO, tools=tools, tool_choice="required")
    calls: Any = called.choices[0].message.tool_calls
    assert calls[0].function.name == "look"
    assert json.loads(calls[0].function.arguments) == {"text": answer_text(4, 12)}


def test_openai_streams_tool_calls(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with client.chat.completions.stream(model="sim", messages=HELLO, tools=tools, tool_choice="required") as stream:
        message: Any = stream.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"text": answer_text(4, 12)}


def test_openai_completions_models_and_embeddings(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="sim", prompt="hello", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer_text(4, 12)
    assert [model.id for model in client.models.list()] == ["sim"]
    one, two = client.embeddings.create(model="sim", input=["a", "a"]).data
    assert one.embedding == two.embedding and len(one.embedding) == 8


def test_openai_streams_responses(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="sim", input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer_text(4, 12)
    assert client.responses.create(model="sim", input="hello").output_text == answer_text(4, 12)


def test_openai_sees_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="429"):
        client.chat.completions.create(model="sim", messages=HELLO, extra_body=sim(fault="status=429"))
    with pytest.raises(openai.APIError, match="failed as asked"):
        list(
            client.chat.completions.create(
                model="sim", messages=HELLO, stream=True, extra_body=sim(fault="error_event=3")
            )
        )


@pytest.mark.parametrize(
    "fault",
    ["one_byte", "crlf", "cr", "many_per_chunk=4", "split_chunks=5", "content_length", "close_delimited", "early_hints",
     "upper_hex", "gzip", "no_space", "comments", "two_done", "no_done"],
)  # fmt: skip
def test_openai_survives(client: openai.OpenAI, fault: str) -> None:
    """Faults that a good client does not even notice."""
    stream = client.chat.completions.create(
        model="sim", messages=HELLO, stream=True, extra_body=sim(fault=fault, tokens=6)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == answer_text(4, 6)


# httpx


def test_httpx_sees_a_broken_connection(url: str) -> None:
    for fault, error in (
        ("reset_after=2", httpx.ReadError),
        ("close_after=2", httpx.RemoteProtocolError),
        ("garbage", httpx.RemoteProtocolError),
        ("garbage_after=2", httpx.RemoteProtocolError),
        ("half_head", httpx.RemoteProtocolError),
        ("wrong_length", httpx.RemoteProtocolError),
    ):
        with pytest.raises(error):
            httpx.post(
                url + "/v1/chat/completions", json={"stream": True}, headers={"x-sim-fault": fault}, timeout=TIMEOUT_S
            )


@pytest.mark.parametrize("fault", ["hang", "headers_then_stall", "stall_after=3"])
def test_httpx_times_out_in_silence(url: str, fault: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + "/v1/chat/completions", json={"stream": True}, headers={"x-sim-fault": fault}, timeout=0.2)


def test_the_process_says_what_arrived_and_counts(url: str) -> None:
    httpx.post(url + "/v1/completions", json={"prompt": "p", "nvext": 1}, headers={"x-request-id": "r-17"})
    requests = httpx.get(url + "/sim/requests").json()["data"]
    assert any(["x-request-id", "r-17"] in request["headers"] for request in requests)
    assert "vllm:num_requests_running" in httpx.get(url + "/metrics").text
    assert httpx.get(url + "/health").json()["answered"] >= 1


# The process.


def test_a_wrong_fault_is_one_sentence_and_exit_2() -> None:
    command = [sys.executable, "-m", "longwire.sim", "--fault", "stal_after=3"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=TIMEOUT_S
    )
    assert done.returncode == 2
    assert done.stderr.startswith("longwire sim: There is no fault 'stal_after'")
    assert "Traceback" not in done.stderr


def test_the_process_fails_first_then_goes_on_with_what_it_is_given() -> None:
    process, url = start(
        "--fault", "status=503,first=1", "--continues", "prefill", "--max-running", "2", "--tokens", "6"
    )
    try:
        said = [{"role": "assistant", "content": answer_text(0, 4)}]
        answers = [
            httpx.post(url + "/v1/chat/completions", json={"messages": said}, timeout=TIMEOUT_S) for _ in range(2)
        ]
        assert [answer.status_code for answer in answers] == [503, 200]
        assert answers[1].json()["choices"][0]["message"]["content"] == answer_text(0, 2, start=4)
        assert len(httpx.get(url + "/slots").json()) == 2
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "longwire.sim", "--port", str(taken.getsockname()[1])]
        env = {**os.environ, "PYTHONPATH": str(SRC)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "cannot listen" in done.stderr and "Traceback" not in done.stderr


# Inside a test's own loop.


def request(**body: Any) -> bytes:
    payload = json.dumps({"stream": True, **body}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: %d\r\n\r\n%b" % (len(payload), payload)


def in_loop(scenario: Any) -> None:
    """Run ``scenario(server)`` beside a stand-in on uvloop, as the gateway's tests do."""

    async def main() -> None:
        server = SimServer(SimSettings(port=0, tokens=5, itl_ms=1, ttft_ms=0))
        await server.start()
        try:
            await asyncio.wait_for(scenario(server), TIMEOUT_S)
        finally:
            await server.close()
        assert server.open_streams == 0

    uvloop.run(main())


def test_a_reset_comes_after_all_that_was_written() -> None:
    async def scenario(server: SimServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request(sim={"fault": "reset_after=3", "itl_ms": 0}))
        received = b""
        with pytest.raises(ConnectionResetError):
            while True:
                received += await reader.read(1)
        assert received.count(b"data: ") == 3 and received.endswith(b"\n\n\r\n")
        writer.close()

    in_loop(scenario)


def test_a_half_closed_connection_goes_on_in_the_other_direction() -> None:
    async def scenario(server: SimServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request(sim={"fault": "half_close_after=3", "itl_ms": 0}))
        assert (await reader.read(-1)).count(b"data: ") == 3
        assert server.open_streams == 1
        writer.write(b"x")
        await writer.drain()
        writer.close()
        await server.wait_cancelled(1)

    in_loop(scenario)


def test_it_refuses_and_comes_back_at_the_same_place() -> None:
    async def scenario(server: SimServer) -> None:
        address = server.address
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request(sim={"tokens": 10, "itl_ms": 1}))
        await server.wait_open(1)
        server.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert (await reader.readuntil(b"0\r\n\r\n")).count(b"data: ") == 13
        writer.close()
        assert await server.start() == address
        _, writer = await asyncio.open_connection(*address)
        writer.close()

    in_loop(scenario)


def test_a_client_that_leaves_in_silence_is_noticed() -> None:
    async def scenario(server: SimServer) -> None:
        for count, fault in enumerate(("hang", "headers_then_stall", "stall_after=2"), 1):
            _, writer = await asyncio.open_connection(*server.address)
            writer.write(request(sim={"fault": fault}))
            await server.wait_open(1)
            writer.close()
            await server.wait_cancelled(count)
        assert server.connections_accepted == 3

    in_loop(scenario)


def test_a_slow_reader_gets_every_byte() -> None:
    async def scenario(server: SimServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(request(sim={"tokens": 60_000, "itl_ms": 0, "fault": "close_delimited"}))
        await server.wait_open(1)
        body = (await reader.read(-1)).decode()
        texts = re.findall(r'"content":("(?:[^"\\]|\\.)*")', body)
        assert [json.loads(text) for text in texts[1:]] == [token_text(0, index) for index in range(60_000)]
        writer.close()

    in_loop(scenario)


def test_closing_cuts_every_stream() -> None:
    async def scenario(server: SimServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request(sim={"tokens": 100_000, "itl_ms": 1000}))
        await server.wait_open(1)
        await server.close()
        await reader.read()
        assert server.cancelled == 1
        writer.close()

    in_loop(scenario)


def test_no_stream_leaves_a_cycle_behind() -> None:
    """The process lets the collector look seldom, so there must be nothing for it to find."""

    async def scenario(server: SimServer) -> None:
        async def ask_once(leave_early: bool) -> None:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(request())
            await (reader.readuntil(b"data: ") if leave_early else reader.readuntil(b"0\r\n\r\n"))
            writer.close()
            await writer.wait_closed()

        await ask_once(True)  # Whatever is made once is made now.
        await server.wait_open(0)
        gc.collect()
        gc.disable()
        try:
            for count in range(20):
                await ask_once(count % 2 == 0)
            await server.wait_for(lambda: not server.open_connections)
            assert gc.collect() == 0
        finally:
            gc.enable()

    in_loop(scenario)
