"""The loader of settings: precedence, units, lines of errors, cross-checks, and that secrets stay secret."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from longwire.words import config
from longwire.words.config import declared, find_lines, load, load_settings, parse_engine_spec
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings, TenantSettings

HASH = "sha256:" + "0a" * 32


def refused(toml: str | None = None, env: dict[str, str] | None = None, **flags: object) -> str:
    """The whole text of the error that these settings give."""
    with pytest.raises(SettingsError) as caught:
        load_settings(toml, "lw.toml", env or {}, flags)
    return str(caught.value)


def loaded(toml: str | None = None, env: dict[str, str] | None = None, **flags: object) -> Settings:
    return load_settings(toml, "lw.toml", env or {}, flags)


# Precedence.


def test_nothing_given_is_the_defaults() -> None:
    assert loaded() == Settings()


def test_flags_win_over_variables_over_the_file_over_defaults() -> None:
    toml = "port = 1\nadmin_port = 2\ndrain_s = 3"
    found = load(toml, "lw.toml", {"LONGWIRE_PORT": "10", "LONGWIRE_ADMIN_PORT": "20"}, {"port": "100"})
    assert (found.settings.port, found.settings.admin_port, found.settings.drain_s) == (100, 20, 3)
    assert found.settings.grace_s == 30
    assert found.origins == {"port": "--port", "admin_port": "LONGWIRE_ADMIN_PORT", "drain_s": "lw.toml:3"}


def test_flags_that_were_not_used_count_as_absent() -> None:
    assert loaded("port = 1", port=None, cors_origins=()).port == 1


def test_a_bad_value_is_found_even_where_a_stronger_layer_covers_it() -> None:
    assert refused("port = -1", port="80").startswith("lw.toml:1: port must be")


def test_an_engine_flag_replaces_the_tables_of_the_file() -> None:
    toml = '[[engines]]\nurl = "http://a:1"\n[[engines]]\nurl = "http://b:2"'
    found = load(toml, "lw.toml", {}, {"engines": ("c=http://c:3",)})
    assert [engine.name for engine in found.settings.engines] == ["c"]
    assert found.origins == {"engines": "--engine"}


# Every kind of value.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("port", "65535", 65_535),
        ("port", "8_080", 8080),
        ("max_body_bytes", "1024", 1024),
        ("max_body_bytes", "32MiB", 32 * 1024**2),
        ("max_body_bytes", "1.5 kib", 1536),
        ("max_body_bytes", "2 MB", 2_000_000),
        ("retention_s", "10 min", 600.0),
        ("retention_s", "500ms", 0.5),
        ("retention_s", "7d", 604_800.0),
        ("commit_after_ms", "30s", 30_000),
        ("heartbeat_s", "0.05", 0.05),
        ("allow_anonymous", "yes", True),
        ("allow_anonymous", "0", False),
        ("cors_origins", "https://a, https://b,", ["https://a", "https://b"]),
        ("log_level", "debug", "debug"),
    ],
)
def test_text_is_read_by_type_and_unit_in_every_layer(name: str, text: str, value: object) -> None:
    assert getattr(loaded(env={f"LONGWIRE_{name.upper()}": text}), name) == value
    assert getattr(load_settings(None, "", {}, {name: text}), name) == value
    assert getattr(loaded(f'{name} = "{text}"'), name) == value


@pytest.mark.parametrize(
    ("line", "value"),
    [("port = 9000", 9000), ("port = 9e3", 9000), ("drain_s = 5", 5.0), ("allow_anonymous = true", True)],
)
def test_values_of_tomls_own_types(line: str, value: object) -> None:
    assert getattr(loaded(line), line.split(maxsplit=1)[0]) == value


@pytest.mark.parametrize(
    "line",
    [
        "port = true",
        "port = 1.5",
        "port = nan",
        "drain_s = inf",
        "drain_s = false",
        "port = []",
        "host = 1",
        "allow_anonymous = 1",
        "cors_origins = [1]",
        "port = 1979-05-27",
        'port = "80 ms"',
        'drain_s = "5 weeks"',
        'max_body_bytes = "MiB"',
        'port = ""',
        "max_body_bytes = 1e300",
        'log_level = "loud"',
        "engines = 5",
        "engines = [5]",
    ],
)
def test_values_of_the_wrong_type_name_the_line_and_what_is_allowed(line: str) -> None:
    message = refused(f"# a comment\n{line}")
    assert message.startswith("lw.toml:2: ")
    assert "must be" in message


def test_an_error_says_bounds_choices_and_what_was_given() -> None:
    assert refused("port = 70000") == "lw.toml:1: port must be a whole number from 0 to 65535, not 70000."
    assert refused(log_level="loud") == "--log-level: log_level must be debug, info, warning or error, not 'loud'."
    variable = refused(env={"LONGWIRE_MAX_BODY_BYTES": "1"})
    assert variable == (
        "LONGWIRE_MAX_BODY_BYTES: max_body_bytes must be a whole number of bytes from 1 KiB to 1 GiB, not '1'."
    )


def test_an_error_repeats_only_the_start_of_a_long_value() -> None:
    assert len(refused(port="9" * 10_000)) < 200


# Unknown names.


def test_an_unknown_setting_gives_line_and_nearest_name() -> None:
    assert refused("\n\nprot = 1") == "lw.toml:3: Unknown setting 'prot': did you mean port?"
    assert refused("admin-port = 1") == "lw.toml:1: Unknown setting 'admin-port': did you mean admin_port?"
    assert refused(env={"LONGWIRE_PROT": "1"}).startswith("LONGWIRE_PROT: Unknown setting 'prot': did you mean port?")
    assert "longwire config reference" in refused("zzz = 1")
    assert refused('[server]\nurl = "x"').startswith("lw.toml:1: Unknown setting 'server'")


@pytest.mark.parametrize("head", ["[[engine]]", "[[ 'engine' ]]  # one", "[engine]", "[[engine.a]]", "[engine.a]"])
def test_an_unknown_table_gives_the_line_of_its_first_and_the_nearest_name(head: str) -> None:
    toml = f'port = 1\n\n{head}\nurl = "http://a"\n'
    assert refused(toml) == "lw.toml:3: Unknown setting 'engine': did you mean engines?"
    if head.startswith("[["):
        assert refused(f'{toml}\n{head}\nurl = "http://b"').startswith("lw.toml:3:")


def test_what_is_wrong_with_all_tables_of_a_name_gives_the_line_of_the_first() -> None:
    assert refused("port = 1\n[engines]\nport = 2").startswith("lw.toml:2: engines must be [[engines]] tables")


def test_an_unknown_setting_in_a_table_names_the_table_and_its_line() -> None:
    toml = '[[engines]]\nurl = "http://a"\n\n[[engines]]\nurl = "http://b"\napi-key = "s3cret"'
    assert refused(toml) == "lw.toml:6: Unknown setting 'api-key': did you mean api_key?"
    assert "there are name, url, api_key" in refused("[[engines]]\nzzz = 1")


def test_a_gateway_setting_below_a_table_is_told_to_move() -> None:
    assert "move it above the first [[engines]]" in refused('[[engines]]\nurl = "http://a"\nport = 9')


def test_what_is_not_toml_gives_the_line() -> None:
    assert refused("port = 1\nhost = ").startswith("lw.toml:2: This is not TOML")
    assert "not TOML" in refused("port = " + "9" * 5000)
    assert "not TOML" in refused("port = " + "[" * 100_000)


def test_variables_of_kubernetes_and_of_other_commands_are_no_settings() -> None:
    env = {
        "LONGWIRE_PORT": "tcp://10.0.0.1:8080",
        "LONGWIRE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "LONGWIRE_SERVICE_HOST": "10.0.0.1",
        "LONGWIRE_SERVICE_PORT_HTTP": "8080",
        "LONGWIRE_ADMIN_URL": "http://127.0.0.1:8081",
        "LONGWIRE_HOST": "",
        "PORT": "1",
    }
    assert loaded(env=env) == Settings()


def test_tenants_are_no_variable_and_no_flag() -> None:
    assert "keys_file" in refused(env={"LONGWIRE_TENANTS": "a"})
    assert "Unknown setting" in refused(tenants=("a",))


def test_lines_are_right_in_files_with_carriage_returns() -> None:
    assert refused("port = 1\r\n\r\nprot = 1\r\n").startswith("lw.toml:3:")


# Lines.


def test_lines_of_keys_tables_and_values_over_several_lines() -> None:
    toml = """
# c
host = '''
prot = 1
'''
cors_origins = [ # [
  "a", # ]
  "]",
]

[[engines]]
name = "a"
[[engines]]
"url" = "b"
[x]
y = 1"""
    assert find_lines(toml) == {
        ("host",): 3,
        ("cors_origins",): 6,
        ("engines",): 11,
        ("engines", 0): 11,
        ("engines", 0, "name"): 12,
        ("engines", 1): 13,
        ("engines", 1, "url"): 14,
        ("x",): 15,
        ("x", "y"): 16,
    }


def test_inline_tables_are_found_at_their_statement() -> None:
    assert refused('port = 1\nengines = [{url = "http://a", nmae = "b"}]').startswith(
        "lw.toml:2: Unknown setting 'nmae'"
    )


def test_a_long_list_is_not_read_again_at_every_line() -> None:
    toml = "cors_origins = [\n" + '"https://a",\n' * 20_000 + "]\nprot = 1"
    assert refused(toml).startswith("lw.toml:20003:")


# Engines.


@pytest.mark.parametrize(
    ("spec", "name", "url"),
    [
        ("http://h:8000", "h:8000", "http://h:8000"),
        ("http://h:8000/v1", "h:8000", "http://h:8000"),
        ("HTTP://H:8000/v1/", "h:8000", "http://h:8000"),
        ("https://h:443/v1/chat/completions", "h", "https://h"),
        ("http://h:80", "h", "http://h"),
        ("https://h/openai/v1/", "h/openai", "https://h/openai"),
        ("a=http://h", "a", "http://h"),
        ("gpu-1.b=https://[::1]:9/v1", "gpu-1.b", "https://[::1]:9"),
        ("local", "local", "local"),
        ("sim", "sim", "sim"),
        ("x=sim", "x", "sim"),
    ],
)
def test_engine_specs(spec: str, name: str, url: str) -> None:
    assert parse_engine_spec(spec) == EngineSettings(name=name, url=url)


@pytest.mark.parametrize(
    "spec",
    ["", "ftp://h", "http://", "http://h:99999", "http://h:x", "http://h/a b", "http://h?x=1", "http://h#f", "http://[::1",
     "=http://h", "a b=http://h", "http://h/\nx"],
)  # fmt: skip
def test_bad_engine_specs_are_refused(spec: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_engine_spec(spec)
    assert str(caught.value).startswith("--engine: ")


def test_bad_engine_specs_get_a_hint() -> None:
    with pytest.raises(SettingsError, match=r"did you mean local\?$"):
        parse_engine_spec("locl")
    with pytest.raises(SettingsError, match=r"did you mean http://gpu:8000\?$"):
        parse_engine_spec("gpu:8000")


def test_a_password_or_query_in_a_url_is_refused_and_not_repeated() -> None:
    for spec in ("http://user:s3cret@h", "https://h/v1?key=s3cret"):
        with pytest.raises(SettingsError) as caught:
            parse_engine_spec(spec)
        assert "s3cret" not in str(caught.value)


def test_engines_from_a_variable() -> None:
    found = loaded(env={"LONGWIRE_ENGINES": "a=http://h:1, sim"})
    assert [engine.name for engine in found.engines] == ["a", "sim"]


def test_an_engines_key_may_come_from_a_variable() -> None:
    env = {"LONGWIRE_ENGINE_GPU_1_API_KEY": "s3cret"}
    found = load('[[engines]]\nname = "gpu-1"\nurl = "https://h"', "lw.toml", env, {})
    assert found.settings.engines[0].api_key == "s3cret"
    assert found.origins["engines[0].api_key"] == "LONGWIRE_ENGINE_GPU_1_API_KEY"
    message = refused(None, env)
    assert "no engine called GPU_1" in message
    assert "s3cret" not in message


# Tables.


def test_tables_are_read_with_the_origin_of_each_value() -> None:
    toml = f"""[[engines]]
url = "http://h:1/v1"
api_key = "k"

[[tenants]]
name = "a"
key_hashes = ["{HASH}"]
max_grace_s = "1 min"
"""
    found = load(toml, "lw.toml", {}, {})
    assert found.settings.engines == [EngineSettings(name="h:1", url="http://h:1", api_key="k")]
    assert found.settings.tenants == [TenantSettings(name="a", key_hashes=[HASH], max_grace_s=60.0)]
    assert found.origins["engines[0].api_key"] == "lw.toml:3"
    assert found.origins["tenants[0].max_grace_s"] == "lw.toml:8"


def test_a_raw_key_in_place_of_a_hash_is_refused_and_not_repeated() -> None:
    message = refused('[[tenants]]\nname = "a"\nkey_hashes = ["sk-s3cret"]')
    assert message.startswith("lw.toml:1: The key_hashes of tenant a")
    assert "s3cret" not in message


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    assert "31337" not in refused('[[engines]]\nurl = "http://h"\napi_key = 31337')


# Checks that see several settings.


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_tenants(host: str) -> None:
    assert loaded(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.com"])
def test_an_open_address_needs_keys_or_a_word_that_it_is_meant(host: str) -> None:
    message = refused(f'host = "{host}"')
    assert message.startswith("lw.toml:1: ")
    assert "--allow-anonymous" in message
    assert loaded(f'host = "{host}"\nallow_anonymous = true')
    assert loaded(f'host = "{host}"\nkeys_file = "keys"')
    assert loaded(f'host = "{host}"\n[[tenants]]\nname = "a"\nkey_hashes = ["{HASH}"]')


@pytest.mark.parametrize(
    ("toml", "start"),
    [
        ('tls_cert_file = "c"', "lw.toml:1: tls_cert_file needs tls_key_file"),
        ('tls_key_file = "c"', "lw.toml:1: tls_key_file needs tls_cert_file"),
        ('[[engines]]\nurl = "http://h"\n[[engines]]\nurl = "http://h/v1"', "lw.toml:4: Two engines are called h"),
        (
            f'[[tenants]]\nname = "a"\nkey_hashes = ["{HASH}"]\n[[tenants]]\nname = "a"\nkey_hashes = ["{HASH}"]',
            "lw.toml:5: Two tenants are called a",
        ),
        ('[[tenants]]\nname = "a"', "lw.toml:2: Tenant a has no key"),
        ("[[tenants]]\nmax_streams = 1", "lw.toml:1: A tenant needs a name"),
        ('[[engines]]\nname = "a b"\nurl = "http://h"', "lw.toml:1: An engine's name"),
        ('[[engines]]\nname = "a"', "lw.toml:1: Engine '' must be"),
        ("port = 9\nadmin_port = 9", "lw.toml:2: port and admin_port are both 9"),
        ("port = 8081", "lw.toml:1: port and admin_port are both 8081"),
        ('trusted_proxies = ["10.0.0.0/8", "proxy"]', "lw.toml:1: trusted_proxies must be addresses"),
        ("proxy_protocol = true", "lw.toml:1: proxy_protocol needs trusted_proxies"),
        ("max_stream_bytes = 65536", "lw.toml:1: max_event_bytes must not exceed max_stream_bytes"),
        ("warm_floor = 17", "lw.toml:1: warm_floor must not exceed warm_ceiling (they are 17 and 16)"),
        ("\nwarm_ceiling = 3", "lw.toml:2: warm_floor must not exceed warm_ceiling (they are 4 and 3)"),
        ("queue_deadline_s = 0", "lw.toml:1: queue_deadline_s must be a number of seconds from 0.05 to 3600"),
    ],
)
def test_settings_that_contradict_each_other(toml: str, start: str) -> None:
    assert refused(toml).startswith(start)


ENGINE = '[[engines]]\nname = "e"\nurl = "http://a:1"\n'


@pytest.mark.parametrize(
    ("toml", "start"),
    [
        (ENGINE + 'urls = ["http://b:2", "nonsense"]', "lw.toml:4: Engine 'nonsense' must be URL"),
        (ENGINE + 'urls = ["sim"]', "lw.toml:4: Engine 'sim' must be URL"),
        (ENGINE + 'urls = ["http://b:2", "http://A:1/v1"]', "lw.toml:4: Engine e has the endpoint 'a:1' twice"),
        ('[[engines]]\nurl = "sim"\nurls = ["http://b"]', "lw.toml:3: urls needs an engine with a URL: sim is"),
        ('[[engines]]\nurl = "local"\nurls_file = "f"', "lw.toml:3: urls_file needs an engine with a URL"),
        ('[[engines]]\nurl = "sim"\nresolve_s = 5', "lw.toml:3: resolve_s needs an engine with a URL"),
        (ENGINE + 'aliases = ["chat"]', "lw.toml:4: An alias must be OFFERED=MODEL, such as"),
        (ENGINE + 'aliases = ["=m"]', "lw.toml:4: An alias must be OFFERED=MODEL"),
        (ENGINE + 'aliases = ["chat= m"]', "lw.toml:4: An alias must be OFFERED=MODEL"),
        (ENGINE + 'aliases = ["m=m"]', "lw.toml:4: The alias 'm=m' is the model's own name"),
        (ENGINE + 'aliases = ["chat=m", "chat=n"]', "lw.toml:4: Engine e has two models for the alias 'chat'"),
        (
            ENGINE + 'models = ["llama-3"]\naliases = ["chat=llama_3"]',
            "lw.toml:5: The alias 'chat=llama_3' is for a model that is not among the engine's models; did you mean llama-3?",
        ),
        ('[[models]]\nbalance = "prefix"', "lw.toml:1: A [[models]] table needs the name of a model"),
        ('[[models]]\nname = "a*b"', "lw.toml:2: A * stands at the end of a model's name or nowhere: a*b."),
        ('[[models]]\nname = "a"\n[[models]]\nname = "a"', "lw.toml:4: There are two [[models]] tables for a"),
        ('[[models]]\nname = "a*"\n[[models]]\nname = "ab"', "lw.toml:4: ab is never reached: a* stands before it"),
        ('[[models]]\nname = "*"\n[[models]]\nname = "ab*"', "lw.toml:4: ab* is never reached: * stands before it"),
    ],
)
def test_rules_of_engines_and_models_tables(toml: str, start: str) -> None:
    assert refused(toml).startswith(start)


def test_an_engines_other_urls_are_kept_like_its_own() -> None:
    (engine,) = loaded(ENGINE + 'urls = ["HTTP://B:80/v1/", "https://c"]\naliases = ["chat=a=b"]').engines
    assert engine.urls == ["http://b", "https://c"] and engine.aliases == ["chat=a=b"]


def test_an_engine_has_only_so_many_endpoints() -> None:
    urls = ", ".join(f'"http://h{index}"' for index in range(256))
    assert refused(f"{ENGINE}urls = [{urls}]").startswith("lw.toml:4: An engine has at most 256 endpoints")


def test_two_engines_of_one_name_on_the_command_line() -> None:
    assert refused(engines=("http://h", "http://h/v1")).startswith("--engine: Two engines are called h")


# The declarations.


@pytest.mark.parametrize("settings_class", [Settings, EngineSettings, TenantSettings])
def test_every_declared_default_is_within_its_own_bounds(settings_class: type) -> None:
    for setting in declared(settings_class).values():
        if setting.kind != "tables":
            assert config.read_value(setting, setting.default, "") == setting.default


def test_a_declaration_that_cannot_be_read_is_found_at_once() -> None:
    @dataclass
    class Odd:
        table: dict  # type: ignore[type-arg]

    with pytest.raises(TypeError):
        declared(Odd)
