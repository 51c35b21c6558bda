"""The pages made from the declarations: docs/settings.md and the example TOML file.

What lives here: rendering, and the words around the tables.
What must not: any name, default, bound or help text of a setting (words/settings.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from longwire.words.config import Declared, declared
from longwire.words.settings import EngineSettings, ModelSettings, Settings, TenantSettings

OTHER_VARIABLES: Mapping[str, str] = {
    "LONGWIRE_CONFIG": "The TOML file, as with `--config`.",
    "LONGWIRE_ENGINE_<NAME>_API_KEY": "The `api_key` of the engine called NAME (in capitals, other characters as `_`).",
    "LONGWIRE_ADMIN_URL": "Where `longwire streams` and `longwire top` find the admin port.",
    "LONGWIRE_API_KEY": "The key that `longwire check --url`, `demo --url`, `bench` and the programs in examples/ send.",
    "LONGWIRE_WITHOUT": "For tests: `counters` or `clone`, to run as on a machine without.",
    "LONGWIRE_URL": "Where the programs in examples/ find the gateway.",
    "LONGWIRE_DIE_AT": "For tests: points at which a shard is killed, see `words/faultpoint.py`.",
}
"""Variables that are no setting of the gateway."""

TABLES: Mapping[str, tuple[type, str]] = {
    "engines": (
        EngineSettings,
        "One table for each upstream; `--engine` and `LONGWIRE_ENGINES` take `URL`, `NAME=URL`, `local` or `sim` instead.",
    ),
    "models": (
        ModelSettings,
        "One table for each model (or group of models) that needs something else than the rest, in the TOML file only.",
    ),
    "tenants": (
        TenantSettings,
        "One table for each tenant, in the TOML file only. `longwire tenants hash --generate` makes a key and its hash.",
    ),
}

INTRODUCTION = """\
# Settings

<!-- Made by `longwire config reference --output docs/settings.md` from src/longwire/words/settings.py: change that. -->

Every setting can be given in three ways; the first that is present holds:

1. a flag of `longwire serve`: `--max-body-bytes 8MiB` (on or off: `--proxy-protocol`, `--no-proxy-protocol`; lists: repeat it);
2. a variable: `LONGWIRE_MAX_BODY_BYTES=8MiB` (lists: comma-separated; an empty variable counts as absent);
3. the TOML file (`--config FILE`, else `longwire.toml` where the command is run): `max_body_bytes = "8MiB"`.

The unit is the end of the name (`_bytes`, `_s`, `_ms`), and a plain number is in that unit. Text with a unit works everywhere:
sizes in `kB MB GB` or `KiB MiB GiB`, times in `ms s min h d` (`"10 min"`). An unknown name or a bad value stops the start
with exit code 2, the line and the nearest valid name. `longwire config show` prints what holds and where it came from.
"""


COMPLETE = """\
## A complete file

One tenant, two engines; the rest is at its default. Settings of the gateway stand above the first `[[table]]`.

```toml
host = "0.0.0.0"
keys_file = "/etc/longwire/keys"  # lines of `tenant key-hash`; a new key works within two seconds

[[engines]]
name = "vllm"
url = "http://127.0.0.1:8000"

[[engines]]
name = "hosted"
url = "https://api.example.com"
models = ["large"]                # its key comes from LONGWIRE_ENGINE_HOSTED_API_KEY

[[tenants]]
name = "team-a"                   # a tenant must stand here, whether its keys do (key_hashes) or are in keys_file
models = ["large", "small"]
max_streams = 100
```

The keys file; the hashes are made by `longwire tenants hash --generate` (which prints the key itself once):

```text
team-a sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
```

`longwire config example` prints a file with every setting in comments, `longwire check` tries what is configured.
"""


def render_reference() -> str:
    """The whole of docs/settings.md."""
    parts = [INTRODUCTION, COMPLETE, "## The gateway\n", _table(Settings)]
    for name, (table, text) in TABLES.items():
        parts += [f"## `[[{name}]]`\n", text + "\n", _table(table)]
    parts += ["## Other variables\n", "| variable | what it does |\n| --- | --- |"]
    return "\n".join(parts) + "".join(f"\n| `{name}` | {help} |" for name, help in OTHER_VARIABLES.items()) + "\n"


def _table(settings_class: type) -> str:
    head = "| setting | default | allowed | what it does |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(setting) for setting in declared(settings_class).values())


def _row(setting: Declared) -> str:
    allowed = f"[tables](#{setting.name})" if setting.kind == "tables" else setting.allowed
    default = f"`{setting.shown(setting.default)}`" if setting.default not in ("", []) else ""
    if setting.kind == "bool":
        default = f"`{str(setting.default).lower()}`"
    help = setting.help.replace("|", "\\|") + (" Never printed." if setting.secret else "")
    return f"| `{setting.name}` | {default} | {allowed} | {help} |\n"


def render_example() -> str:
    """A TOML file with every setting in comments, at its default."""
    return "\n".join(_example_lines()) + "\n"


def _example_lines() -> Iterator[str]:
    yield "# Longwire's settings. Everything is at its default: take the # off a line to change it."
    yield "# Settings of the gateway stand above the first [[table]]."
    for setting in declared(Settings).values():
        if setting.kind != "tables":
            yield from _example_setting(setting, setting.default)
    yield "\n# An engine; repeat the table for more."
    yield "# [[engines]]"
    yield from _example_table(EngineSettings, {"name": "vllm", "url": "http://127.0.0.1:8000"})
    yield "\n# What is different for one model; repeat the table for more."
    yield "# [[models]]"
    yield from _example_table(ModelSettings, {"name": "llama-*"})
    yield "\n# A tenant; with no tenant the gateway serves loopback only. Keys: longwire tenants hash --generate"
    yield "# (Each tenant that keys_file names must have such a table; it may then leave key_hashes out.)"
    yield "# [[tenants]]"
    yield from _example_table(TenantSettings, {"name": "team-a", "key_hashes": ["sha256:" + "0" * 64]})


def _example_table(settings_class: type, values: Mapping[str, object]) -> Iterator[str]:
    for setting in declared(settings_class).values():
        yield from _example_setting(setting, values.get(setting.name, setting.default))


def _example_setting(setting: Declared, value: object) -> Iterator[str]:
    yield f"\n# {setting.help}"
    yield f"# {setting.name} = {toml_value(setting.shown(value) if setting.unit == 'bytes' and value else value)}"


def toml_value(value: object) -> str:
    """A scalar or a list of strings as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, str):
        import json

        # A JSON string is a TOML basic string, but for the one control character that JSON lets through.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
