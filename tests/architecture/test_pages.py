"""The pages that people read lead somewhere, and both languages say the same.

What lives here: links between pages, and the parts that the two READMEs share.
What must not: pages that are rendered (test_imports.py, test_openapi.py, tests/observe and tests/cli look after those).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longwire.cli.program import SECTIONS

from .source import PACKAGE, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READMES = ("README.md", "README.zh-CN.md")


def shared_parts(page: str) -> list[str]:
    """Commands, programs and a program's output, comments aside. The diagram may be drawn anew for another script's widths."""
    blocks = [text for _, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")) if "┌" not in text]
    return [re.sub(r"\s+#.*$", "", block, flags=re.MULTILINE) for block in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in headings(file), target


def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_both_readmes_have_the_same_commands() -> None:
    english, chinese = map(shared_parts, READMES)
    assert english == chinese


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_commands_that_are_shown_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    known = {name for commands in SECTIONS.values() for name in commands}
    assert set(re.findall(r"(?<![\w/.])longwire ([a-z]+)", _code(text))) <= known
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", _code(text))) <= targets


def _code(text: str) -> str:
    """What stands in code blocks and in backticks."""
    blocks = [block for language, block in FENCE.findall(text) if language == "sh"]
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "GLOSSARY.md"])
def test_files_that_are_named_exist(page: str) -> None:
    """``streams/log.py`` is short for the package's; others are named from the project's folder."""
    named = set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", (ROOT / page).read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_index_names_every_page(page: Path) -> None:
    index = ROOT / "docs" / "index.md"
    assert page == index or f"]({page.name})" in index.read_text(encoding="utf-8")
