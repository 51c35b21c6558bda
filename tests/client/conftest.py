"""Both skins under both HTTP libraries: each test of a stream runs against every combination that openai here allows."""

from __future__ import annotations

import pytest
from tests.client.skins import LIBRARIES, Skin


@pytest.fixture(params=[(way, library) for library in LIBRARIES for way in ("sync", "async")], ids="-".join)
def skin(request: pytest.FixtureRequest) -> Skin:
    way, library = request.param
    return Skin(way == "async", library)
