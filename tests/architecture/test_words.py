"""Tracked files speak of the project and of nothing else.

What lives here: what must not stand in any of them, and why.
What must not: spelling.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .source import ROOT

_HOW_IT_IS_MADE = (
    r"(?i:\b(?:sub-?agents?|coding agents?|co-?pilot|claude|co-authored-by|issues? #?\d+"
    r"|(?:written|generated|made|assisted) (?:by|with) (?:an? )?(?:ai|llms?|(?:language )?models?|assistants?))\b)"
)

NOT_HERE: dict[str, tuple[str, str]] = {
    "a path of some machine": (
        r"(?<![\w.~-])/(?:work|home/\w+|Users/\w+|root|private|workspace|mnt|tmp)(?=/)",
        "it works nowhere else; tests use tmp_path, texts use names",
    ),
    "a package registry's host": (
        r"(?:registry\.npmjs|registry\.yarnpkg|npmmirror|pypi\.org|pythonhosted\.org|pypi\.tuna|mirrors\.\w+)",
        "which registry is used is the reader's choice, made in the reader's own configuration",
    ),
    "how the project is made": (
        _HOW_IT_IS_MADE,
        "readers want to know what it does",
    ),
    "a promise without a date": (
        r"\b(?:TODO|FIXME|XXX|HACK)\b",
        "say what is missing where a reader looks for it, or mend it",
    ),
}

BINARY = frozenset({".png", ".gif", ".ico", ".gguf"})

PLACEHOLDERS = re.compile(r"TODO-NUMBERS")
"""Stand where a benchmark's figures belong until it has run on the release."""


@cache
def tracked() -> tuple[Path, ...]:
    """What git tracks; an unpacked source archive is not a checkout, and has nothing but what was tracked once."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    return tuple(path for path in paths if path.suffix not in BINARY and path.is_file() and path != Path(__file__))


@pytest.mark.parametrize("what", NOT_HERE)
def test_no_file_holds(what: str) -> None:
    pattern, why = NOT_HERE[what]
    looks_like_it = re.compile(pattern)
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if match := looks_like_it.search(PLACEHOLDERS.sub("", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == [], why


def test_texts_end_with_a_newline_and_have_no_carriage_returns() -> None:
    """A stray CR in a document that shows wire formats is always a mistake."""
    texts = [path for path in tracked() if path.suffix in {".md", ".py", ".toml", ".json", ".js", ".mjs", ".sh"}]
    raw = {path: path.read_bytes() for path in texts}
    assert [
        path.name for path, content in raw.items() if content and (not content.endswith(b"\n") or b"\r" in content)
    ] == []
