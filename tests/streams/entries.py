"""Random logs: what hypothesis draws for the tests of the log, its doors and its readers."""

from __future__ import annotations

from hypothesis import strategies as st

from longwire.streams.arena import BLOCK_BYTES

from .world import Entry, data_block

# A few bytes, a size whose hex digits change (15 to 16, 255 to 256), or one that certainly crosses a block.
SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([1, 7, 8, 9, 247, 248, 249, 4087, 4088]),
    st.sampled_from([BLOCK_BYTES - 8, BLOCK_BYTES, 2 * BLOCK_BYTES + 1]),
)


def _block(size: int, mark: int) -> bytes:
    return data_block(b"%d " % mark + b"x" * size)


BLOCKS = st.builds(_block, SIZES, st.integers(0, 999))
COMMENTS = st.builds(lambda mark: b": %d\n\n" % mark, st.integers(0, 999))
# Bytes of the engine that are nobody's event: heads, chunk framing, hidden usage. Long ones bring the next near a block's end.
HIDDEN = st.builds(
    lambda size: Entry("hidden", b"-" * size),
    st.one_of(st.integers(1, 30), st.integers(BLOCK_BYTES - 60, BLOCK_BYTES)),
)

SPOKEN = st.builds(Entry, st.sampled_from(["hot", "framed", "plain", "record"]), BLOCKS)
SILENT = st.builds(Entry, st.sampled_from(["plain", "record"]), COMMENTS, st.just(True))
ENTRIES = st.one_of(SPOKEN, SPOKEN, SPOKEN, SILENT, HIDDEN)
LOGS = st.lists(ENTRIES, max_size=24)
