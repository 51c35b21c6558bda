"""Commands that hand settings on: serve, sim, local, tenants. What they call is put in place of the real rooms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longwire.words.config import declared
from longwire.words.settings import EngineSettings, Settings, SimSettings

from .conftest import Run


class Calls(list[tuple[Any, ...]]):
    """What was called, and a function that notes it and returns an exit code."""

    local_is_installed = False

    def note(self, *args: Any, **named: Any) -> int:
        self.append((*args, *named.values()))
        return 7


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    rooms: dict[str, dict[str, Any]] = {
        "longwire.processes.start": {"run": calls.note},
        "longwire.sim": {"run": calls.note, "FAULTS": {"reset_after": "Reset the connection after N events."}},
        "longwire.engines.local": {
            "install": calls.note,
            "serve": calls.note,
            "is_installed": lambda settings: calls.local_is_installed or bool(settings.local_model_path),
        },
    }
    for name, attributes in rooms.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(f"{parent}.{child}", module, raising=False)
    return calls


# serve


def test_serve_runs_the_gateway_and_exits_with_its_code(run: Run, calls: Calls) -> None:
    result = run("serve", "--engine", "a=http://h/v1", "--engine", "sim", "--port", "0", "--max-body-bytes", "1MiB")
    assert result.exit_code == 7
    engines = [EngineSettings(name="a", url="http://h"), EngineSettings(name="sim", url="sim")]
    ((settings, reader),) = calls
    assert settings == Settings(engines=engines, port=0, max_body_bytes=1024**2)
    assert reader[:-1] == [sys.executable, "-P", "-m", "longwire.cli.reread"]
    file, flags = json.loads(reader[-1])
    assert file is None and flags["max_body_bytes"] == "1MiB", "a reload reads the same file, and has the same flags"


def test_a_file_that_was_found_must_be_there_for_a_reload(run: Run, calls: Calls) -> None:
    Path("longwire.toml").write_text('log_level = "info"')
    assert run("serve", "--engine", "sim").exit_code == 7
    assert json.loads(calls[0][1][-1])[0] == "longwire.toml"


def test_every_scalar_setting_is_a_flag_of_serve(run: Run, calls: Calls) -> None:
    args = []
    for setting in declared(Settings).values():
        if setting.kind == "bool":
            args.append(setting.flag if setting.default else f"--no-{setting.flag[2:]}")
        elif setting.kind in ("int", "float"):
            args += [setting.flag, str(setting.default)]
    assert run("serve", "--engine", "sim", *args).exit_code == 7
    assert calls[0][0] == Settings(engines=[EngineSettings(name="sim", url="sim")])
    assert run("serve", "--engine", "sim", "--cors-origins", "a", "--cors-origins", "b").exit_code == 7
    assert calls[1][0].cors_origins == ["a", "b"]


def test_the_short_help_of_serve_leaves_the_rest_to_the_reference(run: Run) -> None:
    help = run("serve", "--help").output
    assert "--state-dir" in help and "--shards" in help
    assert "--heartbeat-s" not in help
    assert "longwire config reference" in help


def test_serve_without_an_engine_takes_the_embedded_one(run: Run, calls: Calls) -> None:
    calls.local_is_installed = True
    assert run("serve").exit_code == 7
    assert calls[0][0].engines == [EngineSettings(name="local", url="local")]


def test_serve_without_any_engine_names_the_choices(run: Run, calls: Calls) -> None:
    result = run("serve")
    assert (result.exit_code, calls) == (2, [])
    for choice in ("--engine URL", "--engine sim", "longwire local install"):
        assert choice in result.stderr


def test_serve_with_the_embedded_engine_asked_for_and_absent(run: Run, calls: Calls) -> None:
    result = run("serve", "--engine", "local")
    assert (result.exit_code, calls) == (2, [])
    assert "longwire local install" in result.stderr
    assert run("serve", "--engine", "local", "--local-model-path", "m.gguf").exit_code == 7


def test_serve_refuses_an_open_address(run: Run, calls: Calls) -> None:
    result = run("serve", "--engine", "sim", "--host", "0.0.0.0")
    assert (result.exit_code, calls) == (2, [])
    assert result.stderr.startswith("longwire: --host: ")
    assert run("serve", "--engine", "sim", "--host", "0.0.0.0", "--allow-anonymous").exit_code == 7


# sim


def test_sim_runs_with_flags_of_its_own(run: Run, calls: Calls) -> None:
    result = run(
        "sim", "--port", "9101", "--itl-ms", "2.5", "--fault", "a=1,2", "--fault", "b", env={"LONGWIRE_PORT": "1"}
    )
    assert result.exit_code == 7
    assert calls == [(SimSettings(port=9101, itl_ms=2.5, fault=["a=1,2", "b"]),)]


def test_sim_refuses_a_bad_value(run: Run, calls: Calls) -> None:
    result = run("sim", "--jitter", "2")
    assert (result.exit_code, calls) == (2, [])
    assert result.stderr == "longwire: --jitter: jitter must be a number from 0 to 1, not '2'.\n"


def test_sim_lists_its_faults(run: Run, calls: Calls) -> None:
    result = run("sim", "--list-faults")
    assert (result.exit_code, calls) == (0, [])
    assert result.output.splitlines()[1].split(maxsplit=1) == ["reset_after", "Reset the connection after N events."]


# local


def test_local_install_and_serve_call_the_engine(run: Run, calls: Calls) -> None:
    assert run("local", "install").exit_code == 7
    assert run("local", "install", "--quiet").exit_code == 7
    assert run("local", "serve").exit_code == 1
    calls.local_is_installed = True
    assert run("local", "serve", "--port", "9102", "--local-slots", "3").exit_code == 7
    assert calls == [(True,), (False,), ("127.0.0.1", 9102, Settings(local_slots=3))]


# tenants


def test_a_key_from_standard_input_is_hashed(run: Run) -> None:
    result = run("tenants", "hash", input="a-long-and-random-key\n")
    assert result.exit_code == 0
    assert result.stdout == "sha256:79985d181da1d010d5001f2c27c75dc0b659f908792816479290d8fe25bc89ae\n"


def test_a_key_that_a_person_could_choose_is_refused(run: Run) -> None:
    result = run("tenants", "hash", input="secret\n")
    assert result.exit_code == 1
    assert "--generate" in result.stderr
    assert "secret" not in result.output


def test_a_new_key_and_its_hash_belong_together(run: Run) -> None:
    first, second = (
        dict(line.split() for line in run("tenants", "hash", "--generate").stdout.splitlines()) for _ in "12"
    )
    assert first["key"] != second["key"]
    assert run("tenants", "hash", input=first["key"]).stdout.strip() == first["hash"]
