"""Reading the configuration once more: what is taken over, what only a restart can change, and how it is handed on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.house import hashed

from longwire.admission.matrix import Matrix
from longwire.cli.reread import main, reread
from longwire.keeper.channel import Channel
from longwire.keeper.deed import Deed
from longwire.processes.estate import Blob
from longwire.processes.start import place_engines
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings

SECRET = b"s" * 32


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LONGWIRE_")]:
        monkeypatch.delenv(name)
    return tmp_path / "longwire.toml"


def write(file: Path, text: str = "", engine: str = "sim", tenants: tuple[str, ...] = ()) -> None:
    keys = "".join(f'[[tenants]]\nname = "{name}"\nkey_hashes = ["{hashed(name)}"]\n' for name in tenants)
    file.write_text(f'{text}\n[[engines]]\nname = "e"\nurl = "{engine}"\n{keys}')


def origin(file: Path, **flags: Any) -> str:
    return json.dumps([str(file), flags])


def in_force(file: Path, **flags: Any) -> Blob:
    """As `serve` has begun with it."""
    from longwire.cli.configuration import load_configuration

    served, ours = place_engines(load_configuration(str(file), flags).settings)
    return Blob(served, SECRET, ours)


def test_what_is_written_now_is_taken_and_ours_keep_their_port(file: Path) -> None:
    write(file, "drain_s = 5")
    old = in_force(file)
    write(file, "drain_s = 7\nhang_kill_s = 9")
    new, has_other_tenants = reread(origin(file), old)
    assert (new.settings.drain_s, new.settings.hang_kill_s, has_other_tenants) == (7, 9, False)
    assert new.secret == SECRET and new.ours == old.ours
    assert new.settings.engines == old.settings.engines


def test_flags_win_as_they_did_at_the_start(file: Path) -> None:
    write(file, "drain_s = 5")
    old = in_force(file, drain_s="6")
    write(file, "drain_s = 7")
    assert reread(origin(file, drain_s="6"), old)[0].settings.drain_s == 6


def test_other_tenants_need_other_counters(file: Path) -> None:
    write(file, tenants=("a", "b"))
    old = in_force(file)
    assert reread(origin(file), old)[1] is False
    write(file, tenants=("a", "b", "c"))
    assert reread(origin(file), old)[1] is True


def test_a_gateway_that_had_tenants_is_not_opened_to_everybody(file: Path) -> None:
    write(file, tenants=("a",))
    old = in_force(file)
    write(file)
    with pytest.raises(SettingsError, match="No tenant is left"):
        reread(origin(file), old)
    file.unlink()
    with pytest.raises(SettingsError, match="There is no such file"):
        reread(origin(file), old)


@pytest.mark.parametrize("text", ["port = 9999", "shards = 3", "max_streams = 77"])
def test_what_was_used_before_the_first_process_needs_a_restart(file: Path, text: str) -> None:
    write(file)
    old = in_force(file)
    write(file, text)
    with pytest.raises(SettingsError, match=rf"{text.split(maxsplit=1)[0]} cannot be changed by a reload"):
        reread(origin(file), old)


def test_engines_that_we_run_come_with_a_restart_only(file: Path) -> None:
    write(file, engine="http://h:1")
    old = in_force(file)
    write(file, engine="sim")
    with pytest.raises(SettingsError, match="restart"):
        reread(origin(file), old)


def test_one_that_is_not_wanted_any_more_runs_on_and_is_not_asked(file: Path) -> None:
    """It may be wanted again by the next reload, and is at the same port then."""
    write(file, engine="sim")
    old = in_force(file)
    write(file, engine="http://h:1")
    new, _ = reread(origin(file), old)
    assert new.ours == old.ours and [engine.url for engine in new.settings.engines] == ["http://h:1"]


def test_a_bad_file_a_bad_keys_file_and_a_bad_certificate(file: Path) -> None:
    write(file)
    old = in_force(file)
    write(file, "drain_s = -1")
    with pytest.raises(SettingsError, match="drain_s"):
        reread(origin(file), old)
    bad = file.with_name("bad")
    bad.write_text("nonsense")
    write(file, f'keys_file = "{bad}"', tenants=("a",))
    with pytest.raises(SettingsError):
        reread(origin(file), old)
    write(file, f'tls_cert_file = "{bad}"\ntls_key_file = "{bad}"')
    with pytest.raises(SettingsError):
        reread(origin(file), old)


# As the keeper starts it.


def run(file: Path, old: Blob) -> tuple[int, dict[str, Any], list[int]]:
    ours, its = Channel.pair()
    deed = Deed(old.store(), 0, 0, 0, 0, 0, ())
    code = main([origin(file), str(os.dup(its.fileno())), "9", str(deed)])
    received = ours.receive()
    ours.close()
    its.close()
    os.close(deed.settings)
    assert received is not None
    return code, *received


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_keeper_gets_two_figures_and_descriptors(file: Path) -> None:
    write(file, "drain_s = 5", tenants=("a",))
    old = in_force(file)
    code, told, fds = run(file, old)
    assert (code, told) == (0, {"am": "read", "problem": "", "drain_s": 5, "hang_kill_s": old.settings.hang_kill_s})
    assert len(fds) == 1 and Blob.read(fds[0]) == old
    write(file, "drain_s = 5", tenants=("a", "b"))
    code, _, fds = run(file, old)
    assert code == 0 and len(fds) == 2
    assert [tenant.name for tenant in Blob.read(fds[0]).settings.tenants] == ["a", "b"]
    Matrix.attach(fds[1])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_keeper_gets_a_problem_in_words(file: Path) -> None:
    write(file)
    old = in_force(file)
    write(file, "no_such_setting = 1")
    code, told, fds = run(file, old)
    assert code == 2 and not fds
    assert told["am"] == "read" and "no_such_setting" in told["problem"]


def test_a_configuration_of_flags_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    flags = {"engines": ["e=http://h:1"]}
    settings = Settings(engines=[EngineSettings(name="e", url="http://h:1")])
    new, _ = reread(json.dumps([None, flags]), Blob(settings, SECRET, {}))
    assert new.settings == settings
