"""What the machine must give before a house stands: sockets, the secret, memory, and words at the door that work as shown."""

from __future__ import annotations

import errno
import gc
import json
import resource
import shlex
import socket
import stat
from pathlib import Path

import pytest
from tests.garbage import let_go

from longwire import groundwork
from longwire.groundwork import (
    MAX_ARENA_BYTES,
    MAX_WIDENED,
    SECRET_BYTES,
    CannotListen,
    arena_bytes,
    bind,
    greeting,
    load_secret,
    package_version,
    raise_descriptor_limit,
    settle_garbage,
    shown,
    widen_descriptor_table,
)
from longwire.words.errors import SettingsError

# The secret.


def test_without_a_folder_nothing_is_kept() -> None:
    assert load_secret("") is None


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    secret = load_secret(str(folder))
    assert secret is not None and len(secret) == SECRET_BYTES and len(set(secret)) > 8
    path = folder / "hash.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load_secret(str(folder)) == secret, "hashes compare across restarts"
    assert [each.name for each in folder.iterdir()] == ["hash.key"]
    assert load_secret(str(tmp_path / "other")) != secret


@pytest.mark.parametrize("content", [b"", b"short", b"x" * (SECRET_BYTES + 1)])
def test_a_file_that_is_no_secret_is_named_and_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hash.key"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"hash\.key.*remove it"):
        load_secret(str(tmp_path))
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "hash.key").mkdir()
    for folder in ("file", "file/below", "taken"):
        with pytest.raises(SettingsError, match="state_dir cannot be used") as caught:
            load_secret(str(tmp_path / folder))
        assert str(tmp_path) in str(caught.value)


# Sockets.


def test_a_free_port_is_taken_and_shown() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port and shown(sock) == f"127.0.0.1:{port}" and not sock.getblocking()


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    try:
        sock = bind("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with sock:
        assert shown(sock).startswith("[::1]:")


@pytest.mark.parametrize(("setting", "option"), [("port", "--port"), ("admin_port", "--admin-port")])
def test_a_taken_port_is_named_with_the_flag_that_chooses_another(setting: str, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"cannot listen on 127\.0\.0\.1:{port}: .* {option} ") as refused:
            bind("127.0.0.1", port, setting)
    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(("setting", "option"), [("port", "--host"), ("admin_port", "--admin-host")])
def test_an_address_of_another_machine_is_named_with_its_flag(setting: str, option: str) -> None:
    with pytest.raises(CannotListen, match=rf"cannot listen on 192\.0\.2\.1:8099: .* {option}\."):
        bind("192.0.2.1", 8099, setting)


# Memory and descriptors.


@pytest.mark.parametrize(("limit", "arena"), [(1 << 30, 1 << 28), (1 << 40, MAX_ARENA_BYTES)])
def test_the_arena_is_a_quarter_of_what_may_be_used(limit: int, arena: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groundwork, "memory_limit_bytes", lambda: (limit, "test"))
    assert arena_bytes() == arena


def test_the_descriptor_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_descriptor_limit()
    assert asked == [(4096, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    raise_descriptor_limit()
    assert len(asked) == 1, "there is nothing to raise"

    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbidden)
    raise_descriptor_limit()


def test_what_is_there_at_the_start_is_out_of_the_collector_s_sight() -> None:
    was_enabled = gc.isenabled()
    try:
        settle_garbage()
        assert not gc.isenabled() and gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


# Words.


def test_the_curl_line_is_one_command() -> None:
    text = greeting("http://127.0.0.1:8080", "smol", with_key=False)
    line = text.partition("Try it:\n\n")[2].partition("\n\n")[0]
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"] and "Authorization" not in line
    body = json.loads(words[-1])
    assert body["model"] == "smol" and body["stream"] and body["max_tokens"] == 200, "it comes to an end"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("with_key", [False, True])
def test_the_snippet_can_be_pasted(with_key: bool) -> None:
    text = greeting("https://127.0.0.1:8443", "smol", with_key=with_key)
    code = text.partition("(pip install openai):\n")[2]
    compile(code, "snippet", "exec")
    assert ("Bearer KEY" in text) == ('api_key="KEY"' in text) == with_key
    assert "max_tokens=200" in code and '"system"' in code


def test_the_version_is_a_string() -> None:
    assert package_version()


def test_the_table_of_descriptors_is_widened_and_nothing_stays_open() -> None:
    def size() -> int:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("FDSize:")).split()[1])

    let_go()
    before = len(list(Path("/proc/self/fd").iterdir()))
    widen_descriptor_table()
    assert size() >= min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MAX_WIDENED)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
