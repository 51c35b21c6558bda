"""The table of faults: for each fault and phase what is to be seen of it, on every side.

What lives here: the rows, and what is in no row and why. What must not: how it is seen (observing.py).

*how* is ``stream``, ``paced`` (a stream of one token a second) or ``whole`` (an answer in one piece). Then come the close
reason; what the client got (``all`` of the answer, an ordinary error of that status, or so many tokens exactly and an error in
band); what the engine saw; whether its connection is ``kept`` for the next request, ``closed``, or ``stale`` (kept, and dead
when it is used); whether the engine is blamed, which opens its breaker here; which clock ran out; after how many seconds it was
over; and what a second engine standing by makes of it: after a ``failover``, or where it ``goes on``, the client has all of
the answer; ``same`` is nothing.

A stream here has 64 events: the role, 60 tokens, the finish, the usage and the end marker.
"""

from __future__ import annotations

from typing import NamedTuple

from longwire.sim.event_faults import NO_UTF8, ROCKET

EMPTY_CONTENT = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
)
"""The frame of a large event, without its text."""


class Row(NamedTuple):
    """One fault in one phase."""

    fault: str
    how: str
    reason: str
    client: str
    engine: str
    connection: str
    blamed: str
    clock: str
    seconds: str
    twin: str

    def __str__(self) -> str:
        return f"{self.fault}-{self.how}"

    @property
    def name(self) -> str:
        return self.fault.partition("=")[0]

    @property
    def is_stream(self) -> bool:
        return self.how != "whole"

    @property
    def faults(self) -> tuple[str, ...]:
        return (self.fault, "slow_tokens=1000") if self.how == "paced" else (self.fault,)


def read_table(text: str) -> list[Row]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return [Row(*cells) for cells in rows if cells != [""]]


TABLE = read_table(
    """
hang                  |stream|upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
hang                  |whole |upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_headers          |stream|completed           |all      |1 answered           |kept  |no |-          |1  |same
slow_headers          |whole |completed           |all      |1 answered           |kept  |no |-          |1  |same
slow_headers=20000    |stream|upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_headers=20000    |whole |upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_head             |stream|upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_head             |whole |upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_head=50          |stream|completed           |all      |1 answered           |kept  |no |-          |6  |same
slow_head=50          |whole |completed           |all      |1 answered           |kept  |no |-          |5  |same
headers_then_stall    |stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
headers_then_stall    |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
reset                 |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset                 |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close                 |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close                 |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
garbage               |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
garbage               |whole |upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
half_head             |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
half_head             |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
slow_first_token=5000 |stream|completed           |all      |1 answered           |kept  |no |-          |5  |same
slow_first_token=30000|stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
slow_first_token=30000|whole |upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_tokens           |stream|token_silence       |1 tokens |1 cancelled          |closed|yes|silence    |25 |goes on
slow_tokens           |whole |upstream_timeout    |504      |1 cancelled          |closed|yes|first_byte |10 |failover
slow_tokens=5000      |stream|total_timeout       |24 tokens|1 cancelled          |closed|no |total      |120|same
tokens_per_s          |stream|completed           |all      |1 answered           |kept  |no |-          |1  |same
tokens_per_s          |whole |completed           |all      |1 answered           |kept  |no |-          |1  |same
status=400            |stream|upstream_refused    |400      |1 refused            |kept  |no |-          |0  |same
status=400            |whole |upstream_refused    |400      |1 refused            |kept  |no |-          |0  |same
status=401            |stream|upstream_refused    |401      |1 refused            |kept  |no |-          |0  |same
status=401            |whole |upstream_refused    |401      |1 refused            |kept  |no |-          |0  |same
status=404            |stream|upstream_refused    |404      |1 refused            |kept  |no |-          |0  |same
status=404            |whole |upstream_refused    |404      |1 refused            |kept  |no |-          |0  |same
status=413            |stream|upstream_refused    |413      |1 refused            |kept  |no |-          |0  |same
status=413            |whole |upstream_refused    |413      |1 refused            |kept  |no |-          |0  |same
status=422            |stream|upstream_refused    |422      |1 refused            |kept  |no |-          |0  |same
status=422            |whole |upstream_refused    |422      |1 refused            |kept  |no |-          |0  |same
status=429            |stream|upstream_refused    |429      |1 refused            |kept  |no |-          |0  |failover
status=429            |whole |upstream_refused    |429      |1 refused            |kept  |no |-          |0  |failover
status=500            |stream|upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
status=500            |whole |upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
status=501            |stream|upstream_failed     |502      |1 refused            |kept  |no |-          |0  |same
status=501            |whole |upstream_failed     |502      |1 refused            |kept  |no |-          |0  |same
status=503            |stream|upstream_failed     |503      |1 refused            |kept  |yes|-          |0  |failover
status=503            |whole |upstream_failed     |503      |1 refused            |kept  |yes|-          |0  |failover
status=504            |stream|upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
status=504            |whole |upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
retry_after=7         |stream|upstream_refused    |429      |1 refused            |kept  |no |-          |0  |failover
retry_after=7         |whole |upstream_refused    |429      |1 refused            |kept  |no |-          |0  |failover
html                  |stream|upstream_protocol   |502      |1 refused            |kept  |yes|-          |0  |failover
html                  |whole |upstream_protocol   |502      |1 refused            |kept  |yes|-          |0  |failover
html=404              |stream|upstream_refused    |404      |1 refused            |kept  |no |-          |0  |same
html=500              |stream|upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
html=500              |whole |upstream_failed     |502      |1 refused            |kept  |yes|-          |0  |failover
error_body            |stream|upstream_error_event|502      |1 refused            |kept  |yes|-          |0  |failover
error_body            |whole |upstream_error_event|502      |1 refused            |kept  |yes|-          |0  |failover
prompt_too_long       |stream|upstream_failed     |502      |1 refused            |kept  |no |-          |0  |same
prompt_too_long       |whole |upstream_failed     |502      |1 refused            |kept  |no |-          |0  |same
reset_after=0         |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_after=1         |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_after=2         |stream|upstream_reset      |1 tokens |1 answered           |closed|yes|-          |0  |goes on
reset_after=50        |paced |upstream_reset      |49 tokens|1 answered           |closed|yes|-          |49 |goes on
reset_after=61        |paced |upstream_reset      |60 tokens|1 answered           |closed|yes|-          |60 |goes on
reset_after=62        |paced |completed           |all      |1 answered           |closed|no |-          |60 |same
reset_after=63        |paced |completed           |all      |1 answered           |closed|no |-          |60 |same
reset_inside=0        |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_inside=1        |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_inside=2        |stream|upstream_reset      |1 tokens |1 answered           |closed|yes|-          |0  |goes on
reset_inside=50       |paced |upstream_reset      |49 tokens|1 answered           |closed|yes|-          |49 |goes on
reset_inside=61       |paced |upstream_reset      |60 tokens|1 answered           |closed|yes|-          |60 |goes on
reset_inside=62       |paced |completed           |all      |1 answered           |closed|no |-          |60 |same
reset_inside=63       |paced |completed           |all      |1 answered           |closed|no |-          |60 |same
stall_after=0         |stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
stall_after=1         |stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
stall_after=2         |stream|token_silence       |1 tokens |1 cancelled          |closed|yes|silence    |25 |goes on
stall_after=50        |stream|token_silence       |49 tokens|1 cancelled          |closed|yes|silence    |25 |goes on
stall_after=61        |stream|token_silence       |60 tokens|1 cancelled          |closed|yes|silence    |25 |goes on
stall_after=62        |stream|completed           |all      |1 cancelled          |closed|no |silence    |25 |same
stall_after=63        |stream|completed           |all      |1 cancelled          |closed|no |silence    |25 |same
stall_after=64        |stream|completed           |all      |1 cancelled          |closed|no |-          |0  |same
stall_inside=0        |stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
stall_inside=1        |stream|first_token_timeout |504      |1 cancelled          |closed|yes|first_token|20 |failover
stall_inside=2        |stream|token_silence       |1 tokens |1 cancelled          |closed|yes|silence    |25 |goes on
stall_inside=50       |stream|token_silence       |49 tokens|1 cancelled          |closed|yes|silence    |25 |goes on
stall_inside=61       |stream|token_silence       |60 tokens|1 cancelled          |closed|yes|silence    |25 |goes on
stall_inside=62       |stream|completed           |all      |1 cancelled          |closed|no |silence    |25 |same
stall_inside=63       |stream|completed           |all      |1 cancelled          |closed|no |silence    |25 |same
half_close_after=0    |stream|upstream_reset      |502      |1 cancelled          |closed|yes|-          |0  |failover
half_close_after=1    |stream|upstream_reset      |502      |1 cancelled          |closed|yes|-          |0  |failover
half_close_after=2    |stream|upstream_reset      |1 tokens |1 cancelled          |closed|yes|-          |0  |goes on
half_close_after=50   |stream|upstream_reset      |49 tokens|1 cancelled          |closed|yes|-          |0  |goes on
half_close_after=61   |stream|upstream_reset      |60 tokens|1 cancelled          |closed|yes|-          |0  |goes on
half_close_after=62   |stream|completed           |all      |1 cancelled          |closed|no |-          |0  |same
half_close_after=63   |stream|completed           |all      |1 cancelled          |closed|no |-          |0  |same
half_close_after=64   |stream|completed           |all      |1 cancelled          |closed|no |-          |0  |same
close_after=0         |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_after=1         |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_after=2         |stream|upstream_reset      |1 tokens |1 answered           |closed|yes|-          |0  |goes on
close_after=50        |stream|upstream_reset      |49 tokens|1 answered           |closed|yes|-          |0  |goes on
close_after=61        |stream|upstream_reset      |60 tokens|1 answered           |closed|yes|-          |0  |goes on
close_after=62        |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
close_after=63        |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
close_after=64        |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
close_inside=0        |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_inside=1        |stream|upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_inside=2        |stream|upstream_reset      |1 tokens |1 answered           |closed|yes|-          |0  |goes on
close_inside=50       |stream|upstream_reset      |49 tokens|1 answered           |closed|yes|-          |0  |goes on
close_inside=61       |stream|upstream_reset      |60 tokens|1 answered           |closed|yes|-          |0  |goes on
close_inside=62       |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
close_inside=63       |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
garbage_after=0       |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
garbage_after=1       |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
garbage_after=2       |stream|upstream_protocol   |1 tokens |1 answered           |closed|yes|-          |0  |goes on
garbage_after=50      |stream|upstream_protocol   |49 tokens|1 answered           |closed|yes|-          |0  |goes on
garbage_after=61      |stream|upstream_protocol   |60 tokens|1 answered           |closed|yes|-          |0  |goes on
garbage_after=62      |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
garbage_after=63      |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
garbage_after=64      |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
error_event=0         |stream|upstream_error_event|502      |1 answered           |closed|yes|-          |0  |failover
error_event=1         |stream|upstream_error_event|502      |1 answered           |closed|yes|-          |0  |failover
error_event=2         |stream|upstream_error_event|1 tokens |1 answered           |closed|yes|-          |0  |goes on
error_event=50        |stream|upstream_error_event|49 tokens|1 answered           |closed|yes|-          |0  |goes on
error_event=61        |stream|upstream_error_event|60 tokens|1 answered           |closed|yes|-          |0  |goes on
error_event=62        |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
error_event=63        |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
vllm_error_event=0    |stream|upstream_error_event|502      |1 answered           |closed|yes|-          |0  |failover
vllm_error_event=1    |stream|upstream_error_event|502      |1 answered           |closed|yes|-          |0  |failover
vllm_error_event=2    |stream|upstream_error_event|1 tokens |1 answered           |closed|yes|-          |0  |goes on
vllm_error_event=50   |stream|upstream_error_event|49 tokens|1 answered           |closed|yes|-          |0  |goes on
vllm_error_event=61   |stream|upstream_error_event|60 tokens|1 answered           |closed|yes|-          |0  |goes on
vllm_error_event=62   |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
vllm_error_event=63   |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
reset_after=0         |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_after=1         |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
reset_inside=0        |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
stall_after=0         |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
stall_after=1         |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
stall_inside=0        |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
half_close_after=0    |whole |upstream_reset      |502      |1 cancelled          |closed|yes|-          |0  |failover
half_close_after=1    |whole |upstream_reset      |502      |1 cancelled          |closed|yes|-          |0  |failover
close_after=0         |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_after=1         |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
close_inside=0        |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
garbage_after=0       |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
garbage_after=1       |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
stall_last            |stream|completed           |all      |1 cancelled          |closed|no |silence    |25 |same
stall_last            |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
stay_open             |stream|completed           |all      |1 cancelled          |closed|no |-          |0  |same
stay_open             |whole |token_silence       |504      |1 cancelled          |closed|yes|silence    |25 |failover
no_done               |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
no_finish             |stream|upstream_incomplete |60 tokens|1 answered           |kept  |yes|-          |0  |goes on
two_done              |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
after_done            |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
empty                 |stream|upstream_incomplete |502      |1 answered           |kept  |yes|-          |0  |failover
empty                 |whole |upstream_incomplete |502      |1 answered           |kept  |yes|-          |0  |failover
big_event=10485760    |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
endless_event         |stream|event_too_large     |502      |1 cancelled          |closed|no |-          |0  |same
comments              |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
invalid_utf8          |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
lone_surrogate        |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
split_surrogates      |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
torn_code_point       |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
split_code_points     |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
preempt=5000          |paced |completed           |all      |1 answered           |kept  |no |-          |65 |same
preempt=60000         |paced |token_silence       |1 tokens |1 cancelled          |closed|yes|silence    |25 |goes on
crlf                  |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
cr                    |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
mixed                 |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
bom                   |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
ids                   |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
no_space              |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
many_per_chunk=7      |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
split_chunks=5        |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
one_byte              |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
upper_hex             |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
wrong_type            |stream|upstream_protocol   |502      |1 answered           |kept  |yes|-          |0  |failover
gzip                  |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
gzip                  |whole |upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
content_length        |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
content_length        |whole |completed           |all      |1 answered           |kept  |no |-          |0  |same
wrong_length          |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
wrong_length          |whole |upstream_reset      |502      |1 answered           |closed|yes|-          |0  |failover
short_length          |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
short_length          |whole |upstream_incomplete |502      |1 answered           |closed|yes|-          |0  |failover
both_lengths          |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
both_lengths          |whole |upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
odd_transfer_encoding |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
odd_transfer_encoding |whole |upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
not_chunked           |stream|upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
not_chunked           |whole |upstream_protocol   |502      |1 answered           |closed|yes|-          |0  |failover
close_delimited       |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
close_delimited       |whole |completed           |all      |1 answered           |closed|no |-          |0  |same
early_hints           |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
early_hints           |whole |completed           |all      |1 answered           |kept  |no |-          |0  |same
reuse_bytes           |stream|completed           |all      |1 answered           |closed|no |-          |0  |same
reuse_bytes           |whole |completed           |all      |1 answered           |closed|no |-          |0  |same
die_idle              |stream|completed           |all      |1 answered           |stale |no |-          |0  |same
die_idle              |whole |completed           |all      |1 answered           |stale |no |-          |0  |same
refuse_stream_options |stream|completed           |all      |1 answered, 1 refused|kept  |no |-          |0  |same
usage_in_choices      |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
continuous_usage      |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
no_usage              |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
no_hold_back          |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
invented_finish       |stream|completed           |all      |1 answered           |kept  |no |-          |0  |same
invented_finish       |whole |completed           |all      |1 answered           |kept  |no |-          |0  |same
"""
)
BIG = 10 << 20


def _kept_apart(*parts: bytes) -> str:
    """Bytes that are no text, as observing.py reads them."""
    return "".join(part.decode("utf-8", "surrogateescape") for part in parts)


BEFORE = {"big_event": "x" * (BIG - len(EMPTY_CONTENT))}
"""What a fault has said before the first token; of a large event all but its frame."""
BEHIND_FIRST = {
    "invalid_utf8": _kept_apart(NO_UTF8),
    "lone_surrogate": "\ud83d",
    "split_surrogates": "\ud83d\ude80",
    "torn_code_point": _kept_apart(ROCKET[0][:2], ROCKET[0][2:]),
}
"""And what behind it."""

NOT_IN_THE_TABLE = {
    "first": "a condition: test_lost_engines.py lets an engine come back",
    "flap": "a condition: test_lost_engines.py lets an engine flap",
    "every": "a condition: tests/sim/test_conditions.py",
    "after": "a condition: tests/sim/test_conditions.py",
}
