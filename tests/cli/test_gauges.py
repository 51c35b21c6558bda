"""Metrics of each kind of engine recognised, and what they say of an answer that was left."""

from __future__ import annotations

import json

import pytest

from longwire.cli.abilities import NO, UNKNOWN, YES
from longwire.cli.gauges import LOOKS_S, WATCH_S, Load, Watch, judge_watch, recognise

VLLM = b"""# HELP vllm:num_requests_running Number.
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_running{engine="1",model_name="a } b"} 1.0
vllm:generation_tokens_total{engine="0"} 1.5e3
vllm:odd NotANumber
"""
SLOTS = [
    {"id": 0, "is_processing": True, "next_token": [{"n_decoded": 7}]},
    {"id": 1, "is_processing": False, "next_token": {"n_decoded": 5}},
    {"id": 2, "is_processing": False},
]


@pytest.mark.parametrize(
    ("path", "body", "kind", "load"),
    [
        ("/metrics", VLLM, "vllm", Load(3.0, 1500.0)),
        ("/metrics", b'sglang:num_running_reqs{tp_rank="0"} 4\n', "sglang", Load(4.0, None)),
        (
            "/metrics",
            b"llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 9\n",
            "llamacpp",
            Load(1.0, 9.0),
        ),
        ("/metrics", b"tgi_batch_current_size 1\n", "tgi", Load(1.0, None)),
        ("/metrics", b'nv_inference_count{model="m"} 1\n', "triton", Load(None, None)),
        ("/slots", json.dumps(SLOTS).encode(), "llamacpp", Load(1.0, 12.0)),
    ],
)
def test_metrics_of_every_kind(path: str, body: bytes, kind: str, load: Load) -> None:
    source = recognise(path, 200, body)
    assert source is not None
    assert (source.kind, source.load) == (kind, load)
    assert str(source).startswith(f"{path}: {kind}")


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/metrics", 404, VLLM),
        ("/metrics", 200, b"<html>\xff not found</html>"),
        ("/metrics", 200, b"go_goroutines 8\n"),
        ("/metrics", 200, b'[{"iter": 1}]'),
        ("/slots", 200, b"[]"),
        ("/slots", 200, b"[1]"),
        ("/slots", 200, b'[{"id": 0}]'),
        ("/slots", 200, b'{"error": "off"}'),
        ("/slots", 200, b"["),
        ("/slots", 200, b"[" * 100_000),
    ],
)
def test_what_is_no_account_of_an_engine(path: str, status: int, body: bytes) -> None:
    assert recognise(path, status, body) is None


# An answer that is left

IDLE, BUSY = Load(0, 100), Load(1, 104)


def running(*counts: float | None) -> tuple[tuple[float, Load], ...]:
    """Still running at every look, with these counters (the last one for the rest)."""
    padded = [*counts, *[counts[-1]] * (len(LOOKS_S) - len(counts))]
    return tuple((at_s, Load(1, count)) for at_s, count in zip(LOOKS_S, padded, strict=True))


@pytest.mark.parametrize(
    ("watch", "verdict", "says"),
    [
        (Watch(IDLE, BUSY, ((0.02, Load(1, 104)), (0.05, Load(0, 104))), 20), YES, "idle 0.05 s after, 20 s"),
        (Watch(IDLE, BUSY, ((0.05, Load(0, 104)),), 0.08), UNKNOWN, "too fast"),
        (Watch(IDLE, BUSY, ((2.0, Load(0, 300)),), 20), UNKNOWN, "perhaps by itself"),
        (Watch(IDLE, BUSY, running(*range(104, 114)), 20), NO, "still at work 3 s after"),
        (Watch(IDLE, BUSY, running(105), 20), YES, "stands still"),
        (Watch(IDLE, Load(1, 100), running(100), 20), NO, "still at work"),  # it counts ended answers only
        (Watch(IDLE, BUSY, running(None), 20), NO, "still at work"),
        (Watch(Load(2, 100), BUSY, running(105), 20), UNKNOWN, "others use it"),
        (Watch(IDLE, Load(0, 100), running(105), 20), UNKNOWN, "did not show"),
        (Watch(Load(None, None), BUSY, running(105), 20), UNKNOWN, "do not say"),
        (Watch(IDLE, BUSY, (), 20), UNKNOWN, "stopped answering"),
    ],
)
def test_an_answer_that_is_left(watch: Watch, verdict: str, says: str) -> None:
    row = judge_watch(watch)
    assert (row.verdict, says in row.found) == (verdict, True), row


def test_the_looks_end_with_the_watch() -> None:
    assert list(LOOKS_S) == sorted(LOOKS_S)
    assert LOOKS_S[-1] == WATCH_S
