"""Which upstream serves which model."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from longwire.engines.breaker import BreakerState
from longwire.engines.directory import MAX_NAMES_IN_ERROR, MAX_PROBLEMS_TOLD, MAX_TURNS, Directory
from longwire.engines.load import Load
from longwire.engines.pool import Upstream
from longwire.words.clock import VirtualClock
from longwire.words.errors import NoEngine, UnknownModel
from longwire.words.settings import EngineSettings, ModelSettings, Settings


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


# Several for one model.


def up(name: str, **engine: Any) -> Upstream:
    """One that is up, with a model m unless it says otherwise."""
    given = {"name": name, "url": f"http://{name}:1", "models": ["m"], **engine}
    upstream = Upstream(EngineSettings(**given), Settings(), VirtualClock())
    upstream.is_up, upstream.problem = True, ""
    return upstream


class OwnBreaker:
    """Stands in for a breaker that does what a test says."""

    def __init__(self, state: BreakerState) -> None:
        self.state, self.why = state, "5 faults within 30 s: it was reset."

    def may_try(self, now: float) -> bool:
        return False


def resting(name: str, state: BreakerState = BreakerState.OPEN, **engine: Any) -> Upstream:
    upstream = up(name, **engine)
    upstream.breaker = OwnBreaker(state)  # type: ignore[assignment]
    return upstream


def names_of(directory: Directory, model: str = "m", count: int = 20, key: bytes = b"") -> set[str]:
    return {directory.choose(model, key=key).name for _ in range(count)}


def test_weights_are_shares() -> None:
    directory = Directory([up("a", weight=90), up("b", weight=10)])
    assert Counter(directory.choose("m").name for _ in range(100)) == {"a": 90, "b": 10}


def test_one_without_weight_is_chosen_where_no_other_is_left() -> None:
    standby = up("standby", weight=0)
    main = up("main")
    directory = Directory([standby, main])
    assert names_of(directory) == {"main"}
    main.is_up = False
    assert names_of(directory) == {"standby"}
    assert names_of(Directory([standby, resting("main")])) == {"standby"}


def test_the_fewest_requests_under_way_decide() -> None:
    busy, idle = up("busy"), up("idle")
    busy.in_flight = 5
    assert names_of(Directory([busy, idle])) == {"idle"}


def test_the_policy_is_the_models_where_it_has_one() -> None:
    models = [ModelSettings(name="m*", balance="round_robin"), ModelSettings(name="x")]
    settings = Settings(balance="least_in_flight", models=models)
    busy, idle = up("busy", models=["m1", "x"]), up("idle", models=["m1", "x"])
    busy.in_flight = 5
    directory = Directory([busy, idle], settings)
    assert names_of(directory, "m1") == {"busy", "idle"}
    assert names_of(directory, "x") == {"idle"}


def test_conversations_keep_their_upstream() -> None:
    directory = Directory([up(name) for name in "abcd"], Settings(balance="prefix"))
    homes = {index: names_of(directory, count=5, key=index.to_bytes(4)) for index in range(40)}
    assert all(len(home) == 1 for home in homes.values())
    assert set.union(*homes.values()) == set("abcd")
    assert len(names_of(directory)) == 4, "without a key there is no home"


def test_two_at_random_are_taken_with_the_given_dice() -> None:
    def drawn() -> list[str]:
        directory = Directory([up(name) for name in "abcd"], Settings(balance="power_of_two"), random.Random(3))
        return [directory.choose("m").name for _ in range(12)]

    assert drawn() == drawn() and len(set(drawn())) > 2


def test_what_an_engine_said_of_its_load_counts_until_it_is_old() -> None:
    clock = VirtualClock()
    full, empty = (
        Upstream(EngineSettings(name=name, url="http://h:1", models=["m"]), Settings(), clock)
        for name in ("full", "empty")
    )
    full.is_up = empty.is_up = True
    full.load = Load(0.9, None, None, None, None, clock.now())
    empty.load = Load(0.1, None, None, None, None, clock.now())
    empty.in_flight = 3
    directory = Directory([full, empty], Settings(balance="least_kv", load_stale_s=10))
    assert names_of(directory) == {"empty"}
    clock.advance(10)
    assert names_of(directory) == {"full"}, "the fewest requests, as where nothing is known"


def test_models_take_their_turns_by_themselves_and_only_so_many_are_remembered() -> None:
    directory = Directory([up("a", models=[]), up("b", models=[])])
    first = {directory.choose(model).name for model in ("m", "n")}
    assert len(first) == 1
    for index in range(3 * MAX_TURNS):
        directory.choose(f"made-up-{index}")
    assert directory.statistics()["turns"] <= MAX_TURNS


# Breakers.


def test_one_that_rests_is_left_alone_while_another_serves() -> None:
    assert names_of(Directory([resting("a"), up("b")])) == {"b"}


def test_where_all_rest_the_least_bad_is_asked_all_the_same() -> None:
    busy, calm = resting("busy"), resting("calm")
    busy.in_flight = 4
    assert names_of(Directory([busy, calm])) == {"calm"}
    trial = resting("trial", BreakerState.HALF_OPEN)
    trial.in_flight = 9
    assert names_of(Directory([busy, calm, trial])) == {"trial"}, "it may be well already"
    assert names_of(Directory([busy, resting("standby", weight=0)])) == {"busy"}


def test_one_that_rests_is_better_than_one_that_is_down() -> None:
    down = up("down")
    down.is_up = False
    assert names_of(Directory([down, resting("rests")])) == {"rests"}


# Another one.


def test_another_is_one_that_was_not_tried_is_up_and_trusted() -> None:
    down = up("down")
    down.is_up = False
    directory = Directory([up("a"), up("b"), down, resting("rests"), up("else", models=["n"]), up("zero", weight=0)])
    other = directory.choose_other("m", ["a"])
    assert other is not None and other.name == "b"
    last = directory.choose_other("m", ["a", "b"])
    assert last is not None and last.name == "zero", "only where no other is left"
    assert directory.choose_other("m", {"a", "b", "zero"}) is None, "never one that rests or is down"
    assert directory.choose_other("unheard-of", []) is None


def test_an_answer_is_gone_on_with_by_engines_that_can() -> None:
    directory = Directory([up("a", kind="vllm"), up("b"), up("c", kind="tgi"), up("d", kind="llamacpp")])
    other = directory.choose_other("m", ["a"], continues=True)
    assert other is not None and other.name == "d"
    assert directory.choose_other("m", ["a", "d"], continues=True) is None


def test_an_answer_is_not_gone_on_with_by_another_model_of_the_same_alias() -> None:
    old = up("old", kind="vllm", models=["v1"], aliases=["chat=v1"])
    new = up("new", kind="vllm", models=["v2"], aliases=["chat=v2"])
    twin = up("twin", kind="vllm", models=["v1"], aliases=["chat=v1"])
    assert Directory([old, new]).choose_other("chat", ["old"], continues=True) is None
    other = Directory([old, new]).choose_other("chat", ["old"])
    assert other is new, "before the first content it is as good as any"
    directory = Directory([old, new, twin])
    assert directory.choose_other("chat", ["old"], continues=True) is twin
    assert directory.choose_other("chat", [], continues=True, wish="old") is old
    old.is_up = False
    assert directory.choose_other("chat", [], continues=True, wish="old") is twin, (
        "nor where it may be the same once more"
    )
    assert Directory([old, new]).choose_other("chat", [], continues=True, wish="old") is None
    old.is_up = True
    old.in_flight = 1
    directory.retire(old)
    assert directory.choose_other("chat", ["old"], continues=True) is twin, "also when it has gone meanwhile"
    old.in_flight = 0
    directory.purge_nowait()
    assert directory.choose_other("chat", ["old"], continues=True) is None, "nobody knows any more which was meant"
    directory.retire(new)
    assert directory.choose_other("chat", ["old"], continues=True) is twin, "there is but one that it can have been"


def test_an_engine_can_go_on_with_its_own_answer_where_nothing_speaks_against_it() -> None:
    well, rests, other, down = (
        up("well", kind="vllm"),
        resting("rests", kind="vllm"),
        up("other"),
        up("down", kind="vllm"),
    )
    down.is_up = False
    directory = Directory([well, rests, other, down])
    for wish in ("well", "rests", "other", "down"):
        assert directory.choose_other("m", (), continues=True, wish=wish) is well


def test_a_conversation_is_sent_to_the_next_in_its_order() -> None:
    directory = Directory([up(name) for name in "abc"], Settings(balance="prefix"))
    home = directory.choose("m", key=b"k")
    others = {other.name for _ in range(5) if (other := directory.choose_other("m", [home.name], key=b"k"))}
    assert len(others) == 1 and home.name not in others


# Aliases.


def test_an_alias_is_offered_where_its_model_is_there() -> None:
    directory = Directory([up("a", models=["llama", "qwen"], aliases=["chat=llama", "gone=old"])])
    assert directory.models(lambda _: True) == [("chat", "a"), ("llama", "a"), ("qwen", "a")]
    upstream = directory.choose("chat")
    assert (upstream.own_name("chat"), upstream.own_name("qwen")) == ("llama", "qwen")
    with pytest.raises(UnknownModel, match="chat, llama, qwen"):
        directory.choose("gone")


def test_a_canary_is_one_alias_for_two_models_by_weight() -> None:
    old = up("old", models=["v1"], aliases=["chat=v1"], weight=95)
    new = up("new", models=["v2"], aliases=["chat=v2"], weight=5)
    directory = Directory([old, new])
    told = Counter(directory.choose("chat").own_name("chat") for _ in range(200))
    assert told == {"v1": 190, "v2": 10}
    assert directory.models(lambda model: model == "chat") == [("chat", "old")]


def test_an_alias_follows_what_the_engine_lists() -> None:
    upstream = up("a", models=[], aliases=["chat=llama"])
    assert upstream.serves("chat") and upstream.own_name("chat") == "llama", "it lists nothing: it may have it"
    upstream.models = ("qwen", "chat")
    assert upstream.serves("chat") and upstream.own_name("chat") == "chat", "by its own name, then"
    upstream.models = ("qwen",)
    assert not upstream.serves("chat") and upstream.offered == ("qwen",)


# Telling.


def test_what_is_wrong_is_told_without_addresses_and_not_of_all() -> None:
    directory = make(*((f"e{n}", ["m"], False) for n in range(9)))
    assert directory.problems().count("it answered 503") == MAX_PROBLEMS_TOLD
    assert "5 faults within 30 s" in Directory([resting("a")]).problems()
    assert Directory([]).problems() == "there is none"
