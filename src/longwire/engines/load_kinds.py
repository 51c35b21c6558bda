"""What each kind of engine says of its load, and under which names.

What lives here: one pure reader per kind, bytes in and a :class:`Reading` out. What must not: asking (load_probe.py).

Anything that cannot be read, or is not there, is None; nothing that an engine says can raise.

How several series of one name add up. Ranks of tensor parallelism repeat the same value, and a process that does not know
shows 0 (vLLM with several API servers): within a rank of data parallelism the largest counts. The ranks of data parallelism
have requests of their own: running and waiting are their sum. KV use is the largest of all: the fullest rank is where it hurts
first. Counters are simply added up: the sum moves when any of them does. So is what the caches hold: a request lies in one
rank's cache, and the sum over the ranks bounds what all requests need together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from .load import Load, Reading
from .series import MAX_METRICS_BYTES, Sample, find_samples, is_text

MAX_SLOTS = 1024
"""Slots of a llama.cpp server that are read."""

MAX_DIGITS = 12
"""Of a count that stands in a label; more is no count of blocks."""

_RANK_LABELS = (b"engine", b"dp_rank")


def read_load(kind: str, page: bytes, at: float) -> Reading:
    """What an engine of this kind said."""
    reader = _READERS.get(kind)
    return reader(page, at) if reader is not None else _nothing(at)


def read_vllm(page: bytes, at: float) -> Reading:
    """vLLM, before and after it renamed its gauge. Its count of tokens moves while requests run; where there is none, that of
    finished requests."""
    if not is_text(page):
        return _nothing(at)
    generated = _total(_any_of(page, b"vllm", b"generation_tokens_total"))
    load = Load(
        kv_used=_largest_share(_any_of(page, b"vllm", b"kv_cache_usage_perc", b"gpu_cache_usage_perc")),
        running=_by_rank(_any_of(page, b"vllm", b"num_requests_running")),
        waiting=_by_rank(_any_of(page, b"vllm", b"num_requests_waiting")),
        preemptions=_total(_any_of(page, b"vllm", b"num_preemptions_total")),
        generated=_total(_any_of(page, b"vllm", b"request_success_total")) if generated is None else generated,
        at=at,
        capacity_tokens=_cache_tokens(_any_of(page, b"vllm", b"cache_config_info"), b"num_gpu_blocks", b"block_size"),
    )
    return Reading(load)


def read_sglang(page: bytes, at: float) -> Reading:
    """SGLang (``--enable-metrics``). Hybrid models have several caches: the fullest counts.

    Its count of tokens grows only when a request ends, in versions without ``realtime_tokens_total``. There a *change* of its
    throughput shows that it generates; the value alone does not, since a hung engine goes on showing its last one.
    """
    if not is_text(page):
        return _nothing(at)
    caches = (b"token_usage", b"full_token_usage", b"swa_token_usage", b"mamba_usage")
    told = _by_rank(_any_of(page, b"sglang", b"max_total_num_tokens"))
    pages = _any_of(page, b"sglang", b"cache_config_info")
    decoded = _where(_any_of(page, b"sglang", b"realtime_tokens_total"), b"mode", b"decode")
    throughput = [] if decoded else _any_of(page, b"sglang", b"gen_throughput")
    load = Load(
        kv_used=_largest_share([each for name in caches for each in _any_of(page, b"sglang", name)]),
        running=_by_rank(_any_of(page, b"sglang", b"num_running_reqs")),
        waiting=_by_rank(_any_of(page, b"sglang", b"num_queue_reqs")),
        preemptions=_total(_any_of(page, b"sglang", b"num_retracted_requests_total")),
        generated=_total(decoded or _any_of(page, b"sglang", b"generation_tokens_total")),
        at=at,
        capacity_tokens=_cache_tokens(pages, b"num_pages", b"page_size") if told is None else told or None,
    )
    shown = _total(throughput)
    return Reading(load, () if shown is None else (("throughput", shown),))


def read_tgi(page: bytes, at: float) -> Reading:
    """TGI says nothing of its KV cache. It counts batches while they run, tokens only when a request ends."""
    if not is_text(page):
        return _nothing(at)
    batches = _first_found(page, b"tgi_batch_inference_success", b"tgi_batch_inference_count")
    load = Load(
        kv_used=None,
        running=_total(find_samples(page, b"tgi_batch_current_size")),
        waiting=_total(find_samples(page, b"tgi_queue_size")),
        preemptions=None,
        generated=_total(batches or find_samples(page, b"tgi_request_generated_tokens_sum")),
        at=at,
    )
    return Reading(load)


def read_triton(page: bytes, at: float) -> Reading:
    """Triton with the TensorRT-LLM backend: one name for many gauges, told apart by a label. What moves is its count of
    iterations."""
    if not is_text(page):
        return _nothing(at)
    requests = find_samples(page, b"nv_trt_llm_request_metrics")
    blocks = find_samples(page, b"nv_trt_llm_kv_cache_block_metrics")
    general = find_samples(page, b"nv_trt_llm_general_metrics")
    block_type = b"kv_cache_block_type"
    used, most = (_total(_where(blocks, block_type, which)) for which in (b"used", b"max"))
    block_tokens = max((value for _, value in _where(blocks, block_type, b"tokens_per")), default=0.0)
    share = _largest_share(_where(blocks, block_type, b"fraction"))
    running = _where(requests, b"request_type", b"scheduled") or _where(requests, b"request_type", b"active")
    load = Load(
        kv_used=min(1.0, used / most) if share is None and used is not None and most else share,
        running=_total(running),
        waiting=_total(_where(requests, b"request_type", b"waiting")),
        preemptions=None,
        generated=_total(_where(general, b"general_type", b"iteration_counter")),
        at=at,
        capacity_tokens=(most or 0.0) * block_tokens or None,
    )
    return Reading(load)


def read_llamacpp(page: bytes, at: float) -> Reading:
    """llama.cpp's ``/slots``: what the slots at work hold, of the context of all. Requests that wait are not told there.

    Tokens are counted per task, read and generated ones: while it reads another's long prompt, it is at work, too. An idle slot
    keeps its last prompt for the next request, and gives it up as soon as that is another: that is not in use.
    """
    slots = _slots_of(page)
    if slots is None:
        return _nothing(at)
    busy = [slot for slot in slots if slot.get("is_processing") is True]
    held = [_held_tokens(slot) for slot in busy]
    context = sum(_count(slot.get("n_ctx")) or 0.0 for slot in slots)
    is_told = context > 0 and all(tokens is not None for tokens in held)
    load = Load(
        kv_used=min(1.0, sum(tokens or 0.0 for tokens in held) / context) if is_told else None,
        running=float(len(busy)),
        waiting=None,
        preemptions=None,
        generated=None,
        at=at,
        capacity_tokens=context or None,
    )
    parts = [(f"{_count(slot.get('id'))}/{_count(slot.get('id_task'))}", _worked_tokens(slot)) for slot in slots]
    return Reading(load, tuple(parts))


_READERS: dict[str, Callable[[bytes, float], Reading]] = {
    "vllm": read_vllm,
    "sim": read_vllm,
    "sglang": read_sglang,
    "tgi": read_tgi,
    "triton": read_triton,
    "llamacpp": read_llamacpp,
}


def _nothing(at: float) -> Reading:
    return Reading(Load(None, None, None, None, None, at))


# Series.


def _any_of(page: bytes, prefix: bytes, *names: bytes) -> list[Sample]:
    """The series of the first of these names that there is; the colon behind the prefix becomes ``_`` in some exporters."""
    return _first_found(page, *(prefix + mark + name for name in names for mark in (b":", b"_")))


def _first_found(page: bytes, *names: bytes) -> list[Sample]:
    return next((found for name in names if (found := find_samples(page, name))), [])


def _where(samples: Iterable[Sample], label: bytes, value: bytes) -> list[Sample]:
    return [sample for sample in samples if sample[0].get(label) == value]


def _total(samples: list[Sample]) -> float | None:
    return sum(value for _, value in samples) if samples else None


def _largest_share(samples: list[Sample]) -> float | None:
    return min(1.0, max(value for _, value in samples)) if samples else None


def _by_rank(samples: list[Sample]) -> float | None:
    """The largest of each rank, added up."""
    ranks: dict[tuple[bytes | None, ...], float] = {}
    for labels, value in samples:
        rank = tuple(map(labels.get, _RANK_LABELS))
        ranks[rank] = max(value, ranks.get(rank, 0.0))
    return sum(ranks.values()) if ranks else None


def _cache_tokens(samples: list[Sample], blocks: bytes, block_tokens: bytes) -> float | None:
    """What a cache holds that is told in labels: so many blocks of so many tokens. An engine that has not looked at its memory
    yet shows None there, in words."""
    told = [
        (labels, float(int(labels[blocks]) * int(labels[block_tokens])))
        for labels, _ in samples
        if _is_number(labels.get(blocks)) and _is_number(labels.get(block_tokens))
    ]
    return _by_rank(told) or None


def _is_number(text: bytes | None) -> bool:
    return text is not None and text.isdigit() and len(text) <= MAX_DIGITS


# Slots.


def _slots_of(page: bytes) -> list[dict[str, Any]] | None:
    if len(page) > MAX_METRICS_BYTES:
        return None
    try:
        told = json.loads(page)
    except (ValueError, RecursionError):
        return None
    listed = told[:MAX_SLOTS] if isinstance(told, list) else []
    return [slot for slot in listed if isinstance(slot, dict) and isinstance(slot.get("is_processing"), bool)] or None


def _held_tokens(slot: dict[str, Any]) -> float | None:
    """Tokens that a slot at work holds. Some versions count what was generated into ``n_prompt_tokens``, some do not."""
    whole = _count(slot.get("n_prompt_tokens"))
    read, cached = _count(slot.get("n_prompt_tokens_processed")), _count(slot.get("n_prompt_tokens_cache"))
    if whole is None and read is None:
        return None
    return max(whole or 0.0, (read or 0.0) + (cached or 0.0) + _decoded_tokens(slot))


def _worked_tokens(slot: dict[str, Any]) -> float:
    return (_count(slot.get("n_prompt_tokens_processed")) or 0.0) + _decoded_tokens(slot)


def _decoded_tokens(slot: dict[str, Any]) -> float:
    """``next_token`` is an object in older versions, a list of one in newer ones."""
    told = slot.get("next_token")
    if isinstance(told, list):
        told = told[0] if told else None
    return (_count(told.get("n_decoded")) if isinstance(told, dict) else None) or 0.0


def _count(value: object) -> float | None:
    """A count as JSON may have it; no boolean, nothing negative, and no integer that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        return None
    return float(value)
