"""The stand-in's /metrics, under vLLM's names.

What lives here: the metrics' names and the text format.
What must not: the counters themselves (server.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
BLOCK_TOKENS = 16
"""Tokens in one block of the KV cache; vLLM's default."""


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str
    counter: str
    """Which of the server's counters it shows; empty: none, and always 0."""


_METRICS = (
    _Metric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", "running"),
    _Metric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", "waiting"),
    _Metric("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions.", "preemptions"),
    _Metric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", "prompt_tokens"),
    _Metric("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", "generated_tokens"),
    _Metric("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", "prompt_tokens"),
    _Metric("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", ""),
)


def render_metrics(model: str, kv_blocks: int, counters: Mapping[str, int]) -> bytes:
    """All of them in the text format."""
    label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'{{engine="0",model_name="{label}"}}'
    lines: list[str] = []
    for metric in _METRICS:
        value = counters[metric.counter] if metric.counter else 0
        lines += _lines(metric.name, metric.kind, metric.help, labels, float(value))
    used = min(1.0, counters["held_tokens"] / (BLOCK_TOKENS * kv_blocks))
    lines += _lines("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", labels, used)
    cache = f'{{block_size="{BLOCK_TOKENS}",engine="0",num_gpu_blocks="{kv_blocks}"}}'
    lines += _lines("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", cache, 1.0)
    for reason, name in (("stop", "answered"), ("abort", "cancelled")):
        labelled = f'{{engine="0",finished_reason="{reason}",model_name="{label}"}}'
        new = _lines(
            "vllm:request_success_total", "counter", "Count of finished requests.", labelled, float(counters[name])
        )
        lines += new if reason == "stop" else new[2:]
    return "\n".join(lines).encode() + b"\n"


def _lines(name: str, kind: str, help: str, labels: str, value: float) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", f"{name}{labels} {value!r}"]
