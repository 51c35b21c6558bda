"""Properties here have no deadline: how long an example takes says more about the machine than about the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
