"""The guard against DNS rebinding: which Host headers are meant for the admin port."""

from __future__ import annotations

import pytest

from longwire.admin.hosts import AllowedHosts


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8081", "localhost.", "127.0.0.1", "127.0.0.1:8081", "127.8.9.1", "[::1]", "[::1]:8081"],
)
def test_loopback_is_always_meant(host: str) -> None:
    assert AllowedHosts("127.0.0.1").allows(host)
    assert AllowedHosts("admin.example").allows(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil-localhost",
        "10.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::2]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "localhost:8081:1",
        "localhost:port",
        "user@localhost",
        "localhost/",
        "[localhost]",
        "[::1",
        "::1",
        " localhost",
        "localhost\n",
        "localhost,evil.example",
        "l\u00f6calhost",
    ],
)
def test_anything_else_is_not(host: str) -> None:
    assert not AllowedHosts("127.0.0.1").allows(host)


@pytest.mark.parametrize(
    ("admin_host", "host"),
    [
        ("10.1.2.3", "10.1.2.3:8081"),
        ("fd00::1", "[fd00:0::1]:8081"),
        ("Admin.Example", "admin.example."),
        ("ops", "ops:1"),
    ],
)
def test_the_configured_host_is_meant(admin_host: str, host: str) -> None:
    assert AllowedHosts(admin_host).allows(host)
    assert not AllowedHosts(admin_host).allows("10.9.9.9")
    assert not AllowedHosts(admin_host).allows("evil.example")


@pytest.mark.parametrize("admin_host", ["0.0.0.0", "::"])
def test_bound_to_every_address_any_address_is_meant_but_no_name(admin_host: str) -> None:
    hosts = AllowedHosts(admin_host)
    assert hosts.allows("10.1.2.3:8081")
    assert hosts.allows("[fd00::1]")
    assert not hosts.allows("evil.example")


def test_more_names_can_be_added() -> None:
    hosts = AllowedHosts("0.0.0.0", ["Longwire.monitoring.svc"])
    assert hosts.allows("longwire.monitoring.svc:8081")
    assert "longwire.monitoring.svc" in repr(hosts)
