"""Longwire and its peers, side by side: the same works through each, in turn, into RESULTS.md.

What lives here: the command line, running the parts one after the other, and keeping what each has told.
What must not: which parts there are (parts.py), the page (results.py, plots.py), measuring.

Each work is a script of its own that can be run alone; its results are kept in results/, so that a part can be measured
anew and the rest of the page stays as it was. A script that fails costs its own rows only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import peer_install
import work
from parts import HERE, KEYS, PARTS, RESULTS, ROOT, Part
from results import COLOURS, page
from targets import resolve, use_this_checkout
from work import say

PAGE = HERE / "RESULTS.md"
PLOTS = ROOT / "docs" / "plots"
LIMIT_S = 3 * 3600.0
"""Of one part: far beyond the longest soak, and yet not for ever."""
LAST_LINES = 6
MAX_SAID = 40

EPILOG = """
works: a  500 streams at 20 events/s              d  channels: 10,000 readers over 100 streams
       b  9,000 streams at 2 events/s             e  50,000 held connections
       c  short requests                          f  a soak of a quarter of an hour
       doors   each door of `longwire bench`, straight and behind nginx as shipped and without buffering
       inside  the log, a stream's state, the longest pause of the event loop

Peers that are not there are installed first (peer_install.py); one that cannot be had is a row that says why. Results go
to benchmarks/RESULTS.md, benchmarks/results/*.json and docs/plots/*.svg. The exit status is 0 when every part that was
asked for gave figures that are valid, whatever they are.

examples:
  make bench                                          # everything: an hour or two
  make bench ARGS='--only a c'                        # two works; the others keep what they had
  make bench ARGS='--only b --runs 3 --seconds 5'     # shorter
  sudo nice -n -15 make bench                         # usable delays on a machine that is not idle
  python benchmarks/side_by_side.py --list            # what there is, and when it was last measured
  python benchmarks/side_by_side.py --render          # the page again, from the files
"""


def main() -> int:
    """Run what is asked for, and write the page; 0 when all of it is valid."""
    options = _options()
    use_this_checkout()
    kept = load()
    if options.list:
        print(*(_line(part, kept.get(part.name)) for part in PARTS), sep="\n")
        return 0
    if options.render:
        write_page(kept)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is stopped on the way out
    chosen = [part for part in PARTS if not options.only or part.key in options.only]
    try:
        statuses = [_measure(part, options, kept) for part in _prepared(chosen, options)]
    except KeyboardInterrupt:
        say("interrupted: the page has what was measured until now")
        return 130
    finally:
        write_page(kept)
    return 0 if all(status == 0 for status in statuses) and len(statuses) == len(chosen) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=KEYS, metavar="WORK", help=f"of {' '.join(KEYS)} (all)")
    parser.add_argument("--runs", type=int, help="runs of each target, interleaved (each work's own number)")
    parser.add_argument("--seconds", type=float, help="length of each window (each work's own)")
    parser.add_argument("--no-install", action="store_true", help="measure with the peers that are there")
    parser.add_argument("--list", action="store_true", help="show the works, and when each was last measured")
    parser.add_argument(
        "--render", action="store_true", help="only write the page and the plots, from benchmarks/results"
    )
    options = parser.parse_args()
    if (options.runs is not None and options.runs < 1) or (options.seconds is not None and options.seconds <= 0):
        parser.error("at least one run, and of some length")
    return options


def load() -> dict[str, dict[str, Any]]:
    """What is kept of each part, by its name."""
    return {part.name: json.loads(part.path.read_text()) for part in PARTS if part.path.exists()}


def write_page(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """RESULTS.md and the plots."""
    from plots import draw  # with the scales of the project's sources, which are on the path by now

    drawn = draw(kept)
    PLOTS.mkdir(parents=True, exist_ok=True)
    for name, (_, svg) in drawn.items():
        (PLOTS / name).write_text(svg)
    PAGE.write_text(page(kept, [(title, name) for name, (title, _) in drawn.items()]))
    say(f"written: {PAGE.relative_to(ROOT)}, {len(drawn)} plots in {PLOTS.relative_to(ROOT)}")


def _prepared(chosen: Sequence[Part], options: argparse.Namespace) -> list[Part]:
    """Those that can be run, with the peers they want installed as far as possible."""
    for part in chosen:
        if not part.has_script:
            say(f"{part.name}: benchmarks/{part.script} is not there: left out")
    ready = [part for part in chosen if part.has_script]
    wanted = dict.fromkeys(name for part in ready for name in part.targets if name in peer_install.NAMES)
    if wanted and not options.no_install:
        say(f"peers: {', '.join(wanted)}")
        for name, reason in peer_install.install(list(wanted)).items():
            say(f"  {name}: {reason}")
    return ready


def _measure(part: Part, options: argparse.Namespace, kept: dict[str, dict[str, Any]]) -> int:
    """One part, whose results replace those of the last time."""
    present, missing, versions = available(part.targets)
    command = part.command(present, options.runs, options.seconds)
    say(f"\n{part.name}: {part.title}\n  python {' '.join(command)}")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{part.name}.told"
    measured, began = datetime.now(UTC), time.monotonic()
    try:
        status, lines = _run([sys.executable, *command, "--json", str(file.relative_to(ROOT))])
        told = _read(file)
    finally:
        file.unlink(missing_ok=True)
    failure = "" if told else f"it ended with status {status}: {' / '.join(lines[-LAST_LINES:]) or '(it said nothing)'}"
    kept[part.name] = {
        "part": part.name,
        "measured": f"{measured:%Y-%m-%d %H:%M} UTC",
        "took_s": round(time.monotonic() - began, 1),
        "command": " ".join(command),
        "status": status,
        "failure": failure,
        "missing": missing,
        "versions": versions,
        "machine": _machine(),
        "said": [line for line in lines if " FAILED: " in line and told and "scenarios" in told],
        "told": told,
    }
    part.path.write_text(json.dumps(kept[part.name], indent=1) + "\n")
    say(
        f"{part.name}: {failure or ('not all runs are valid' if status else 'done')}, {kept[part.name]['took_s']:.0f} s"
    )
    return status or bool(failure)


def _read(file: Path) -> dict[str, Any] | None:
    """What a script wrote; nothing of one that was ended while it wrote."""
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Which of these can be had here, why the others cannot, and the versions. A name of a script's own is its business."""
    present, missing, versions = [], {}, {}
    for name in names:
        try:
            found, remarks = resolve([name])
        except ValueError:
            present.append(name)
            continue
        if found:
            present.append(name)
            versions[name] = found[0].version
        else:
            missing[name] = "; ".join(remarks)
    return present, missing, versions


def _run(argv: Sequence[str]) -> tuple[int, list[str]]:
    """Run it with its progress going through us; status, and what it said last."""
    said: deque[str] = deque(maxlen=MAX_SAID)
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace") as script:
        limit = threading.Timer(LIMIT_S, script.terminate)
        limit.start()
        try:
            assert script.stderr is not None
            for line in script.stderr:
                say(f"  {line.rstrip()}")
                said.append(without_places(line))
        except BaseException:
            script.terminate()
            raise
        finally:
            limit.cancel()
    return script.returncode, list(said)


def without_places(line: str) -> str:
    """A line that can be shown to others: no colours, and no folders of this machine."""
    plain = COLOURS.sub("", line).strip().replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
    return re.sub(re.escape(tempfile.gettempdir()) + r"/[\w.-]+", "…", plain)


def _machine() -> dict[str, object]:
    """What all parts are measured on, with the one library that decides how fast our loop is, and whether we went first."""
    pages = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        uvloop = ""
    return work.machine() | {"memory_gib": int(pages) / 1024**2, "uvloop": uvloop, "nice": os.nice(0)}


def _line(part: Part, kept: Mapping[str, Any] | None) -> str:
    when = (
        f"measured {kept['measured']}" if kept else "never measured" if part.has_script else "its script is not there"
    )
    return f"{part.key:7} {part.title}\n        {when}; benchmarks/{part.script}"


if __name__ == "__main__":
    sys.exit(main())
