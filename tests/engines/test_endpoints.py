"""Which endpoints an engine stands for, what they are called, and the grammar of a file of URLs."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.endpoints import (
    MAX_NAME_CHARS,
    Endpoint,
    endpoints_of,
    hosts_of,
    name_of,
    own_endpoint,
    read_urls,
    remembered,
)
from longwire.words.engine_specs import MAX_ENDPOINTS
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings

GPU = EngineSettings(name="gpu", url="http://gpu:8000")
RESOLVED = EngineSettings(name="gpu", url="https://gpu.example/llm", resolve_s=5)


def test_the_engines_own_url_has_its_name_and_others_have_their_places() -> None:
    engine = EngineSettings(name="gpu", url="http://a:1", urls=["http://b:2"])
    assert endpoints_of(engine, ["https://c", "http://[::1]:9/x"]) == [
        Endpoint("gpu", "http://a:1"),
        Endpoint("gpu@b:2", "http://b:2"),
        Endpoint("gpu@c", "https://c"),
        Endpoint("gpu@[::1]:9", "http://[::1]:9/x"),
    ]


def test_an_engine_without_a_name_is_called_by_its_place() -> None:
    assert own_endpoint(EngineSettings(url="http://a:1/v")).name == "a:1"
    assert own_endpoint(EngineSettings(url="sim")) == Endpoint("sim", "sim")


def test_what_is_listed_twice_is_one() -> None:
    engine = EngineSettings(name="gpu", url="http://a:1", urls=["http://b:2"])
    assert [each.name for each in endpoints_of(engine, ["http://b:2", "http://a:1/other"])] == ["gpu", "gpu@b:2"]


def test_each_address_of_a_name_is_an_endpoint_that_keeps_the_names_url() -> None:
    found = endpoints_of(RESOLVED, [], {"gpu.example": ("10.0.0.1", "fd00::2")})
    assert found == [
        Endpoint("gpu@10.0.0.1:443", "https://gpu.example/llm", "10.0.0.1"),
        Endpoint("gpu@[fd00::2]:443", "https://gpu.example/llm", "fd00::2"),
    ]
    assert endpoints_of(RESOLVED) == [Endpoint("gpu", "https://gpu.example/llm")], "until something is known"


def test_there_is_a_bound_on_all_of_them() -> None:
    addresses = tuple(f"10.0.{n >> 8}.{n & 255}" for n in range(2 * MAX_ENDPOINTS))
    assert len(endpoints_of(RESOLVED, [], {"gpu.example": addresses})) == MAX_ENDPOINTS


def test_only_names_are_looked_up_and_only_where_it_is_asked_for() -> None:
    listed = ["http://10.0.0.1:9", "http://other:81", "http://[::1]"]
    assert hosts_of(RESOLVED, listed) == {"gpu.example": 443, "other": 81}
    assert hosts_of(GPU, listed) == {}


@given(st.text(st.characters(codec="ascii"), min_size=1, max_size=64), st.text(max_size=300), st.text(max_size=300))
def test_names_are_bounded_and_tell_places_apart(engine: str, one: str, other: str) -> None:
    names = name_of(engine, one), name_of(engine, other)
    assert all(len(name) <= MAX_NAME_CHARS for name in names)
    assert (names[0] == names[1]) == (one == other)


# What a predecessor knew.


def test_addresses_are_found_again_in_names() -> None:
    names = ["gpu@10.0.0.2:443", "gpu@10.0.0.1:443", "gpu@[fd00::2]:443", "gpu", "other@10.0.0.9:443", "gpu@h:443"]
    known = remembered(RESOLVED, [], [*names, "gpu@10.0.0.3:80"])
    assert known == {"gpu.example": ("10.0.0.1", "10.0.0.2", "fd00::2")}
    found = {each.name for each in endpoints_of(RESOLVED, [], known)}
    assert found == {"gpu@10.0.0.1:443", "gpu@10.0.0.2:443", "gpu@[fd00::2]:443"}, "and get the same names again"


def test_only_where_it_is_plain_whose_they_are() -> None:
    assert remembered(RESOLVED, ["https://10.0.0.1:443"], ["gpu@10.0.0.1:443"]) == {}, "that is an endpoint of the file"
    assert remembered(RESOLVED, ["https://second"], ["gpu@10.0.0.1:443"]) == {}, "either name could have it"
    assert remembered(GPU, [], ["gpu@10.0.0.1:8000"]) == {}, "names are not looked up"


# The file.


def test_a_file_has_one_url_a_line() -> None:
    text = "# our cards\nhttp://a:1/v1\n\n  https://B/v1/  # the new one\n"
    assert read_urls(text, "f") == ("http://a:1", "https://b")
    assert read_urls("", "f") == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("http://a:1\nnonsense\n", 2, "must be URL"),
        ("sim\n", 1, "must be URL"),
        ("http://a:1\n\nhttp://a:1/v1\n", 3, "listed twice"),
        ("http://user:secret@a:1\n", 1, "no password"),
        ("".join(f"http://h{n}\n" for n in range(MAX_ENDPOINTS + 1)), MAX_ENDPOINTS + 1, "at most"),
    ],
)
def test_a_bad_line_is_named(text: str, line: int, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        read_urls(text, "f")
    assert caught.value.where == f"f:{line}" and "secret" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_urls_or_an_error(text: str) -> None:
    with suppress(SettingsError):
        assert all(url.startswith(("http://", "https://")) for url in read_urls(text, "f"))
