"""Where Longwire reads a request otherwise than gunicorn's corpus says, and why; docs/http.md shows this table.

``python -m tests.corpus.deviations docs/http.md`` writes it there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

COMMAND = "python -m tests.corpus.deviations docs/http.md"
BEGIN = f"<!-- Made by `{COMMAND}`; edit tests/corpus/deviations.py, not this table. -->"
END = "<!-- The table ends here. -->"


class Deviation(NamedTuple):
    """Files that are read otherwise. ``ours`` is the outcome here: read, refused, unfinished, or read in another form."""

    files: tuple[str, ...]
    ours: str
    why: str


NO_HOST = Deviation(
    ("004", "006", "007", "010", "011", "012", "013", "014", "018", "021", "022", "023", "100", "pp_02"),
    "refused",
    "HTTP/1.1 without `Host`. RFC 9112 3.2 demands a 400. With a `Host` each is read as gunicorn reads it.",
)

INVALID = (
    Deviation(
        ("006", "007", "008", "009", "011", "012", "limit_header_default_01"),
        "read",
        "Bounds are ours: 32 KiB for the whole head (`max_head_bytes`, 431) and 128 fields, no bound for one line.",
    ),
    Deviation(
        ("001", "rfc9112_chunked_missing_final_crlf_01"),
        "unfinished",
        "Cut off in the middle: no request comes of it. Who sends nothing more is told 408 in time.",
    ),
    Deviation(
        ("040",),
        "read",
        "Fields with `_` in their names are left out, as nginx does and gunicorn too unless it is told to refuse them.",
    ),
    Deviation(
        ("041",),
        "read",
        "A second `Content-Type` is refused (400) by the routes that read it, not by the parser.",
    ),
)

VALID = (
    NO_HOST,
    Deviation(
        ("099",),
        "unfinished",
        "Its `Content-Length` says 17,914 bytes and 8,599 are there. Half a body is no request, whatever the half says.",
    ),
    Deviation(("005",), "refused", "A fragment (`#`) in the target. RFC 9112 3.2 has none; nobody may guess what it means."),
    Deviation(
        ("025", "025_line", "029", "030", "rfc9112_smuggle_gzip_chunked_01", "rfc9112_smuggle_te_identity_chunked_01"),
        "refused",
        "A coding besides one `chunked`. Two servers that read such a list differently are how requests are smuggled.",
    ),
    Deviation(
        ("028", "compat_obs_fold", "compat_obs_fold_huge"),
        "refused",
        "White space before a colon, folded fields: gunicorn takes them only when told to, RFC 9112 5.1 and 5.2 refuse them.",
    ),
    Deviation(
        ("031", "031compat", "031compat2"),
        "refused",
        "A method that no standard knows. No route here could have it.",
    ),
    Deviation(
        ("rfc9112_target_authority_connect_01", "rfc9112_target_authority_ipv6_01"),
        "refused",
        "`CONNECT`: this is no forward proxy.",
    ),
    Deviation(
        (
            "rfc9112_target_absolute_01",
            "rfc9112_target_absolute_https_01",
            "rfc9112_target_absolute_ipv6_01",
            "rfc9112_target_absolute_userinfo_01",
        ),
        "read in another form",
        "A target in absolute form is reduced to its path: what is served never depends on a host that a client names.",
    ),
    Deviation(
        ("040_compat",),
        "read in another form",
        "Fields with `_` in their names are left out; gunicorn keeps them only when told to.",
    ),
)  # fmt: skip

TABLE = {"invalid": INVALID, "valid": VALID}


def deviation_of(kind: str, name: str) -> Deviation | None:
    """The entry of a file, if it has one."""
    found = [entry for entry in TABLE[kind] if name in entry.files]
    assert len(found) <= 1, f"{kind}/{name} stands in the table twice"
    return found[0] if found else None


def render() -> str:
    """The table, between its marks."""
    lines = [BEGIN, "", "| Files | There | Here | Why |", "| --- | --- | --- | --- |"]
    for kind, entries in TABLE.items():
        for entry in entries:
            files = ", ".join(f"`{name}`" for name in entry.files)
            lines.append(f"| {files} | {kind} | {entry.ours} | {entry.why} |")
    return "\n".join([*lines, "", END])


def with_table(page: str) -> str:
    """The page with its table up to date."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the page has lost the marks around its table"
    return before + render() + after


def main(path: Path) -> None:
    """Bring the page up to date."""
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
