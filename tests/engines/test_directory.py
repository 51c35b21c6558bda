"""Which upstream serves which model."""

from __future__ import annotations

from collections import Counter

import pytest

from longwire.engines.directory import MAX_NAMES_IN_ERROR, Directory
from longwire.engines.pool import Upstream
from longwire.words.clock import VirtualClock
from longwire.words.errors import NoEngine, UnknownModel
from longwire.words.settings import EngineSettings, Settings


def make(*engines: tuple[str, list[str], bool]) -> Directory:
    """``(name, models, is_up)`` of each."""
    made = []
    for name, models, is_up in engines:
        upstream = Upstream(
            EngineSettings(name=name, url="http://127.0.0.1:1", models=models), Settings(), VirtualClock()
        )
        upstream.is_up, upstream.problem = is_up, "" if is_up else "it answered 503"
        made.append(upstream)
    return Directory(made)


def test_the_model_chooses_and_those_that_list_it_take_turns() -> None:
    directory = make(("a", ["m"], True), ("b", ["m", "n"], True), ("c", ["o"], True))
    assert Counter(directory.choose("m").name for _ in range(10)) == {"a": 5, "b": 5}
    assert {directory.choose("n").name for _ in range(3)} == {"b"}


def test_one_that_lists_no_models_takes_any() -> None:
    directory = make(("a", ["m"], True), ("any", [], True))
    assert directory.choose("unheard-of").name == "any"
    assert {directory.choose("m").name for _ in range(4)} == {"a", "any"}


def test_a_request_without_a_model_goes_to_any_that_is_up() -> None:
    directory = make(("a", ["m"], False), ("b", ["n"], True))
    assert directory.choose("").name == "b"


def test_one_that_is_down_is_asked_only_where_no_other_serves() -> None:
    directory = make(("a", ["m"], False), ("b", ["m"], True), ("c", ["n"], False))
    assert {directory.choose("m").name for _ in range(4)} == {"b"}
    assert directory.choose("n").name == "c", "it may be back"


def test_an_unknown_model_is_told_which_there_are() -> None:
    with pytest.raises(UnknownModel, match=r"'x'.*There are: m, n\.") as caught:
        make(("a", ["m"], True), ("b", ["n", "m"], True)).choose("x")
    assert (caught.value.status, caught.value.param) == (404, "model")
    many = [f"m{index}" for index in range(50)]
    with pytest.raises(UnknownModel) as caught:
        make(("a", many, True)).choose("x" * 5000)
    assert caught.value.message.endswith(", ….") and f"m{MAX_NAMES_IN_ERROR}," not in caught.value.message
    assert len(caught.value.message) < 1000


def test_names_that_the_asker_may_not_use_are_not_told() -> None:
    directory = make(("a", ["public", "secret"], True))
    with pytest.raises(UnknownModel) as caught:
        directory.choose("x", lambda model: model == "public")
    assert "public" in caught.value.message and "secret" not in caught.value.message


def test_before_any_has_been_up_it_is_said_what_is_wrong() -> None:
    with pytest.raises(NoEngine, match="a: it answered 503") as caught:
        make(("a", [], False), ("b", [], False)).choose("m")
    assert caught.value.status == 503 and caught.value.retry_after_s


def test_where_there_is_nothing_at_all() -> None:
    with pytest.raises(NoEngine):
        Directory([]).choose("m")


def test_models_are_merged_and_filtered() -> None:
    directory = make(("a", ["m", "n"], True), ("b", ["n", "o"], False))
    assert directory.models(lambda _: True) == [("m", "a"), ("n", "a"), ("o", "b")]
    assert directory.models(lambda model: model == "o") == [("o", "b")]
    assert "a" in repr(directory)
