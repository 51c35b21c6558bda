"""What the KV cache of an engine holds, by its own account; the rest of what engines say is in test_load.py."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.load_kinds import read_load
from longwire.sim.metrics import BLOCK_TOKENS, render_metrics


def capacity(kind: str, page: str | bytes) -> float | None:
    return read_load(kind, page.encode() if isinstance(page, str) else page, 7.0).load.capacity_tokens


def vllm(blocks: object, block_tokens: object = 16, engine: int = 0) -> str:
    labels = f'block_size="{block_tokens}",cache_dtype="auto",engine="{engine}",num_gpu_blocks="{blocks}"'
    return f"vllm:cache_config_info{{{labels}}} 1.0\n"


def test_vllm_tells_it_in_labels() -> None:
    assert capacity("vllm", vllm(27_000)) == 27_000 * 16
    assert capacity("vllm", "vllm_cache_config_info" + vllm(100).removeprefix("vllm:cache_config_info")) == 1600


def test_ranks_of_data_parallelism_have_caches_of_their_own_and_repeated_series_do_not() -> None:
    assert capacity("vllm", vllm(100) + vllm(200, engine=1)) == 300 * 16
    assert capacity("vllm", vllm(100) + vllm(100).replace('engine="0"', 'engine="0",pid="7"')) == 1600


@pytest.mark.parametrize("blocks", ["None", "", "-5", "1.5", "1e6", "0", "9" * 13, "²"])
def test_a_count_that_is_none_is_not_known(blocks: str) -> None:
    assert capacity("vllm", vllm(blocks)) is None
    assert capacity("vllm", vllm(100, blocks)) is None


def test_sglang_tells_tokens_or_pages() -> None:
    told = "".join(f'sglang:max_total_num_tokens{{dp_rank="0",tp_rank="{rank}"}} 4096\n' for rank in (0, 1))
    pages = 'sglang:cache_config_info{page_size="64",num_pages="10"} 1\n'
    assert capacity("sglang", told) == 4096
    assert capacity("sglang", pages) == 640
    assert capacity("sglang", told + pages) == 4096
    assert capacity("sglang", "sglang:max_total_num_tokens 0\n") is None


def test_triton_tells_blocks_and_their_size() -> None:
    page = "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{name}",model="m"}} {value}\n'
        for name, value in (("max", 6240), ("tokens_per", 64), ("used", 10))
    )
    assert capacity("triton", page) == 6240 * 64
    assert capacity("triton", page.replace("tokens_per", "other")) is None


def test_llamacpp_holds_the_contexts_of_all_slots() -> None:
    slots = [{"id": number, "n_ctx": 2048, "is_processing": False} for number in range(3)]
    assert capacity("llamacpp", json.dumps(slots)) == 3 * 2048
    assert capacity("llamacpp", json.dumps([{"id": 0, "is_processing": False}])) is None


def test_the_stand_in_tells_what_it_is_set_to() -> None:
    assert capacity("sim", render_metrics("m", 1234, defaultdict(int))) == 1234 * BLOCK_TOKENS


@given(st.binary(max_size=200), st.sampled_from(["vllm", "sglang", "triton", "llamacpp", "tgi", "openai"]))
def test_nothing_that_an_engine_says_raises_or_is_no_capacity(noise: bytes, kind: str) -> None:
    page = b"vllm:cache_config_info{" + noise + b"} 1\nsglang:cache_config_info{" + noise + b"} 1\n" + noise
    told = capacity(kind, page)
    assert told is None or told > 0
