"""How a request can end, in one table.

What lives here: the words, what each means, and what it counts as. What must not: finding out (reading.py, sender.py).
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The end of one request. ``breaks``: the stream had begun: an interruption; ``fails``: it counts as a failure."""

    def __init__(self, word: str, fails: bool, breaks: bool, help: str) -> None:
        self.word = word
        self.fails = fails
        self.breaks = breaks
        self.help = help

    COMPLETE = "complete", False, False, "The end marker came."
    UNFINISHED = (
        "unfinished",
        False,
        False,
        "Still running when the drain time was over, or at Ctrl-C; cut by the client itself.",
    )
    REFUSED = "refused", True, False, "The connection was refused."
    UNREACHABLE = "unreachable", True, False, "No connection for another reason, named with the first of them."
    SHED = "shed", True, False, "Status 429 or 503."
    STATUS = "status", True, False, "Any other status than 2xx."
    DROPPED = "dropped", True, False, "The connection ended before the response's head, and not by being idle."
    NO_HTTP = "no_http", True, False, "What came in place of the response's head is none, or not a whole one."
    LATE = "late", True, False, "No byte of the body within `--timeout-s`."
    NO_STREAM = "no_stream", True, False, "2xx with a body that is no stream of this door."
    MALFORMED = "malformed", True, True, "A body that is not the chunked coding, or an event of over 64 MiB."
    RESET = "reset", True, True, "The connection was reset in mid-stream."
    CUT_SHORT = "cut_short", True, True, "The body ended, in whatever way, without the end marker."
    SILENT = "silent", True, True, "No byte for `--silence-s` in mid-stream."
    TOLD = "told", True, True, "An error in-band, whether the end marker followed or not."
    NOT_RESUMED = "not_resumed", True, True, "Cut by `--chaos reset-clients`, and could not be gone on with."


class Cause(Enum):
    """Why a gap was longer than 500 ms."""

    def __init__(self, word: str, help: str) -> None:
        self.word = word
        self.help = help

    CLIENT = "client", "The client's own loop was late by half the gap or more within it."
    ENGINE = (
        "engine",
        "The event that ended the gap was made less than half the gap before it arrived, so it was made late.",
    )
    GATEWAY = "gateway", "It was made earlier, so it was held up on its way."
    UNKNOWN = (
        "unknown",
        "Nothing says when it was made (only the stand-in does, with `--verify`, on the client's own machine).",
    )


BY_WORD = {outcome.word: outcome for outcome in Outcome}
CAUSE_BY_WORD = {cause.word: cause for cause in Cause}
