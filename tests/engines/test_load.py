"""What engines say of their load, as they really say it, and what becomes of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.kinds import KINDS
from longwire.engines.load import Load, Odometer, Reading, has_moved, is_generating, smooth
from longwire.engines.load_kinds import MAX_SLOTS, read_load
from longwire.engines.series import MAX_METRICS_BYTES, MAX_SERIES, find_samples, is_text
from longwire.sim.metrics import render_metrics

NOTHING = Load(None, None, None, None, None, 7.0)


def load_of(kind: str, page: str | bytes) -> Load:
    reading = read_load(kind, page.encode() if isinstance(page, str) else page, 7.0)
    assert not reading.parts
    return reading.load


# By kind.

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 8.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.87
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.76e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 12.0
"""


def test_vllm() -> None:
    assert load_of("vllm", VLLM) == Load(0.87, 8, 3, 4, 1_500_000, 7.0)


def test_vllm_with_ranks_and_processes() -> None:
    """Each engine (rank) has requests of its own; a process (pid) that does not know shows 0."""
    page = "".join(
        f'vllm:num_requests_{what}{{engine="{rank}",model_name="m",pid="{pid}"}} {value if pid == rank else 0.0}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",pid="{pid}"}} {rank / 4 if pid == rank else 0.0}\n'
        f'vllm:generation_tokens_total{{engine="{rank}",pid="{pid}"}} 10\n'
        for rank in (1, 2)
        for pid in (0, 1, 2)
        for what, value in (("running", rank), ("waiting", 10 * rank))
    )
    assert load_of("vllm", page) == Load(0.5, 3, 30, None, 120, 7.0)


def test_vllm_before_its_gauge_was_renamed_and_under_other_exporters() -> None:
    assert load_of("vllm", 'vllm:gpu_cache_usage_perc{model_name="m"} 0.25').kv_used == 0.25
    both = "vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\n"
    assert load_of("vllm", both).kv_used == 0.5
    assert load_of("vllm", "vllm_num_requests_running 2").running == 2


def test_vllm_without_a_count_of_tokens_is_followed_by_its_finished_requests() -> None:
    page = 'vllm:request_success_total{finished_reason="stop"} 5\nvllm:request_success_total{finished_reason="abort"} 2'
    assert load_of("vllm", page).generated == 7


def test_the_stand_in() -> None:
    told = {"running": 2, "generated_tokens": 40, "held_tokens": 1 << 19, "answered": 1}
    counters = defaultdict(int, told)
    load = load_of("sim", render_metrics('a "model"', 65_536, counters))
    assert (load.kv_used, load.running, load.generated) == (0.5, 2, 40)


SGLANG = """\
# TYPE sglang:token_usage gauge
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.28
sglang:token_usage{dp_rank="0",tp_rank="1"} 0.28
sglang:swa_token_usage{dp_rank="0",tp_rank="0"} 0.61
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 2.0
sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 1.0
sglang:num_queue_reqs{dp_rank="0",tp_rank="1"} 1.0
sglang:num_retracted_reqs{dp_rank="0",tp_rank="0"} 9.0
sglang:num_retracted_requests_total{dp_rank="0"} 2.0
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
"""


def test_sglang() -> None:
    """One series per tensor rank with the same value, one per data rank with its own; of several caches the fullest."""
    assert load_of("sglang", SGLANG) == Load(0.61, 7, 1, 2, 7_557_572, 7.0)


def test_sglang_s_live_count_is_preferred_to_that_of_ended_requests() -> None:
    live = 'sglang:realtime_tokens_total{mode="decode"} 50\nsglang:realtime_tokens_total{mode="prefill_compute"} 900\n'
    assert load_of("sglang", SGLANG + live + "sglang:gen_throughput 3.5\n").generated == 50


def test_an_older_sglang_generates_while_its_throughput_changes() -> None:
    """A hung engine goes on showing the last one, so that its being more than 0 says nothing."""
    odometer, loads = Odometer(), list[Load]()
    for shown in ("50.1", "50.1", "49.7", "49.7", "0.0", "0.0", "12.5"):
        page = f"sglang:generation_tokens_total 100\nsglang:gen_throughput {shown}\n"
        loads.append(odometer.advance(read_load("sglang", page.encode(), 7.0)))
    moved = [has_moved(before, after) for before, after in pairwise(loads)]
    assert moved == [False, True, False, False, False, True]


def test_tgi() -> None:
    page = """\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_queue_size gauge
tgi_queue_size 7
tgi_batch_inference_success{method="prefill"} 20
tgi_batch_inference_success{method="decode"} 380
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 8123
"""
    assert load_of("tgi", page) == Load(None, 4, 7, None, 400, 7.0)
    assert load_of("tgi", "tgi_request_generated_tokens_sum 8123").generated == 8123


TRITON = """\
nv_inference_count{model="m",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1560
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6240
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} 77
nv_trt_llm_general_metrics{general_type="timestamp",model="tensorrt_llm",version="1"} 1700074049
"""


def test_triton() -> None:
    assert load_of("triton", TRITON) == Load(0.25, 3, 2, None, 77, 7.0)
    told = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.9\n'
    assert load_of("triton", TRITON + told).kv_used == 0.9


def slot(number: int, task: int = -1, *, decoded: int = 0, read: int = 0, cached: int = 0, busy: bool = True) -> object:
    """A slot as newer versions show it."""
    shown = {"id": number, "n_ctx": 1000, "speculative": False, "is_processing": busy}
    if task < 0:
        return {**shown, "is_processing": False}
    return {
        **shown,
        "id_task": task,
        "n_prompt_tokens": read + cached + decoded,
        "n_prompt_tokens_processed": read,
        "n_prompt_tokens_cache": cached,
        "next_token": [{"has_next_token": busy, "n_remain": 9, "n_decoded": decoded}],
    }


def slots(*shown: object) -> bytes:
    return json.dumps(shown).encode()


def test_llamacpp() -> None:
    page = slots(slot(0, 5, read=100, cached=300, decoded=100), slot(1, 4, read=800, busy=False), slot(2), slot(3))
    reading = read_load("llamacpp", page, 7.0)
    assert reading.load == Load(500 / 4000, 1, None, None, None, 7.0, 4000)


def test_llamacpp_of_other_versions() -> None:
    """``next_token`` as an object; prompts counted without what was generated; no prompt told at all."""
    old = {"id": 0, "n_ctx": 1000, "is_processing": True, "n_prompt_tokens": 90, "n_prompt_tokens_processed": 90}
    page = slots({**old, "next_token": {"n_decoded": 10}})
    assert read_load("llamacpp", page, 7.0).load.kv_used == 0.1
    page = slots({"id": 0, "n_ctx": 1000, "is_processing": True, "next_token": {"n_decoded": 10}})
    load = read_load("llamacpp", page, 7.0).load
    assert (load.kv_used, load.running) == (None, 1)


def test_llamacpp_s_counts_begin_anew_with_each_request_and_become_one() -> None:
    odometer, told = Odometer(), list[float | None]()
    for page in (
        slots(slot(0, 5, decoded=50), slot(1)),  # what was before we looked is nothing that moved
        slots(slot(0, 5, decoded=60), slot(1)),
        slots(slot(0, 5, decoded=64, busy=False), slot(1)),
        slots(slot(0, 5, decoded=64, busy=False), slot(1)),
        slots(slot(0, 9, decoded=3), slot(1, 8, read=20)),  # another's prompt is being read: it is at work
        slots(slot(0, 9, decoded=3), slot(1, 8, read=20, decoded=1)),
    ):
        told.append(odometer.advance(read_load("llamacpp", page, 7.0)).generated)
    assert told == [0, 10, 14, 14, 37, 38]
    assert "38" in repr(odometer)


# Anything else.

GARBAGE = (
    b"", b"\n", b"{", b"[]", b"[1,2]", b'[{"id":0}]', b'{"loads":[]}', b"\x00\xff" * 50,
    b"<html>\nvllm:num_requests_running 3\n</html>",
    b'[{"iter":1,"kvCacheStats":{"usedNumBlocks":3}}]', b"[" * 100_000, b"vllm:num_requests_running", b"tgi_queue_size\n",
    b'vllm:num_requests_running{engine="0 3\n', b"vllm:num_requests_running{} x", b"not found",
)  # fmt: skip


@pytest.mark.parametrize("page", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_is_nothing_known(kind: str, page: bytes) -> None:
    load = read_load(kind, page, 7.0).load
    assert (load.kv_used, load.waiting, load.preemptions, load.generated) == (None, None, None, None)
    assert not load.is_known


@pytest.mark.parametrize(
    ("value", "kv_used"),
    [
        ("-0.387", None), ("NaN", None), ("+Inf", None), ("-Inf", None), ("1.04", 1.0), ("0", 0.0), ("1e-2", 0.01),
        ("0.5 1700000000000", 0.5), ('0.5 # {trace_id="}"} 1.0', 0.5), ("half", None),
    ],
)  # fmt: skip
def test_a_share_that_is_none(value: str, kv_used: float | None) -> None:
    assert load_of("vllm", f'vllm:kv_cache_usage_perc{{model_name="a}}b\\"c"}} {value}\n').kv_used == kv_used


def test_one_unreadable_series_does_not_spoil_the_others() -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} NaN\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    assert load_of("vllm", page).kv_used == 0.5


def test_pages_are_bounded() -> None:
    long = b"#" * MAX_METRICS_BYTES
    assert is_text(long) and not is_text(long + b"#")
    assert load_of("vllm", long + b"\n" + VLLM.encode()) == NOTHING
    assert read_load("llamacpp", b" " * MAX_METRICS_BYTES + slots(slot(0, 1)), 7.0).load == NOTHING
    assert len(find_samples(b"a 1\n" * (MAX_SERIES + 9), b"a")) == MAX_SERIES
    assert (
        read_load("llamacpp", slots(*[{"id": 0, "is_processing": True}] * (MAX_SLOTS + 5)), 7.0).load.running
        == MAX_SLOTS
    )


def test_labels_are_read_as_they_are_written() -> None:
    page = b'x{} 1\nx{a="1",b="}\\" "} 2\nx{a="1",} 3\nxy 4\nx 5\r\n x 6\n'
    assert find_samples(page, b"x") == [({}, 1), ({b"a": b"1", b"b": b'}\\" '}, 2), ({b"a": b"1"}, 3), ({}, 5)]


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=200), st.integers(0, 500))
def test_no_bytes_can_raise(kind: str, noise: bytes, at: int) -> None:
    for page in (noise, VLLM.encode()[:at] + noise + VLLM.encode()[at:], slots(slot(0, 1, read=5))[:at] + noise):
        load = Odometer().advance(read_load(kind, page, 7.0))
        assert load.kv_used is None or 0 <= load.kv_used <= 1
        assert all(
            value is None or value >= 0 for value in (load.running, load.waiting, load.preemptions, load.generated)
        )


json_values: Callable[[], st.SearchStrategy[object]] = lambda: st.recursive(  # noqa: E731
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SLOT_FIELDS = (
    "id", "id_task", "n_ctx", "is_processing", "n_prompt_tokens", "n_prompt_tokens_processed", "n_prompt_tokens_cache",
    "next_token", "n_decoded",
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(SLOT_FIELDS), json_values(), max_size=9), max_size=4))
def test_no_slots_can_raise(shown: list[dict[str, object]]) -> None:
    odometer = Odometer()
    for page in (shown, shown[:1], shown):
        load = odometer.advance(read_load("llamacpp", json.dumps(page).encode(), 7.0))
        assert load.kv_used is None or 0 <= load.kv_used <= 1


# What becomes of it.


def load_at(kv: float | None = None, waiting: float | None = None, generated: float | None = None) -> Load:
    return Load(kv, 1, waiting, 2, generated, 7.0)


def test_smoothing_averages_what_jumps_and_nothing_else() -> None:
    old, new = load_at(0.5, 8, 10), Load(1.0, 5, 0, 6, 30, 8.0)
    assert smooth(None, new) is new
    assert smooth(old, new) == Load(0.75, 5, 4, 6, 30, 8.0)


def test_what_is_not_known_any_more_is_not_made_up() -> None:
    assert smooth(load_at(0.5, 3), load_at(None, 5)) == load_at(None, 4)
    assert smooth(load_at(None, None), load_at(0.5, 5)) == load_at(0.5, 5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_smoothed_share_is_still_a_share_and_follows(samples: list[float]) -> None:
    load: Load | None = None
    for kv in [*samples, *[samples[-1]] * 5]:
        load = smooth(load, load_at(kv))
    assert load is not None and load.kv_used is not None
    assert min(samples) - 1e-9 <= load.kv_used <= max(samples) + 1e-9
    assert abs(load.kv_used - samples[-1]) <= 1 / 32


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (1, 2, True), (2, 2, False), (5, 1, None), (None, 1, None), (1, None, None), (None, None, None),
    ],
)  # fmt: skip
def test_whether_it_has_moved(before: float | None, after: float | None, moved: bool | None) -> None:
    """A counter that fell is that of an engine that was started anew: nobody knows."""
    assert has_moved(load_at(generated=before), load_at(generated=after)) is moved


def test_without_two_looks_nobody_knows_whether_it_moves() -> None:
    assert has_moved(None, load_at(generated=1)) is None
    assert has_moved(load_at(generated=1), None) is None


def test_generating_is_what_moved_lately() -> None:
    assert is_generating(10, 12, 2) and not is_generating(10, 12.1, 2)
    assert not is_generating(None, 12, 2)


def test_a_load_grows_old() -> None:
    assert not NOTHING.is_stale(16.9, 10) and NOTHING.is_stale(17, 10)
    assert not NOTHING.is_known and load_at(generated=0).is_known


def test_an_odometer_leaves_loads_alone_that_have_no_parts() -> None:
    assert Odometer().advance(Reading(NOTHING)) is NOTHING
