"""``longwire demo``: one real answer, its process killed, its connection cut and resumed, and proven whole.

What lives here: the command. What must not: the story it tells (story.py), the gateway it starts (gateway.py) and
kills a process of (crash.py), HTTP and the proof (wire.py).
"""

from __future__ import annotations

import click

from longwire.cli.terminal import Command, Failure

EXAMPLES = """
longwire demo                                # starts a gateway of its own on the embedded engine
longwire demo --url http://127.0.0.1:8080    # with a gateway that runs already
LONGWIRE_API_KEY=... longwire demo --url http://127.0.0.1:8080
"""


@click.command("demo", cls=Command, examples=EXAMPLES)
@click.option("--url", metavar="URL", help="A running gateway to use instead of starting one.")
@click.option(
    "--api-key",
    envvar="LONGWIRE_API_KEY",
    default="",
    metavar="KEY",
    help="A key for that gateway (better in LONGWIRE_API_KEY: a command line is seen by others).",
)
@click.option("--engine", default="local", show_default=True, metavar="SPEC", help="Engine of the gateway to start.")
def demo(url: str | None, api_key: str, engine: str) -> int:
    """Stream a real answer, kill what serves it (not with --url), cut the connection, resume: nothing is lost."""
    import http.client

    from longwire.engines.local import is_installed

    from .crash import Crash
    from .gateway import own_gateway
    from .story import run_demo
    from .wire import WireError

    if url is None and engine == "local" and not is_installed():
        raise Failure("The embedded engine is not installed: run `longwire local install` first.")
    try:
        if url is not None:
            return run_demo(url, api_key)
        with own_gateway(engine) as (own_url, admin_url):
            return run_demo(own_url, crash=Crash(admin_url))
    except WireError as error:
        raise Failure(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"The connection to the gateway failed: {type(error).__name__}: {error}.") from error


command = demo
