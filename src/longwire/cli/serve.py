"""``longwire serve``: run the gateway.

What lives here: flags to settings. What must not: anything of the running gateway (lifecycle builds it).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from .configuration import DEFAULT_FILE, configured, load_configuration, with_engine
from .terminal import Command

EXAMPLES = """
longwire serve                                               # the embedded model, on 127.0.0.1:8080
longwire serve --engine http://127.0.0.1:8000                # vLLM, SGLang, llama.cpp, ... as it runs already
longwire serve --engine a=http://gpu1:8000 --engine b=http://gpu2:8000
longwire serve --config longwire.toml --port 9000            # flags win over LONGWIRE_* variables, those over the file

Every other setting is a flag too: `longwire config reference` lists them all.
"""


@click.command("serve", cls=Command, examples=EXAMPLES)
@configured
def command(file: str | None, **flags: Any) -> int:
    """Run the gateway."""
    settings = with_engine(load_configuration(file, flags).settings)
    from longwire.processes.start import run

    # From now on the file that was found is one that must be there: without it a reload would let everybody in.
    named = file or (str(DEFAULT_FILE) if DEFAULT_FILE.exists() else None)
    return run(settings, [sys.executable, "-P", "-m", "longwire.cli.reread", json.dumps([named, flags])])
