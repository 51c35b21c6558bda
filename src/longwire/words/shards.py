"""What is said of a shard, by whoever keeps, counts or shows it.

What lives here: the words for a shard's state, and how much it may say of itself.
What must not: processes (keeper), counters (observe).
"""

from __future__ import annotations

from typing import Final

SHARD_STATES: Final = ("starting", "serving", "adopting", "draining", "hung", "down")
"""What the shard of a slot can be said to be. ``hung`` is told by nobody: whoever reads finds it out."""

MAX_COUNTS_BYTES: Final = 64 * 1024
"""A shard's counters as JSON: a few KiB for most, with thousands of tenants or engines some 40."""
