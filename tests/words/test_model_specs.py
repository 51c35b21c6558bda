"""Which table holds for a model: the first that fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longwire.words.model_specs import find_bad_models, find_model, fits
from longwire.words.settings import ModelSettings

TABLES = [ModelSettings(name=name) for name in ("llama-70b", "llama-*", "*")]


def test_the_first_table_that_fits_counts() -> None:
    assert find_model(TABLES, "llama-70b") is TABLES[0]
    assert find_model(TABLES, "llama-8b") is TABLES[1]
    assert find_model(TABLES, "qwen") is TABLES[2]
    assert find_model(TABLES[:2], "qwen") is None and find_model([], "") is None


def test_tables_from_the_narrow_to_the_wide_are_good() -> None:
    assert list(find_bad_models(TABLES)) == []
    assert [index for index, _, _ in find_bad_models(TABLES[::-1])] == [1, 2]


@given(st.lists(st.text("ab*", max_size=4), max_size=5), st.text("ab", min_size=1, max_size=4))
def test_in_tables_without_fault_every_one_can_be_reached(names: list[str], model: str) -> None:
    tables = [ModelSettings(name=name) for name in names]
    if not list(find_bad_models(tables)):
        for table in tables:
            assert find_model(tables, table.name) is table
    found = find_model(tables, model)
    assert found is None or fits(found.name, model)
