"""Which answers to a short request are right."""

from __future__ import annotations

import pytest
from benchmarks.short_answer import PLAIN, WITH_USAGE, Checker, request, unframed

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
NUMBER, OTHER = b"0000000042", b"0000000043"
RIGHT = HEAD + PLAIN % NUMBER


def in_one_frame(body: bytes) -> bytes:
    """The same events as another gateway frames them."""
    text = unframed(body)
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)


@pytest.mark.parametrize("body", [PLAIN % NUMBER, WITH_USAGE % NUMBER, in_one_frame(PLAIN % NUMBER)])
def test_right_however_it_is_framed(body: bytes) -> None:
    checker = Checker()
    assert checker.problem(HEAD + body, NUMBER) == ""
    assert checker.problem(HEAD + body, NUMBER) == ""  # known by its shape now


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT.replace(b"200 OK", b"503 Busy"),
        RIGHT.replace(NUMBER, OTHER),
        RIGHT.replace(b"stop", b"step"),
        RIGHT.replace(b"[DONE]", b"[GONE]"),
        RIGHT[:-1],
        RIGHT + b"0",
        HEAD + b"0\r\n\r\n",
        HEAD + b"zz\r\n\r\n",
    ],
)
def test_wrong_answers_are_told(answer: bytes) -> None:
    checker = Checker()
    assert checker.problem(answer, NUMBER) != ""
    assert checker.problem(RIGHT, NUMBER) == ""
    assert checker.problem(answer, NUMBER) != ""


def test_the_request_says_its_length_and_number() -> None:
    head, _, body = request(80, NUMBER).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    assert b'"@' + NUMBER + b'"' in body
