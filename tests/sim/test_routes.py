"""Paths and the small answers."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.sim.playing import Played, encode_request, play

from longwire.sim.answer import answer_text
from longwire.sim.routes import embedding
from longwire.sim.server import SimServer


def get(server: SimServer, path: str, method: str = "GET") -> Played:
    return play(server, encode_request(path=path, method=method))


def post(server: SimServer, path: str, **body: Any) -> Played:
    return play(server, encode_request(body, path))


def test_models(server: SimServer) -> None:
    assert [model["id"] for model in get(server, "/v1/models?limit=3").json["data"]] == ["sim"]


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/", 404), ("POST", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405),
])  # fmt: skip
def test_unknown_paths_and_methods(server: SimServer, method: str, path: str, status: int) -> None:
    played = get(server, path, method)
    assert played.head.status == status
    assert played.json["error"]["message"]


def test_head_has_no_body(server: SimServer) -> None:
    played = get(server, "/health", "HEAD")
    assert (played.head.status, played.body) == (200, b"")


def test_http_1_0_gets_no_chunks(server: SimServer) -> None:
    played = play(server, encode_request({"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert (played.head.minor, played.head.chunked) == (0, False)
    assert played.text == answer_text(3, 5)


def test_a_fault_in_the_header_befalls_any_path(server: SimServer) -> None:
    request = encode_request(path="/v1/models", method="GET", headers={"x-sim-fault": "status=503"})
    assert play(server, request).head.status == 503
    assert get(server, "/v1/models").head.status == 200


def test_embeddings_are_the_same_for_the_same_text(server: SimServer) -> None:
    answer = post(server, "/v1/embeddings", input=["a", "b", "a"], model="sim", extra=1).json
    one, two, three = (entry["embedding"] for entry in answer["data"])
    assert one == three == embedding("a") != two
    assert all(-1 <= number < 1 for number in one)
    assert answer["sim_echo"] == {"extra": 1}


def test_embeddings_in_base64_are_the_same_numbers(server: SimServer) -> None:
    plain = post(server, "/v1/embeddings", input="text", dimensions=5).json["data"][0]["embedding"]
    packed = post(server, "/v1/embeddings", input="text", dimensions=5, encoding_format="base64").json["data"][0][
        "embedding"
    ]
    assert list(struct.unpack("<5f", base64.b64decode(packed))) == plain


def test_embeddings_refuse_odd_sizes(server: SimServer) -> None:
    assert post(server, "/v1/embeddings", input="text", dimensions=10**9).head.status == 400


def test_tokenize_counts_words(server: SimServer) -> None:
    assert post(server, "/tokenize", prompt="one two  three").json["count"] == 3
    parts = [{"role": "user", "content": [{"type": "text", "text": "one two"}, {"type": "image_url", "image_url": {}}]}]
    assert post(server, "/tokenize", messages=parts).json["count"] == 2


def test_deeply_nested_bodies_are_survived(server: SimServer) -> None:
    nested: Any = "x"
    for _ in range(500):
        nested = [nested]
    assert post(server, "/tokenize", prompt=nested).json["count"] == 0
    assert play(server, encode_request(b'{"a":' + b"[" * 100_000, "/tokenize")).head.status == 400


def test_half_a_surrogate_pair_is_echoed(server: SimServer) -> None:
    played = play(server, encode_request(b'{"odd": "\\ud83d"}'))
    assert played.json["sim_echo"] == {"odd": "\ud83d"}


def test_rerank(server: SimServer) -> None:
    results = post(server, "/v1/rerank", query="q", documents=["a", "b", "c"]).json["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert post(server, "/v1/rerank", query="q").head.status == 400


def test_an_upload_need_not_be_json(server: SimServer) -> None:
    request = encode_request(
        b"--x\r\n\xff\xfe", "/v1/audio/transcriptions", {"content-type": "multipart/form-data; boundary=x"}
    )
    assert play(server, request).json == {"text": "It was said."}


def test_metrics_have_vllms_names(server: SimServer) -> None:
    post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "three words here"}], stream=True)
    families = {family.name: family for family in text_string_to_metric_families(get(server, "/metrics").body.decode())}
    running = families["vllm:num_requests_running"].samples[0]
    assert running.labels == {"model_name": "sim", "engine": "0"}
    assert running.value == 1
    assert families["vllm:num_requests_waiting"].samples[0].value == 0
    assert 0 < families["vllm:kv_cache_usage_perc"].samples[0].value < 1
    assert families["vllm:prompt_tokens"].samples[0].value == 3
    assert {sample.labels["finished_reason"] for sample in families["vllm:request_success"].samples} == {
        "stop",
        "abort",
    }
    assert families["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"


def test_the_next_generations_can_be_made_to_fail_from_outside(server: SimServer) -> None:
    assert post(server, "/sim/next", next=["status=500", "none"]).json == {"queued": 2}
    assert [post(server, "/v1/chat/completions").head.status for _ in range(3)] == [500, 200, 200]
    assert post(server, "/sim/next", next=["nonsense"]).head.status == 400
    assert post(server, "/sim/next").head.status == 400


def test_what_arrived_can_be_asked_for(server: SimServer) -> None:
    play(server, encode_request({"a": "ü"}, headers={"x-request-id": "r1"}))
    seen = get(server, "/sim/requests").json["data"][0]
    assert (seen["method"], seen["target"]) == ("POST", "/v1/chat/completions")
    assert ["x-request-id", "r1"] in seen["headers"]
    assert '"a"' in seen["body"]
