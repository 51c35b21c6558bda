"""A bad line: a TCP proxy that cuts each connection after so many events.

It looks into HTTP only as far as it must: it counts the event blocks that come from the server.
"""

from __future__ import annotations

import re
import selectors
import socket
import socketserver
import struct
import threading
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

_EVENT = re.compile(rb"\ndata:.*?\n\n", re.DOTALL)
_READ_BYTES = 65536


@dataclass(frozen=True)
class Cut:
    """When and how a connection ends."""

    events: int = 1
    """Whole events that get through on each connection that streams."""
    extra_bytes: int = 0
    """Bytes of what follows that get through as well: the cut lies inside an event, or inside its frame."""
    reset: bool = False
    """End with a RST instead of a FIN. What the client has not read yet by then is lost, as on a real line."""
    connections: int = 1_000_000
    """How many connections are cut; later ones are whole."""
    lost_answers: int = 0
    """The first so many requests arrive, and nothing comes back."""


class CuttingProxy(socketserver.ThreadingTCPServer):
    """Listens on a port of its own; use as a context manager."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, target: str, cut: Cut) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        parts = urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.cut = cut
        self.requests: list[str] = []
        """First lines of what each connection asked first."""
        self._cuts = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_cut(self, request: bytes) -> Cut | None:
        """What to do to a connection that begins with this request."""
        with self._lock:
            self.requests.append(request.partition(b"\r\n")[0].decode())
            self._cuts += 1
            if self._cuts <= self.cut.lost_answers:
                return Cut(events=0)
            return self.cut if self._cuts <= self.cut.connections else None

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken line is what this is for."""


class _Line(socketserver.BaseRequestHandler):
    """One connection."""

    server: CuttingProxy
    request: socket.socket

    def handle(self) -> None:
        first = self.request.recv(_READ_BYTES)
        if not first:
            return  # opened in advance and never used, as Node does
        cut = self.server.next_cut(first)
        with socket.create_connection(self.server.target) as upstream:
            upstream.sendall(first)
            self._pass_on(upstream, cut)

    def _pass_on(self, upstream: socket.socket, cut: Cut | None) -> None:
        """Both directions in one thread: a socket that another thread is reading cannot be reset by closing it."""
        came = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.request, selectors.EVENT_READ, upstream)
            selector.register(upstream, selectors.EVENT_READ, self.request)
            while True:
                for key, _ in selector.select():
                    source, sink = cast(socket.socket, key.fileobj), key.data
                    data = source.recv(_READ_BYTES)
                    if not data:
                        return
                    if source is upstream and cut is not None:
                        came += data
                        end = _cut_at(came, cut)
                        if end is not None:
                            sink.sendall(data[: end - (len(came) - len(data))])
                            self._end(upstream, reset=cut.reset)
                            return
                    sink.sendall(data)

    def _end(self, upstream: socket.socket, *, reset: bool) -> None:
        for line in (upstream, self.request):
            if reset:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.close()


def _cut_at(came: bytearray, cut: Cut) -> int | None:
    """Where to cut, as soon as it is known that what was there before is all to get through."""
    if cut.events == 0:
        return 0
    ends = [match.end() for match, _ in zip(_EVENT.finditer(came), range(cut.events), strict=False)]
    if len(ends) < cut.events:
        return None
    return min(ends[-1] + cut.extra_bytes, len(came))
