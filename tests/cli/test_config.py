"""``longwire config``: origins, masks, and pages that cannot drift from the declarations."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from longwire.admission.tenants import Tenants
from longwire.cli.config import MASK
from longwire.cli.reference import COMPLETE, OTHER_VARIABLES, render_example, render_reference, toml_value
from longwire.words.config import NO_SETTINGS, declared, load_settings
from longwire.words.settings import EngineSettings, Settings, TenantSettings

from .conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_show_gives_each_value_with_its_origin(run: Run, tmp_path: Path) -> None:
    (tmp_path / "longwire.toml").write_text('drain_s = 5\n[[engines]]\nurl = "http://h:1/v1"\n')
    result = run("config", "show", "--port", "9100", env={"LONGWIRE_GRACE_S": "1 min"})
    lines = {line.partition(" = ")[0]: line.split() for line in result.output.splitlines()}
    assert lines["port"] == ["port", "=", "9100", "#", "--port"]
    assert lines["grace_s"] == ["grace_s", "=", "60.0", "#", "LONGWIRE_GRACE_S"]
    assert lines["drain_s"] == ["drain_s", "=", "5.0", "#", "longwire.toml:1"]
    assert lines["host"] == ["host", "=", '"127.0.0.1"', "#", "default"]
    assert lines["engines[0].url"] == ["engines[0].url", "=", '"http://h:1"', "#", "longwire.toml:3"]
    assert set(declared(Settings)) - {"engines", "models", "tenants"} <= set(lines)


def test_show_changed_leaves_out_the_defaults(run: Run) -> None:
    result = run("config", "show", "--changed", "--engine", "a=http://h", "--no-proxy-protocol")
    assert [line.split("#")[1].strip() for line in result.output.splitlines()] == [
        "--proxy-protocol",
        "--engine",
        "--engine",
    ]


def test_show_never_prints_a_secret(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[[engines]]\nurl = "http://h"\napi_key = "s3cret"\n')
    for extra in ((), ("--json",), ("--changed",)):
        result = run("config", "show", "--config", "f.toml", *extra)
        assert result.exit_code == 0
        assert MASK in result.output
        assert "s3cret" not in result.output


def test_show_json_is_for_scripts(run: Run) -> None:
    rows = json.loads(run("config", "show", "--json", "--port", "1").output)
    assert {"path": "port", "value": 1, "origin": "--port"} in rows


def test_the_file_may_be_named_by_a_variable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("port = 1\n")
    result = run("config", "show", "--changed", env={"LONGWIRE_CONFIG": "other.toml"})
    assert result.output.split() == ["port", "=", "1", "#", "other.toml:1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no such file"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (1 << 21), "larger than"),
        (b"prot = 1", "Unknown setting"),
        (b'keys_file = "absent"', "the file absent cannot be read"),
        (b'[[engines]]\nurl = "https://h"\nca_file = "absent"', "f.toml:3: engines[0].ca_file"),
        (b'[[engines]]\nurl = "https://h"\nurls_file = "absent"', "f.toml:3: engines[0].urls_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(
    run: Run, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "f.toml").write_bytes(content)
    result = run("config", "show", "--config", "f.toml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("longwire: f.toml")
    assert result.stderr.count("\n") == 1


def test_a_bad_line_in_a_file_of_urls_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("http://a\nnonsense\n")
    (tmp_path / "f.toml").write_text('[[engines]]\nurl = "https://h"\nurls_file = "urls"\n')
    result = run("config", "show", "--config", "f.toml")
    assert result.exit_code == 2 and result.stderr.startswith("longwire: urls:2: Engine 'nonsense' must be URL")


def test_a_folder_is_no_settings_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "longwire.toml").mkdir()
    result = run("config", "show")
    assert (result.exit_code, "cannot be read" in result.stderr) == (2, True)


# Pages.


def test_the_complete_file_is_one() -> None:
    text = COMPLETE.partition("```toml\n")[2].partition("```")[0]
    settings = load_settings(text, "longwire.toml", {"LONGWIRE_ENGINE_HOSTED_API_KEY": "k"}, {})
    tenants = Tenants(settings.tenants)
    assert tenants.load_keys(COMPLETE.partition("```text\n")[2].partition("```")[0]) == 1
    assert [engine.name for engine in settings.engines] == ["vllm", "hosted"] and settings.engines[1].api_key == "k"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_reference(), (
        "run: python -m longwire config reference --output docs/settings.md"
    )


def test_the_reference_page_has_every_setting_and_every_variable() -> None:
    page = render_reference()
    for settings_class in (Settings, EngineSettings, TenantSettings):
        assert all(f"| `{name}` |" in page for name in declared(settings_class))
    assert set(OTHER_VARIABLES) >= NO_SETTINGS
    assert all(f"`{name}`" in page for name in OTHER_VARIABLES)


def test_reference_prints_or_writes_the_page(run: Run, tmp_path: Path) -> None:
    assert run("config", "reference").output == render_reference()
    assert run("config", "reference", "-o", "page.md").output == ""
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == render_reference()


def test_the_example_changes_nothing_as_it_stands(run: Run) -> None:
    assert run("config", "example").output == render_example()
    assert load_settings(render_example(), "example", {}, {}) == Settings()


def test_the_example_without_its_marks_is_every_default_and_one_of_each_table() -> None:
    lines = (line.removeprefix("# ") for line in render_example().splitlines() if " = " in line or "# [[" in line)
    text = "\n".join(lines)
    given = tomllib.loads(text)
    assert set(given) == set(declared(Settings))
    assert set(given["engines"][0]) == set(declared(EngineSettings))
    assert set(given["tenants"][0]) == set(declared(TenantSettings))
    settings = load_settings(text, "example", {}, {})
    for name, setting in declared(Settings).items():
        if setting.kind != "tables":
            assert getattr(settings, name) == setting.default


@pytest.mark.parametrize("value", ["", 'a"b\\c\né\x7f', [], ["a", "b"], True, 1, 2.5])
def test_toml_values_come_back(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
