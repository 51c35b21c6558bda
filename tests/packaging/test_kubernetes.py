"""The Kubernetes manifest, without Kubernetes: its settings load, its times add up, its ports and paths are ours.

What lives here: the manifest's relation to the settings, the routes and the image. It is read by lines: no parser of YAML is
among what the tests need.
What must not: other packaging (beside this file).
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path

from longwire.server.routes import find_route
from longwire.words.config import load_settings
from longwire.words.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "packaging" / "kubernetes.yaml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")


def number(pattern: str) -> int:
    (found,) = re.findall(pattern, TEXT)
    return int(found)


def settings() -> Settings:
    """What the pod's gateway would read: the ConfigMap's file, under the image's variables."""
    lines = TEXT.partition("longwire.toml: |\n")[2].partition("\n---")[0]
    image = dict(re.findall(r"\b(LONGWIRE_\w+)=(\S+)", DOCKERFILE))
    return load_settings(textwrap.dedent(lines), "longwire.toml", image, {})


def test_the_settings_are_complete() -> None:
    found = settings()
    assert found.host == "0.0.0.0" and found.tenants and found.engines
    key = f"LONGWIRE_ENGINE_{found.engines[0].name.upper()}_API_KEY"
    assert f"name: {key}" in TEXT


def test_the_grace_period_outlasts_the_drain() -> None:
    waited = number(r'command: \[sleep, "(\d+)"\]')
    assert number(r"terminationGracePeriodSeconds: (\d+)") > waited + settings().drain_s


def test_probes_ask_for_what_there_is() -> None:
    probes = dict(re.findall(r"(\w+)Probe:\n\s+httpGet: \{ path: (\S+), port: http \}", TEXT))
    assert probes == {"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"}
    for path in probes.values():
        assert find_route("GET", path.encode()).name == path.removeprefix("/")


def test_ports_are_the_image_s() -> None:
    found = settings()
    assert number(r"name: http, containerPort: (\d+)") == found.port
    assert number(r"name: admin, containerPort: (\d+)") == found.admin_port


def test_the_user_is_the_image_s() -> None:
    user, group = number(r"runAsUser: (\d+)"), number(r"runAsGroup: (\d+)")
    assert f"USER {user}:{group}\n" in DOCKERFILE


def test_the_image_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert re.findall(r"image: longwire:(\S+)", TEXT) == [project["version"]]


def test_a_service_of_our_name_sets_no_setting() -> None:
    """Kubernetes would give each pod LONGWIRE_PORT for the Service called longwire, LONGWIRE_ADMIN_PORT for the other."""
    assert "\n      enableServiceLinks: false\n" in TEXT


def test_clients_do_not_reach_the_admin_port() -> None:
    services = [part for part in TEXT.split("\n---") if "\nkind: Service\n" in part]
    assert [("targetPort: admin" in each, "clusterIP: None" in each) for each in services] == [
        (False, False),
        (True, True),
    ]
    assert "\nkind: NetworkPolicy\n" in TEXT
