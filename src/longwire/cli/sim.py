"""``longwire sim``: run the engine stand-in.

What lives here: flags to settings. What must not: what the stand-in does (the sim room).
"""

from __future__ import annotations

from typing import Any

import click

from longwire.words.settings import SimSettings

from .options import build, settings_flags
from .terminal import Command, print_table

EXAMPLES = """
longwire sim --port 8001 --tokens 200 --itl-ms 20
longwire sim --fault reset-after=10 --seed 7      # names: longwire sim --list-faults
longwire sim --fault status=503,first=3           # fails three times, is well then
longwire sim --max-running 4 --kv-blocks 64       # its metrics show a load
"""


@click.command("sim", cls=Command, examples=EXAMPLES)
@settings_flags(SimSettings)
@click.option("--list-faults", is_flag=True, help="List the faults that it can show, and stop.")
def command(list_faults: bool, **flags: Any) -> int:
    """Run an engine stand-in: the OpenAI API, a deterministic answer, and faults by name."""
    if not list_faults:
        settings = build(SimSettings, flags)
    from longwire import sim

    if list_faults:
        print_table(
            ("FAULT", "WHAT IT DOES"),
            ((name, str(fault)) for name, fault in sim.FAULTS.items()),
            wrap=("WHAT IT DOES",),
        )
        return 0
    return sim.run(settings)
