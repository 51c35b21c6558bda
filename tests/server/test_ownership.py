"""Which slot a request belongs to, as values."""

from __future__ import annotations

import pytest

from longwire.admission.tenants import Tenant
from longwire.server.handlers import Pending
from longwire.server.ownership import owner_of
from longwire.server.routes import Match
from longwire.wire.http1 import RequestHead
from longwire.words.ids import Place, format_stream_id, make_stream_id
from longwire.words.settings import TenantSettings

HERE = Place(2, 4, 9)
ADA = Tenant(TenantSettings(name="ada"), 0)


def pending(route: str, argument: str = "", key: bytes = b"", tenant: Tenant | None = ADA) -> Pending:
    headers = [(b"idempotency-key", key)] if key else []
    head = RequestHead("POST", b"/v1/" + route.encode(), 1, headers, 0, False, True, False)
    return Pending(Match(route, argument, []), head, tenant)


def owner(request: Pending, home: int | None = None) -> int:
    return owner_of(request, HERE, lambda tenant: home, lambda tenant, target, key: target[-1:] + key)


@pytest.mark.parametrize("route", ["stream_read", "stream_delete"])
def test_a_stream_is_where_its_id_says(route: str) -> None:
    for slot in range(4):
        assert owner(pending(route, format_stream_id(make_stream_id(slot))), home=1) == slot
    for unknown in (format_stream_id(make_stream_id(4)), "lw_", "nothing", ""):
        assert owner(pending(route, unknown), home=1) == HERE.slot


@pytest.mark.parametrize("route", ["chat_completions", "completions", "relay"])
def test_a_tenant_s_home_comes_before_its_keys(route: str) -> None:
    assert owner(pending(route)) == HERE.slot
    assert owner(pending(route), home=1) == owner(pending(route, key=b"k"), home=1) == 1
    assert owner(pending(route), home=4) == HERE.slot, "a home that there is not"


def test_keys_are_spread_and_each_has_its_place() -> None:
    found = [owner(pending("relay", key=b"\0" * 6 + bytes([number]))) for number in range(64)]
    again = [owner(pending("relay", key=b"\0" * 6 + bytes([number]))) for number in range(64)]
    assert found == again and set(found) <= set(range(4))
    assert {owner(pending(route, key=b"k")) for route in ("relay", "completions")} <= set(range(4))


@pytest.mark.parametrize("route", ["stream_list", "models", "healthz", "readyz", "options", "openapi"])
def test_all_else_is_answered_anywhere(route: str) -> None:
    assert owner(pending(route, key=b"k"), home=1) == HERE.slot
    assert owner(pending(route, tenant=None), home=1) == HERE.slot
