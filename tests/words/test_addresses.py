"""Addresses: split, or refused where nobody could connect to them."""

from __future__ import annotations

import pytest

from longwire.words.addresses import split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("h", "h", None),
        ("h:1", "h", 1),
        ("https://H.example./x", "h.example.", None),
        ("http://[::1]:65535", "::1", 65535),
        ("http://m\u00fcnchen.example", "m\u00fcnchen.example", None),
    ],
)
def test_host_and_port_are_found(text: str, host: str, port: int | None) -> None:
    parts = split_address(text)
    assert (parts.hostname, parts.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "http://[::1",
        "h:x",
        "h:-1",
        "h:0",
        "h:65536",
        "a..b",
        "a" * 64,
        "http://\u4e2d..x",
        "http://a b",
        "a\x01b",
        "h/\u00fc",
        "h/a b",
    ],
)
def test_what_nobody_could_connect_to_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)
