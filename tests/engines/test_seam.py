"""Two parts of an answer that read as one, wherever it was cut."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.joining import BLOCKS, CHAT, COMPLETIONS, block_of, join, read, say
from tests.engines.letters import DONE, PROMPT, PROMPT_TOKENS, Letters, first_stop

from longwire.engines.continuation import CannotContinue
from longwire.engines.kinds import Abilities, Continues
from longwire.engines.seam import Seam, finish_event, rests_of, usage_event, without_start

FINAL = Abilities(continues=Continues.FINAL_MESSAGE, continues_reasoning=True)
PREFILL = Abilities(continues=Continues.PREFILL, continues_reasoning=True)
IDS = Abilities(continues=Continues.FINAL_MESSAGE, takes_token_ids=True)
KINDS = {
    "chat as vLLM": (CHAT, FINAL),
    "chat as llama.cpp": (CHAT, PREFILL),
    "text": (COMPLETIONS, FINAL),
    "text by ids": (COMPLETIONS, IDS),
}
CODE = 'Sure 🚀:\n\n```py\ndef f(x):\n    return "\\"\n\n\n```\n 光 👩‍🚀  END of\tit.  \n'
STOPS: list[list[str]] = [
    [],
    ["\n\n\n"],
    ["END"],
    ["```py", "zz"],
    ["  E"],
    ["\n    return"],
    ["🚀:", "🚀  "],
    ["it.  \n"],
]


def request_of(kind: str, **fields: Any) -> bytes:
    target, abilities = KINDS[kind]
    asked = {"messages": [{"role": "user", "content": PROMPT}]} if target == CHAT else {"prompt": PROMPT}
    ids = {"return_token_ids": True} if abilities.takes_token_ids else {}
    told = {"stream": True, "stream_options": {"include_usage": True}, **ids, **fields}
    return json.dumps({"model": "m", **asked, **told}).encode()


def engines(kind: str, whole: str, size: int, **more: Any) -> tuple[Letters, Letters]:
    """The one that is cut, letter by letter, and the one that goes on."""
    mode = KINDS[kind][1].continues.value
    return Letters(whole, kind=mode, **more), Letters(whole, kind=mode, size=size, name="two", **more)


def check_joined(kind: str, whole: str, stops: list[str], cut: int, size: int, include: bool) -> None:
    """Cut after ``cut`` letters by an engine that sends what may be the beginning of a stop string."""
    target, abilities = KINDS[kind]
    end = first_stop(whole, stops)
    if end is not None and cut >= end[1]:
        return
    one, two = engines(kind, whole, size)
    body = request_of(kind, stop=stops, include_stop_str_in_output=include)
    opening = target == CHAT
    log = one(request_of(kind))[: cut + opening]
    joined = join(log, body, target, abilities, two)
    seen = read(joined)
    upto = len(whole) if end is None else end[1] if include else max(cut, end[0])
    assert seen.content == whole[:upto]
    assert (seen.finishes, seen.dones) == (["stop"], 1)
    if cut:
        assert seen.ids == {"one"} and seen.roles == opening
    if seen.usages and end is None:
        total = PROMPT_TOKENS + len(whole)
        assert seen.usages == [{"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(whole), "total_tokens": total}]
    assert seen.usages or end is not None


@pytest.mark.parametrize("stops", STOPS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_a_text(kind: str, stops: list[str]) -> None:
    for cut, size, include in product(range(len(CODE)), (1, 3, 100), (False, True)):
        check_joined(kind, CODE, stops, cut, size, include)


LETTERS = st.text(alphabet=" \nab🚀\u3000", max_size=24)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(), kind=st.sampled_from(sorted(KINDS)), whole=LETTERS, size=st.integers(1, 9), include=st.booleans()
)
def test_every_cut_of_any_text(data: st.DataObject, kind: str, whole: str, size: int, include: bool) -> None:
    cut = data.draw(st.integers(0, len(whole)))
    places = st.tuples(st.integers(0, 24), st.integers(1, 6)).map(lambda at: whole[at[0] : at[0] + at[1]])
    stops = data.draw(st.lists(st.one_of(places, LETTERS).filter(bool), max_size=3))
    check_joined(kind, whole, stops, cut, size, include)


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(), thought=LETTERS, whole=LETTERS, limit=st.integers(1, 60), prefill=st.booleans(), along=st.booleans()
)
def test_every_cut_of_any_thought_within_any_limit(
    data: st.DataObject, thought: str, whole: str, limit: int, prefill: bool, along: bool
) -> None:
    kind = "chat as llama.cpp" if prefill else "chat as vLLM"
    one, two = engines(kind, whole, data.draw(st.integers(1, 4)), thought=thought, usage_all_along=along)
    body = request_of(kind, max_tokens=limit)
    blocks = one(body)
    uncut = read(blocks)
    cut = data.draw(st.integers(0, len(uncut.reasoning) + len(uncut.content)))
    seen = read(join(blocks[: cut + 1], body, CHAT, KINDS[kind][1], two))
    assert (seen.reasoning, seen.content) == (uncut.reasoning, uncut.content)
    assert (seen.finishes, seen.dones, seen.roles, seen.ids) == (uncut.finishes, 1, 1, {"one"})
    # Nobody is asked for the usage of an answer that is whole.
    assert seen.usages[-1:] == uncut.usages[-1:] or (seen.finishes == ["length"] and cut == limit)


# Single rules.


def seam_after(content: str, *stops: str, **options: Any) -> Seam:
    return Seam(say(Letters(content)(request_of("chat as vLLM"))[: len(content) + 1]), stops, **options)


def event(content: Any = None, finish: Any = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    return block_of({"id": "two", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def texts(blocks: list[bytes]) -> list[str]:
    return [read([block]).content for block in blocks]


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [
        ("abc", "", ("abc", "")), ("\n\nx", "\n\n", ("x", "")), ("\n", "\n\n", ("", "\n")), ("", " ", ("", " ")),
        ("\n x", "\n\n", (" x", "")), ("x", "\n", ("x", "")), (" \n", " ", ("\n", "")),
    ],
)  # fmt: skip
def test_of_what_was_cut_off_the_longest_common_run_is_left_out(text: str, cut: str, left: tuple[str, str]) -> None:
    assert without_start(text, cut) == left


def test_with_stop_strings_the_last_word_is_said_again_or_it_is_another_answer() -> None:
    """The first engine held back as many characters as a stop string has, so that what it told may end within a token."""
    seam = seam_after("- wine\n\n- choc", "###")
    assert seam.rewrite(event(" ch")) == []
    assert texts(seam.rewrite(event("ocolate"))) == ["olate"]
    seam = seam_after("- wine\n\n- choc", "###")
    with pytest.raises(CannotContinue, match="another word"):
        seam.rewrite(event(" cheese"))


def test_white_space_may_come_in_pieces() -> None:
    seam = seam_after("word \n\n")
    assert seam.rewrite(event(" ")) == seam.rewrite(event("\n")) == []
    assert texts(seam.rewrite(event("\nmore"))) == ["more"]
    assert texts(seam.rewrite(event("\n\n"))) == ["\n\n"]


@pytest.mark.parametrize(
    ("said", "stops", "rests"),
    [
        ("ab", ["abc"], {"c"}), ("aa", ["aaa"], {"a", "aa"}), ("ab", ["ab"], set()), ("", ["ab"], set()),
        ("xa", ["ab", "ac"], {"b", "c"}), ("a\n", ["a\n\n"], {"\n"}),
    ],
)  # fmt: skip
def test_what_is_still_to_come_of_a_stop_string(said: str, stops: list[str], rests: set[str]) -> None:
    assert {rest for rest, _ in rests_of(said, stops)} == rests


def test_what_may_end_a_stop_string_is_held_back_until_it_is_decided() -> None:
    seam = seam_after("the E", "END.")
    assert seam.rewrite(event(" E")) == [], "its last word is said again"
    assert seam.rewrite(event("N")) == []
    assert "held 1" in repr(seam)
    assert seam.rewrite(b": longwire\n\n") == [b": longwire\n\n"]
    assert texts(seam.rewrite(event("Ding"))) == ["NDing"]
    # From here on nothing is held back: what lies in this part is its engine's matter.
    assert texts(seam.rewrite(event(" EN"))) == [" EN"]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_over_the_seam_ends_the_answer(include: bool) -> None:
    seam = seam_after("the E", "END.", include_stop=include)
    assert seam.rewrite(event(" E")) == [], "its last word is said again"
    assert seam.rewrite(event("ND")) == [] and not seam.is_ended
    (last,) = seam.rewrite(event(". And more"))
    choice = json.loads(last[6:])["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END.")
    assert choice["delta"] == ({"content": "ND."} if include else {})
    assert seam.is_ended
    assert seam.rewrite(event("x")) == seam.rewrite(DONE) == seam.flush() == []


def test_a_finish_or_the_end_lets_go_of_what_is_held() -> None:
    for last in (event(finish="stop"), DONE):
        seam = seam_after("the E", "END.")
        assert seam.rewrite(event(" E")) == [], "its last word is said again"
        assert seam.rewrite(event("N")) == []
        assert "".join(texts([block for block in seam.rewrite(last) if block != DONE])) == "N"
    seam = seam_after("the E", "END.")
    assert seam.rewrite(event(" E")) == [], "its last word is said again"
    assert seam.rewrite(event("N")) == []
    assert texts(seam.flush()) == ["N"]
    assert seam.flush() == []


def test_what_is_held_comes_before_a_tool_is_called() -> None:
    seam = seam_after("the E", "END.")
    assert seam.rewrite(event(" E")) == [], "its last word is said again"
    assert seam.rewrite(event("N")) == []
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    frame = {"id": "two", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    (block,) = seam.rewrite(block_of(frame))
    assert json.loads(block[6:])["choices"][0]["delta"] == {"tool_calls": [call], "content": "N"}


def test_held_events_keep_their_usage() -> None:
    seam = seam_after("the E", "END.")
    assert seam.rewrite(event(" E")) == [], "its last word is said again"
    used = {"prompt_tokens": 12, "completion_tokens": 3}
    (block,) = seam.rewrite(event("N", usage=used))
    assert (texts([block]), read([block]).usages[0]["completion_tokens"]) == ([""], 6)
    with_ids = {"id": "two", "choices": [{"index": 0, "delta": {"content": "D"}, "token_ids": [5]}]}
    assert seam.rewrite(block_of(with_ids)) == [], "ids of a word that is said again are not those of the text"
    (flushed,) = seam.flush()
    assert read([flushed]).content == "ND"


def test_ids_are_left_out_where_they_are_not_those_of_the_text() -> None:
    frame = {"id": "two", "choices": [{"index": 0, "delta": {"content": "\nx"}, "token_ids": [5]}]}
    assert read(seam_after("word\n").rewrite(block_of(frame))).token_ids == []
    assert read(seam_after("word").rewrite(block_of(frame))).token_ids == [5]


def test_identity_is_that_of_the_first_part() -> None:
    said = say([event("x", id="one", created=5, model="a", system_fingerprint="fp")])
    for more in ({}, {"created": 9, "model": "b", "system_fingerprint": "other"}):
        for _ in range(3):  # the third by its form
            (block,) = Seam(said).rewrite(event("y", id="two", **more))
            told = json.loads(block[6:])
            assert [told[key] for key in ("id", "created", "model", "system_fingerprint")] == ["one", 5, "a", "fp"]
    (block,) = Seam(say([event("x", id="one")])).rewrite(event("y", system_fingerprint="other"))
    assert "system_fingerprint" not in json.loads(block[6:])


@pytest.mark.parametrize("text", ["plain", 'quo"te', "back\\slash", "\n\t", "光🚀", "\ud83d", "\u2028", ""])
def test_later_events_are_written_as_the_first_ones(text: str) -> None:
    said = say([event("x", id="one")])
    seam = Seam(said)
    learnt = [block for _ in range(3) for block in seam.rewrite(event("first"))]
    assert learnt == [event("first", id="one")] * 3
    assert seam.rewrite(event(text)) == Seam(said).rewrite(event(text)) == [event(text, id="one")]


def test_reasoning_keeps_the_name_of_the_first_part() -> None:
    first = {"id": "one", "choices": [{"index": 0, "delta": {"reasoning": "so"}, "finish_reason": None}]}
    seam = Seam(say([block_of(first)]))
    second = {"id": "two", "choices": [{"index": 0, "delta": {"reasoning_content": " it"}, "finish_reason": None}]}
    (block,) = seam.rewrite(block_of(second))
    assert json.loads(block[6:])["choices"][0]["delta"] == {"reasoning": " it"}
    assert Seam(say([event("x", id="two")])).rewrite(block_of(second)) == [block_of(second)]


def test_a_hidden_usage_is_known_all_the_same() -> None:
    frame = {"id": "two", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 4, "cost": 0.5}}
    seam = seam_after("12345", hides_usage=True)
    assert seam.rewrite(block_of(frame)) == []
    assert seam.usage == {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    shown = seam_after("12345").rewrite(block_of(frame))
    assert read(shown).usages == [{**seam.usage, "cost": 0.5}]


@pytest.mark.parametrize("usage", [5, "x", [], {}, {"prompt_tokens": 3}, {"prompt_tokens": {}, "completion_tokens": 1}])
def test_a_usage_that_tells_too_little_is_left_out(usage: Any) -> None:
    seam = seam_after("12345")
    assert seam.rewrite(block_of({"id": "two", "choices": [], "usage": usage})) == []
    assert read(seam.rewrite(event("x", usage=usage))).usages == []
    assert seam.usage is None


def test_details_of_usage_are_summed_where_that_means_something() -> None:
    first = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    seam = Seam(say([event("x", id="one", usage=first)]))
    second = {
        "prompt_tokens": 14,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 14},
        "completion_tokens_details": {"reasoning_tokens": 1, "other": 2},
    }
    assert read(seam.rewrite(event(usage=second))).usages == [
        {
            "prompt_tokens": 9,
            "completion_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 6, "other": 2},
            "total_tokens": 17,
        }
    ]


def test_errors_pass_as_they_are_for_the_caller_to_see() -> None:
    for frame in ({"error": {"message": "no"}}, {"object": "error", "message": "no"}):
        assert seam_after("x").rewrite(block_of(frame)) == [block_of(frame)]
    assert seam_after("x").rewrite(b"event: error\ndata: {}\n\n") == [b"event: error\ndata: {}\n\n"]


@pytest.mark.parametrize("is_chat", [True, False])
def test_what_the_gateway_ends_with_itself(is_chat: bool) -> None:
    said = say([event("x", id="one", created=3, model="m")])
    used = {"prompt_tokens": 1}
    seen = read([finish_event(said, "length", is_chat=is_chat), usage_event(said, used, is_chat=is_chat)])
    assert (seen.finishes, seen.ids, seen.usages) == (["length"], {"one"}, [used])


# Hostile second parts.

HOSTILE = [
    b'data: {"choices"\n\n', b"data: {\xff}\n\n", b"data: " + b'{"a":' * 100_000 + b"\n\n",
    block_of({"choices": 5}), block_of({"choices": [5]}), block_of({"choices": [{}, {}]}),
    block_of({"choices": [{"index": 1, "delta": {"content": "x"}}]}), block_of({"choices": [{"index": "0", "delta": {}}]}),
    block_of({"choices": [{"delta": 5}]}), event(5), event(["x"]), event({"x": 1}),
    block_of({"choices": [{"delta": {"reasoning": 5}}]}), event("x", score=float("nan")),
    b"event: \0\n" + event("x"), b'data: {"id": ' + b"9" * 5000 + b"}\n\n",
]  # fmt: skip


@pytest.mark.parametrize("block", HOSTILE, ids=range(len(HOSTILE)))
def test_what_cannot_be_part_of_the_answer_is_refused(block: bytes) -> None:
    with pytest.raises(CannotContinue):
        seam_after("x").rewrite(block)


@pytest.mark.parametrize("block", [b'data: ""\n\n', b"data: 5\n\n", b"data: ping\n\n"])
def test_pings_that_are_no_objects_say_nothing(block: bytes) -> None:
    assert seam_after("x").rewrite(block) == []


def test_a_huge_event_and_half_characters_pass() -> None:
    seam = seam_after("x")
    assert texts(seam.rewrite(event("y" * 10_000_000))) == ["y" * 10_000_000]
    halves = [seam.rewrite(b'data: {"id":"two","choices":[{"delta":{"content":"\\u%b"}}]}\n\n' % half)[0]
              for half in (b"d83d", b"de80")]  # fmt: skip
    assert say(halves).content == "🚀"


@settings(max_examples=500, deadline=None)
@given(blocks=st.lists(BLOCKS, max_size=5), stops=st.lists(st.text("abc\n", min_size=1, max_size=4), max_size=3))
def test_nothing_but_the_documented_exception_is_ever_raised(blocks: list[bytes], stops: list[str]) -> None:
    seam = seam_after("ab \n", *stops)
    out = []
    for block in blocks:
        try:
            out += seam.rewrite(block)
        except CannotContinue:
            break
    out += seam.flush()
    for block in out:
        if block not in blocks:  # what passes unchanged is not ours
            json.loads(block[6:] if block.startswith(b"data: ") else block.partition(b"data: ")[2])
