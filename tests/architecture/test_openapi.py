"""The OpenAPI document says what the routes do, with the words of the code.

What lives here: document against routes, errors, close reasons, a stream's state.
What must not: requests to a running gateway (tests/e2e and tests/server make them).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from longwire.observe.instruments import Instruments
from longwire.observe.reference import error_classes
from longwire.server.cursors import CURSOR_NAMES
from longwire.server.handlers import Handlers
from longwire.server.routes import ROUTES
from longwire.streams.describe import describe
from longwire.streams.memory import Memory
from longwire.streams.registry import Registry
from longwire.streams.stream import EndingWords, Facts, State
from longwire.words.clock import VirtualClock
from longwire.words.errors import BadHttp, LongwireError, SettingsError
from longwire.words.ids import parse_cursor
from longwire.words.reasons import CloseReason
from longwire.words.settings import Settings

from .api_page import API_PAGE, DOCUMENT, METHODS, api_page, operations, resolve
from .render import COMMAND

NO_ANSWER: dict[str, str] = {
    "upstream_error": "an engine's failure is told by a close reason; this is the admin port's word",
}
"""Error codes that no public answer carries."""

NO_ENDING = {CloseReason.COMPLETED, CloseReason.SLOW_READER}
"""Close reasons that are no answer instead of a stream: a success, and one reader's own end."""

HTTP_LEVEL = {"417", "505"}
"""Statuses that the parser of requests picks; their code is that of malformed HTTP."""


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return found


def sample(path: str) -> str:
    """A path with its parameters filled in by their examples."""
    values = {"{id}": "lw_" + 32 * "0", "{path}": "embeddings"}
    return re.sub(r"{\w+}", lambda found: values[found[0]], path)


def responses() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """``(operation, status, response)`` of every operation."""
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            yield operation["operationId"], status, resolve(response)


# Routes.


def first_match(path: str) -> dict[str, str]:
    """The methods of the first route that takes the path: the relay comes last, and takes nothing from the others."""
    return next(methods for pattern, methods in ROUTES if pattern.match(path))


def test_every_description_is_a_route() -> None:
    for path, method, operation in operations():
        assert first_match(sample(path))[method.upper()] == operation["operationId"]


def test_every_route_is_described() -> None:
    described = {operation["operationId"]: first_match(sample(path)) for path, _, operation in operations()}
    served = {name: methods for _, methods in ROUTES for name in methods.values()}
    assert described == served


def test_every_operation_has_a_handler() -> None:
    assert [name for _, _, each in operations() if not hasattr(Handlers, "_" + (name := each["operationId"]))] == []


def test_only_known_methods_are_described() -> None:
    keys = {key for item in DOCUMENT["paths"].values() for key in item}
    assert keys <= {*METHODS, "parameters"}


def test_other_names_of_the_cursor_are_told() -> None:
    described = DOCUMENT["components"]["parameters"]["after"]["description"]
    assert [name for name in CURSOR_NAMES if name != "after" and f"`{name}`" not in described] == []


@pytest.mark.parametrize("text", ["", "-1", "0", "41", "1-41", "123456789-123456789012345"])
def test_the_pattern_of_a_cursor_is_what_is_read(text: str) -> None:
    assert re.search(schema("Cursor")["pattern"], text)
    parse_cursor(text)


@pytest.mark.parametrize("text", ["x", "1-", "-", "1-2-3", "-2", " 1-2", "1-2\n"])
def test_what_is_no_cursor_is_none_in_both(text: str) -> None:
    assert not re.search(schema("Cursor")["pattern"].replace("$", r"\Z"), text)
    with pytest.raises(LongwireError):
        parse_cursor(text)


# Errors.


def codes() -> dict[str, type[LongwireError]]:
    return {each.code: each for each in error_classes() if each is not LongwireError and each is not SettingsError}


def test_error_codes_are_those_of_the_tree() -> None:
    assert schema("ErrorCode")["enum"] == list(codes())


def test_close_reasons_are_those_of_the_enum() -> None:
    assert schema("CloseReason")["enum"] == [reason.value for reason in CloseReason]


def test_types_of_errors_are_those_of_the_tree() -> None:
    kinds = schema("ErrorBody")["properties"]["error"]["properties"]["type"]["enum"]
    assert set(kinds) == {error.type for error in codes().values()}


def test_each_code_stands_under_its_status() -> None:
    told = [(name, status, code) for name, status, each in responses() for code in each.get("x-codes", ())]
    assert [each for each in told if not _fits(codes()[each[2]], each[1])] == []


def _fits(error: type[LongwireError], status: str) -> bool:
    return error.status == int(status) or (error is BadHttp and status in HTTP_LEVEL)


def test_every_code_is_some_answer() -> None:
    everywhere = [resolve(each) for each in DOCUMENT["components"]["responses"].values()]
    told = {code for response in everywhere for code in response.get("x-codes", ())}
    assert told == set(codes()) - set(NO_ANSWER)


def endings() -> list[tuple[str, str, CloseReason]]:
    """``(operation, status, close reason)`` wherever a stream's end before its first content is an answer."""
    by_word = {reason.value: reason for reason in CloseReason}
    return [
        (name, status, by_word[word]) for name, status, each in responses() for word in each.get("x-close-reasons", ())
    ]


def test_each_close_reason_stands_under_its_status() -> None:
    """But for the engine's own words: its 4xx stay what they are, and so does its 503."""
    wrong = [each for each in endings() if "X" not in each[1] and each[2].status != int(each[1])]
    assert {(status, reason) for _, status, reason in wrong} == {("503", CloseReason.UPSTREAM_FAILED)}


def test_every_bad_ending_is_some_answer() -> None:
    assert {reason for _, _, reason in endings()} == set(CloseReason) - NO_ENDING


def test_whatever_has_a_retry_after_says_so() -> None:
    for _, status, response in responses():
        if status == "429" or "no_engine_ready" in response.get("x-codes", ()):
            assert "Retry-After" in response["headers"]


# Shapes.


class Silent:
    """Words of a dialect that has none."""

    def error_blocks(self, reason: CloseReason, message: str, facts: dict[str, object]) -> list[bytes]:
        return []

    def error_body(self, reason: CloseReason, message: str) -> bytes:
        return b"{}"


def test_a_streams_state_has_these_fields() -> None:
    settings = Settings()
    words: EndingWords = Silent()
    registry = Registry(Memory.make(4 * 1024 * 1024, 16, 16), settings, VirtualClock(), Instruments(), lambda _: None)
    stream = registry.open(Facts(tenant="a", tenant_index=0, route="relay"), words)
    opened = describe(stream)
    stream.end(CloseReason.CANCELLED)
    state = schema("StreamState")
    for shown in (opened, describe(stream)):
        assert list(shown) == list(state["properties"]) == state["required"]
        assert re.search(schema("StreamId")["pattern"], str(shown["id"]))
    assert state["properties"]["status"]["enum"] == [each.name.lower() for each in State]


def test_an_error_has_these_fields() -> None:
    body = BadHttp("No.").body()
    described = schema("ErrorBody")["properties"]["error"]
    assert list(json.loads(json.dumps(body))["error"]) == described["required"] == list(described["properties"])


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', text)):
        assert resolve({"$ref": reference})


def test_the_page_is_up_to_date() -> None:
    assert API_PAGE.read_text(encoding="utf-8") == api_page(), f"run: {COMMAND}"
