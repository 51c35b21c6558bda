"""Files, functions and names stay within their bounds.

What lives here: the bounds, and the few things that are beyond one, each with its reason.
What must not: style that ruff checks already.

Each list of exceptions is complete in both directions: what is beyond a bound must stand in it, and what stands in it must
still be beyond the bound. So it can only become shorter by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from statistics import median, quantiles

import pytest

from .source import ROOT, Definition, Function, definitions, functions, modules

# Files.

MAX_FILE_LINES = 500
FILE_LINES_WITH_REASON = 400
"""A longer file says in its docstring, with this number, why it is one file."""
MAX_MEDIAN_FILE_LINES = 230

BEYOND_THE_WALL: dict[str, str] = {}

WITHOUT_REASON: frozenset[str] = frozenset()
"""Over 400 lines and silent about it: they owe a sentence, or a cut."""

# Functions.

MAX_FUNCTION_LINES = 70
MAX_MEDIAN_FUNCTION_LINES = 9
MAX_P95_FUNCTION_LINES = 50
MAX_PARAMETERS = 6
"""``self`` and ``cls`` are not counted. Beyond it belongs a settings object."""
MAX_NESTING = 3
"""Blocks in blocks. An ``elif`` is no deeper than its ``if``."""

MANY_PARAMETERS: dict[str, str] = {}
DEEP: dict[str, str] = {}

# Words.

SHORT_LINES = 5
"""A function of so few lines is its own documentation where its name says it all."""

FOREIGN_METHODS = frozenset({
    "connection_made", "connection_lost", "get_buffer", "buffer_updated", "data_received", "eof_received", "pause_writing",
    "resume_writing", "pipe_data_received", "pipe_connection_lost", "process_exited",  # asyncio's protocols
    "format",  # logging.Formatter
    "format_commands", "format_epilog", "get_command", "list_commands", "parse_args", "resolve_command",  # click
    "stream_response",  # starlette
})  # fmt: skip
"""Methods that somebody else has named and described."""

WITHOUT_DOCSTRING: dict[str, str] = {
    "longwire.cli.admin_port.AdminPort.unreachable": "six lines",
    "longwire.cli.demo.story.show_whole": "owes a line",
    "longwire.cli.demo.story.show_proof": "owes a line",
    "longwire.cli.streams.fetch_streams": "six lines",
    "longwire.operation.Gauges.snapshot": "its class has one sentence, and this is it",
}

BANNED_WORDS = frozenset({"util", "utils", "helper", "helpers", "manager", "common"})
BANNED_STARTS = ("process_", "do_")
"""Names that say nothing about what they name."""
CHUNK_ROOMS = frozenset({"wire", "engines", "sim", "streams.doors"})
"""A chunk is a piece of HTTP's chunked coding and only that; what a stream consists of are events."""

BANNED_FOR_NOW: dict[str, str] = {}

# Errors.

BROAD = frozenset({"Exception", "BaseException"})
BOUNDARIES: dict[str, str] = {
    "longwire.adopt.Adopter._attempt": "one stream whose taking over fails must not keep the others from it",
    "longwire.server.connection.ClientConnection._guarded": "logged, and answered with internal_error",
    "longwire.engines.transport.UpstreamConnection._guarded": "logged, and the one stream ends with internal_error",
    "longwire.engines.transport.UpstreamConnection.buffer_updated": "logged, and the one stream ends with internal_error",
    "longwire.engines.transport.UpstreamConnection._end_frame": "logged, and the one reader is cut with internal_error",
    "longwire.engines.watchman.Watchman._look_at_some": "logged, and the one stream ends with internal_error",
    "longwire.engines.call.Call._wait_connect": "logged, and the one stream ends with internal_error",
    "longwire.streams.subscriber.Subscriber.wake": "logged, and the one reader is cut with internal_error",
    "longwire.generation.Generation._guarded": "logged, and the one stream ends with what its first engine had failed by",
    "longwire.gateway.Gateway._open": "gives the slot back and raises on",
    "longwire.gateway.Gateway._begin": "ends the stream that nobody reads yet and raises on",
    "longwire.reading.ReadingProcess._ask": "logged by its type, and raised as what whoever asks is ready for",
    "longwire.processes.reading._answer": "handed to the process that asked, and raised there",
    "longwire.waiting.WaitingRoom._begin": "logged, and the one stream ends with internal_error; whose turn is next has it",
    "longwire.waiting.WaitingRoom._tell_some": "logged, and the one stream ends with internal_error; whose turn is next has it",
}
"""Functions that may catch everything, each with what it does about it. A bug must reach the log, and not be taken for an
engine's failure."""

# The surface of the one room that other people's programs import.

CLIENT_NAMES = {"AsyncResumableStream", "Backoff", "ResumableStream", "ResumeError", "StreamGone", "resumable"}


def _doc(node: ast.AST) -> str:
    assert isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    return ast.get_docstring(node) or ""


def _exactly(found: Mapping[str, object], exceptions: Collection[str]) -> None:
    """Every finding is an exception, every exception a finding."""
    allowed = set(exceptions)
    assert {name: what for name, what in found.items() if name not in allowed} == {}
    assert allowed - set(found) == set(), "no exception any more: take it off the list"


# Files.


def test_files_are_short() -> None:
    lengths = {module.name: len(module.text.splitlines()) for module in modules()}
    _exactly({name: length for name, length in lengths.items() if length > MAX_FILE_LINES}, BEYOND_THE_WALL)
    assert median(lengths.values()) <= MAX_MEDIAN_FILE_LINES


def test_long_files_say_why() -> None:
    silent = {
        module.name: len(module.text.splitlines())
        for module in modules()
        if len(module.text.splitlines()) > FILE_LINES_WITH_REASON
        and str(FILE_LINES_WITH_REASON) not in _doc(module.tree)
    }
    _exactly(silent, WITHOUT_REASON)


def test_every_file_says_what_lives_in_it() -> None:
    """An empty ``__init__`` needs no words. All others begin with a sentence, from 60 lines on with what lives in them."""
    silent = []
    for module in modules():
        doc = _doc(module.tree)
        lines = len(module.text.splitlines())
        if module.text.strip() and not doc:
            silent.append(module.place)
        elif lines >= 60 and not re.search("lives? here", doc):
            silent.append(f"{module.place}: what lives here?")
    assert silent == []


# Functions.


def test_functions_are_short(record_property: Callable[[str, object], None]) -> None:
    lengths = [each.length for each in functions()]
    middle, tail = median(lengths), quantiles(lengths, n=20)[-1]
    record_property("function_lines", {"count": len(lengths), "median": middle, "p95": tail, "longest": max(lengths)})
    print(f"{len(lengths)} functions: median {middle:g} lines, p95 {tail:g}, longest {max(lengths)}")
    assert [f"{each} ({each.length} lines)" for each in functions() if each.length > MAX_FUNCTION_LINES] == []
    assert middle <= MAX_MEDIAN_FUNCTION_LINES
    assert tail <= MAX_P95_FUNCTION_LINES


def test_functions_take_few_parameters() -> None:
    _exactly(
        {each.dotted: count for each in functions() if (count := _parameters(each)) > MAX_PARAMETERS}, MANY_PARAMETERS
    )


def _parameters(function: Definition) -> int:
    node = function.node
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    arguments = node.args
    named = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    is_bound = function.owner is not None and named[:1] in (["self"], ["cls"])
    return len(named) + len(arguments.kwonlyargs) - is_bound


def test_blocks_are_not_deep() -> None:
    _exactly({each.dotted: depth for each in functions() if (depth := _depth(each.node)) > MAX_NESTING}, DEEP)


BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


def _depth(node: ast.AST, around: int = 0) -> int:
    deepest = around
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, _depth(child, around + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def test_every_return_is_annotated() -> None:
    """mypy asks for it too; this says it about functions that no type checker run covers."""
    assert [str(each) for each in functions() if each.node.returns is None and not _is_init(each.node)] == []  # type: ignore[union-attr]


def _is_init(node: Function | ast.ClassDef) -> bool:
    return node.name == "__init__"


# Words.


def test_every_public_name_is_described() -> None:
    """Classes always; functions unless they are short, do what a described method of the same name promises, or carry their
    words in a decorator (a command's help, a fault's line in the list)."""
    promised = {each.node.name for each in functions() if each.owner is not None and _doc(each.node)} | FOREIGN_METHODS
    _exactly({each.dotted: each.length for each in definitions() if _is_undescribed(each, promised)}, WITHOUT_DOCSTRING)


def _is_undescribed(each: Definition, promised: set[str] | frozenset[str]) -> bool:
    if any(part.startswith("_") for part in each.qualname.split(".")) or _doc(each.node) or _is_nested(each):
        return False
    if isinstance(each.node, ast.ClassDef):
        return True
    return each.length > SHORT_LINES and each.node.name not in promised and not _decorated_with_words(each.node)


def _is_nested(each: Definition) -> bool:
    """Defined inside a function."""
    outer = each.qualname.rpartition(".")[0]
    return any(other.qualname == outer and other.module is each.module for other in functions())


def _decorated_with_words(node: Function | ast.ClassDef) -> bool:
    given = [argument for call in node.decorator_list if isinstance(call, ast.Call) for argument in call.args]
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) and " " in each.value for each in given)


def test_names_say_what_they_name() -> None:
    found = {name: 0 for name in _defined_names() if _says_nothing(name.rpartition(".")[2])}
    _exactly({name: 0 for name in found if name.rpartition(".")[2] not in FOREIGN_METHODS}, BANNED_FOR_NOW)


def test_file_names_say_what_they_hold() -> None:
    folders = ("src", "tests", "benchmarks", "examples", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if "node_modules" not in path.parts]
    assert [path.as_posix() for path in files if _says_nothing(path.stem.removeprefix("test_"))] == []


def test_chunk_is_a_word_of_http() -> None:
    named = [name for name in _defined_names() if "chunk" in name.rpartition(".")[2].lower()]
    rooms = tuple(f"longwire.{room}." for room in CHUNK_ROOMS)
    assert [name for name in named if not name.startswith(rooms)] == []


def _says_nothing(name: str) -> bool:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return plain.startswith(BANNED_STARTS) or not BANNED_WORDS.isdisjoint(re.split(r"[_\W]+", plain))


def _defined_names() -> set[str]:
    """Files, functions, classes, parameters, variables and attributes that are given a name here; not those of others."""
    names = {module.name for module in modules()}
    for module in modules():
        for node in ast.walk(module.tree):
            names |= {f"{module.name}.{name}" for name in _names_of(node)}
    return names


def _names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


# Errors.


def test_nothing_catches_everything() -> None:
    """But for BOUNDARIES: an ``except Exception`` anywhere else hides bugs as failures."""
    found: dict[str, int] = {}
    for each in functions():
        for node in ast.walk(each.node):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or _catches_all(node.type)):
                found[each.dotted] = node.lineno
            if (
                isinstance(node, ast.Call)
                and "suppress" in ast.unparse(node.func)
                and any(map(_catches_all, node.args))
            ):
                found[each.dotted] = node.lineno
    _exactly(found, BOUNDARIES)


def _catches_all(caught: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in BROAD for node in ast.walk(caught))


# The surface.


def test_the_client_has_these_names_and_no_others() -> None:
    """Programs depend on them: a change here is a line in the changelog."""
    client = pytest.importorskip("longwire.client", exc_type=ImportError)
    assert set(client.__all__) == CLIENT_NAMES
    assert all(getattr(client, name).__module__.startswith("longwire.client") for name in CLIENT_NAMES)
