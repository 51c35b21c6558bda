"""Which of a server's requests the faults befall: ``first=2,status=503`` fails twice and is well then.

What lives here: conditions, entered into the table of faults under their names.
What must not: counting (faults.py), the faults.

A condition stands beside faults, in ``--fault`` or in a request, and is about the requests to this server that have this very
combination. Of several, all must hold.
"""

from __future__ import annotations

from .fault import when


@when("the faults beside it befall the first N requests only: it fails, then recovers")
def first(number: int, arg: int) -> bool:
    return number < arg


@when("the faults beside it befall each Nth request only")
def every(number: int, arg: int) -> bool:
    return number % arg == arg - 1


@when("the faults beside it befall N requests, spare N, befall N, and so on: it flaps")
def flap(number: int, arg: int) -> bool:
    return number // arg % 2 == 0


@when("the faults beside it spare the first N requests: it works, then fails")
def after(number: int, arg: int) -> bool:
    return number >= arg
