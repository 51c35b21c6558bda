"""``python -m longwire.sim``: the stand-in without the command line's other parts."""

from __future__ import annotations

import argparse
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
            parser.add_argument(flag, type=type(field.default), default=field.default, help=field.metadata["help"])
    parser.add_argument("--list-faults", action="store_true", help="List the faults, and stop.")
    flags = vars(parser.parse_args())
    if flags.pop("list_faults"):
        for name, fault in sorted(FAULTS.items()):
            print(f"{name:24}{fault.help}")
        return 0
    return run(SimSettings(**flags))


if __name__ == "__main__":
    raise SystemExit(main())
