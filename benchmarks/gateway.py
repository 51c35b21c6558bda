"""A whole gateway of several processes, as users start it: what it says of itself, and the death of its shards.

What lives here: starting ``longwire serve``, asking its admin port, killing a shard and waiting for its successor.
What must not: streams and what is measured of them.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import procstat
from children import Child, RunFailed
from event import MODEL
from trial import free_port

READY_WITHIN_S = 30.0
REPLACED_WITHIN_S = 20.0
LOOK_S = 0.005
"""Between two looks at whether the engine's model is there."""
STATES_S = 0.02
"""Between two looks at the shards: often enough for a figure in milliseconds, seldom enough to cost nothing."""
SPARE_WITHIN_S = 20.0
SPARE_CALM_S = 0.3
"""A process that has used no processor for so long has its imports done."""


class Gateway(Child):
    """``longwire serve`` and everything below it."""

    def __init__(self, engine_port: int, directory: Path, shards: int, options: Sequence[str] = ()) -> None:
        self.port, self.admin_port = free_port(), free_port()
        engine = [] if "--config" in options else ["--engine", f"http://127.0.0.1:{engine_port}"]
        serve = [sys.executable, "-m", "longwire", "serve", *engine, "--shards", str(shards)]
        ports = ["--port", str(self.port), "--admin-port", str(self.admin_port), "--drain-s", "0"]
        super().__init__("longwire", [*serve, *ports, *options], None, directory / "gateway.log")
        self.shard_count = shards

    def wait_ready(self, headers: dict[str, str] | None = None) -> None:
        """Until every shard serves, with the engine's model."""
        deadline = time.monotonic() + READY_WITHIN_S
        seen: object = "nothing"
        while time.monotonic() < deadline:
            self.must_live()
            try:
                seen = self.get(self.port, "/v1/models", headers)
                if MODEL in json.dumps(seen) and all(each["state"] == "serving" for each in self.shards()):
                    return
            except (OSError, ValueError, http.client.HTTPException) as error:
                seen = repr(error)
            time.sleep(STATES_S)
        raise RunFailed(f"the gateway is not ready: {seen}; its last words: {self.last_words()}")

    @staticmethod
    def get(port: int, path: str, headers: dict[str, str] | None = None) -> Any:
        """What a port answers to GET, as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path, headers=headers or {})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def shards(self) -> list[dict[str, Any]]:
        """``GET /v1/shards``."""
        found = self.get(self.admin_port, "/v1/shards")
        assert isinstance(found, list)
        return found

    def kill(self, slot: int) -> tuple[int, float]:
        """SIGKILL to the shard that serves this slot; its streams, and seconds until another one serves."""
        victim = self.shards()[slot]
        if victim["state"] != "serving":
            raise RunFailed(f"the shard of slot {slot} is {victim['state']} before it was killed")
        os.kill(victim["pid"], signal.SIGKILL)
        began = time.monotonic()
        while time.monotonic() < began + REPLACED_WITHIN_S:
            self.must_live()
            now = self.shards()[slot]
            if now["pid"] != victim["pid"] and now["state"] == "serving":
                return int(victim["streams"]), time.monotonic() - began
            time.sleep(STATES_S)
        raise RunFailed(f"no shard serves slot {slot} within {REPLACED_WITHIN_S:g} s; last words: {self.last_words()}")

    def wait_spare(self) -> bool:
        """Until a spare is warm: a kill before that waits for an interpreter to start, which is not what is measured."""
        deadline = time.monotonic() + SPARE_WITHIN_S
        while time.monotonic() < deadline:
            spares = self.spares()
            before = [processor_ns(pid) for pid in spares]
            time.sleep(SPARE_CALM_S)
            if spares and before == [processor_ns(pid) for pid in spares] and spares == self.spares():
                return True
        return False

    def spares(self) -> list[int]:
        """Shards that have no slot. A guardian has the command line of its shard and is a child of it."""
        found = []
        serving = {each["pid"] for each in self.shards()}
        for pid in procstat.children(self.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"longwire.processes.shard" in command and b"guardian" not in _name(pid) and pid not in serving:
                found.append(pid)
        return found


def processor_ns(pid: int) -> int:
    """Time on a core so far; 0 of a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:
        return 0


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b""
