"""Finding a few series in a page of metrics in Prometheus' text format.

What lives here: the search, and reading one line. What must not: which names mean what (load_kinds.py).

A page has hundreds of lines, of which a handful are wanted, once a second: so names are searched for (memchr does the work) and
only lines that begin with one are read. A line that cannot be read is passed over, as if it were not there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MAX_METRICS_BYTES = 1024 * 1024
"""vLLM's page is a few hundred KiB with many models; more than this is no page of metrics, or not worth a read per second."""
MAX_SERIES = 1024
"""Of one name: one per rank, process or method."""
_REST = re.compile(rb'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+([^\s#]+)')
_LABEL = re.compile(rb'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')

Sample = tuple[Mapping[bytes, bytes], float]


def is_text(page: bytes) -> bool:
    """Whether it can be such a page. TensorRT-LLM answers JSON where others answer text, proxies answer HTML."""
    return len(page) <= MAX_METRICS_BYTES and page.lstrip()[:1] not in (b"{", b"[", b"<", b"")


def find_samples(page: bytes, name: bytes) -> list[Sample]:
    """The series of exactly this name, each with its labels; those whose value is no count (negative, NaN, infinite) are left
    out: engines have shown -0.387 for a full cache."""
    found: list[Sample] = []
    start = 0 if page.startswith(name) else _next(page, name, 0)
    while start >= 0 and len(found) < MAX_SERIES:
        match = _REST.match(page, start + len(name))
        if match is not None:
            value = _number(match[2])
            if value is not None:
                found.append((dict(_LABEL.findall(match[1] or b"")), value))
        start = _next(page, name, start + len(name))
    return found


def _next(page: bytes, name: bytes, start: int) -> int:
    at = page.find(b"\n" + name, start)
    return at + 1 if at >= 0 else -1


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
