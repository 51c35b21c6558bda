"""Choosing one of several: weights hold in the long run, load counts per weight, and a slow one changes no other choice."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longwire.engines.policy import (
    FEW_IN_FLIGHT,
    KV_BAND,
    MOST_OF_MEAN,
    POLICIES,
    Candidate,
    Occasion,
    least_in_flight,
    least_kv,
    power_of_two,
    prefix,
    round_robin,
    take_turn,
)

weights = st.lists(st.integers(1, 100), min_size=1, max_size=6)
loads = st.lists(st.integers(0, 50), min_size=2, max_size=6)


def several(
    weights_of: Iterable[int], in_flight: Iterable[int] = (), kv: Iterable[float | None] = ()
) -> list[Candidate]:
    """Candidates a, b, c, ... of these weights."""
    flights, uses = iter(in_flight), iter(kv)
    return [
        Candidate(chr(97 + index), weight, next(flights, 0), next(uses, None))
        for index, weight in enumerate(weights_of)
    ]


def occasion(key: bytes = b"", owed: dict[str, float] | None = None, seed: int = 1) -> Occasion:
    return Occasion(owed or {}, random.Random(seed), key)


def play(policy: str, weights_of: list[int], requests: int, under_way: int) -> Counter[str]:
    """How often each is chosen when always so many requests are under way, the oldest of which ends first."""
    owed: dict[str, float] = {}
    dice = random.Random(7)
    running: deque[str] = deque()
    chosen: Counter[str] = Counter()
    for _ in range(requests):
        flights = Counter(running)
        candidates = several(weights_of, [flights[chr(97 + index)] for index in range(len(weights_of))])
        name = POLICIES[policy](candidates, Occasion(owed, dice)).name
        owed = take_turn(candidates, owed)
        chosen[name] += 1
        running.append(name)
        if len(running) > under_way:
            running.popleft()
    return chosen


# Weights.


@given(weights, st.integers(1, 400))
def test_taking_turns_gives_each_its_share_at_any_moment(of: list[int], requests: int) -> None:
    chosen = play("round_robin", of, requests, 0)
    for index, weight in enumerate(of):
        assert abs(chosen[chr(97 + index)] - requests * weight / sum(of)) < len(of)


@given(weights, st.integers(1, 300))
def test_debts_stay_below_a_request_for_each(of: list[int], requests: int) -> None:
    owed: dict[str, float] = {}
    candidates = several(of)
    for _ in range(requests):
        owed = take_turn(candidates, owed)
    assert all(abs(debt) < len(of) for debt in owed.values()) and abs(sum(owed.values())) < 1e-6


@pytest.mark.parametrize("policy", ["round_robin", "least_in_flight", "power_of_two", "least_kv", "prefix"])
@pytest.mark.parametrize("under_way", [0, 1, 10, 50, 400])
def test_a_canary_gets_its_share_whether_little_or_much_is_under_way(policy: str, under_way: int) -> None:
    chosen = play(policy, [95, 5], 4000, under_way)
    assert 0.03 <= chosen["b"] / 4000 <= 0.07


@pytest.mark.parametrize("policy", ["least_in_flight", "power_of_two"])
def test_weights_hold_among_several(policy: str) -> None:
    chosen = play(policy, [50, 30, 20], 3000, 30)
    for name, share in zip("abc", (0.5, 0.3, 0.2), strict=True):
        assert abs(chosen[name] / 3000 - share) < 0.04


def test_those_without_a_weight_are_equal_where_there_is_nobody_else() -> None:
    assert play("round_robin", [0, 0], 10, 0) == {"a": 5, "b": 5}


def test_one_that_was_away_does_not_come_back_to_a_flood() -> None:
    owed: dict[str, float] = {}
    for _ in range(100):
        owed = take_turn(several([1, 1])[:1], owed)
    assert set(owed) == {"a"} and abs(owed["a"]) < 1e-9
    names = []
    for _ in range(4):
        names.append(round_robin(several([1, 1]), occasion(owed=owed)).name)
        owed = take_turn(several([1, 1]), owed)
    assert sorted(names) == ["a", "a", "b", "b"]


# Load.


@given(loads)
def test_the_one_with_the_fewest_is_taken_where_weights_are_equal(in_flight: list[int]) -> None:
    chosen = least_in_flight(several([100] * len(in_flight), in_flight), occasion())
    assert chosen.in_flight == min(in_flight)


@given(loads, st.data())
def test_no_other_would_have_less_to_do_with_this_request_than_the_chosen_without(
    in_flight: list[int], data: st.DataObject
) -> None:
    of = data.draw(st.lists(st.integers(1, 100), min_size=len(in_flight), max_size=len(in_flight)))
    candidates = several(of, in_flight)
    chosen = least_in_flight(candidates, occasion())
    for other in candidates:
        if other is not chosen:
            assert (other.in_flight + 1) / other.weight > chosen.in_flight / chosen.weight or (
                (other.in_flight + 1) / other.weight >= (chosen.in_flight + 1) / chosen.weight
            )


@given(loads, st.integers(0, 1000))
def test_two_at_random_never_take_the_worst(in_flight: list[int], seed: int) -> None:
    assume(in_flight.count(max(in_flight)) == 1)
    chosen = power_of_two(several([100] * len(in_flight), in_flight), occasion(seed=seed))
    assert chosen.in_flight < max(in_flight)


def test_two_at_random_are_the_same_two_for_the_same_dice() -> None:
    candidates = several([1, 1, 1, 1])
    first, second = ([power_of_two(candidates, occasion(seed=3)).name for _ in range(20)] for _ in range(2))
    assert first == second
    dice = random.Random(3)
    assert {power_of_two(candidates, Occasion({}, dice)).name for _ in range(60)} == set("abcd")


@given(loads, st.integers(60, 10_000))
def test_a_slow_one_changes_nobody_elses_choice(in_flight: list[int], stuck: int) -> None:
    """Whatever hangs there, the others are chosen as if it were not, but for its own turns."""
    others = several([100] * len(in_flight), in_flight)
    slow = Candidate("slow", 100, stuck)
    for name in ("least_in_flight", "least_kv"):
        without = POLICIES[name](others, occasion())
        beside = POLICIES[name]([*others, slow], occasion())
        assert beside.in_flight == without.in_flight and beside is not slow
    dice = random.Random(5)
    assert all(power_of_two([*others, slow], Occasion({}, dice)) is not slow for _ in range(50))


# The KV cache.


def test_the_least_kv_cache_is_taken_and_near_ones_are_equal() -> None:
    assert least_kv(several([1, 1, 1], [0, 0, 9], [0.9, 0.5, 0.1]), occasion()).name == "c"
    near = several([1, 1], [5, 1], [0.10, 0.10 + KV_BAND / 2])
    assert least_kv(near, occasion()).name == "b", "of equals the one with less under way"


def test_one_that_says_nothing_is_neither_shunned_nor_flooded() -> None:
    assert least_kv(several([1, 1, 1], [3, 2, 3]), occasion()).name == "b", "nothing is known: the fewest requests"
    assert least_kv(several([1, 1], [3, 2], [0.0, None]), occasion()).name == "b"
    assert least_kv(several([1, 1], [2, 3], [0.9, None]), occasion()).name == "a"
    assert least_kv(several([1, 1, 1], [2, 3, 9], [0.9, None, 0.1]), occasion()).name == "c"


# Conversations.

keys = st.binary(min_size=1, max_size=32)


@given(keys, weights)
def test_the_same_beginning_finds_the_same_upstream_in_any_order(key: bytes, of: list[int]) -> None:
    candidates = several(of)
    chosen = prefix(candidates, occasion(key))
    assert prefix(candidates[::-1], occasion(key, owed={"a": 3.0}, seed=9)) == chosen


@given(keys, weights)
def test_when_one_goes_only_its_own_conversations_move(key: bytes, of: list[int]) -> None:
    candidates = several(of)
    chosen = prefix(candidates, occasion(key))
    for gone in candidates:
        rest = [each for each in candidates if each is not gone]
        if rest and gone is not chosen:
            assert prefix(rest, occasion(key)) == chosen


def test_conversations_are_spread_by_weight() -> None:
    candidates = several([60, 30, 10])
    chosen = Counter(prefix(candidates, occasion(index.to_bytes(4))).name for index in range(6000))
    for name, share in zip("abc", (0.6, 0.3, 0.1), strict=True):
        assert abs(chosen[name] / 6000 - share) < 0.03


@given(keys, st.lists(st.integers(0, 300), min_size=2, max_size=6))
def test_one_with_too_much_to_do_is_passed_over(key: bytes, in_flight: list[int]) -> None:
    chosen = prefix(several([100] * len(in_flight), in_flight), occasion(key))
    assert chosen.in_flight <= MOST_OF_MEAN * sum(in_flight) / len(in_flight) + FEW_IN_FLIGHT


def test_passed_over_it_has_its_conversations_back_when_it_has_room() -> None:
    key = b"conversation"
    idle = several([100] * 4)
    home = prefix(idle, occasion(key))
    busy = [Candidate(each.name, 100, 50 if each is home else 1) for each in idle]
    second = prefix(busy, occasion(key))
    assert second.name != home.name
    without = prefix([each for each in idle if each is not home], occasion(key))
    assert second.name == without.name, "the next in its order, always the same"
    assert prefix(idle, occasion(key)) == home


def test_without_a_beginning_the_fewest_requests_decide() -> None:
    assert prefix(several([1, 1], [4, 2]), occasion()).name == "b"


@given(weights, st.binary(max_size=8), st.integers(0, 99))
def test_every_policy_takes_one_of_those_there_are(of: list[int], key: bytes, seed: int) -> None:
    for policy in POLICIES.values():
        candidates = several(of, [3, 1, 2], [0.5, None, 0.1])
        assert policy(candidates, occasion(key, seed=seed)) in candidates
