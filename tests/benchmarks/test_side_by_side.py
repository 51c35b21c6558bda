"""What `make bench` makes of its runs: goals, the page, and names that cannot be measured. Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def scripts_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when one of them is run: their own folder comes first."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def figures(
    target: str, cpu_us: float = 20.0, p99: float = 1.0, kib: float = 10.0, invalid: str = ""
) -> dict[str, Any]:
    """One run as proxy_cost.py writes it, as far as it is read."""
    return {
        "target": target,
        "delays_ms": {"p50": p99 / 2, "p99": p99},
        "user_us": cpu_us / 4,
        "system_us": cpu_us * 3 / 4,
        "core_share": 0.5,
        "anonymous_kib": kib,
        "shared_kib": 40.0,
        "invalid": [invalid] if invalid else [],
        "remarks": [],
    }


def told(scenario: str, *runs: dict[str, Any]) -> dict[str, Any]:
    rounds = [{"direct": figures("direct", p99=0.5)} | run for run in runs]
    return {"scenarios": [{"scenario": scenario, "runs": rounds}]}


def goals_of(file: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from converted import convert

    return {goal["name"]: goal for goal in convert(file)["goals"]}


def one_round(**cpu_us: float) -> dict[str, Any]:
    return {name.replace("_", "-"): figures(name.replace("_", "-"), cost) for name, cost in cpu_us.items()}


# Goals.


def test_a_ratio_is_the_median_of_those_within_rounds() -> None:
    """A machine that is twice as slow in one round is so for both."""
    found = goals_of(told("500x20", one_round(nginx=20, longwire=24), one_round(nginx=40, longwire=48)))
    assert found["CPU per event"]["value"] == pytest.approx(1.2)
    assert found["CPU per event"]["met"] is True


def test_below_each_router_is_below_the_cheapest_that_ran() -> None:
    routers = "CPU per event beside the LLM gateways in Rust"
    dear = goals_of(told("500x20", one_round(longwire=24, vllm_router=22, sglang_router=30)))[routers]
    assert dear["met"] is False and dear["value"] == pytest.approx(24 / 22)
    alone = goals_of(told("500x20", one_round(longwire=24, sglang_router=30)))[routers]
    assert alone["met"] is True and "vllm-router did not run" in alone["note"]
    none = goals_of(told("500x20", one_round(longwire=24)))[routers]
    assert none["value"] is None and none["met"] is None


def test_added_delays_are_compared_within_rounds() -> None:
    first = {"nginx": figures("nginx", p99=2.0), "longwire": figures("longwire", p99=1.9)}
    second = {"nginx": figures("nginx", p99=9.0), "longwire": figures("longwire", p99=8.0)}
    goal = goals_of(told("9000x2", first, second))["p99 added delay"]
    assert goal["met"] is True
    assert goal["value"] == pytest.approx((1.4 + 7.5) / 2)


def test_memory_has_a_bound_of_its_own() -> None:
    goal = goals_of(told("9000x2", {"longwire": figures("longwire", kib=12.5)}))["memory per stream besides the log"]
    assert (goal["value"], goal["met"]) == (12.5, False)


def test_a_run_that_is_not_valid_does_not_count_and_is_told() -> None:
    well = one_round(nginx=20, longwire=24)
    ill = {"nginx": figures("nginx", 20), "longwire": figures("longwire", 90, invalid="late")}
    goal = goals_of(told("500x20", well, ill))["CPU per event"]
    assert goal["value"] == pytest.approx(1.2)
    assert "1 of 4 runs not valid (longwire)" in goal["note"]


def test_litellm_must_cost_thirty_times_as_much() -> None:
    goal = goals_of(told("100x20", one_round(longwire=25, litellm=800)))["LiteLLM's CPU per event, over Longwire's"]
    assert (goal["value"], goal["met"]) == (32.0, True)


# The page.


def kept(file: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "measured": "2026-01-01 12:00 UTC",
        "took_s": 100.0,
        "command": "benchmarks/proxy_cost.py",
        "failure": "",
        "missing": {},
        "versions": {},
        "machine": {"cpu": "a processor", "cores": 2, "kernel": "6", "python": "3.11", "uvloop": "0.22"},
        "said": [],
        "told": file,
        **more,
    }


def test_what_is_missing_has_a_row_that_says_why() -> None:
    from results import page

    found = page({
        "a": kept(told("500x20", one_round(nginx=20, longwire=24)), missing={"envoy": "pip could not | install it"}),
        "c": kept(failure="it ended with status 1: no figures"),
    })  # fmt: skip
    assert "| envoy | pip could not \\| install it |" in found
    assert "not measured: it ended with status 1: no figures" in found
    assert "not measured: benchmarks/proxy_cost.py has not been run" in found, "work (b)"


def test_a_page_of_nothing_is_a_page() -> None:
    from parts import PARTS
    from results import page

    found = page({})
    assert all(part.title in found for part in PARTS)


def test_a_cell_has_the_spread_and_a_mark_where_nothing_is_valid() -> None:
    from cells import cell
    from results import page

    rounds = [{"longwire": {"x": 1.0}}, {"longwire": {"x": 3.0}}, {"longwire": {"x": 9.0, "invalid": 1.0}}]
    assert cell(rounds, "longwire", "x") == "2 (1 to 3)"
    ill = told("500x20", {"nginx": figures("nginx", invalid="lost an event")})
    assert "| nginx † |" in page({"a": kept(ill)})


def test_works_of_the_plain_contract_are_shown_as_they_are() -> None:
    from results import page

    goal = {"name": "held", "unit": "", "goal": ">= 50,000", "value": 50_000.0, "met": True, "note": "two shards"}
    file = {"rounds": [{"longwire": {"held": 50_000.0}}], "goals": [goal], "remarks": ["the load's core was full"]}
    found = page({"e": kept(file)})
    assert "| (e) | held | >= 50,000 | 50,000 | reached; two shards |" in found
    assert "- the load's core was full" in found


def test_what_a_script_left_half_written_is_no_result(tmp_path: Path) -> None:
    from side_by_side import _read

    half = tmp_path / "half.json"
    half.write_text('{"rounds": [')
    assert _read(half) is None
    assert _read(tmp_path / "none.json") is None


# Plots.


def test_plots_take_what_is_there() -> None:
    from plots import draw

    assert draw({}) == {}
    drawn = draw({"a": kept(told("500x20", one_round(nginx=20, longwire=24)))})
    assert set(drawn) == {"cpu.svg", "delay.svg"}
    assert "href" not in drawn["cpu.svg"][1], "complete in itself"


def test_a_bar_beyond_all_others_is_cut_and_says_so() -> None:
    from bars import Bar, bar_plot

    drawn = bar_plot("cost", "us", [Bar("one", 20, 19, 21), Bar("other", 843, 800, 900)])
    assert drawn.count("(cut)") == 1 and ">843 (cut)<" in drawn


def test_a_delay_of_nothing_has_a_place_on_a_logarithmic_scale() -> None:
    from bars import Bar, bar_plot

    assert ">-0.01<" in bar_plot("delay", "ms", [Bar("one", -0.01, -0.02, 0.3), Bar("other", 5, 4, 6)], is_log=True)


# Names.


def test_an_unknown_target_is_told_with_those_that_are_known() -> None:
    from targets import resolve

    with pytest.raises(ValueError, match="no target 'ngnix': nginx, longwire, relay, haproxy, envoy"):
        resolve(["ngnix"])


def test_a_peer_that_could_not_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers
    from targets import resolve

    monkeypatch.setattr(peers, "PEERS", tmp_path)
    assert "peer_install.py envoy" in resolve(["envoy"])[1][0]
    (tmp_path / "envoy.why").write_text("no wheel for this machine\n")
    assert resolve(["envoy"]) == ([], ["no wheel for this machine"])


def test_a_peer_sees_nothing_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers
    from targets import resolve

    monkeypatch.setattr(peers, "PEERS", tmp_path)
    for peer in peers.ALL.values():
        if peer.requirement:
            peer.environment.mkdir()
            peer.stamp.write_text(peer.requirement)
            (target,), _ = resolve([peer.name])
            argv = target.command(8080, "http://127.0.0.1:9000", tmp_path)
            assert argv[:3] == ["env", "-u", "PYTHONPATH"]
            assert target.version == peer.requirement.partition("==")[2]


def test_what_is_kept_names_no_folder_of_this_machine() -> None:
    from side_by_side import without_places

    assert without_places(f"\x1b[31m{ROOT}/benchmarks/x.py: {Path.home()}/y\x1b[0m\n") == "benchmarks/x.py: ~/y"
