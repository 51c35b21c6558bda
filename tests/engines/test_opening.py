"""What is held back before the first token has a bound, whatever form it came in."""

from __future__ import annotations

import pytest

from longwire.engines.opening import MAX_HELD_BYTES, Opening
from longwire.wire.framer import EventFramer


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_what_is_held_is_counted_also_where_it_was_rewritten(line_end: bytes) -> None:
    opening, framer = Opening(), EventFramer(False, None, strip=True, max_event_bytes=1 << 20)
    block = b": " + b"x" * 1000 + line_end + line_end
    for number in range(MAX_HELD_BYTES // 1000 + 1):
        assert not opening.is_too_large
        for event in framer.feed(block, number * len(block)):
            opening.hold(event)
    assert opening.is_too_large
