"""What is asked for: settings and the rules between them, prompts, chaos, and the order to a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longwire.bench.chaos import KILL_SHARD, STALL_ENGINE, check_reach, is_loopback, parse_chaos
from longwire.bench.doors import DOORS
from longwire.bench.job import Job
from longwire.bench.plan import base_url, load_of
from longwire.bench.prompts import Requests, made_prompt, read_extra, read_headers, read_prompts
from longwire.bench.run import Run, make_job
from longwire.bench.schedule import CHANCE, EVEN, Load
from longwire.sim.answer import position_after
from longwire.wire.http1 import RequestReader
from longwire.words.bench_settings import DOOR_NAMES, BenchSettings
from longwire.words.config import declared
from longwire.words.errors import SettingsError


def test_names_in_the_settings_are_those_of_the_tables() -> None:
    assert tuple(DOORS) == DOOR_NAMES
    assert declared(BenchSettings)["arrivals"].choices == (EVEN, CHANCE)


DEEP = '{"a": [' + "[" * 100_000
"""JSON that no parser follows to its end."""


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("h:1", "http://h:1/v1"),
        ("https://h/llm", "https://h/llm/v1"),
        ("http://[::1]:8080", "http://[::1]:8080/v1"),
    ],
)
def test_an_endpoint_is_named_with_or_without_v1(text: str, base: str) -> None:
    assert base_url(text) == base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:99999",
        "http://h:0",
        "http://user:key@h",
        "http://[::1",
        "a..b",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no endpoint"):
        base_url(text)


def test_the_load_is_that_of_the_settings() -> None:
    assert load_of(BenchSettings(rate=3, warm_up_s=1, duration_s=2)) == Load(3, 3, 3)
    assert load_of(BenchSettings(ramp="1:5", burst="10@2", warm_up_s=0)) == Load(1, 5, 20, EVEN, 10, 2)
    with pytest.raises(SettingsError, match="2:50"):
        load_of(BenchSettings(ramp="5"))


def test_a_wrong_plan_is_an_error_before_anything_starts() -> None:
    wrong = [
        {"chaos": ["kill-shard=1"]},
        {"chaos": ["eat-shard=1"]},
        {"header": ["x"]},
        {"body": "["},
        {"prompts": "no/such/file"},
        {"control": "ftp://x"},
        {"ramp": "x"},
    ]
    for settings in wrong:
        with pytest.raises(SettingsError):
            Run("http://127.0.0.1:1", BenchSettings(**settings), {}, print)


# Requests.


def test_prompts_have_their_length_and_are_never_the_same() -> None:
    prompts = [made_prompt(7, 1, number) for number in range(50)]
    assert {len(prompt.split()) for prompt in prompts} == {7}
    assert len({prompt.split()[0] for prompt in prompts}) == 50
    assert made_prompt(7, 1, 3) == prompts[3] != made_prompt(7, 2, 3)
    assert len(made_prompt(1, 0, 0).split()) == 1


def test_no_prompt_looks_like_the_beginning_of_the_stand_in_s_answer() -> None:
    prompts = [made_prompt(7, 0, number) for number in range(200)]
    assert {position_after(0, prompt[-length:]) for prompt in prompts for length in range(1, 12)} == {(0, "")}


def test_prompts_come_from_a_file_of_lines_or_of_json(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text(
        'plain\n\n{"prompt": "p"}\n{"messages": [{"role": "user", "content": "m"}]}\n"quoted"\n[1 is no JSON\n'
    )
    assert read_prompts(str(file)) == ["plain", "p", [{"role": "user", "content": "m"}], "quoted", "[1 is no JSON"]
    file.write_text(DEEP[6:])
    assert read_prompts(str(file)) == [DEEP[6:]], "a text that begins like JSON"
    for text, words in (
        ("{", "no JSON object"),
        (DEEP, "no JSON object"),
        ('{"x": 1}', "neither prompt nor messages"),
        ("\n", "no prompts"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=words):
            read_prompts(str(file))


def test_a_request_is_whole() -> None:
    job = Job(
        host="::1", port=8, model="m", tokens=5, extra={"temperature": 0}, headers=[("X-A", "1")], prompt_tokens=3
    )
    reader = RequestReader(65536, 65536)
    reader.receive_data(Requests(job).post(2))
    head, body = reader.next_event(), reader.next_event()
    assert head.target == b"/v1/chat/completions"  # type: ignore[union-attr]
    assert head.get(b"host") == b"[::1]:8" and head.get(b"x-a") == b"1"  # type: ignore[union-attr]
    assert head.get(b"accept") == b"text/event-stream"  # type: ignore[union-attr]
    asked = json.loads(body)  # type: ignore[arg-type]
    assert asked["max_tokens"] == 5 and asked["stream"] is True and asked["temperature"] == 0
    assert asked["messages"][0]["content"].startswith("0-2 ")
    text = Requests(Job(host="h", port=1, path="/v1/completions", prompt_tokens=3)).post(0)
    assert b'"prompt": "0-0 ' in text and b"messages" not in text
    assert b"last-event-id: 0-7\r\n" in Requests(job).resume(b"/v1/streams/x", 7)


def test_headers_and_fields_are_read() -> None:
    assert read_headers(["X-A: b: c"]) == [("X-A", "b: c")]
    assert read_extra('{"a": 1}') == {"a": 1} and read_extra("") == {}
    for text in ("x", ": v", "a: b\r\nc: d", "ä: b"):
        with pytest.raises(SettingsError, match="NAME: VALUE"):
            read_headers([text])


@pytest.mark.parametrize("text", ["[]", "{", DEEP])
def test_fields_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--body takes a JSON object"):
        read_extra(text)


def test_an_order_survives_its_journey() -> None:
    settings = BenchSettings(verify=True, tokens=9, seed=4, processes=3, max_in_flight=30, chaos=["reset-clients=2"])
    job = make_job(settings, [("a", "b")], {"sim": {"itl_ms": 1}}, "http://h:5/x/v1", "m")
    assert (job.host, job.port, job.path) == ("h", 5, "/x/v1/chat/completions")
    assert job.extra["sim"] == {"itl_ms": 1, "tokens": 9, "seed": 4, "stamp": True}
    assert job.max_in_flight == 10
    assert ("longwire-on-disconnect", "grace=60") in job.headers
    again = Job.decode(job.encode())
    assert again.encode() == job.encode() and again.load == job.load


# Chaos.


def test_chaos_has_names_and_rates() -> None:
    assert parse_chaos(["reset-clients=2, kill-shard=0.5", "stall-engine=1"]) == {
        "reset-clients": 2,
        "kill-shard": 0.5,
        "stall-engine": 1,
    }
    for text in ("reset-clients", "reset-clients=0", "reset-clients=x", "kill-shard=nan", "stall-engine=inf"):
        with pytest.raises(SettingsError, match="needs a rate"):
            parse_chaos([text])


def test_only_shards_of_this_machine_are_killed() -> None:
    assert all(is_loopback(url) for url in ("http://127.0.0.1:1", "127.0.0.2:1", "http://[::1]:1", "localhost:1"))
    assert not any(is_loopback(url) for url in ("http://10.0.0.1:1", "http://gateway:1", "http://0.0.0.0:1"))
    with pytest.raises(SettingsError, match="--admin"):
        check_reach({KILL_SHARD: 1}, "http://10.0.0.1:8081", "")
    with pytest.raises(SettingsError, match="--engine"):
        check_reach({STALL_ENGINE: 1}, "", "")
    check_reach({KILL_SHARD: 1, STALL_ENGINE: 1}, "http://127.0.0.1:8081", "http://h")


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:x", "http://a..b"])
def test_what_is_broken_is_looked_for_before_anything_is_measured(url: str) -> None:
    with pytest.raises(SettingsError, match="--admin"):
        check_reach({KILL_SHARD: 1}, url, "")
    with pytest.raises(SettingsError, match="--engine"):
        check_reach({STALL_ENGINE: 1}, "", url)
