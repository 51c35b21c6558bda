"""The story that the demonstration tells on the terminal, and how it looks.

What must not live here: HTTP and the comparison (wire.py), starting a gateway (gateway.py), killing (crash.py).
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from typing import Any, TextIO

import click

from .crash import Crash
from .wire import Block, Reading, StreamClient, WireError, differences, digest

QUESTION = "Why is the sky blue?"
ANSWER_TOKENS = 106
"""Where the small model's answer to this question happens to end a sentence."""

CUT_AFTER_EVENTS = 40
AWAY_S = 0.3
"""How long the client stays away: long enough to see the engine go on without it."""

MARGIN = 2
TEXT_COLUMNS = 88


# The story.


def run_demo(
    url: str,
    api_key: str = "",
    *,
    question: str = QUESTION,
    cut_after: int = CUT_AFTER_EVENTS,
    away_s: float = AWAY_S,
    crash: Crash | None = None,
) -> int:
    """Play it against the gateway at ``url``; returns 0 when the proof holds, 1 when it does not. With ``crash`` the process
    that serves the stream is killed halfway to the cut."""
    client = StreamClient(url, api_key)
    request = make_request(client.first_model(), question)
    say(f"{mark('ask')} {question}", bold=True, before="\n", after="\n")

    text = Typewriter(sys.stdout)
    asked = time.monotonic()
    before: list[Block] = []
    with closing(client.ask(request)) as reading:
        blocks = iter(reading)
        kill_after = cut_after // 2 if crash is not None else 0
        ttft_ms = read_on(blocks, before, kill_after, text, asked)
        if crash is not None:
            kill_and_read_on(crash, reading, blocks, before, text)
        ttft_ms = read_on(blocks, before, cut_after, text, asked) or ttft_ms
        reading.cut()
    text.finish()
    time.sleep(away_s)
    after = resume(client, reading.stream_id, before, text)
    show_whole(before, after, kill_after)
    return show_proof(before, after, client, reading.stream_id, ttft_ms)


def resume(client: StreamClient, stream_id: str, before: list[Block], text: Typewriter) -> list[Block]:
    """Say what was cut, and read the rest over another connection."""
    state = client.state(stream_id)
    say(
        f"{mark('cut')} The client's connection is cut, by TCP reset, after event {len(before) - 1}.",
        fg="red",
        before="\n",
    )
    say(f"  Meanwhile the stream is {state['status']}: {state['events']} events in its log.", dim=True)

    cursor = f"{state['epoch']}-{len(before) - 1}"
    say(f"{mark('resume')} It resumes with Last-Event-ID: {cursor}", fg="green", after="\n")
    after: list[Block] = []
    with closing(client.resume(stream_id, cursor)) as resumed:
        for block in resumed:
            after.append(block)
            text.write(block.text)
    text.finish()
    return after


def make_request(model: str, question: str) -> dict[str, Any]:
    """Greedy, so that it looks the same each time; with a system message, without which the small model rambles."""
    return {
        "model": model,
        "stream": True,
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": question},
        ],
    }


def read_on(blocks: Iterator[Block], before: list[Block], stop: int, text: Typewriter, asked: float) -> float:
    """Read until there are so many events; returns the time to the first text in milliseconds, or 0 if it came earlier."""
    ttft_ms = 0.0
    had_text = any(block.text for block in before)
    while len(before) < stop:
        block = next(blocks, None)
        if block is None:
            raise WireError(f"The answer ended after {len(before)} events, before there was anything to cut.")
        before.append(block)
        if block.text and not had_text:
            had_text, ttft_ms = True, (time.monotonic() - asked) * 1000
        text.write(block.text)
    return ttft_ms


def kill_and_read_on(
    crash: Crash, reading: Reading, blocks: Iterator[Block], before: list[Block], text: Typewriter
) -> None:
    """Kill the process that serves the stream, and see the next event come over the same connection."""
    port, victim = reading.port, crash.find(reading.stream_id)
    text.finish()
    last = len(before) - 1
    crash.kill(victim)
    killed_at = time.monotonic()
    say(
        f"{mark('kill')} Process {victim.pid}, which serves this stream, is killed after event {last}.",
        fg="red",
        before="\n",
    )
    pid = crash.wait_successor(victim)
    read_on(blocks, before, len(before) + 1, Typewriter(StringIO()), killed_at)
    waited_ms = (time.monotonic() - killed_at) * 1000
    say(f"{mark('resume')} Process {pid} goes on: event {last + 1} came {waited_ms:.0f} ms after the kill,", fg="green")
    say(
        f"  over the same connection (port {reading.port}{'' if port == reading.port else ' and not ' + str(port)}).",
        fg="green",
    )
    say("", after="")
    text.write(before[-1].text)


def show_whole(before: list[Block], after: list[Block], kill_after: int) -> None:
    say("The whole answer, as two connections received it:", before="\n", after="\n", bold=True)
    text = Typewriter(sys.stdout, indent="  | ")
    text.write("".join(block.text for block in before[:kill_after]))
    if kill_after:
        text.write(f" {mark('kill')}", fg="red")
    text.write("".join(block.text for block in before[kill_after:]))
    text.write(f" {mark('cut')}", fg="red")
    text.write("".join(block.text for block in after))
    text.finish()


def show_proof(before: list[Block], after: list[Block], client: StreamClient, stream_id: str, ttft_ms: float) -> int:
    replay = client.replay(stream_id)
    wrong = differences(before, after, replay)
    received, replayed = digest([*before, *after]), digest(replay)
    state = client.state(stream_id)
    total = len(before) + len(after)
    say(
        f"{total} events: {len(before)} before the cut, {len(after)} after it; a full replay has {len(replay)}.",
        before="\n",
    )
    say(f"SHA-256 of the data received  {received}")
    say(f"SHA-256 of the full replay    {replayed}")
    say(f"First token after {ttft_ms:.0f} ms, then {rate(state)}.", after="\n")
    for line in wrong:
        say(f"{mark('bad')} {line[0].upper()}{line[1:]}.", fg="red")
    if wrong or received != replayed:
        say(f"{mark('bad')} The proof FAILED for stream {stream_id}.", fg="red", bold=True, after="\n")
        return 1
    say(f"{mark('good')} Nothing was lost and nothing was repeated.", fg="green", bold=True, after="\n")
    return 0


def rate(state: dict[str, Any]) -> str:
    """Tokens per second as the gateway saw them, for the client was away for a part of it."""
    usage, first_ms, last_ms = state.get("usage"), state.get("first_token_ms"), state.get("last_event_ms")
    if not usage or first_ms is None or last_ms is None or last_ms <= first_ms:
        return "at a rate that the gateway could not tell"
    tokens = usage["completion_tokens"]
    about = "about " if state.get("usage_estimated") else ""
    return f"{about}{(tokens - 1) / (last_ms - first_ms) * 1000:.0f} tokens/s ({tokens} tokens)"


# How it looks.

MARKS = {
    "kill": ("☠", "XX"),
    "cut": ("✂", "8<"),
    "resume": ("↻", "=>"),
    "good": ("✓", "OK"),
    "bad": ("✗", "!!"),
    "ask": ("»", ">"),
}


def mark(name: str) -> str:
    """A sign, or its plain form where the terminal's encoding lacks it."""
    sign, plain = MARKS[name]
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return sign


def say(line: str, *, before: str = "", after: str = "", **style: Any) -> None:
    click.echo(before + " " * MARGIN + (click.style(line, **style) if style else line) + after)


class Typewriter:
    """Text that arrives in pieces, wrapped at word boundaries as it comes."""

    def __init__(self, out: TextIO, *, indent: str = " " * MARGIN, columns: int | None = None) -> None:
        self._out = out
        self._indent = indent
        self._columns = columns or min(TEXT_COLUMNS, shutil.get_terminal_size().columns - 1)
        self._column = 0

    def write(self, text: str, **style: Any) -> None:
        """Pieces begin with their space (" sky"), so a word is broken only where a piece of it meets the edge."""
        for part in re.findall(r"\n|[^\S\n]*[^\s]+|[^\S\n]+", text):
            self._write_part(part, style)
        self._out.flush()

    def finish(self) -> None:
        if self._column:
            self._newline()

    def _write_part(self, part: str, style: dict[str, Any]) -> None:
        if part == "\n":
            self._newline()
            return
        if self._column and self._column + len(part) > self._columns and part[0].isspace():
            self._newline()
        if not self._column:
            part = part.lstrip()
            click.echo(self._indent, nl=False, file=self._out)
            self._column = len(self._indent)
        click.echo(click.style(part, **style) if style else part, nl=False, file=self._out)
        self._column += len(part)

    def _newline(self) -> None:
        click.echo("" if self._column else self._indent.rstrip(), file=self._out)
        self._column = 0
