"""``python -m longwire.sim``: the stand-in without the command line's other parts."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from dataclasses import MISSING, fields

from longwire.words.settings import SimSettings

from . import FAULTS, run


def main() -> int:
    """Flags to settings, and serve."""
    parser = argparse.ArgumentParser(prog="longwire.sim", description="An engine stand-in.")
    for field in fields(SimSettings):
        flag = "--" + field.name.replace("_", "-")
        if field.default is MISSING:
            parser.add_argument(flag, action="append", default=[], help=field.metadata["help"])
        else:
            choices = field.metadata["choices"] or None
            parser.add_argument(
                flag, type=type(field.default), default=field.default, choices=choices, help=field.metadata["help"]
            )
    parser.add_argument("--list-faults", action="store_true", help="List the faults, and stop.")
    parser.add_argument("--until-eof", action="store_true", help="End when standard input does.")
    flags = vars(parser.parse_args())
    if flags.pop("until_eof"):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if flags.pop("list_faults"):
        for name, fault in sorted(FAULTS.items()):
            print(f"{name:24}{fault.help}")
        return 0
    return run(SimSettings(**flags))


def _end_with_parent() -> None:
    """Whoever started us holds the other end: where that is killed, nobody would ever end us, and our port stays taken."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
