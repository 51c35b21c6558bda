"""Strict JSON: what goes on to an engine is what every parser would have read, and nothing else gets in."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.dialects.base import (
    BYTES_PER_TOKEN,
    MAX_ANSWER_TOKENS,
    MEDIA_TOKENS,
    Ask,
    RelayWords,
    encode_json,
    error_object,
    estimate_tokens,
    read_relayed,
    read_strict_json,
)
from longwire.words.errors import BadJson
from longwire.words.reasons import CloseReason

REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "line 1, column 1"),
    "only white space": (b" \n ", "line 2, column 2"),
    "no JSON": (b"hello", "line 1, column 1"),
    "cut off": (b'{"a": [1,', "line 1, column 10"),
    "trailing comma": (b'{"a": 1,\n}', "line 2, column 1"),
    "trailing bytes": (b'{"a": 1} x', "line 1, column 10"),
    "two objects": (b'{"a": 1}{"a": 2}', "line 1, column 9"),
    "trailing NUL": (b'{"a": 1}\0', "line 1, column 9"),
    "a comment": (b'{"a": 1 /* one */}', "line 1, column 9"),
    "single quotes": (b"{'a': 1}", "line 1, column 2"),
    "bare key": (b"{a: 1}", "line 1, column 2"),
    "line end in a string": (b'{"a": "x\ny"}', "line 1, column 9"),
    "NUL in a string": (b'{"a": "x\0y"}', "line 1, column 9"),
    "unknown escape": (b'{"a": "\\x41"}', "line 1, column 8"),
    "short unicode escape": (b'{"a": "\\u41"}', "line 1, column 9"),
    "leading zero": (b'{"a": 01}', "line 1, column 8"),
    "leading plus": (b'{"a": +1}', "line 1, column 7"),
    "bare fraction": (b'{"a": .5}', "line 1, column 7"),
    "hexadecimal": (b'{"a": 0x10}', "line 1, column 8"),
    "full-width digits": ('{"a": \uff11}'.encode(), "line 1, column 7"),
    "no-break space": ('{\u00a0"a": 1}'.encode(), "line 1, column 2"),
    "capital True": (b'{"a": True}', "line 1, column 7"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "Infinity": (b'{"a": Infinity}', "Infinity"),
    "minus Infinity": (b'{"a": [-Infinity]}', "-Infinity"),
    "too large a number": (b'{"a": 1e400}', "out of range"),
    "too small a number": (b'{"a": -1e400}', "out of range"),
    "a duplicate key": (b'{"a": 1, "b": 2, "a": 1}', "'a' stands twice"),
    "a duplicate key inside": (b'{"x": [{"model": "a", "model": "b"}]}', "'model' stands twice"),
    "a duplicate key by escapes": (b'{"model": "a", "\\u006dodel": "b"}', "'model' stands twice"),
    "a duplicate key of no character": (b'{"\\ud800": 1, "\\ud800": 1}', "stands twice"),
    "a byte order mark": (b'\xef\xbb\xbf{"a": 1}', "line 1, column 1"),
    "UTF-16 with a mark": ('{"a": 1}'.encode("utf-16"), "not UTF-8 (byte 0)"),
    "UTF-16 without one": ('{"a": 1}'.encode("utf-16-le"), "line 1, column 2"),
    "UTF-32": ('{"a": 1}'.encode("utf-32-be"), "line 1, column 1"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "not UTF-8 (byte 7)"),
    "a surrogate in UTF-8": (b'{"a": "\xed\xa0\x80"}', "not UTF-8 (byte 7)"),
    "an overlong slash": (b'{"a": "\xc0\xaf"}', "not UTF-8 (byte 7)"),
    "beyond Unicode": (b'{"a": "\xf4\x90\x80\x80"}', "not UTF-8 (byte 7)"),
    "an array": (b"[1]", "must be a JSON object"),
    "a string": (b'"model"', "must be a JSON object"),
    "null": (b"null", "must be a JSON object"),
    "arrays 100,000 deep": (b"[" * 100_000, "nested too deeply"),
    "objects 100,000 deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "an integer of a million digits": (b'{"a": ' + b"9" * 1_000_000 + b"}", "too many digits"),
    "a negative one": (b'{"a": -' + b"9" * 1_000_000 + b"}", "too many digits"),
    "a fraction of a million digits before the point": (b'{"a": ' + b"9" * 1_000_000 + b".0}", "out of range"),
}


@pytest.mark.parametrize(("body", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_some_parser_would_read_differently_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(BadJson) as caught:
        read_strict_json(body)
    error = caught.value
    assert (error.status, error.code) == (400, "bad_json")
    assert says in error.message
    assert error.message.startswith("The body ")
    assert error.message.isprintable()
    assert len(error.message) < 300
    assert "sys." not in error.message, "a client learns nothing of what we are written in"


KEPT: dict[str, bytes] = {
    "an unknown field": b'{"model":"m","x_vendor":{"deep":[{"er":null}]}}',
    "the order of fields": b'{"z":1,"a":2,"m":3}',
    "no field": b"{}",
    "an empty key": b'{"":1}',
    "keys that differ in case": b'{"Model":1,"model":2}',
    "true, false, null": b'{"a":[true,false,null]}',
    "a large integer": b'{"seed":18446744073709551615,"n":-9223372036854775809}',
    "an integer of 4,300 digits": b'{"a":' + b"7" * 4300 + b"}",
    "integers that are no double": b'{"id":9007199254740993}',
    "zero point zero": b'{"temperature":0.0,"top_p":1.0}',
    "minus zero": b'{"a":-0.0}',
    "doubles": b'{"a":[0.1,0.7,1e-07,5e-324,1.7976931348623157e+308,123456.789]}',
    "text": '{"a":"日本語 🦜 \u2028 é"}'.encode(),
    "quotes and controls": b'{"a":"\\"\\\\\\n\\t\\u0000\\u001f\x7f"}',
    "an emoji": '{"a":"😀"}'.encode(),
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_everything_else_goes_on_as_it_came(body: bytes) -> None:
    assert encode_json(read_strict_json(body)) == body


@pytest.mark.parametrize(
    ("body", "goes_on"),
    [
        (b' {\n "a" : [ 1 , 2 ] }\r\n', b'{"a":[1,2]}'),
        (b'{"a":"\\u00e9\\/\\ud83d\\ude00"}', '{"a":"é/😀"}'.encode()),
        (b'{"a":1E5,"b":1e0}', b'{"a":100000.0,"b":1.0}'),
        (b'{"a":0.10}', b'{"a":0.1}'),
    ],
)
def test_another_way_to_write_the_same_goes_on_in_one_way(body: bytes, goes_on: bytes) -> None:
    assert encode_json(read_strict_json(body)) == goes_on


@pytest.mark.parametrize(
    "body", [b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"\\ud83d":1}', b'{"a":["x\\udfff"]}']
)
def test_half_a_surrogate_pair_cannot_go_on(body: bytes) -> None:
    with pytest.raises(BadJson, match="surrogate"):
        encode_json(read_strict_json(body))


@pytest.mark.parametrize("depth", [10, 100, 500, 900, 990, 2000])
def test_what_is_deep_goes_on_or_is_refused_in_words(depth: int) -> None:
    """How deep depends on the stack that is left. No depth is read in part, or read and then not written."""
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    goes_on, refusal = _try(body)
    assert goes_on == body or "nested too deeply" in refusal


def _try(body: bytes) -> tuple[bytes, str]:
    """The body as it would go on, or why it does not."""
    try:
        return encode_json(read_strict_json(body)), ""
    except BadJson as exc:
        return b"", exc.message


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON_VALUES, max_size=6))
def test_any_object_survives(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    assert json.loads(encode_json(read_strict_json(body))) == value
    assert repr(json.loads(encode_json(read_strict_json(body)))) == repr(value), "1 is not 1.0, and -0.0 is not 0.0"


@given(st.binary(max_size=80))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    goes_on, refusal = _try(body)
    assert refusal.isprintable()
    assert refusal or json.loads(goes_on) == json.loads(body)


@given(st.text(alphabet='{}[]":,0123456789.eE+-truefalsn \\u', max_size=40))
def test_what_is_read_is_what_another_parser_reads(text: str) -> None:
    goes_on, refusal = _try(text.encode())
    assert refusal or json.loads(text) == json.loads(goes_on)


# Words.

NASTY = 'a "quote",\r\ndata: [DONE]\n\nid: 7\0 \u2028 \ud800 é'


@pytest.mark.parametrize("reason", [reason for reason in CloseReason if not reason.is_success])
def test_an_error_has_one_shape_and_the_close_reason_as_its_code(reason: CloseReason) -> None:
    error = error_object(reason, "words", {"stream_id": "lw_x", "last_seq": 4, "resumable": True})
    assert list(error) == ["message", "type", "param", "code", "stream_id", "last_seq", "resumable"]
    assert (error["message"], error["code"], error["param"]) == ("words", str(reason), None)
    assert error["type"] in ("api_error", "invalid_request_error")
    assert (error["type"] == "invalid_request_error") == (reason is CloseReason.UPSTREAM_REFUSED)


def test_an_error_event_is_one_event_whatever_its_words() -> None:
    """What an engine says stands in them: it must not be able to forge events of ours."""
    blocks = RelayWords().error_blocks(CloseReason.UPSTREAM_RESET, NASTY, {"last_seq": 3})
    assert len(blocks) == 1
    lines = blocks[0].split(b"\n")
    assert lines[0] == b"event: error"
    assert lines[2:] == [b"", b""]
    assert b"\r" not in blocks[0]
    event = json.loads(lines[1].removeprefix(b"data: "))
    assert event["type"] == "error"
    assert (event["error"]["message"], event["error"]["last_seq"]) == (NASTY, 3)


def test_an_error_body_can_be_read() -> None:
    body = json.loads(RelayWords().error_body(CloseReason.UPSTREAM_TIMEOUT, NASTY))
    assert (body["error"]["message"], body["error"]["code"]) == (NASTY, "upstream_timeout")


def test_what_was_read_in_another_process_comes_back() -> None:
    ask = Ask("m", True, 2, b"{}", None, True)
    assert pickle.loads(pickle.dumps(ask)) == ask


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b"{}", (1, 0)),
        (b'{"max_output_tokens":50}', (6, 50)),
        (b'{"max_tokens":"50"}', (5, 0)),
        (b'{"max_tokens":true}', (5, 0)),
        (b'{"max_tokens":1e300}', (5, MAX_ANSWER_TOKENS)),
    ],
)
def test_tokens_of_a_relayed_request_are_estimated_and_never_a_reason_to_refuse_it(
    body: bytes, tokens: tuple[int, int]
) -> None:
    ask = read_relayed(body)
    assert (ask.prompt_tokens, ask.answer_tokens) == tokens and ask.body == body


def test_encoded_media_are_counted_by_the_piece() -> None:
    """By its bytes an image would be more than any engine's cache holds."""
    image = b"A" * 400_000
    text = b'{"model":"m","messages":[{"role":"user","content":[%b]}]}'
    url = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % image
    sound = b'{"type":"input_audio","input_audio":{"data":"%b","format":"wav"}}' % image
    for parts, count in ((url, 1), (url + b"," + sound, 2), (url + b"," + url + b"," + sound, 3)):
        tokens = read_relayed(text % parts).prompt_tokens
        assert count * MEDIA_TOKENS < tokens < count * MEDIA_TOKENS + 100
    words = b'{"model":"m","input":"%b;base64, "}' % (b"word " * 10_000)
    assert read_relayed(words).prompt_tokens == estimate_tokens(words) == -(-len(words) // BYTES_PER_TOKEN)
