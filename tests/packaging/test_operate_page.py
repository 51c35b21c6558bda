"""docs/operate.md names nothing that is not there: settings, metrics, commands, lines of the recipes.

What lives here: names on the page against what declares them.
What must not: links (tests/architecture looks after those).
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from longwire.cli.program import SECTIONS
from longwire.keeper.shards import ShardView
from longwire.observe.reference import error_classes
from longwire.words.settings import Settings, TenantSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
IN_BACKTICKS = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL))
RECIPES = {
    name: (ROOT / "packaging" / "proxies" / name).read_text() for name in ("nginx.conf", "haproxy.cfg", "envoy.yaml")
}


def test_metrics_are_metrics() -> None:
    known = set(re.findall(r"`(longwire_\w+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
    named = set(re.findall(r"\blongwire_\w+", " ".join(IN_BACKTICKS)))
    assert {re.sub(r"_bucket$", "", name) for name in named} <= known


def test_settings_are_settings() -> None:
    """Those that can be told from other words: by their unit. What a shard shows and errors' codes may end like one."""
    known = {field.name for each in (Settings, TenantSettings, ShardView) for field in fields(each)}
    known |= {error.code for error in error_classes()}
    named = {word for word in IN_BACKTICKS if re.fullmatch(r"[a-z_]+_(?:s|ms|bytes|tokens)", word)}
    assert named - known == set()
    assert len(named) > 5


def test_commands_are_commands() -> None:
    known = {command for section in SECTIONS.values() for command in section}
    assert set(re.findall(r"(?<![\w/.])longwire ([a-z]+)\b", " ".join(IN_BACKTICKS))) <= known


def proxy_cells() -> list[tuple[str, str]]:
    """What the table of proxies has for each recipe, as (recipe, word)."""
    table = PAGE.partition("| what | nginx | HAProxy | Envoy |")[2].partition("\n\n")[0]
    found = []
    for row in table.splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")][1:4]
        found += [
            (recipe, word) for recipe, cell in zip(RECIPES, cells, strict=True) for word in re.findall(r"`(.+?)`", cell)
        ]
    return found


MUST_NOT_STAND = {"worker_shutdown_timeout", "hard-stop-after", "compression", "retry_policy"}
FLAGS = re.compile(r"--|send-proxy-v2|X-Forwarded-For|/readyz")
"""Of a proxy's command line, or a header or a path rather than a line."""


@pytest.mark.parametrize(("recipe", "word"), proxy_cells())
def test_the_recipes_say_what_the_page_says(recipe: str, word: str) -> None:
    if FLAGS.match(word):
        return
    lines = [line.partition("#")[0] for line in RECIPES[recipe].splitlines()]
    stands = any(re.search(rf"(?:^|[\s{{]){re.escape(word)}[\s:;]?", line) for line in lines)
    assert stands is (word not in MUST_NOT_STAND)
