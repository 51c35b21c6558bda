"""Gunicorn's 81 invalid and 62 valid requests, read alone and by a running gateway; each deviation is explained."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.corpus.deviations import COMMAND, NO_HOST, TABLE, deviation_of, with_table
from tests.corpus.gunicorn import (
    INVALID_FILES,
    VALID_FILES,
    Outcome,
    Read,
    decode,
    expected,
    names,
    need_corpus,
    read_connection,
    read_wire,
    with_hosts,
    with_paths,
    without_hosts,
)
from tests.house import TestHouse, open_house, until

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A request that would be answered if what came before it had left the connection usable."""


@pytest.fixture
def corpus() -> None:
    need_corpus()


# The corpus and the table.


@pytest.mark.usefixtures("corpus")
def test_the_corpus_is_there_and_whole() -> None:
    assert (len(names("invalid")), len(names("valid"))) == (INVALID_FILES, VALID_FILES)


def test_its_text_stands_for_bytes() -> None:
    assert (
        decode(b"GET / HTTP/1.1\\r\\n\nX:\\ta\\0\\x0d\\xfFb\\n\n\\r\\n\n") == b"GET / HTTP/1.1\r\nX:\ta\0\r\xffb\n\r\n"
    )
    with pytest.raises(AssertionError):
        decode(b"\\q")


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("kind", TABLE)
def test_the_table_names_files_that_there_are_and_each_once(kind: str) -> None:
    listed = [name for entry in TABLE[kind] for name in entry.files]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(names(kind))


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), f"run: {COMMAND}"


@pytest.mark.parametrize("is_ci", [True, False])
def test_a_missing_corpus_is_a_failure_in_ci_only(is_ci: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.corpus.gunicorn.CORPUS", tmp_path / "nowhere")
    monkeypatch.setenv("CI", "true" if is_ci else "")
    with pytest.raises(pytest.fail.Exception if is_ci else pytest.skip.Exception, match="make"):
        need_corpus()


# Read alone.


def read(wire: bytes) -> Outcome:
    """Read in one piece and byte by byte, which must agree."""
    whole = read_connection([wire])
    assert read_connection([bytes([byte]) for byte in wire]) == whole
    return whole


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", names("invalid"))
def test_an_invalid_request_is_refused(name: str) -> None:
    entry = deviation_of("invalid", name)
    outcome = read(read_wire("invalid", name))
    assert outcome.verdict == (entry.ours if entry else "refused")
    if not entry:
        assert 400 <= outcome.status < 600


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", names("valid"))
def test_a_valid_request_is_read_as_gunicorn_reads_it(name: str) -> None:
    entry = deviation_of("valid", name)
    outcome = read(read_wire("valid", name))
    assert outcome.verdict == (entry.ours if entry else "read").removesuffix(" in another form")
    if outcome.verdict != "read":
        return
    wanted = expected(name)
    assert (outcome.requests == _without_trailers(wanted)) is (entry is None)
    if name.startswith("rfc9112_target_absolute"):
        assert outcome.requests == with_paths(wanted)


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", NO_HOST.files)
def test_what_lacks_nothing_but_its_host_is_read_with_one(name: str) -> None:
    outcome = read(with_hosts(read_wire("valid", name)))
    assert outcome.verdict == "read"
    assert without_hosts(outcome.requests) == _without_trailers(expected(name))


def _without_trailers(requests: list[Read]) -> list[Read]:
    """Trailers are checked and dropped: nothing here trusts one."""
    return [request._replace(trailers=[]) for request in requests]


# Sent to a gateway.


@asynccontextmanager
async def house_for(name: str) -> AsyncIterator[TestHouse]:
    """A gateway that expects a PROXY header where the file is about one."""
    is_proxied = name.startswith("pp_")
    async with open_house(proxy_protocol=is_proxied, trusted_proxies=["127.0.0.1"] if is_proxied else []) as house:
        yield house
        assert house.engine.requests == []
        assert house.engine.connections == 0
        assert house.streams == []


def invalid_that_are(outcome: str) -> list[str]:
    """The invalid files that end so here."""
    if outcome == "refused":
        return [name for name in names("invalid") if deviation_of("invalid", name) is None]
    return [name for entry in TABLE["invalid"] if entry.ours == outcome for name in entry.files]


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", invalid_that_are("refused"))
async def test_a_gateway_answers_an_invalid_request_once_and_closes(name: str) -> None:
    async with house_for(name) as house:
        client = await house.connect()
        client.send(read_wire("invalid", name) + NEXT)
        answer = await client.answer()
        assert 400 <= answer.status < 600
        assert answer.header("connection") == "close"
        assert answer.error["type"] == "invalid_request_error"
        assert await client.wait_closed_by_peer() == b"", "a second answer, or more than the first"


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", invalid_that_are("unfinished"))
async def test_a_gateway_gives_an_unfinished_request_its_time_and_no_more(name: str) -> None:
    async with house_for(name) as house:
        client = await house.connect()
        client.send(read_wire("invalid", name))
        await until(
            lambda: all(each.phase for each in house.gateway.listener.connections), "the gateway has begun to read"
        )
        house.pass_time(100)
        answer = await client.answer()
        assert answer.status in (404, 408), "its head alone may be answered"
        assert await client.wait_closed_by_peer() == b""


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("name", invalid_that_are("read"))
async def test_a_gateway_forwards_nothing_of_what_it_reads_more_leniently(name: str) -> None:
    async with house_for(name) as house:
        client = await house.connect()
        client.send(read_wire("invalid", name))
        answer = await client.answer()
        assert 400 <= answer.status < 500
        client.fin()
        assert await client.wait_closed_by_peer() == b""
