"""Longwire-Timeouts: what is read of it, what is refused, and that it reaches the gateway and no engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.architecture.api_page import DOCUMENT
from tests.house import CHAT, CHUNKED, WHOLE, chat, hashed, in_chunks, open_house
from tests.server.heads import request_head
from tests.server.shards import open_shards

from longwire.dialects.base import Ask
from longwire.gateway import Gateway, Visit
from longwire.server.timeouts import HEADER, MAX_TEXT_BYTES, read_timeouts
from longwire.streams.stream import Stream
from longwire.wire.http1 import RequestHead, parse_request_head
from longwire.words.errors import RefusedError, RemoteError
from longwire.words.settings import Settings, TenantSettings
from longwire.words.wishes import NO_WISHES, WISHES

SETTINGS = Settings()
PATTERN = DOCUMENT["components"]["parameters"][HEADER]["schema"]["pattern"]

GOOD: dict[str, dict[str, float]] = {
    "first-token=20, silence=5, total=600": {"first-token": 20, "silence": 5, "total": 600},
    "first-byte=0.5": {"first-byte": 0.5},
    "min-rate=2.125,total=0": {"min-rate": 2.125, "total": 0},
    "total=9999999": {"total": 9_999_999},
    "total=007": {"total": 7},
}
BAD = [
    "20", "total", "total=", "=5", "total=-1", "total=+1", "total=1e3", "total=.5", "total=5.", "total=1.2345", "total=nan",
    "total=inf", "total=12345678", "total=5s", "total = 5", "total=5;silence=3", "total=5 silence=3", "total=5,total=5",
    "", " ", ",", " , ,", "Total=5", "first_token=5", "connect=5", "slow-reader=5", "total=\u00b2", "total=5, x",
]  # fmt: skip


def head_of(*values: str) -> RequestHead:
    lines = "".join(f"longwire-timeouts: {value}\r\n" for value in values)
    return parse_request_head(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode("latin-1"))


@pytest.mark.parametrize("text", GOOD)
def test_wishes_are_read_by_name(text: str) -> None:
    assert read_timeouts(head_of(text), SETTINGS) == GOOD[text]
    assert re.search(PATTERN, text), "and are as they are described"


def test_without_the_header_there_are_none() -> None:
    assert read_timeouts(request_head("POST", CHAT), SETTINGS) is NO_WISHES
    assert read_timeouts(request_head("POST", CHAT), Settings(max_request_timeout_s=0)) is NO_WISHES


@pytest.mark.parametrize(
    "lines", [("total=5", "silence=3"), ("total=5,", ",silence=3"), (" total=5 ,\t silence=3 ", "")]
)
def test_a_list_may_come_in_several_lines_with_empty_elements(lines: tuple[str, ...]) -> None:
    assert read_timeouts(head_of(*lines), SETTINGS) == {"total": 5, "silence": 3}


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_wish_is_refused(text: str) -> None:
    with pytest.raises(RemoteError) as refused:
        read_timeouts(head_of(text), SETTINGS)
    assert refused.value.status == 400 and refused.value.param == HEADER and refused.value.message.endswith(".")
    assert text == "total=5,total=5" or not re.search(PATTERN.replace("$", r"\Z"), text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("total=1.2345", "total must be a number of seconds with at most three decimals, below 10,000,000"),
        ("min-rate=1.2345", "min-rate must be a number of tokens per second with at most three decimals"),
        ("bogus=3", "There is no clock 'bogus': the names are first-byte, first-token, silence, total, min-rate."),
        ("20", "It must be NAME=NUMBER, ..., and the names are first-byte, first-token"),
        ("", "It is empty: it must be NAME=NUMBER, ..."),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(RemoteError) as refused:
        read_timeouts(head_of(text), SETTINGS)
    assert words in refused.value.message


def test_too_long_is_too_long() -> None:
    with pytest.raises(RemoteError, match="256 bytes"):
        read_timeouts(head_of("total=5" + " " * MAX_TEXT_BYTES + ",silence=3"), SETTINGS)


def test_an_operator_can_switch_it_off() -> None:
    with pytest.raises(RefusedError):
        read_timeouts(head_of("total=5"), Settings(max_request_timeout_s=0))


@given(st.dictionaries(st.sampled_from(WISHES), st.integers(0, 9_999_999_999).map(lambda n: n / 1000), min_size=1))
def test_whatever_is_written_is_read(wishes: dict[str, float]) -> None:
    text = ", ".join(f"{name}={number:.3f}" for name, number in wishes.items())
    assert len(text) <= MAX_TEXT_BYTES and re.search(PATTERN, text)
    assert read_timeouts(head_of(text), SETTINGS) == wishes


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=300))
def test_nothing_else_comes_of_any_text(text: str) -> None:
    try:
        wishes = read_timeouts(head_of(text), SETTINGS)
    except RemoteError:
        return
    assert set(wishes) <= set(WISHES) and all(0 <= number < 1e7 for number in wishes.values())


# Over HTTP.


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[Visit]:
    """What the gateway was asked, as it was asked."""
    seen: list[Visit] = []
    generate = Gateway.generate

    def note(self: Gateway, ask: Ask, visit: Visit) -> Stream:
        seen.append(visit)
        return generate(self, ask, visit)

    monkeypatch.setattr(Gateway, "generate", note)
    return seen


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
async def test_wishes_reach_the_gateway_and_no_engine(path: str, visits: list[Visit]) -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
        body = {**chat(model="script"), "prompt": "x"}
        answer = await house.ask(body, {"longwire-timeouts": "first-token=20, min-rate=0.5"}, path)
        assert answer.status == 200
        assert [dict(visit.timeouts) for visit in visits] == [{"first-token": 20, "min-rate": 0.5}]
        (head, _) = house.engine.requests[0]
        assert [name for name, _ in head.headers if name.startswith(b"longwire")] == []


async def test_without_wishes_there_are_none(visits: list[Visit]) -> None:
    async with open_house() as house:
        answer = await house.ask(chat())
        assert [dict(visit.timeouts) for visit in visits] == [{}]
        assert answer.head.get(b"longwire-timeouts") is None


CLOCKS: dict[str, Any] = {
    "first_byte_timeout_s": 60.0,
    "first_token_timeout_s": 30.0,
    "token_silence_s": 20.0,
    "total_timeout_s": 0.0,
    "max_request_timeout_s": 100.0,
}


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ("first-token=5", "first-byte=60, first-token=5, silence=20, total=0, min-rate=0"),
        ("silence=0, total=700", "first-byte=60, first-token=30, silence=100, total=700, min-rate=0"),
        ("min-rate=1.5, first-byte=0.25", "first-byte=0.25, first-token=30, silence=20, total=0, min-rate=1.5"),
    ],
)
async def test_the_answer_says_which_clocks_hold(wishes: str, told: str) -> None:
    async with open_house(has_twin=True, failover="off", **CLOCKS) as house:
        answer = await house.ask(chat(), {"longwire-timeouts": wishes})
        assert answer.header("longwire-timeouts") == told
        refused = await house.ask(chat(sim={"fault": ["status=500"]}), {"longwire-timeouts": wishes})
        assert refused.status == 502 and refused.header("longwire-timeouts") == told
        house.sim.fail_next("reset_after=3")
        cut = await house.ask(chat())
        rest = await house.call("POST", f"/v1/streams/{cut.stream_id}/continue", None, {"longwire-timeouts": wishes})
        assert rest.status == 200 and rest.header("longwire-timeouts") == told


async def test_of_an_answer_in_one_piece_no_token_is_waited_for_and_the_answer_says_so() -> None:
    async with open_house(**CLOCKS) as house:
        answer = await house.ask(chat(stream=False), {"longwire-timeouts": "first-token=5, min-rate=2"})
        told = "first-byte=60, first-token=0, silence=20, total=0, min-rate=0"
        assert answer.header("longwire-timeouts") == told


async def test_who_finds_another_s_stream_is_told_its_clocks() -> None:
    async with open_house(**CLOCKS) as house:
        told = [
            (await house.ask(chat(), {"idempotency-key": "k", **wishes})).head.get(b"longwire-timeouts")
            for wishes in ({}, {"longwire-timeouts": "silence=5"})
        ]
        assert told == [None, b"first-byte=60, first-token=30, silence=20, total=0, min-rate=0"]


@pytest.mark.parametrize(
    ("settings", "status", "code"),
    [({}, 400, "invalid_request"), ({"max_request_timeout_s": 0.0}, 403, "refused")],
)
async def test_a_refusal_is_an_error_in_openai_s_shape(settings: dict[str, Any], status: int, code: str) -> None:
    async with open_house(**settings) as house:
        answer = await house.ask(chat(), {"longwire-timeouts": "total=soon"})
        assert answer.status == status and answer.error["param"] == HEADER and answer.error["code"] == code
        assert house.streams == [] and not house.sim.requests


async def test_it_is_of_no_meaning_where_nothing_is_generated() -> None:
    async with open_house() as house:
        assert (await house.fetch("/v1/models", {"longwire-timeouts": "total=soon"})).status == 200


async def test_wishes_go_along_when_a_request_is_passed_to_another_shard(visits: list[Visit]) -> None:
    async with open_shards(tenants=[TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])]) as gateway:
        gateway.homes["ada"] = 1
        client = await gateway.connect(0)
        client.post(chat(), {"authorization": "Bearer sk-ada", "longwire-timeouts": "total=600"})
        assert (await client.answer()).is_marked_done
        assert [dict(visit.timeouts) for visit in visits] == [{"total": 600}]
        assert list(gateway[1].registry.list(None)) and not list(gateway[0].registry.list(None))
