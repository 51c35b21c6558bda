"""docs/sim.md has every field of a request, every flag and every fault, and its examples work."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.architecture.source import ROOT
from tests.sim.playing import encode_request, play

from longwire.sim.ask import ONLY_IN_REQUESTS, Overrides, named_faults, read_overrides
from longwire.sim.faults import FAULTS, choose
from longwire.sim.reference import BLOCKS, COMMAND, EXAMPLES, PAGE, render
from longwire.sim.server import SimServer
from longwire.words.config import declared
from longwire.words.settings import SimSettings

PAGE_PATH = ROOT / "docs" / PAGE
NONE: dict[str, object] = {}


def test_the_page_is_up_to_date() -> None:
    page = PAGE_PATH.read_text("utf-8")
    assert all(page.count(f"<!-- rendered: {name} -->") == 1 for name in BLOCKS)
    assert render(page) == page, f"run: {COMMAND}"


def test_every_field_that_is_read_is_on_the_page_and_means_what_its_flag_does() -> None:
    assert set(EXAMPLES) == {each.name for each in fields(Overrides)} | {"fault"}
    assert set(EXAMPLES) - set(ONLY_IN_REQUESTS) == set(EXAMPLES) & set(declared(SimSettings)) - {"fault"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_taken_and_changes_something(server: SimServer, name: str) -> None:
    body = {"sim": {name: EXAMPLES[name]}}
    settings = SimSettings()
    assert (read_overrides(body, settings), named_faults(body)) != (read_overrides(NONE, settings), [])
    assert play(server, encode_request({**body, "messages": []})).head.status == 200


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "stamp"])
def test_a_value_of_no_use_is_refused_by_its_name(server: SimServer, name: str) -> None:
    played = play(server, encode_request({"sim": {name: {"no": "value"}}, "messages": []}))
    assert played.head.status == 400
    assert name == "fault" or played.json["error"]["param"] == name


def test_a_fault_that_needs_a_number_is_shown_with_one_that_it_takes() -> None:
    page = PAGE_PATH.read_text("utf-8")
    for name, fault in FAULTS.items():
        shown = f"{name}={max(fault.low, 3)}" if fault.default is None else name
        assert f"| `{shown}` |" in page and choose([shown])
