"""Why a stream, or one reader of it, ended: one word, used everywhere.

What lives here: the enum of close reasons and what each means for a client.
What must not: how an ending is detected (engines, streams) or worded on the wire (dialects).

The same word stands in the log line, the metric label, the JSON state and the in-band error, so that an operator who
sees it in one place can search for it in the others.
"""

from __future__ import annotations

from enum import Enum


class CloseReason(str, Enum):
    """The single reason why a stream (or a reader) ended; ``value`` is the word that users see."""

    def __new__(cls, word: str, help: str, status: int = 0, resumable: bool = False) -> CloseReason:
        self = str.__new__(cls, word)
        self._value_ = word
        self.help = help
        self.status = status
        self.resumable = resumable
        return self

    help: str
    """One sentence for the reference page."""
    status: int
    """HTTP status that an error of this kind has before the first byte; 0 where the ending is no error."""
    resumable: bool
    """Whether more will come at the cursor: the stream itself goes on, only this reader was cut."""

    # The engine said it was done.
    COMPLETED = "completed", "The engine finished and said so."

    # Somebody here wanted it to stop.
    CANCELLED = "cancelled", "A client or an operator stopped the generation (DELETE).", 409
    CLIENT_LEFT = "client_left", "The last reader left and the stream's policy was to stop the engine.", 499
    SHUTDOWN = "shutdown", "The gateway was stopped before the stream had finished.", 503

    # The engine failed.
    UPSTREAM_REFUSED = "upstream_refused", "The engine answered with a 4xx before the first event.", 400
    UPSTREAM_FAILED = "upstream_failed", "The engine answered with a 5xx before the first event.", 502
    UPSTREAM_UNREACHABLE = "upstream_unreachable", "No connection to the engine could be made.", 502
    UPSTREAM_RESET = "upstream_reset", "The engine's connection broke in mid-stream.", 502
    UPSTREAM_INCOMPLETE = "upstream_incomplete", "The engine's answer ended without a finish.", 502
    UPSTREAM_ERROR_EVENT = "upstream_error_event", "The engine reported an error inside the stream.", 502
    UPSTREAM_PROTOCOL = "upstream_protocol", "The engine's bytes were no valid HTTP or not the expected type.", 502
    UPSTREAM_TIMEOUT = "upstream_timeout", "The engine did not begin to answer within first_byte_timeout_s.", 504

    # A bound was reached.
    EVENT_TOO_LARGE = "event_too_large", "One event was larger than max_event_bytes.", 502
    STREAM_TOO_LARGE = "stream_too_large", "The stream's log reached max_stream_bytes.", 502
    ARENA_FULL = "arena_full", "The shared memory for logs had no room for the stream to go on.", 503
    SLOW_READER = "slow_reader", "A reader made no progress for slow_reader_s; the stream itself went on.", 408, True

    # We failed.
    INTERNAL_ERROR = "internal_error", "A fault of the gateway itself.", 500

    # A clock ran out. They stand last: rows hold a reason by its place, and older rows must mean what they meant.
    CONNECT_TIMEOUT = "connect_timeout", "The engine did not accept a connection within connect_timeout_s.", 504
    FIRST_TOKEN_TIMEOUT = "first_token_timeout", "No token came within first_token_timeout_s.", 504
    TOKEN_SILENCE = "token_silence", "The engine fell silent in mid-answer, for three times token_silence_s.", 504
    TOO_SLOW = "too_slow", "The engine sent fewer tokens than min_tokens_per_s over rate_window_s.", 504
    TOTAL_TIMEOUT = "total_timeout", "The generation took longer than total_timeout_s.", 504

    # Asked to go on with another stream's answer.
    CANNOT_CONTINUE = "cannot_continue", "The answer could not be gone on with exactly.", 409

    # No engine had room for it.
    QUEUE_DEADLINE = "queue_deadline", "No engine had room for the request within queue_deadline_s.", 503

    @property
    def is_success(self) -> bool:
        """True for the one ending in which the client has the engine's whole answer."""
        return self is CloseReason.COMPLETED

    def __str__(self) -> str:
        return str(self.value)
