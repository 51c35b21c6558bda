"""Write the golden files of this version: ``python -m tests.golden.make``.

``encoders.json`` stays as it is, unless what it holds has changed on purpose; and then the layout's version is another one.
The image of a version's memory is made once, with a new version, and kept for as long as that version may still run somewhere.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.golden.image import layouts, make_image
from tests.golden.vectors import vectors

FOLDER = Path(__file__).parent
ENCODERS = FOLDER / "encoders.json"


def main() -> None:
    write(ENCODERS, vectors())
    write(FOLDER / f"memory-{layouts()}.json", asyncio.run(make_image()))


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
