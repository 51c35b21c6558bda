"""An index whose beginning is not known yet behaves as an array whose beginning is zeros."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from longwire.streams.late import LateEntries


@given(
    count=st.integers(0, 20), added=st.lists(st.integers(1, 1 << 40), max_size=10), firsts=st.lists(st.integers(0, 25))
)
def test_it_reads_as_an_array_would(count: int, added: list[int], firsts: list[int]) -> None:
    truth = array("Q", range(100, 100 + count))
    late, model = LateEntries(count), array("Q", bytes(8 * count))
    for entry in added:
        late.append(entry)
        model.append(entry)
    late.frombytes(array("Q", [7]).tobytes())
    model.append(7)
    late[len(late) - 1] = model[-1] = 8
    for first in firsts:
        late.learn(first, truth[first:])
        model[first:count] = truth[first:]
        assert list(late) == list(model) and len(late) == len(model) and bool(late)
    assert late.completed(truth) == truth + model[count:]


def test_what_is_not_known_takes_no_memory() -> None:
    late = LateEntries(1 << 40)
    late.append(1)
    assert len(late) == (1 << 40) + 1 and late[1 << 40] == 1 and not late[0]
    assert "known from" in repr(late)
