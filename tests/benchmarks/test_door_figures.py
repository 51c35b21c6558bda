"""Doors compared: nginx's configuration, what is read of a bench's result, and the rows of the page. Nothing is started."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WELL = {
    "ttft.p50_ms": 52.0,
    "ttft.p99_ms": 60.0,
    "itl.p50_ms": 50.0,
    "itl.p99_ms": 55.0,
    "ir.gaps": 0,
    "ir.share": 0,
    "failures.share": 0,
    "load.complete": 40,
    "order.verified": 40,
    "order.violations": 0,
    "order.duplicates": 0,
    "order.lost": 0,
    "order.wrong": 0,
    "resume.cuts": 0,
    "resume.resumed": 0,
    "resume.time.p50_ms": None,
    "resume.time.p99_ms": None,
}
CUT = {"resume.cuts": 8, "resume.resumed": 6, "resume.time.p50_ms": 20.0, "resume.time.p99_ms": 45.0}


@pytest.fixture(autouse=True)
def scripts_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when one of them is run: their own folder comes first."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def told(problems: tuple[str, ...] = (), **changed: float | None) -> dict[str, Any]:
    """What `longwire bench --json` wrote, as far as it is read; ``a__b`` stands for the path ``a.b``."""
    values = WELL | {name.replace("__", "."): value for name, value in changed.items()}
    return {"problems": list(problems), "metrics": {path: {"value": value} for path, value in values.items()}}


def cut() -> dict[str, Any]:
    return told(**{path.replace(".", "__"): value for path, value in CUT.items()})


def row(door: str, name: str) -> str:
    from door_figures import WAYS, row_of

    return next(row_of(door, way) for way in WAYS if way.name == name)


# nginx.


def test_as_shipped_sets_nothing_but_where_to() -> None:
    from nginx import AS_SHIPPED, configuration

    lines = configuration(8100, "http://127.0.0.1:8080", Path("x"), AS_SHIPPED).splitlines()
    start = next(at for at, line in enumerate(lines) if "location / {" in line)
    assert [line.strip() for line in lines[start + 1 : lines.index("        }", start)]] == [
        "proxy_pass http://127.0.0.1:8080;"
    ]
    assert "        listen 127.0.0.1:8100 backlog=4096;" in lines


def test_buffering_off_is_one_line_more() -> None:
    from nginx import AS_SHIPPED, UNBUFFERED, configuration

    shipped, off = (
        configuration(8100, "http://127.0.0.1:8080", Path("x"), server).splitlines()
        for server in (AS_SHIPPED, UNBUFFERED)
    )
    off.remove("            proxy_buffering off;")
    assert off == shipped


def test_the_yardstick_is_what_it_was(tmp_path: Path) -> None:
    """All other works' figures are those of this one."""
    from nginx import command

    argv = command("nginx", 8100, "http://127.0.0.1:8080", tmp_path)
    assert argv == ["nginx", "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path), "-e", "stderr"]
    written = (tmp_path / "nginx.conf").read_text()
    assert "upstream engine { server 127.0.0.1:8080; keepalive 1024; }" in written
    for words in ("proxy_http_version 1.1;", 'proxy_set_header Connection "";', "proxy_buffering off;"):
        assert words in written


def test_braces_are_those_of_nginx() -> None:
    from nginx import AS_SHIPPED, TUNED, UNBUFFERED, configuration

    for server in (TUNED, AS_SHIPPED, UNBUFFERED):
        written = configuration(8100, "http://127.0.0.1:8080", Path("x"), server, is_root=True)
        assert written.count("{") == written.count("}") and "{{" not in written
        assert "user root;\nworker_processes 1;" in written


# Figures.


def test_each_figure_that_is_read_is_one_of_the_bench() -> None:
    from door_figures import _CUT, _ORDER, _QUIET

    from longwire.bench.declarations import PATHS

    assert {*_QUIET.values(), *_CUT.values(), *_ORDER.values(), "resume.resumed"} <= set(PATHS)


def test_waits_are_those_of_the_window_without_cuts() -> None:
    from door_figures import figures_of

    found = figures_of(told(ttft__p99_ms=60.0), cut() | {"problems": []})
    assert (found["ttft_p99_ms"], found["itl_p50_ms"], found["answers"]) == (60.0, 50.0, 40.0)
    assert (found["cuts"], found["resumed_share"], found["resume_p99_ms"]) == (8.0, 0.75, 45.0)
    assert found["verified"] == 80.0, "both windows' answers were checked"


def test_a_figure_that_does_not_exist_is_not_there() -> None:
    """JSON's null, or a path that an older bench has not got; never a zero."""
    from door_figures import figures_of

    file = told(ttft__p50_ms=None)
    del file["metrics"]["itl.p99_ms"]
    found = figures_of(file, told(resume__uncut=8))
    assert {"ttft_p50_ms", "itl_p99_ms", "resumed_share", "resume_p50_ms"}.isdisjoint(found)
    assert found["cuts"] == 0.0


def test_what_is_wrong_with_an_answer_makes_a_run_invalid() -> None:
    from door_figures import problems

    assert list(problems(told())) == []
    for name in ("violations", "duplicates", "lost", "wrong"):
        assert len(list(problems(told(**{f"order__{name}": 1})))) == 1
    assert list(problems(told(problems=("Repeat 1: it stood still.",)))) == ["Repeat 1: it stood still."]
    assert list(problems(told(order__verified=0))) == ["no answer was verified"]


def test_longwire_that_cannot_be_resumed_is_no_longwire() -> None:
    from door_figures import problems

    assert list(problems(cut(), must_cut=True)) == []
    assert "could be cut" in next(iter(problems(told(), must_cut=True)))


def test_goals_are_of_all_runs_and_not_of_their_median() -> None:
    from door_figures import figures_of, goals

    well, ill = figures_of(told(), cut()), figures_of(told(order__lost=2, order__violations=1), cut())
    order, whole = goals([{"sse: longwire": well}, {"sse: longwire": well}, {"sse: longwire": ill | {"invalid": 1.0}}])
    assert (order.value, order.met) == (1.0, False)
    assert (whole.value, whole.met) == (2.0, False)
    assert "240 verified answers" in whole.note
    assert all(goal.met for goal in goals([{"sse: longwire": well}]))
    assert all(goal.value is None for goal in goals([{}]))


# What is asked of the client.


def arguments(door: str, name: str) -> list[str]:
    from door_figures import WAYS
    from doors import Run

    options = argparse.Namespace(streams=100, tokens=64, rate=20.0, seconds=10.0, cuts=20.0)
    way = next(way for way in WAYS if way.name == name)
    return Run(door, way, options, seed=3).arguments()


def test_every_way_has_the_same_work_and_is_verified() -> None:
    straight = arguments("chunked", "longwire")
    assert straight == arguments("chunked", "longwire behind nginx as shipped") and "--verify" in straight
    assert json.loads(straight[straight.index("--body") + 1]) == {"sim": {"tokens": 64, "seed": 3, "stamp": True}}
    assert straight[straight.index("--warm-up-s") + 1] == "3.2", "one life of an answer"


# The page.


def section(rounds: list[dict[str, dict[str, float]]], missing: dict[str, str] | None = None) -> list[str]:
    from results import page

    kept = {
        "measured": "2026-01-01 12:00 UTC",
        "took_s": 100.0,
        "command": "benchmarks/doors.py",
        "failure": "",
        "missing": missing or {},
        "versions": {name: "1" for name in ("longwire", "nginx") if name not in (missing or {})},
        "told": {"rounds": rounds, "goals": [], "remarks": []},
    }
    return page({"doors": kept}).splitlines()


def test_the_page_has_a_row_for_each_door_and_way() -> None:
    from door_figures import WAYS, figures_of, row_of

    ours, floor = figures_of(told(), cut()), figures_of(told(ttft__p50_ms=900.0), told())
    lines = section([
        {row_of(door, way): ours if way.has_longwire else floor for door in ("sse", "chunked") for way in WAYS}
    ])  # fmt: skip
    for door in ("sse", "chunked"):
        assert f"| {door} | longwire | 52 | 60 | 50 | 55 | 0 | 0 | 0 |" in lines
        assert f"| {door} | longwire | 8 | 0.750 | 20 | 45 | 80 |" in lines
        assert f"| {door} | engine behind nginx as shipped | 900 | 60 | 50 | 55 | 0 | 0 | 0 |" in lines
        assert f"| {door} | engine behind nginx as shipped | 0 | not offered | - | - | 80 |" in lines


def test_rows_without_nginx_say_why() -> None:
    from door_figures import figures_of

    lines = section([{row("sse", "longwire"): figures_of(told(), cut())}], {"nginx": "apt-get could not install it"})
    behind = [line for line in lines if line.startswith("| sse |") and "behind nginx" in line]
    assert len(behind) == 8, "four ways in two tables"
    assert all("| apt-get could not install it |" in line for line in behind)


def test_a_row_that_failed_or_is_not_valid_is_told_from_one_that_is() -> None:
    from door_figures import figures_of

    ill = figures_of(told(order__lost=1), cut()) | {"invalid": 1.0}
    lines = section([{row("sse", "longwire"): ill}])
    assert any(line.startswith("| sse | longwire † |") for line in lines)
    assert "| sse | engine behind nginx as shipped | gave no figures: see below |  |  |  |  |  |  |" in lines


def test_on_the_terminal_too_a_row_says_that_nothing_can_be_resumed() -> None:
    from door_figures import RECOVERY, absent, figures_of
    from work import table

    shown = table(
        [{"sse: longwire": figures_of(told(), cut()), "sse: engine": figures_of(told(), told())}], RECOVERY, absent
    )
    ours, floor = (line.split() for line in shown.splitlines()[1:])
    assert ours[2:] == ["8", "0.750", "20.0", "45.0", "80"]
    assert " ".join(floor[2:]) == "0 not offered - - 80"


def test_the_part_follows_the_soak_and_is_listed() -> None:
    from parts import KEYS
    from side_by_side import EPILOG

    assert KEYS[KEYS.index("f") + 1] == "doors"
    assert all(f" {key}  " in EPILOG for key in KEYS)
