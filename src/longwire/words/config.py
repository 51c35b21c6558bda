"""From TOML text, variables and flags to one checked ``Settings``.

What lives here: precedence, reading of values, where each came from, and the checks that see several settings at once.
What must not: files, the environment or the terminal (the caller hands text and mappings in), and any name, default or
bound of a setting (settings.py declares them; everything here is driven by those declarations).

Flags win over ``LONGWIRE_*`` variables, those over the TOML file, that over the defaults. Each layer is checked even
where a stronger one covers it: a mistake that shows only once a variable is gone is found by the wrong person.
Errors name the place (``longwire.toml:7``, ``LONGWIRE_PORT``, ``--port``) and never show the value of a secret.

Over 400 lines, because reading a value, saying where it stood and refusing it are one conversation with the operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from .engine_specs import find_bad_engines, finish_engine, nearest, normalise_url, parse_engine_spec, shown
from .errors import SettingsError
from .model_specs import find_bad_models
from .settings import GIB, KIB, MIB, EngineSettings, ModelSettings, Settings, TenantSettings
from .tenancy import find_bad_homes, find_bad_words

VARIABLE_PREFIX = "LONGWIRE_"
NO_SETTINGS = frozenset({
    "LONGWIRE_CONFIG", "LONGWIRE_ADMIN_URL", "LONGWIRE_API_KEY", "LONGWIRE_URL", "LONGWIRE_DIE_AT", "LONGWIRE_WITHOUT",
})  # fmt: skip
"""Variables that clients and the command line read themselves (cli/reference.py explains them)."""


_ENGINE_KEY = re.compile(r"LONGWIRE_ENGINE_([A-Z0-9_]+)_API_KEY\Z")
_KUBERNETES = re.compile(r"_SERVICE_HOST\Z|_SERVICE_PORT(_[A-Z0-9_]+)?\Z|_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?\Z")
"""Variables that Kubernetes makes in every pod beside a service called longwire; they are nobody's mistake."""

_NUMBER = re.compile(r"\s*(-?[0-9][0-9_]{0,19})(\.[0-9]{1,9})?\s*([A-Za-z]*)\s*\Z")
_UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": KIB, "mib": MIB, "gib": GIB},
    "s": {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86_400},
    "ms": {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000},
}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
Path = tuple[str | int, ...]


# What is declared.


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting as declared in settings.py, in a form that loaders, flags and pages can walk over."""

    name: str
    kind: str
    default: Any
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    secret: bool
    table: type | None

    @property
    def unit(self) -> str:
        """``bytes``, ``s`` or ``ms`` where the name ends so, else nothing."""
        suffix = self.name.rpartition("_")[2]
        return suffix if suffix in _UNITS and self.kind in ("int", "float") else ""

    @property
    def flag(self) -> str:
        return "--engine" if self.name == "engines" else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """What may be given, in words that follow "must be"."""
        if self.choices:
            return " or ".join((", ".join(self.choices[:-1]), self.choices[-1]))
        if self.kind not in ("int", "float"):
            return {"bool": "true or false", "list": "a list of strings"}.get(self.kind, "a string")
        noun = {"bytes": " of bytes", "s": " of seconds", "ms": " of milliseconds"}.get(self.unit, "")
        span = f" from {self.shown(self.low)} to {self.shown(self.high)}" if self.high is not None else ""
        return f"a {'whole ' if self.kind == 'int' else ''}number{noun}{span}"

    def shown(self, value: Any) -> str:
        """A value of this setting as a person would write it: ``32 MiB``, ``30``."""
        for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if self.unit == "bytes" and value else ():
            if value % factor == 0:
                return f"{value // factor} {name}"
        return f"{value:.15g}" if isinstance(value, float) else str(value)


@cache
def declared(settings_class: type) -> Mapping[str, Declared]:
    """The settings of a dataclass, in the order of their declaration."""
    hints = get_type_hints(settings_class)
    return {each.name: _describe(each, hints[each.name]) for each in fields(settings_class)}


def _describe(each: Field[Any], hint: Any) -> Declared:
    item = get_args(hint)[0] if get_origin(hint) is list else None
    table = item if is_dataclass(item) else None
    kind = "tables" if table else "list" if item else str(hint.__name__)
    if kind not in (*_READERS, "tables"):
        raise TypeError(f"{each.name}: settings of type {hint} cannot be read")
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    return Declared(each.name, kind, default, table=table, **each.metadata)  # type: ignore[arg-type]


# Reading one value.


def read_value(setting: Declared, raw: object, where: str) -> Any:
    """The value of a setting from what was written for it: of TOML's type, or text in any layer.

    Raises:
        SettingsError: it is of the wrong type, out of bounds or none of the choices.
    """
    value = _READERS[setting.kind](setting, raw)
    fits = value is not None and (not setting.choices or value in setting.choices)
    fits = fits and (setting.low is None or value >= setting.low) and (setting.high is None or value <= setting.high)
    if not fits:
        given = "" if setting.secret else f", not {shown(raw)}"
        raise SettingsError(f"{setting.name} must be {setting.allowed}{given}.", where=where)
    return value


def _read_number(setting: Declared, raw: object) -> float | None:
    """A number, or text with the unit of the setting's family: ``32 MiB``, ``10 min``."""
    if isinstance(raw, str):
        match = _NUMBER.match(raw)
        factors = {"": 1, **_UNITS.get(setting.unit, {})}
        if match is None or match[3].lower() not in factors:
            return None
        raw = round((float(match[1] + match[2]) if match[2] else int(match[1])) * factors[match[3].lower()], 9)
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not abs(raw) < 2**53:
        return None  # the last also where it is NaN
    if setting.kind == "float":
        return float(raw)
    return int(raw) if raw == int(raw) else None


def _read_list(_: Declared, raw: object) -> list[str] | None:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, (list, tuple)) and all(isinstance(item, str) for item in raw):
        return list(raw)
    return None


_READERS: Mapping[str, Callable[[Declared, object], Any]] = {
    "bool": lambda _, raw: _BOOLS.get(str(raw).strip().lower()) if isinstance(raw, (bool, str)) else None,
    "int": _read_number,
    "float": _read_number,
    "str": lambda _, raw: raw if isinstance(raw, str) else None,
    "list": _read_list,
}


# The TOML file and its lines.


class TomlSource:
    """A parsed TOML file that can say on which line a setting stands."""

    def __init__(self, text: str, where: str) -> None:
        import tomllib  # here: `--help` needs the declarations only

        self._text = text.replace("\r\n", "\n")
        self._where = where
        self._lines: dict[Path, int] | None = None
        try:
            self.document = tomllib.loads(self._text)
        except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: huge numbers, nesting without end
            what, _, place = str(error).partition(" (at ")
            line = re.match(r"line (\d+)|end of document", place)
            at = f"{where}:{line[1] or self._text.count(chr(10)) + 1}" if line else where
            raise SettingsError(f"This is not TOML: {what}.", where=at) from None

    def locate(self, *path: str | int) -> str:
        """``file:line`` of the innermost part of ``path`` that has a line of its own."""
        if self._lines is None:
            self._lines = find_lines(self._text)
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._where}:{self._lines[path]}" if path else self._where


def find_lines(text: str) -> dict[Path, int]:
    """Where each key and table of a valid TOML text starts: ``("engines", 0, "url")`` -> 3, and ``("engines",)`` its first.

    tomllib tells no positions, so the text is cut into statements: the shortest run of lines that is TOML by itself is
    one, because a statement that is complete ends with its line.
    """
    import tomllib

    lines: dict[Path, int] = {}
    prefix: Path = ()
    statement: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        statement.append(line)
        if len(statement) > 1 and not any(end in line for end in ("]", "}", '"""', "'''")):
            continue  # still inside a value: parsing the growing text at every line would be quadratic
        try:
            found = tomllib.loads("\n".join(statement))
        except tomllib.TOMLDecodeError:
            continue
        start = number - len(statement) + 1
        if statement[0].lstrip().startswith("["):
            name, value = next(iter(found.items()))
            index = sum(path[0] == name and len(path) == 2 for path in lines)
            prefix, found = ((name, index) if isinstance(value, list) else (name,)), {}
            for path in (prefix, (name,)):
                lines.setdefault(path, start)
        for key in found:
            lines.setdefault((*prefix, key), start)
        statement = []
    return lines


# All layers together.


class Loaded(NamedTuple):
    """The settings, and where each that is not a default came from (``port``, ``engines[0].url``)."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(toml_text: str | None, where: str, env: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """The settings that hold; ``where`` is the file's name as errors show it."""
    return load(toml_text, where, env, flags).settings


def load(toml_text: str | None, where: str, env: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Like :func:`load_settings`, with the origin of each value."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if toml_text is not None:
        _read_toml(TomlSource(toml_text, where), values, origins)
    for name, raw, origin in (*_from_variables(env), *_from_flags(flags)):
        setting = declared(Settings)[name]
        if setting.kind == "tables":
            values[name] = [parse_engine_spec(spec, origin) for spec in _read_list(setting, raw) or []]
            origins = {path: place for path, place in origins.items() if not path.startswith(f"{name}[")}
        else:
            values[name] = read_value(setting, raw, origin)
        origins[name] = origin
    loaded = Loaded(_add_engine_keys(Settings(**values), env, origins), origins)
    for check in _CHECKS:
        check(loaded)
    return loaded


def _read_toml(source: TomlSource, values: dict[str, Any], origins: dict[str, str]) -> None:
    for name, raw in source.document.items():
        setting = declared(Settings).get(name)
        if setting is None:
            raise _unknown(name, Settings, source.locate(name))
        origins[name] = source.locate(name)
        if setting.table is None:
            values[name] = read_value(setting, raw, origins[name])
        else:
            values[name] = list(_read_tables(setting, raw, source, origins))


def _read_tables(setting: Declared, raw: object, source: TomlSource, origins: dict[str, str]) -> Iterator[object]:
    assert setting.table is not None
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        message = f"{setting.name} must be [[{setting.name}]] tables, each with settings of its own."
        raise SettingsError(message, where=source.locate(setting.name))
    known = declared(setting.table)
    for index, table in enumerate(raw):
        given = {}
        for key, value in table.items():
            where = source.locate(setting.name, index, key)
            if key not in known:
                raise _unknown(key, setting.table, where)
            given[key] = read_value(known[key], value, where)
            if key == "urls":
                given[key] = [normalise_url(url.strip(), where) for url in given[key]]
            origins[f"{setting.name}[{index}].{key}"] = where
        yield _FINISHERS[setting.table](setting.table(**given), source.locate(setting.name, index))


def _from_variables(env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    """Each setting that a variable gives; an empty one counts as absent, as compose files leave them."""
    for variable in sorted(env):
        text = env[variable]
        if not variable.startswith(VARIABLE_PREFIX) or variable in NO_SETTINGS or _ENGINE_KEY.match(variable):
            continue
        if not text or _KUBERNETES.search(variable) or text.startswith(("tcp://", "udp://", "sctp://")):
            continue
        name = variable.removeprefix(VARIABLE_PREFIX).lower()
        setting = declared(Settings).get(name)
        if setting is None:
            raise _unknown(name, Settings, variable)
        if setting.table not in (None, EngineSettings):
            also = " or keys_file" if name == "tenants" else ""
            raise SettingsError(f"{name.capitalize()} cannot be a variable: use the TOML file{also}.", where=variable)
        yield name, text, variable


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    """Each setting that a flag gives; None and the empty tuple are flags that were not used."""
    for name, raw in flags.items():
        if raw is None or raw == ():
            continue
        setting = declared(Settings).get(name)
        if setting is None or setting.table not in (None, EngineSettings):
            raise _unknown(name, Settings, "--" + name.replace("_", "-"))
        yield name, raw, setting.flag


def _unknown(name: str, settings_class: type, where: str) -> SettingsError:
    """An unknown name: with the nearest valid one, or where it belongs."""
    table = {EngineSettings: "engines", TenantSettings: "tenants", ModelSettings: "models"}.get(settings_class)
    if table and name in declared(Settings):
        hint = f"it belongs to the gateway, so move it above the first [[{table}]]."
    elif near := nearest(name, declared(settings_class)):
        hint = f"did you mean {near}?"
    else:
        hint = f"there are {', '.join(declared(settings_class))}." if table else "see longwire config reference."
    return SettingsError(f"Unknown setting {shown(name)}: {hint}", where=where)


def _add_engine_keys(settings: Settings, env: Mapping[str, str], origins: dict[str, str]) -> Settings:
    """Apply ``LONGWIRE_ENGINE_<NAME>_API_KEY``: a key that need not stand in a file or a process list."""
    engines = list(settings.engines)
    known = {re.sub(r"[^A-Z0-9]", "_", engine.name.upper()): index for index, engine in enumerate(engines)}
    for variable, match in ((variable, _ENGINE_KEY.match(variable)) for variable in sorted(env) if env[variable]):
        if match is None:
            continue
        if match[1] not in known:
            names = ", ".join(known) or "none"
            raise SettingsError(f"There is no engine called {match[1]} (there are: {names}).", where=variable)
        engines[known[match[1]]] = replace(engines[known[match[1]]], api_key=env[variable])
        origins[f"engines[{known[match[1]]}].api_key"] = variable
    return replace(settings, engines=engines)


# Checks that see more than one value.


def _finish_tenant(tenant: TenantSettings, where: str) -> TenantSettings:
    if message := find_bad_words(tenant):
        raise SettingsError(message, where=where)
    return tenant


def _finish_model(model: ModelSettings, where: str) -> ModelSettings:
    if not model.name:
        message = "A [[models]] table needs the name of a model, or the beginning of names and a *."
        raise SettingsError(message, where=where)
    return model


_FINISHERS: Mapping[type, Callable[[Any, str], object]] = {
    EngineSettings: finish_engine,
    TenantSettings: _finish_tenant,
    ModelSettings: _finish_model,
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``."""
    from ipaddress import ip_address

    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refuse(loaded: Loaded, message: str, *paths: str) -> SettingsError:
    """An error at the first of ``paths`` that somebody wrote."""
    return SettingsError(message, where=next((loaded.origins[path] for path in paths if path in loaded.origins), ""))


def _check_tls(loaded: Loaded) -> None:
    pair = ("tls_cert_file", "tls_key_file")
    for given, missing in (pair, pair[::-1]):
        if getattr(loaded.settings, given) and not getattr(loaded.settings, missing):
            raise _refuse(loaded, f"{given} needs {missing} too.", given)


def _check_names(loaded: Loaded) -> None:
    for kind in ("engines", "tenants"):
        names = [each.name for each in getattr(loaded.settings, kind)]
        for index, name in enumerate(names):
            if name in names[:index]:
                message = f"Two {kind} are called {name}: give each a name of its own."
                raise _refuse(loaded, message, f"{kind}[{index}].name", f"{kind}[{index}].url", kind)


def _check_rules(loaded: Loaded) -> None:
    settings = loaded.settings
    for index, name, message in find_bad_engines(settings.engines):
        raise _refuse(loaded, message, f"engines[{index}].{name}", f"engines[{index}].url", "engines")
    for index, name, message in find_bad_models(settings.models):
        raise _refuse(loaded, message, f"models[{index}].{name}", "models")
    for index, name, message in find_bad_homes(settings.tenants, settings.max_streams):
        raise _refuse(loaded, message, f"tenants[{index}].{name}")


def _check_access(loaded: Loaded) -> None:
    """Law 10: nobody opens a gateway to a network by leaving something out."""
    settings = loaded.settings
    if not (settings.tenants or settings.keys_file or settings.allow_anonymous or is_loopback(settings.host)):
        message = (
            f"Anyone who reaches {settings.host or 'this machine'} could use the engines: add a [[tenants]] table "
            "with a key (longwire tenants hash --generate), set keys_file, or allow it with --allow-anonymous."
        )
        raise _refuse(loaded, message, "host")
    for index, tenant in enumerate(settings.tenants):
        if not tenant.key_hashes and not settings.keys_file:
            message = (
                f"Tenant {tenant.name} has no key: add key_hashes (longwire tenants hash --generate) or a keys_file."
            )
            raise _refuse(loaded, message, f"tenants[{index}].name")


def _check_proxies(loaded: Loaded) -> None:
    from ipaddress import ip_network

    for network in loaded.settings.trusted_proxies:
        try:
            ip_network(network, strict=False)
        except ValueError:
            message = f"trusted_proxies must be addresses or networks such as 10.0.0.0/8, not {shown(network)}."
            raise _refuse(loaded, message, "trusted_proxies") from None
    if loaded.settings.proxy_protocol and not loaded.settings.trusted_proxies:
        raise _refuse(loaded, "proxy_protocol needs trusted_proxies: who may send the header.", "proxy_protocol")


def _check_sizes(loaded: Loaded) -> None:
    settings = loaded.settings
    if settings.port and settings.port == settings.admin_port:
        raise _refuse(loaded, f"port and admin_port are both {settings.port}: they must differ.", "admin_port", "port")
    if settings.max_event_bytes > settings.max_stream_bytes:
        raise _refuse(
            loaded, "max_event_bytes must not exceed max_stream_bytes.", "max_stream_bytes", "max_event_bytes"
        )


def _check_warmth(loaded: Loaded) -> None:
    floor, ceiling = loaded.settings.warm_floor, loaded.settings.warm_ceiling
    if floor > ceiling:
        message = f"warm_floor must not exceed warm_ceiling (they are {floor} and {ceiling})."
        raise _refuse(loaded, message, "warm_floor", "warm_ceiling")


_CHECKS = (_check_tls, _check_names, _check_access, _check_rules, _check_proxies, _check_sizes, _check_warmth)
