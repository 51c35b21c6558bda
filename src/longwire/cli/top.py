"""``longwire top``: how a gateway fares, once a second.

What lives here: rates from two looks, and the picture. What must not: HTTP (admin_port.py), counting (observe/overview.py).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from .admin_port import AdminPort, PublicPort
from .streams import with_url
from .terminal import WIDE_COLUMNS, Command, Failure

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EVERY_S = 1.0
TIMEOUT_S = 2.0
"""An admin port that takes longer is shown as gone, and asked again."""

EXAMPLES = """
longwire top
longwire top --once                          # one picture, for a script or a report
longwire top --json | jq .rates              # a line a second
"""

RATES = {
    "streams_per_s": ("streams_started_total", 1),
    "requests_per_s": ("requests_total", 1),
    "events_per_s": ("events_total", 1),
    "tokens_per_s": ("tokens_completion_total", 1),
    "mb_in_per_s": ("upstream_bytes_total", 1_000_000),
    "mb_out_per_s": ("body_bytes_total", 1_000_000),
}
"""Of what, and in units of how many."""

STATE_STYLES = {"serving": "green", "hung": "bold red", "down": "bold red"}
GIB = 1 << 30

Look = Mapping[str, Any]


@click.command("top", cls=Command, examples=EXAMPLES)
@with_url
@click.option("--once", is_flag=True, help="Print one picture and exit; it has no rates, which take two.")
@click.option("--json", "as_json", is_flag=True, help="Print each picture as one line of JSON.")
def command(url: str, once: bool, as_json: bool) -> int:
    """Show shards, streams, tenants, rates and memory of a running gateway, live."""
    admin = AdminPort(url, TIMEOUT_S)
    try:
        if once:
            print_plain(with_rates(None, fetch(admin)), as_json)
        elif as_json or not sys.stdout.isatty():
            follow_plain(looks(admin), as_json)
        else:
            follow_live(looks(admin), admin.url)
    except (KeyboardInterrupt, click.Abort):
        pass
    return 0


def fetch(admin: AdminPort) -> Look:
    """The gateway's picture of itself."""
    found = admin.fetch("/v1/overview")
    if not isinstance(found, dict) or found.get("object") != "overview":
        raise Failure(f"{admin.url} gives no overview: is this the admin port of a Longwire gateway of this version?")
    return found


def looks(admin: AdminPort, pause: Callable[[float], None] | None = None) -> Iterator[Look | Failure]:
    """One look a second, with rates from the second on; a Failure while the gateway is gone."""
    pause = pause or time.sleep
    before: Look | None = None
    while True:
        try:
            now = fetch(admin)
            yield with_rates(before, now)
            before = now
        except PublicPort:
            raise  # it will be none for operators in a second either
        except Failure as failure:
            before = None
            yield failure
        pause(EVERY_S)


def with_rates(before: Look | None, now: Look) -> Look:
    """The look with ``rates`` since the one before; None where that is not known, or the gateway was started anew."""
    elapsed_s = float(now["at_s"]) - float(before["at_s"]) if before else 0.0
    rates: dict[str, float | None] = {}
    for name, (total, unit) in RATES.items():
        grown = now["totals"][total] - before["totals"][total] if before else 0
        rates[name] = round(grown / unit / elapsed_s, 2) if elapsed_s > 0 and grown >= 0 else None
    return {**now, "rates": rates}


# Without a terminal.


def follow_plain(found: Iterator[Look | Failure], as_json: bool) -> None:
    """Picture after picture, until the reader has had enough. That the gateway is gone is said once."""
    is_gone = False
    for look in found:
        if not isinstance(look, Failure):
            print_plain(look, as_json)
            if not as_json:
                click.echo()
        elif not is_gone:
            click.echo(f"longwire: {look.message} Waiting for it (Ctrl-C ends this).", err=True)
        is_gone = isinstance(look, Failure)


def print_plain(look: Look, as_json: bool) -> None:
    """One picture, or one line of JSON."""
    if as_json:
        click.echo(json.dumps(look))
        return
    from rich.console import Console

    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else WIDE_COLUMNS, highlight=False, markup=False
    )
    with console.capture() as printed:
        console.print(picture(look))
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


# With one.


def follow_live(found: Iterator[Look | Failure], url: str, console: Console | None = None) -> None:
    """The picture in place, until Ctrl-C. While the gateway is gone, the last picture stays, with a line that says so."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last: RenderableType = Text("")
    with Live(Text(f"Asking {url} ..."), console=console, auto_refresh=False, transient=False) as live:
        for look in found:
            if isinstance(look, Failure):
                gone = Text(f"{look.message} Asking again every second.", "bold red")
                live.update(Group(last, gone), refresh=True)
            else:
                last = picture(look)
                live.update(last, refresh=True)


ENGINE_COLUMNS = ("ENGINE", "STATE", "IN FLIGHT", "BUSY", "IDLE", "CONNECTING", "KV", "WAITING", "PROBLEM")
MAX_PROBLEM_CHARS = 40
"""Of what is wrong with an engine; /v1/overview has all of it."""


def picture(look: Look) -> RenderableType:
    """All of it as tables without lines, as wide as they need to be."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in headlines(look)]
    if not look["ready"]:
        parts.append(Text(f"Not ready: {look['problem']}", "bold red"))
    parts += [Text(""), table(("SHARD", "PID", "STATE", "STREAMS", "CONNECTIONS", "LAG", "RESTARTS"), shard_rows(look))]
    if look["engines"]:
        parts += [Text(""), table(ENGINE_COLUMNS, engine_rows(look))]
    if look["tenants"]:
        parts += [Text(""), table(("TENANT", "STREAMS", "LIMIT"), tenant_rows(look))]
    return Group(*parts)


def headlines(look: Look) -> Iterator[str]:
    """What fits into sentences."""
    streams, rates, arena, ttft_ms = look["streams"], look["rates"], look["arena"], look["ttft_ms"]
    yield (
        f"longwire {look['version']}: {streams['live']} live, {streams['opening']} opening, {streams['ended']} ended streams; "
        f"{look['queued']} queued, {look['readers']} readers, {look['connections']} connections"
    )
    yield (
        f"{shown(rates['streams_per_s'])} streams/s, {shown(rates['events_per_s'])} events/s, "
        f"{shown(rates['tokens_per_s'])} tokens/s, "
        f"{shown(rates['mb_in_per_s'])} MB/s in, {shown(rates['mb_out_per_s'])} MB/s out"
    )
    used = arena["blocks"] - arena["free"]
    share = used / arena["blocks"] if arena["blocks"] else 0.0
    yield (
        f"arena {share:.0%} of {arena['bytes'] / GIB:.1f} GiB used; first token within {ttft_ms['p50']:.0f} ms (half), "
        f"{ttft_ms['p99']:.0f} ms (99 %)"
    )


def shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def shard_rows(look: Look) -> Iterator[tuple[str, ...]]:
    """Of one that hangs: for how long."""
    for shard in look["shards"]:
        lag_ms, silent_s = shard["loop_lag_ms"], shard["silent_s"] or 0.0
        yield (
            str(shard["index"]),
            str(shard["pid"] or "-"),
            f"{shard['state']} for {silent_s:.0f} s" if shard["state"] == "hung" else shard["state"],
            str(shard["streams"]),
            str(shard["connections"]),
            "-" if lag_ms is None else f"{lag_ms:.1f} ms",
            str(shard["restarts"]),
        )


def engine_rows(look: Look) -> Iterator[tuple[str, ...]]:
    """Each upstream's state, what it has to do, by our count and by its own, and what is wrong with it."""
    for engine in look["engines"]:
        state = (
            "down" if not engine["up"] else "up" if engine["breaker"] == "closed" else f"breaker {engine['breaker']}"
        )
        numbers = (str(engine[name]) for name in ("in_flight", "busy", "idle", "connecting"))
        kv_used, waiting = engine["kv_used"], engine["waiting"]
        load = ("-" if kv_used is None else f"{kv_used:.0%}", "-" if waiting is None else f"{waiting:.0f}")
        yield engine["name"], state.replace("_", "-"), *numbers, *load, engine["problem"][:MAX_PROBLEM_CHARS]


def tenant_rows(look: Look) -> Iterator[tuple[str, ...]]:
    for tenant in look["tenants"]:
        yield tenant["name"], str(tenant["streams"]), str(tenant["limit"] or "-")


def table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> RenderableType:
    """Columns under their heads; the first is text, and what follows may have a state's colour."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell, STATE_STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    return made
