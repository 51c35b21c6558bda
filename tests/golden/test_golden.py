"""What this version writes is what was written before; what older ones have left in memory is rendered exactly, or declined."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden.image import attach, layouts, render, spans
from tests.golden.make import ENCODERS, FOLDER
from tests.golden.vectors import vectors

from longwire.streams.shared import LayoutMismatch


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Memory is unmapped when nobody has a view of it any more: that others count their descriptors must not suffer from it."""
    yield
    gc.collect()


IMAGES = sorted(FOLDER.glob("memory-*.json"))


def test_rows_headers_and_framings_are_what_they_were() -> None:
    """Where one is not, processes of two versions read each other's memory during a reload: give the layout another version."""
    golden = json.loads(ENCODERS.read_text())
    now = vectors()
    assert now.keys() == golden.keys()
    assert [name for name in golden if now[name] != golden[name]] == []


def is_declined(image: dict[str, Any]) -> bool:
    try:
        attach(image)
    except LayoutMismatch:
        return True
    return False


def test_there_is_an_image_of_this_version() -> None:
    assert FOLDER / f"memory-{layouts()}.json" in IMAGES


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_memory_of_each_version_is_rendered_exactly_or_declined(path: Path) -> None:
    image: dict[str, Any] = json.loads(path.read_text())
    if path.stem != f"memory-{layouts()}" and is_declined(image):
        return
    start, written = spans(image)
    assert 0 <= start < written
    for unsent in range(0, written - start + 1, 7):  # wherever the kernel had come to
        assert asyncio.run(render(image, unsent)) == image["response"][written - unsent :]
