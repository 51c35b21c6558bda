"""X-Forwarded-For is believed from the right, and only as far as trusted hops reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.wire.forwarded import MAX_HOPS, TrustedNetworks, client_address, parse_address
from longwire.words.errors import SettingsError

PROXIES = TrustedNetworks.parse(["10.0.0.0/8", "fd00::/8", "192.0.2.7"])


def client(peer: str, *values: bytes) -> str:
    return client_address(peer, list(values), PROXIES)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "10.0.0.1"),
        ([b""], "10.0.0.1"),
        ([b"203.0.113.9"], "203.0.113.9"),
        ([b"203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ([b"203.0.113.9", b"10.0.0.2,fd00::1"], "203.0.113.9"),
        ([b"1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ([b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([b"203.0.113.9:4711"], "203.0.113.9"),
        ([b"[2001:db8::1]:4711"], "2001:db8::1"),
        ([b"[2001:db8::1]"], "2001:db8::1"),
        ([b"2001:DB8:0::1"], "2001:db8::1"),
        ([b"::ffff:203.0.113.9"], "203.0.113.9"),
        ([b"1.1.1.1, ::ffff:10.0.0.2"], "1.1.1.1"),
        ([b"\t 203.0.113.9 \t"], "203.0.113.9"),
        ([b"203.0.113.9 , 192.0.2.7:80"], "203.0.113.9"),
    ],
)
def test_the_client_is_the_first_untrusted_address_from_the_right(values: list[bytes], expected: str) -> None:
    assert client("10.0.0.1", *values) == expected


@pytest.mark.parametrize(
    "entry",
    [
        b"unknown", b"_hidden", b"", b"203.0.113", b"203.0.113.9.", b"203.0.113.09", b"203.0.113.256", b"0x7f.1", b"2130706433",
        b"203.0.113.9:", b"203.0.113.9:x", b"203.0.113.9:65536", b"203.0.113.9:123456", b"203.0.113.9:1:2", b"203.0.113.9;",
        b"[203.0.113.9]", b"[203.0.113.9]:80", b"[2001:db8::1", b"2001:db8::1]", b"[2001:db8::1]x", b"[2001:db8::1]:99999",
        b"fe80::1%eth0", b"[fe80::1%eth0]:1", b"2001:db8::g", b":", b":::", b"203.0.113.9\x00", b"203.0.113.9\n",
        b"[]", b"203.0.113.9 x", b"203.0.113.9\xff", "٢٠٣.0.113.9".encode(), b'"203.0.113.9"', b"for=203.0.113.9",
        b"9" * 5000, b"a:" * 3000,
    ],
)  # fmt: skip
def test_an_entry_that_is_no_address_ends_the_walk_at_the_hop_that_sent_it(entry: bytes) -> None:
    assert client("10.0.0.1", entry) == "10.0.0.1"
    assert client("10.0.0.1", b"1.1.1.1, " + entry + b", 10.0.0.2") == "10.0.0.2"


def test_an_untrusted_peer_cannot_name_another_client() -> None:
    assert client("203.0.113.9", b"10.0.0.1") == "203.0.113.9"
    assert client_address("10.0.0.1", [b"1.1.1.1"], TrustedNetworks()) == "10.0.0.1"


def test_a_dual_stack_spelling_of_a_peer_is_the_same_peer() -> None:
    assert client("::ffff:10.0.0.1", b"1.1.1.1") == "1.1.1.1"
    assert client("::ffff:203.0.113.9", b"1.1.1.1") == "203.0.113.9"


@pytest.mark.parametrize("peer", ["", "/run/proxy.sock", "fe80::1%eth0"])
def test_a_peer_without_a_plain_address_is_itself(peer: str) -> None:
    assert client(peer, b"1.1.1.1") == peer


def test_the_walk_is_bounded() -> None:
    hops = b", ".join([b"203.0.113.9"] + [b"10.1.0.%d" % n for n in range(MAX_HOPS)])
    assert client("10.0.0.1", hops) == "10.1.0.0"
    assert client("10.0.0.1", hops.removesuffix(b", 10.1.0.%d" % (MAX_HOPS - 1))) == "203.0.113.9"


# What may be trusted.


def test_networks_hold_their_addresses_and_no_others() -> None:
    networks = TrustedNetworks.parse(["10.0.0.0/8", " 192.0.2.7 ", "2001:db8::/32", "::1", "::ffff:172.16.0.0/108"])
    assert len(networks) == 5
    for inside in ["10.255.0.1", "192.0.2.7", "2001:db8::1", "::1", "172.16.0.1", "::ffff:10.0.0.1"]:
        assert inside in networks
    for outside in ["11.0.0.0", "192.0.2.8", "2001:db9::1", "::2", "172.32.0.1", "", "localhost", "::1%lo"]:
        assert outside not in networks


@pytest.mark.parametrize(
    "text", ["", "loopback", "10.0.0.0/33", "10.1.2.3/8", "10.0.0.0/-1", "10.0.0", "::/129", "*", "10.0.0.0/8/8"]
)
def test_what_is_no_network_is_a_setting_error_that_quotes_it(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        TrustedNetworks.parse(["10.0.0.0/8", text])
    assert repr(text) in str(caught.value)


def test_its_repr_shows_what_is_trusted() -> None:
    assert repr(PROXIES) == "<TrustedNetworks 10.0.0.0/8, 192.0.2.7/32, fd00::/8>"
    assert repr(TrustedNetworks()) == "<TrustedNetworks none>"


trusted_hops = st.sampled_from(
    [b"10.0.0.2", b"10.9.9.9:80", b"fd00::1", b"[fd00::2]:443", b"::ffff:10.1.1.1", b"192.0.2.7"]
)
untrusted_hops = (
    st.ip_addresses().filter(lambda address: str(address) not in PROXIES).map(lambda address: str(address).encode())
)
junk = st.binary(max_size=40)


@given(st.lists(junk, max_size=4), untrusted_hops, st.lists(trusted_hops, max_size=6), st.data())
def test_nothing_to_the_left_of_an_untrusted_hop_is_ever_believed(
    left: list[bytes], untrusted: bytes, right: list[bytes], data: st.DataObject
) -> None:
    entries = [*left, untrusted, *right]
    cut = data.draw(st.integers(0, len(entries)))
    lines = [b",".join(part) for part in (entries[:cut], entries[cut:]) if part]
    expected = client("10.0.0.1", untrusted)
    assert client("10.0.0.1", *lines) == expected
    assert expected not in PROXIES


@given(st.one_of(st.ip_addresses().map(str), st.text(max_size=20)), st.lists(st.binary(max_size=80), max_size=5))
def test_no_header_raises_and_an_untrusted_peer_is_always_the_answer(peer: str, values: list[bytes]) -> None:
    answer = client(peer, *values)
    if peer not in PROXIES:
        assert answer == str(parse_address(peer) or peer)
