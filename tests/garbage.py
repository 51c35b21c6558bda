"""Letting go of what earlier tests have left, for a test that counts.

What lives here: that. What must not: counting.
"""

from __future__ import annotations

import gc


def let_go() -> None:
    """Close now what would be closed at any moment: memory and sockets that nobody refers to any more. A house takes what lives
    long out of the collector's sight, and one with a clock of its own may bring it back while a test counts."""
    gc.unfreeze()
    gc.collect()
