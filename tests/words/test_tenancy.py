"""What must hold of tenants' tables: names and keys, homes and what is reserved there."""

from __future__ import annotations

from typing import Any

import pytest

from longwire.words.config import load_settings
from longwire.words.errors import SettingsError
from longwire.words.settings import TenantSettings
from longwire.words.tenancy import find_bad_homes, find_bad_words

HASH = "sha256:" + "0a" * 32


def tenant(name: str = "a", **more: Any) -> TenantSettings:
    return TenantSettings(name=name, **more)


def problems(*tenants: TenantSettings, max_streams: int = 100) -> list[tuple[int, str, str]]:
    return list(find_bad_homes(tenants, max_streams))


@pytest.mark.parametrize("name", ["a", "A-1.b_c", "0" * 64])
def test_a_good_name_and_key(name: str) -> None:
    assert find_bad_words(tenant(name, key_hashes=[HASH])) == ""


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "0" * 65, "ä"])
def test_a_bad_name(name: str) -> None:
    assert "needs a name" in find_bad_words(tenant(name))


def test_a_raw_key_is_not_repeated() -> None:
    said = find_bad_words(tenant("ada", key_hashes=["sk-s3cret"]))
    assert "tenant ada" in said and "s3cret" not in said


def test_homes_that_fit() -> None:
    assert (
        problems(
            tenant("a", home=0, reserved_slots=60, slot_tokens=8192),
            tenant("b", home=1, reserved_slots=60),
            tenant("c", home=1, reserved_slots=40),
            tenant("d", home=0),
            tenant("e"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("more", "setting", "what_to_do"),
    [
        ({"reserved_slots": 1}, "reserved_slots", "add home = 0"),
        ({"reserved_slots": 1, "slot_tokens": 5}, "reserved_slots", "add home = 0"),
        ({"slot_tokens": 5}, "slot_tokens", "say how many slots"),
        ({"home": 2, "slot_tokens": 5}, "slot_tokens", "say how many slots"),
        ({"home": 2, "reserved_slots": 3, "max_streams": 2}, "reserved_slots", "raise the one or lower the other"),
        ({"home": 2, "reserved_slots": 101}, "reserved_slots", "101 reserved_slots at home 2 are more than the 100"),
    ],
)
def test_homes_that_do_not_say_what_to_do(more: dict[str, Any], setting: str, what_to_do: str) -> None:
    ((index, at, message),) = problems(tenant("fine"), tenant("bad", **more))
    assert (index, at) == (1, setting) and what_to_do in message


def test_what_is_reserved_at_one_home_is_added_up() -> None:
    ((index, at, message),) = problems(
        tenant("a", home=3, reserved_slots=60), tenant("b", home=4, reserved_slots=60),
        tenant("c", home=3, reserved_slots=41),
    )  # fmt: skip
    assert (index, at) == (2, "reserved_slots") and "101 reserved_slots at home 3" in message


def test_the_operator_is_told_the_line() -> None:
    toml = f'[[tenants]]\nname = "a"\nkey_hashes = ["{HASH}"]\nreserved_slots = 2'
    with pytest.raises(SettingsError) as caught:
        load_settings(toml, "lw.toml", {}, {})
    assert str(caught.value).startswith("lw.toml:4: Tenant a has reserved_slots and no home: add home = 0")
    assert load_settings(toml + "\nhome = 0", "lw.toml", {}, {}).tenants[0].home == 0
