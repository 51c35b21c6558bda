"""Longwire: a streaming gateway for large language models that never loses a token.

What lives here: the version, looked up when somebody asks. What must not: anything else; importing this does nothing.
"""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("longwire")
    except PackageNotFoundError:
        return "0+source"  # a source tree that is not installed
