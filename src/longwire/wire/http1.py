"""HTTP/1.1 message heads and request bodies (RFC 9112), sans-IO and strict.

What lives here: reading request and response heads, reading a whole request, writing heads.
What must not: sockets, routes, limits' values, anything about what a body means.
Over 400 lines, because how a head is checked, read in pieces and written is one agreement, to be seen at once.

httptools (llhttp) parses the heads. Before it sees one, a grammar checks the whole head, because two servers that read the same
bytes differently are how requests are smuggled: bare CR or LF, obs-fold, white space before a colon, NUL, a second
Content-Length, Content-Length beside Transfer-Encoding, or any coding but a single ``chunked`` are refused, and the connection
is closed since what follows cannot be trusted. What is refused, and how, never depends on how the bytes were cut on their way.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

import httptools

from .chunked import ChunkedDecoder, ChunkedError, ChunkedTooLarge

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, values without surrounding white space, in order of arrival."""

MAX_HEADERS = 128
"""More is an attack or a mistake (Apache: 100, nginx: by bytes only)."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELDS = rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
_REQUEST_LINE = re.compile(rb"[A-Z][A-Z0-9-]{0,31} [\x21\x22\x24-\x7e]+ HTTP/1\.[01]\r\n")
_REQUEST_FIELDS = re.compile(_FIELDS)
_RESPONSE_HEAD = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _FIELDS)
_VERSION = re.compile(rb"[^\r\n]* HTTP/([0-9]+\.[0-9]+)\r\n")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?\Z")
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_ABSOLUTE = re.compile(rb"https?://[^/?]+(.*)\Z", re.IGNORECASE)
_FAULT = re.compile(rb"\0|(?<!\r)\n|\r(?=[^\n])")
"""What makes a head bad wherever it stands: NUL, and CR or LF without the other."""


class Http1Error(ValueError):
    """The peer's bytes are not acceptable HTTP. ``status`` is what a server should answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class NeedData(Enum):
    """Sentinels of :meth:`RequestReader.next_event`."""

    NEED_DATA = "need_data"
    PAUSED = "paused"


NEED_DATA: Final = NeedData.NEED_DATA
PAUSED: Final = NeedData.PAUSED


class RequestHead(NamedTuple):
    """A request line and its fields. ``target`` is in origin form (or ``*``).

    Fields with ``_`` in their names are left out, as nginx and gunicorn do: behind CGI-like rules an engine would take
    ``X_Forwarded_For`` for ``X-Forwarded-For``, and what is kept from clients would reach it in that dress.
    """

    method: str
    target: bytes
    minor: int
    headers: Headers
    content_length: int
    chunked: bool
    keep_alive: bool
    expects_continue: bool

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def get_all(self, name: bytes) -> list[bytes]:
        """Every value of a field, in order."""
        return [value for key, value in self.headers if key == name]


class ResponseHead(NamedTuple):
    """A status line and its fields. ``content_length`` is None where the body is chunked or delimited by close."""

    status: int
    minor: int
    headers: Headers
    content_length: int | None
    chunked: bool
    keep_alive: bool

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class _Collector:
    """What httptools calls back while it parses one head."""

    __slots__ = ("headers", "target")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.target = b""

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))


def _refuse_request_line(head: bytes) -> None:
    """Check the line that ``head`` starts with."""
    if _REQUEST_LINE.match(head) is None:
        version = _VERSION.match(head)
        if version and version[1] not in (b"1.0", b"1.1"):
            raise Http1Error(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        raise Http1Error(400, "The request line is malformed.")


def parse_request_head(head: bytes) -> RequestHead:
    """Parse a whole head, up to and including the empty line.

    Raises:
        Http1Error: 400 for a malformed or ambiguous head, 431 for too many fields, 505 for another HTTP version.
    """
    _refuse_request_line(head)
    if _REQUEST_FIELDS.fullmatch(head, head.index(b"\n") + 1) is None:
        raise Http1Error(400, "A header field is malformed.")
    seen = _Collector()
    parser = httptools.HttpRequestParser(seen)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # An offer to switch protocols that we do not take up; RFC 9110 7.8 lets a server ignore it.
    except httptools.HttpParserError as exc:
        raise Http1Error(400, "The request head is malformed.") from exc
    minor = 1 if parser.get_http_version() == "1.1" else 0
    length, chunked = _body_framing(seen.headers, minor)
    _check_host(seen.headers, minor)
    expect = [v for k, v in seen.headers if k == b"expect"]
    if any(v.lower() != b"100-continue" for v in expect):
        raise Http1Error(417, "The only expectation that can be met is 100-continue.")
    method = parser.get_method().decode("ascii")
    return RequestHead(
        method=method,
        target=_origin_form(method, seen.target),
        minor=minor,
        headers=[(k, v) for k, v in seen.headers if b"_" not in k],
        content_length=length or 0,
        chunked=chunked,
        keep_alive=_is_kept_alive(seen.headers, minor),
        expects_continue=bool(expect) and minor == 1,
    )


def parse_response_head(head: bytes) -> ResponseHead:
    """Parse a whole response head of an engine.

    Raises:
        Http1Error: 502 where it is malformed or its framing is ambiguous.
    """
    match = _RESPONSE_HEAD.fullmatch(head)
    if match is None:
        raise Http1Error(502, "The engine's response head is malformed.")
    seen = _Collector()
    parser = httptools.HttpResponseParser(seen)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as exc:
        raise Http1Error(502, "The engine switched protocols unasked.") from exc
    except httptools.HttpParserError as exc:
        raise Http1Error(502, "The engine's response head is malformed.") from exc
    minor = int(match[1])
    try:
        length, chunked = _body_framing(seen.headers, minor)
    except Http1Error as exc:
        raise Http1Error(502, "The engine's response has an ambiguous length.") from exc
    return ResponseHead(
        status=int(match[2]),
        minor=minor,
        headers=seen.headers,
        content_length=length,
        chunked=chunked,
        keep_alive=_is_kept_alive(seen.headers, minor),
    )


def _body_framing(headers: Headers, minor: int) -> tuple[int | None, bool]:
    """``(content_length, chunked)`` by RFC 9112 6.3, with every ambiguity refused."""
    if len(headers) > MAX_HEADERS:
        raise Http1Error(431, f"More than {MAX_HEADERS} header fields.")
    lengths = [v for k, v in headers if k == b"content-length"]
    codings = [v for k, v in headers if k == b"transfer-encoding"]
    if codings:
        if lengths or minor == 0 or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Http1Error(400, "The length of the body is ambiguous.")
        return None, True
    if not lengths:
        return None, False
    if len(lengths) > 1 or not _LENGTH.match(lengths[0]):
        raise Http1Error(400, "Content-Length must be one plain number.")
    return int(lengths[0]), False


def _is_kept_alive(headers: Headers, minor: int) -> bool:
    """RFC 9112 9.3."""
    options = b",".join(v for k, v in headers if k == b"connection").lower().split(b",")
    words = [option.strip(b" \t") for option in options]
    return b"close" not in words and (minor == 1 or b"keep-alive" in words)


def _check_host(headers: Headers, minor: int) -> None:
    """RFC 9112 3.2: exactly one Host in HTTP/1.1, and one that can be a host (vLLM CVE-2026-48746 had ``x/v1/models?``)."""
    hosts = [v for k, v in headers if k == b"host"]
    if len(hosts) > 1 or (minor == 1 and not hosts):
        raise Http1Error(400, "Exactly one Host field is needed.")
    if hosts and not _HOST.match(hosts[0]):
        raise Http1Error(400, "The Host field is malformed.")


def _origin_form(method: str, target: bytes) -> bytes:
    """Reduce an absolute-form target to origin form; what routes see never contains a host."""
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    match = _ABSOLUTE.match(target)
    if match is None:
        raise Http1Error(400, "The request target must be a path.")
    rest = match[1]
    return rest if rest.startswith(b"/") else b"/" + rest


class RequestReader:
    """Reads requests from one connection, one at a time.

    ``receive_data`` takes what came; ``next_event`` returns, in turn, a :class:`RequestHead`, its whole body as ``bytes``,
    then ``PAUSED`` until ``start_next_cycle`` is called, and ``NEED_DATA`` whenever more must be received first.
    Nothing but :class:`Http1Error` is ever raised for what a peer sends.
    """

    __slots__ = (
        "_body", "_buffer", "_checked_line", "_chunks", "_head", "_paused", "_scanned", "_skipped_blank", "max_body_bytes",
        "max_head_bytes",
    )  # fmt: skip

    def __init__(self, max_head_bytes: int, max_body_bytes: int) -> None:
        self.max_head_bytes = max_head_bytes
        self.max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._body: bytearray | None = None
        self._head: RequestHead | None = None
        self._chunks: ChunkedDecoder | None = None
        self._paused = False
        self._skipped_blank = False
        self._checked_line = False
        self._scanned = 0

    def __repr__(self) -> str:
        return f"<RequestReader {len(self._buffer)} bytes held, head {'read' if self._head else 'unread'}>"

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet part of an event."""
        return len(self._buffer)

    @property
    def is_between_requests(self) -> bool:
        """No byte of a next request has been received."""
        return self._head is None and not self._buffer

    def receive_data(self, data: bytes | memoryview) -> None:
        """Take bytes from the peer; call :meth:`next_event` afterwards."""
        if self._body is None or self._paused:
            self._buffer += data
        elif self._chunks is None:
            self._take_sized(data)
        elif self._chunks.done:
            self._buffer += data
        else:
            self._take_chunked(bytes(data))

    def next_event(self) -> RequestHead | bytes | NeedData:
        """The next event that the bytes so far allow.

        Raises:
            Http1Error: answer with its status and close; the reader must not be used again.
        """
        if self._paused:
            return PAUSED
        if self._head is None:
            return self._next_head()
        if self._body is None:
            self._start_body(self._head)
        return self._finish_body()

    def start_next_cycle(self) -> None:
        """The response to the current request is complete: the next request may be read."""
        self._head = None
        self._body = None
        self._chunks = None
        self._paused = False

    # Reading the head.

    def _next_head(self) -> RequestHead | NeedData:
        """Every byte is looked at once, however few come at a time."""
        buffer = self._buffer
        if not self._skipped_blank and buffer.startswith(b"\r\n"):
            # RFC 9112 2.2: an empty line before a request is ignored. One: old clients sent it behind a body, none sends two.
            self._skipped_blank = True
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3)) + 4
        is_whole = end > 3
        size = end if is_whole else len(buffer)
        self._refuse_early(min(size, self.max_head_bytes))
        if size > self.max_head_bytes:
            raise Http1Error(431, f"The request head is over {self.max_head_bytes} bytes.")
        if not is_whole:
            self._scanned = size
            return NEED_DATA
        head = parse_request_head(bytes(buffer[:end]))
        del buffer[:end]
        self._skipped_blank = self._checked_line = False
        self._scanned = 0
        if head.content_length > self.max_body_bytes:
            raise Http1Error(413, f"The body is over {self.max_body_bytes} bytes.")
        self._head = head
        return head

    def _refuse_early(self, stop: int) -> None:
        """Look at the bytes up to ``stop`` for what can never become a valid head: there is no waiting for its end."""
        buffer = self._buffer
        fault = _FAULT.search(buffer, max(0, self._scanned - 1), stop)
        fault_at = fault.start() if fault else stop
        if not self._checked_line:
            line_end = buffer.find(b"\r\n", max(0, self._scanned - 1), stop)
            if 0 <= line_end < fault_at:
                _refuse_request_line(bytes(buffer[: line_end + 2]))
                self._checked_line = True
        if fault:
            raise Http1Error(400, "A NUL, or a CR or LF without the other.")

    # Reading the body.

    def _start_body(self, head: RequestHead) -> None:
        self._body = bytearray()
        held = self._buffer
        if head.chunked:
            self._chunks = ChunkedDecoder(self.max_body_bytes)
            self._buffer = bytearray()
            self._take_chunked(bytes(held))
        elif head.content_length:
            self._body += held[: head.content_length]
            del held[: head.content_length]

    def _take_sized(self, data: bytes | memoryview) -> None:
        assert self._body is not None and self._head is not None
        missing = self._head.content_length - len(self._body)
        self._body += data[:missing]
        if len(data) > missing:
            self._buffer += data[missing:]

    def _take_chunked(self, data: bytes) -> None:
        assert self._body is not None and self._chunks is not None
        try:
            spans = self._chunks.feed(data)
        except ChunkedTooLarge as exc:
            raise Http1Error(413, f"The body is over {self.max_body_bytes} bytes.") from exc
        except ChunkedError as exc:
            raise Http1Error(400, f"The chunked body is malformed: {exc}.") from exc
        for start, end in spans:
            self._body += data[start:end]
        if self._chunks.done:
            self._buffer += data[self._chunks.consumed :]

    def _finish_body(self) -> bytes | NeedData:
        assert self._body is not None and self._head is not None
        whole = self._chunks.done if self._chunks else len(self._body) == self._head.content_length
        if not whole:
            return NEED_DATA
        body = bytes(self._body)
        self._body = bytearray()
        self._paused = True
        return body


# Writing heads.

REASONS: Final = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized",
    403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed", 408: b"Request Timeout", 409: b"Conflict",
    410: b"Gone", 413: b"Content Too Large", 415: b"Unsupported Media Type", 417: b"Expectation Failed",
    421: b"Misdirected Request", 422: b"Unprocessable Content", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}  # fmt: skip

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_UNSAFE_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def encode_response_head(status: int, headers: Headers) -> bytes:
    """Status line and fields. A value with a control byte in it is a bug or an injection, and is refused.

    Raises:
        ValueError: for such a value.
    """
    return _encode(b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Status")), headers)


def encode_request_head(method: bytes, target: bytes, headers: Headers) -> bytes:
    """Request line and fields; ValueError as in :func:`encode_response_head`."""
    return _encode(b"%b %b HTTP/1.1\r\n" % (method, target), headers)


def _encode(first_line: bytes, headers: Headers) -> bytes:
    parts = [first_line]
    for name, value in headers:
        if _UNSAFE_VALUE.search(value):
            raise ValueError(f"control byte in the value of {name!r}")
        parts.append(b"%b: %b\r\n" % (name, value))
    parts.append(b"\r\n")
    return b"".join(parts)
