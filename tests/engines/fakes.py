"""An exchange without sockets: a sink in memory, a link that only remembers, and an owner that notes how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from longwire.engines.base import Answer, Failure, Watch
from longwire.engines.exchange import Exchange, Expect
from longwire.engines.openai import ChatWatch
from longwire.words.reasons import CloseReason

TAIL_BYTES = 16 * 1024
LIMITS = (1 << 20, 1 << 24)


@dataclass
class Entry:
    """What a reader would get for one entry: the event itself, whatever its form in the log."""

    block: bytes
    silent: bool = False
    framed: bool = False


class MemorySink:
    """A sink that is its own store. ``entries`` are those appended, of which the first ``published`` are to be seen."""

    keeps_bytes = True

    def __init__(self) -> None:
        self.end = 0
        self.is_full = False
        self.stored = bytearray()
        self.entries: list[Entry] = []
        self.published = 0
        self.checkpoints: list[int] = []
        self.is_last = False
        """What was published last was said to be the last of all."""
        self.first_byte = 0
        self.first_token_at: int | None = None
        self.rest = memoryview(bytearray(TAIL_BYTES))

    @property
    def chain(self) -> MemorySink:
        return self

    def filled(self, count: int) -> None:
        self.stored += self.rest[:count]
        self.end += count

    def splice(self) -> None:
        """Nobody here can be given frames directly."""

    def unsplice(self) -> None: ...

    def lose_reader(self, fault: Exception) -> None: ...

    def settle_soon(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        size_line, _, rest = bytes(self.stored[start : start + length]).partition(b"\r\n")
        assert rest.endswith(b"\r\n") and int(size_line, 16) == len(rest) - 2, "a framed entry is one HTTP chunk"
        self.entries.append(Entry(rest[:-2], framed=True))

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self.entries.append(Entry(bytes(self.stored[start : start + length]), silent))

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self.entries.append(Entry(block, silent))

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        self.published = len(self.entries)
        self.checkpoints.append(checkpoint)
        self.is_last = is_last

    def note_first_byte(self) -> None:
        self.first_byte += 1

    def note_first_token(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = len(self.entries)


@dataclass
class Ended:
    """How an exchange ended; nothing while it goes on."""

    reason: CloseReason | None = None
    message: str = ""
    failure: Failure | None = None
    answer: Answer | None = None
    refusing: int = 0
    began: int = 0
    released: list[bool] = field(default_factory=list)
    drains: int = 0


class Scene:
    """An exchange with all that is around it. It is its owner and its link."""

    def __init__(
        self, expect: Expect = Expect.EVENTS, watch: Watch | None = None, limits: tuple[int, int] = LIMITS
    ) -> None:
        self.sink = MemorySink()
        self.watch: Watch = watch if watch is not None else ChatWatch(1, True)
        self.ended = Ended()
        self.exchange = Exchange(self.sink, self.watch, self, expect, limits, self)

    def feed(self, *pieces: bytes) -> Scene:
        """Receive each piece by one read (or more, where it is larger than the tail)."""
        for piece in pieces:
            for at in range(0, len(piece), TAIL_BYTES):
                part = piece[at : at + TAIL_BYTES]
                if self.ended.released:
                    return self  # the connection does not give us any more
                tail = self.sink.rest
                tail[: len(part)] = part
                if self.ended.drains:
                    self.exchange.drain(tail, len(part))
                else:
                    self.exchange.receive(tail, len(part))
        return self

    def end(self, error: Exception | None = None) -> Scene:
        self.exchange.ended(error)
        return self

    @property
    def blocks(self) -> list[bytes]:
        """What readers may see."""
        return [entry.block for entry in self.sink.entries[: self.sink.published]]

    # The owner.

    def refusing(self) -> None:
        self.ended.refusing += 1

    def began(self) -> None:
        self.ended.began += 1

    def answered(self, answer: Answer) -> None:
        assert self.ended.answer is None
        self.ended.answer = answer

    def completed(self, reason: CloseReason, message: str) -> None:
        assert self.ended.reason is None, "one ending"
        self.ended.reason, self.ended.message = reason, message

    def failed(self, failure: Failure) -> None:
        assert self.ended.reason is None, "one ending"
        assert self.sink.published == 0, "what failed has shown nothing"
        self.ended.reason, self.ended.message, self.ended.failure = failure.reason, failure.message, failure

    # The link.

    def splice(self, write: Callable[[bytes], None], mark: bytes) -> None:
        raise AssertionError("the sink has no reader who could be given frames")

    def release(self, reusable: bool) -> None:
        assert not self.ended.released, "a connection is let go once"
        self.ended.released.append(reusable)

    def drain(self) -> None:
        self.ended.drains += 1
