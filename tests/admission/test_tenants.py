"""Keys name tenants: whichever header carries them, in constant time, and never seen in any text."""

from __future__ import annotations

import hashlib
import hmac
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.admission.tenants import MAX_KEY_BYTES, MAX_KEYS, Tenant, Tenants, hash_key, home_of
from longwire.words.errors import SettingsError, Unauthenticated
from longwire.words.settings import TenantSettings

ACME, OTHER, SPARE = "sk-acme-6f1c02", "sk-other-9d77aa", "sk-spare-41b5e0"


def make_tenants() -> Tenants:
    return Tenants(
        [
            TenantSettings(name="acme", key_hashes=[hash_key(ACME)], models=["llama", "qwen"]),
            TenantSettings(name="other", key_hashes=[hash_key(OTHER)]),
            TenantSettings(name="keyless"),
        ]
    )


def bearer(key: str) -> bytes:
    return b"Bearer " + key.encode()


def knows(tenants: Tenants, key: str) -> str | None:
    """The name that a key leads to, or None."""
    try:
        return tenants.identify(bearer(key)).name
    except Unauthenticated:
        return None


# Hashing a key.


def test_a_key_is_kept_as_its_whole_sha256_cve_2026_35030() -> None:
    assert hash_key("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    # Keys that agree in all but the last character are different keys.
    tenants = Tenants([TenantSettings(name="a", key_hashes=[hash_key("sk-" + "x" * 60 + "1")])])
    assert knows(tenants, "sk-" + "x" * 60 + "2") is None


@pytest.mark.parametrize("key", ["", "with space", "tab\t", "line\n", "schlüssel", "nul\0", "x" * (MAX_KEY_BYTES + 1)])
def test_a_key_that_could_never_arrive_is_not_hashed_and_not_quoted(key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        hash_key(key)
    assert not key or key not in str(caught.value)


# Identity.


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (bearer(ACME), None),
        (b"bearer " + ACME.encode(), None),
        (b"BEARER   " + ACME.encode() + b"\t ", None),
        (None, ACME.encode()),
        (None, b" " + ACME.encode() + b" "),
        (bearer(ACME), ACME.encode()),
        (b"Basic dXNlcjpwYXNz", ACME.encode()),
        (b"Bearer", ACME.encode()),
        (bearer(ACME), b""),
    ],
)
def test_a_key_leads_to_its_tenant_whichever_header_carries_it_cve_2026_45339(
    authorization: bytes | None, api_key: bytes | None
) -> None:
    tenants = make_tenants()
    tenant = tenants.identify(authorization, api_key)
    assert tenant is tenants.by_name("acme")
    assert not tenant.may_use("gpt")


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (None, None),
        (b"", b""),
        (b"Bearer ", None),
        (ACME.encode(), None),
        (b"Basic " + ACME.encode(), None),
        (b"Token " + ACME.encode(), None),
        (b"Bearer" + ACME.encode(), None),
        (bearer(ACME + "x"), None),
        (bearer(ACME[:-1]), None),
        (bearer(ACME.upper()), None),
        (bearer(ACME + " " + ACME), None),
        (bearer(ACME), OTHER.encode()),
        (bearer("unknown"), ACME.encode()),
        (bearer(hash_key(ACME)), None),
        (bearer(hash_key(ACME).removeprefix("sha256:")), None),
        (b"Bearer \xff\x00", None),
    ],
)
def test_anything_else_is_a_401_that_asks_for_a_bearer_key(authorization: bytes | None, api_key: bytes | None) -> None:
    tenants = make_tenants()
    with pytest.raises(Unauthenticated) as caught:
        tenants.identify(authorization, api_key)
    assert caught.value.status == 401
    assert caught.value.headers() == [(b"www-authenticate", b'Bearer realm="longwire"')]
    assert tenants.statistics()["refused"] == 1


def test_a_key_is_compared_with_every_known_hash_in_constant_time_cve_2025_59425(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `other` is the second of three: a lookup that stopped at it would leave out the third.
    tenants = make_tenants()
    tenants.load_keys(f"keyless {hash_key(SPARE)}")
    compared: list[bytes] = []
    compare_digest = hmac.compare_digest

    def compare(known: bytes, digest: bytes) -> bool:
        compared.append(known)
        return compare_digest(known, digest)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in (ACME, OTHER, SPARE, "unknown"):
        compared.clear()
        knows(tenants, key)
        assert compared == [hashlib.sha256(known.encode()).digest() for known in (ACME, OTHER, SPARE)]


def test_an_oversized_key_is_refused_before_it_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "k" * MAX_KEY_BYTES
    tenants = Tenants([TenantSettings(name="a", key_hashes=[hash_key(longest)])])
    assert knows(tenants, longest) == "a"
    monkeypatch.setattr(hashlib, "sha256", None)
    assert knows(tenants, longest + "k") is None


def test_with_no_tenants_everybody_is_anonymous() -> None:
    tenants = Tenants([])
    anonymous = tenants.identify(None)
    assert tenants.is_open and len(tenants) == 1 and list(tenants) == [anonymous]
    assert (anonymous.name, anonymous.index) == ("anonymous", 0)
    assert tenants.identify(b"Bearer anything", b"else") is anonymous is tenants.by_name("anonymous")
    assert anonymous.may_use("any")


def test_tenants_without_any_key_are_closed_and_not_open() -> None:
    tenants = Tenants([TenantSettings(name="keyless")])
    assert not tenants.is_open
    assert tenants.by_name("anonymous") is None
    with pytest.raises(Unauthenticated):
        tenants.identify(None)


def test_a_tenant_may_use_the_models_it_lists_or_any() -> None:
    acme, other, _ = make_tenants()
    assert acme.may_use("llama") and acme.may_use("qwen") and not acme.may_use("llama2")
    assert other.may_use("whatever")


def test_tenants_come_in_their_order_with_their_index() -> None:
    assert [(tenant.name, tenant.index) for tenant in make_tenants()] == [("acme", 0), ("other", 1), ("keyless", 2)]


@given(st.one_of(st.none(), st.binary(max_size=600)), st.one_of(st.none(), st.binary(max_size=600)))
def test_no_header_raises_anything_but_unauthenticated(authorization: bytes | None, api_key: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        make_tenants().identify(authorization, api_key)


# Settings.


@pytest.mark.parametrize(
    "name", ["", " ", "two words", "line\nbreak", "esc\x1b[31m", "#hash", "x" * 65, "anonymous", "a\u2028b", "a\u00a0b"]
)
def test_a_name_that_would_break_a_log_line_a_label_or_a_keys_file_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"tenants\[1\]\.name"):
        Tenants([TenantSettings(name="fine-名字"), TenantSettings(name=name)])


def test_two_tenants_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="named 'a'"):
        Tenants([TenantSettings(name="a"), TenantSettings(name="a")])


def test_a_key_of_two_tenants_is_refused_and_twice_the_same_is_one() -> None:
    key = hash_key(ACME)
    assert knows(Tenants([TenantSettings(name="a", key_hashes=[key, key.upper().replace("SHA", "sha")])]), ACME) == "a"
    with pytest.raises(SettingsError, match="'a' and 'b' have the same key"):
        Tenants([TenantSettings(name="a", key_hashes=[key]), TenantSettings(name="b", key_hashes=[key])])


@pytest.mark.parametrize(
    "text", ["", ACME, "sha256:", "sha256:" + "0" * 63, "sha256:" + "0" * 65, "md5:" + "0" * 64, "0" * 64]
)
def test_what_is_no_hash_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(SettingsError, match="longwire tenants hash") as caught:
        Tenants([TenantSettings(name="a", key_hashes=[text])])
    assert not text or text not in str(caught.value).replace("sha256: and", "")


# The keys file's lines.


def test_keys_of_a_file_stand_beside_those_of_the_settings() -> None:
    tenants = make_tenants()
    text = f"\ufeff# rotated in May\r\n\r\n  keyless\t{hash_key(SPARE)}  \r\nacme {hash_key('sk-second')}\r\n   # end"
    assert tenants.load_keys(text) == 2
    found = [knows(tenants, key) for key in (ACME, OTHER, SPARE, "sk-second")]
    assert found == ["acme", "other", "keyless", "acme"]
    assert tenants.statistics() == {"tenants": 3, "keys_of_settings": 2, "keys_of_file": 2, "refused": 0}


def test_a_rotated_or_removed_key_counts_from_the_next_request_on() -> None:
    tenants = make_tenants()
    tenants.load_keys(f"keyless {hash_key(SPARE)}")
    tenants.load_keys(f"keyless {hash_key('sk-new')}")
    assert (knows(tenants, SPARE), knows(tenants, "sk-new")) == (None, "keyless")
    tenants.load_keys("")
    assert (knows(tenants, "sk-new"), knows(tenants, ACME)) == (None, "acme")


def test_a_key_may_move_to_another_tenant_with_the_file() -> None:
    tenants = make_tenants()
    tenants.load_keys(f"keyless {hash_key(SPARE)}")
    tenants.load_keys(f"other {hash_key(SPARE)}")
    assert knows(tenants, SPARE) == "other"


@pytest.mark.parametrize(
    "line",
    [
        "keyless",
        f"keyless {SPARE}",
        f"keyless {hash_key(SPARE)} extra",
        f"{SPARE} {hash_key(SPARE)}",
        f"unknown {hash_key(SPARE)}",
        f"keyless {hash_key(SPARE)}# no comment here",
        f"anonymous {hash_key(SPARE)}",
        f"acme {hash_key(OTHER)}",
        f"other {hash_key('sk-new')}",
        f"keyless {hash_key('sk-new')}\u2028acme {hash_key('sk-x')}",
    ],
)
def test_one_bad_line_is_named_and_leaves_the_last_good_keys_whole(line: str) -> None:
    tenants = make_tenants()
    tenants.load_keys(f"keyless {hash_key('sk-good')}")
    with pytest.raises(SettingsError) as caught:
        tenants.load_keys(f"# first\nacme {hash_key('sk-new')}\n{line}\n", where="/etc/keys")
    assert caught.value.where == "/etc/keys:3"
    assert SPARE not in str(caught.value)
    assert (knows(tenants, "sk-good"), knows(tenants, "sk-new")) == ("keyless", None)


def test_more_keys_than_a_lookup_may_cost_are_refused_whole() -> None:
    tenants = make_tenants()
    lines = [f"acme sha256:{number:064x}" for number in range(MAX_KEYS - 2)]
    assert tenants.load_keys("\n".join(lines)) == MAX_KEYS - 2
    with pytest.raises(SettingsError, match=str(MAX_KEYS)):
        tenants.load_keys("\n".join([*lines, f"acme sha256:{MAX_KEYS:064x}"]))
    assert tenants.statistics()["keys_of_file"] == MAX_KEYS - 2


def test_without_tenants_a_keys_file_opens_nothing_and_names_its_first_line() -> None:
    with pytest.raises(SettingsError, match="keys_file:1"):
        Tenants([]).load_keys(f"acme {hash_key(ACME)}")


@given(st.text(max_size=200))
def test_no_text_raises_anything_but_a_setting_error(text: str) -> None:
    tenants = make_tenants()
    try:
        tenants.load_keys(text)
    except SettingsError:
        assert tenants.statistics()["keys_of_file"] == 0
    assert knows(tenants, ACME) == "acme"


# What is seen of it all.


def test_neither_a_key_nor_its_hash_is_in_any_repr_or_refusal() -> None:
    tenants = make_tenants()
    acme = tenants.identify(bearer(ACME))
    texts = [repr(tenants), repr(acme), str(tenants.statistics()), str(acme.statistics())]
    for headers in [
        (bearer(SPARE), None),
        (bearer(ACME), SPARE.encode()),
        (None, SPARE.encode()),
        (SPARE.encode(), None),
    ]:
        with pytest.raises(Unauthenticated) as caught:
            tenants.identify(*headers)
        texts += ["".join(traceback.format_exception_only(caught.value)), repr(caught.value), str(caught.value.body())]
    seen = " ".join(texts)
    for secret in (ACME, SPARE, hash_key(ACME)[7:], hash_key(SPARE)[7:]):
        assert secret not in seen


def test_reprs_tell_the_state() -> None:
    tenants = make_tenants()
    assert repr(tenants) == "<Tenants 3 with 2 keys refused=0>"
    assert repr(Tenants([])) == "<Tenants open refused=0>"
    assert repr(tenants.identify(bearer(OTHER))) == "<Tenant 'other' #1 max_streams=256>"
    assert Tenant(TenantSettings(name="t", max_streams=3), 0).statistics() == {"index": 0, "max_streams": 3}


@pytest.mark.parametrize(
    ("home", "slots", "expected"), [(-1, 4, None), (0, 1, 0), (3, 4, 3), (4, 4, 0), (7, 4, 3), (255, 1, 0)]
)
def test_a_home_is_a_slot_that_there_is(home: int, slots: int, expected: int | None) -> None:
    assert home_of(Tenant(TenantSettings(name="t", home=home), 0), slots) == expected
