"""The kill matrix for as long as one likes: ``python -m tests.survival.soak MINUTES [SEED]``.

What lives here: the command. What must not: the trial (matrix.py).
"""

from __future__ import annotations

import os
import sys

import uvloop

from .matrix import run

AT_RANDOM = 200


def main(arguments: list[str]) -> int:
    minutes = float(arguments[0]) if arguments else 10.0
    seed = int(arguments[1]) if len(arguments) > 1 else int.from_bytes(os.urandom(4), "little")
    print(f"{minutes:g} minutes, seed {seed}", flush=True)
    print(*uvloop.run(run(seed, AT_RANDOM, minutes * 60)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
