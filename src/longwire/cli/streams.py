"""``longwire streams``: look at a running gateway's streams, follow one, stop one.

What lives here: what is printed. What must not: HTTP (admin_port.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from longwire.words.errors import BadCursor
from longwire.words.ids import parse_cursor, parse_stream_id

from .admin_port import DEFAULT_URL, AdminPort, Block, Interrupted, follow
from .terminal import Failure, Group, print_json, print_table

EXAMPLES = """
longwire streams ls
longwire streams show lw_4f                  # the first characters of an id are enough
longwire streams tail lw_4f                  # the answer's text from its start, then live
longwire streams tail lw_4f --raw --after 1-120
longwire streams cancel lw_4f                # the engine stops too
longwire streams ls --json | jq -r '.[].id'
"""

with_url = click.option(
    "--url",
    envvar="LONGWIRE_ADMIN_URL",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="The gateway's admin port (or LONGWIRE_ADMIN_URL).",
)
COLUMNS = ("ID", "STATUS", "AGE", "EVENTS", "READERS", "TTFT", "MODEL", "ENGINE", "TENANT")

as_json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("streams", cls=Group, examples=EXAMPLES)
def command() -> None:
    """List, show, follow or stop the streams of a running gateway."""


@command.command("ls")
@with_url
@as_json_flag
def ls(url: str, as_json: bool) -> None:
    """List all streams, the newest first."""
    streams = fetch_streams(AdminPort(url))
    if as_json:
        print_json(streams)
    elif not streams:
        click.echo("No streams.")
    else:
        now = time.time()
        print_table(
            *_without_unknown_readers(COLUMNS, [_row(stream, now) for stream in streams]), wrap=("MODEL", "ENGINE")
        )


def _without_unknown_readers(
    columns: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A stream's shard alone knows its readers, and the admin port is none: a column that never says anything is left out."""
    at = columns.index("READERS")
    if any(row[at] for row in rows):
        return columns, rows
    return columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def fetch_streams(admin: AdminPort) -> list[dict[str, Any]]:
    streams = admin.fetch("/v1/streams")
    found = streams.get("data") if isinstance(streams, dict) else None
    if not isinstance(found, list):
        raise Failure(f"{admin.url} lists no streams: is this the admin port of a Longwire gateway?")
    return sorted(found, key=lambda stream: float(stream.get("created_at") or 0), reverse=True)


def _row(stream: Mapping[str, Any], now: float) -> tuple[str, ...]:
    ttft_ms = stream.get("first_token_ms")
    return (
        str(stream.get("id", "")),
        str(stream.get("close_reason") or stream.get("status") or ""),
        shown_age(now - float(stream.get("created_at") or now)),
        *("" if stream.get(name) is None else str(stream[name]) for name in ("events", "readers")),
        "" if ttft_ms is None else f"{ttft_ms:.0f} ms",
        *(str(stream.get(name) or "") for name in ("model", "engine", "tenant")),
    )


def shown_age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


@command.command("show")
@click.argument("stream_id", metavar="ID")
@with_url
@as_json_flag
def show(stream_id: str, url: str, as_json: bool) -> None:
    """Show the state of one stream: how far it is, how fast it was, why it ended."""
    admin = AdminPort(url)
    state = admin.fetch(f"/v1/streams/{full_id(admin, stream_id)}")
    if as_json:
        print_json(state)
        return
    width = max(map(len, state), default=0)
    for name, value in state.items():
        if name != "object" and value is not None:
            click.echo(f"{name.ljust(width)}  {shown_value(name, value)}")


def shown_value(name: str, value: object) -> str:
    if name == "created_at" and isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    return value if isinstance(value, str) else json.dumps(value)


@command.command("tail")
@click.argument("stream_id", metavar="ID")
@click.option("--after", default="", metavar="CURSOR", help="Start after this event (<epoch>-<seq>), not at the first.")
@click.option("--raw", is_flag=True, help="Print the SSE blocks instead of the text.")
@with_url
def tail(stream_id: str, after: str, raw: bool, url: str) -> int:
    """Print a stream's answer from its start (or a cursor) and go on while it grows; a cut connection is resumed."""
    try:
        parse_cursor(after)
    except BadCursor as error:
        raise click.BadParameter(error.message, param_hint="--after") from None
    admin = AdminPort(url)
    full = full_id(admin, stream_id)
    try:
        return print_blocks(follow(lambda cursor: admin.open_events(full, cursor), after), raw)
    except Interrupted as error:
        if error.cause is not None and error.after == after:
            raise admin.unreachable(error.cause) from None
        click.echo()
        goes_on = f"longwire streams tail {full} --after {error.after}" if error.after else "the same command"
        raise Failure(f"The gateway is gone ({error}); go on later with: {goes_on}") from None


def print_blocks(blocks: Iterator[Block], raw: bool) -> int:
    """Print as it comes; 1 where the stream itself ended in an error."""
    error = ""
    last = "\n"
    for block in blocks:
        text, failure = (str(block), "") if raw else answer_text(block.data or "")
        error = error or failure
        if text:
            click.echo(text, nl=False)
            last = text
        if failure and block.id is None:
            break  # not of the stream: the admin port itself cannot go on, and asking again would not help
    if not last.endswith("\n"):
        click.echo()
    if error:
        raise Failure(error)
    return 0


def answer_text(data: str) -> tuple[str, str]:
    """What a person reads of one event: the first choice's text, or the in-band error's message."""
    try:
        event = json.loads(data) if data.startswith("{") else {}
    except (ValueError, RecursionError):
        return "", ""
    if isinstance(event.get("error"), dict):
        return "", str(event["error"].get("message") or "The stream ended in an error.")
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if choice.get("index", 0) != 0:
        return "", ""
    delta = choice.get("delta") if isinstance(choice.get("delta"), dict) else choice
    assert isinstance(delta, dict)
    text = "".join(str(delta.get(name) or "") for name in ("reasoning_content", "content", "text"))
    return text, ""


@command.command("cancel")
@click.argument("stream_id", metavar="ID")
@with_url
def cancel(stream_id: str, url: str) -> None:
    """Stop a generation now, at the engine too; what was generated stays readable."""
    admin = AdminPort(url)
    state = admin.fetch(f"/v1/streams/{full_id(admin, stream_id)}", "DELETE")
    reason = state.get("close_reason") or state.get("status") or "cancelled"
    click.echo(f"{state.get('id', stream_id)}: {reason} after {state.get('events') or 0} events")


def full_id(admin: AdminPort, given: str) -> str:
    """The id that starts as given; asks the gateway only where it is not whole."""
    if parse_stream_id(given) is not None:
        return given
    wanted = given if given.startswith("lw_") else f"lw_{given}"
    found = [str(stream["id"]) for stream in fetch_streams(admin) if str(stream.get("id", "")).startswith(wanted)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} streams start" if found else "No stream starts"
    raise Failure(f"{what} with {given!r}; longwire streams ls shows them all.")
