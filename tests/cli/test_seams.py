"""Where answers are cut, and what is said of each way in which an engine can go on."""

from __future__ import annotations

import pytest

from longwire.cli.abilities import NO, UNKNOWN, YES
from longwire.cli.seams import Seam, Whole, cut_places, join, judge_seam, judge_seams

STORY = "The keeper lit the lamp. The sea rose, and the wind tore at the door."
AT = len("The keeper lit the lamp.")
REST = STORY[AT:]


@pytest.mark.parametrize(
    ("answer", "answer_is_open", "whole_is_open", "expected"),
    [
        (REST, False, False, Seam.EXACT),
        (REST, True, True, Seam.EXACT),
        (REST + " It held", True, True, Seam.EXACT),
        (REST[:-5], True, True, Seam.EXACT),
        (REST[:-5], False, True, Seam.GOES_ON),
        (REST + " It held", False, False, Seam.GOES_ON),
        (" The sea fell, and all was well.", True, True, Seam.GOES_ON),
        (REST.lstrip(), True, True, Seam.LOST_SPACE),
        (" " + REST, True, True, Seam.DOUBLED_SPACE),
        ("\n" + REST, True, True, Seam.DOUBLED_SPACE),
        (STORY, True, True, Seam.ANEW),
        (STORY[:20] + " and wept.", False, True, Seam.ANEW),
        ("Here is a story for you.", True, True, Seam.ELSEWHERE),
        (" A gull cried.", True, True, Seam.ELSEWHERE),
        ("", False, True, Seam.SILENT),
    ],
)
def test_a_seam(answer: str, answer_is_open: bool, whole_is_open: bool, expected: Seam) -> None:
    assert judge_seam(Whole(STORY, whole_is_open), AT, answer, is_open=answer_is_open) is expected


def test_a_seam_in_a_word() -> None:
    whole = Whole("The lighthouse keeper slept.", False)
    at = len("The light")
    assert judge_seam(whole, at, "house keeper slept.", is_open=False) is Seam.EXACT
    assert judge_seam(whole, at, " house keeper slept.", is_open=False) is Seam.DOUBLED_SPACE
    assert judge_seam(whole, at, "The lighthouse keeper slept.", is_open=False) is Seam.ANEW


@pytest.mark.parametrize(
    ("seams", "repeats", "verdict", "found"),
    [
        ([Seam.EXACT] * 8, True, YES, "exact: identical in 8 of 8 cuts"),
        ([Seam.EXACT] * 5 + [Seam.GOES_ON] * 3, True, YES, "keeps the prefix, identical in 5 of 8 cuts"),
        ([Seam.EXACT] * 6 + [Seam.ELSEWHERE] * 2, True, YES, "keeps the prefix, identical in 6 of 8 cuts"),
        (
            [Seam.GOES_ON] * 8,
            False,
            YES,
            "keeps the prefix, identical in 0 of 8 cuts (uncut answers differ too)",
        ),
        ([Seam.EXACT] * 7 + [Seam.LOST_SPACE], True, NO, "white space lost in 1 of 8 cuts"),
        ([Seam.DOUBLED_SPACE] * 8, True, NO, "white space doubled in 8 of 8 cuts"),
        ([Seam.ANEW] * 8, True, NO, "begins anew: in 8 of 8 cuts word for word"),
        ([Seam.EXACT] * 7 + [Seam.ANEW], True, NO, "begins anew: in 1 of 8 cuts word for word"),
        ([Seam.EXACT] * 2 + [Seam.ELSEWHERE] * 6, None, NO, "begins anew: goes on in 2 of 8 cuts"),
        ([Seam.SILENT] * 8, True, NO, "says nothing more in 8 of 8 cuts"),
        ([], True, UNKNOWN, "no cut could be tried"),
    ],
)
def test_a_way_of_going_on(seams: list[Seam], repeats: bool | None, verdict: str, found: str) -> None:
    assert judge_seams(seams, repeats=repeats) == (verdict, found)


# Where to cut


def test_cuts_are_where_events_meet_and_before_white_space() -> None:
    pieces = ["One", " two", " \n", "three ", "fo", "ur."]
    places = cut_places(pieces, 4)
    text = "".join(pieces)
    assert [text[:at] for at in places] == ["One", "One two", "One two \nthree", "One two \nthree fo"]


@pytest.mark.parametrize("wanted", [8, 12])
def test_as_many_cuts_as_are_wanted_spread_over_the_answer(wanted: int) -> None:
    pieces = [f" word{number}" for number in range(48)]
    text = "".join(pieces)
    places = cut_places(pieces, wanted)
    assert len(places) == len(set(places)) == wanted
    assert places[0] < len(text) // wanted
    assert places[-1] > len(text) * (wanted - 1) // wanted
    assert all(text[at] == " " and text[at - 1] != " " for at in places)


def test_an_answer_in_few_events_is_cut_between_its_words() -> None:
    places = cut_places(["The sea rose, and", " the wind tore."], 4)
    assert len(places) == 4
    assert cut_places(["The"], 4) == cut_places([], 4) == cut_places([" \n "], 4) == []


def test_a_character_that_came_in_two_halves_is_never_cut() -> None:
    rocket = "\U0001f680"
    high, low = "\ud83d", "\ude80"
    assert join(["a", high, low, "b"]) == f"a{rocket}b"
    assert [join(["a", high, low, "b"])[:at] for at in cut_places(["a", high, low, "b"], 8)] == ["a", f"a{rocket}"]
    assert join([high]) == "\ufffd"
