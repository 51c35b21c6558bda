"""docs/api.md, made from the OpenAPI document.

What lives here: reading the document, and the page as people read it.
What must not: facts about the API (src/longwire/server/openapi.json has them all).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from .source import ROOT

DOCUMENT: Final[dict[str, Any]] = json.loads((ROOT / "src/longwire/server/openapi.json").read_text(encoding="utf-8"))
API_PAGE: Final = ROOT / "docs" / "api.md"
METHODS: Final = ("get", "post", "delete")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """``(path, method, operation)`` in the document's order; what a path says for all its methods is merged in."""
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                shared = item.get("parameters", [])
                yield path, method, {**item[method], "parameters": [*shared, *item[method].get("parameters", [])]}


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """What a ``$ref`` leads to; anything else is itself."""
    while "$ref" in node:
        target: Any = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def api_page() -> str:
    """The whole page."""
    lines = [
        "# The HTTP API",
        "",
        "<!-- Made by `python -m tests.architecture.render` from src/longwire/server/openapi.json: change that. -->",
        "",
        DOCUMENT["info"]["description"],
        "",
        "The gateway serves this as OpenAPI 3.1 at `/openapi.json`. What the error codes and close reasons mean stands in",
        "[errors.md](errors.md).",
        "",
        *_table(("request", "what it does"), (_index_row(*each) for each in operations())),
        "",
        *_everywhere(),
    ]
    for tag in DOCUMENT["tags"]:
        lines += ["", f"## {tag['name']}", "", tag["description"]]
        shown: list[dict[str, Any]] = []
        for path, method, operation in operations():
            if tag["name"] in operation["tags"]:
                lines += _operation(path, method, operation, shown)
    return "\n".join([*lines, "", *_shapes(), ""])


def _index_row(path: str, method: str, operation: dict[str, Any]) -> tuple[str, str]:
    return f"[`{method.upper()} {path}`](#{_anchor(method, path)})", operation["summary"]


def _anchor(method: str, path: str) -> str:
    """As GitHub makes it from the heading ``METHOD path``."""
    kept = "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")
    return f"{method}-{kept}"


def _everywhere() -> list[str]:
    first = next(DOCUMENT["paths"][path][method] for path, method, _ in operations() if path == "/healthz")
    rows = (_response_row(status, resolve(each)) for status, each in first["responses"].items() if _is_common(each))
    return ["Any request can get one of these, whatever its route:", "", *_table(("status", "codes", "when"), rows)]


def _operation(path: str, method: str, operation: dict[str, Any], shown: list[dict[str, Any]]) -> list[str]:
    """One operation; what ``shown`` holds was told a few lines above and is not told again."""
    summary = operation["summary"]
    lines = ["", f"### {method.upper()} {path}", "", summary if summary.endswith("?") else f"{summary}.", ""]
    if description := operation.get("description"):
        lines += [description, ""]
    parameters = [resolve(each) for each in operation["parameters"]]
    responses = _grouped(operation["responses"])
    is_repeating = any(each in shown for each in (*parameters, *responses.values()))
    if own := [each for each in parameters if each not in shown]:
        lines += [*_table(("parameter", "in", "what it does"), map(_parameter_row, own)), ""]
    if fresh := [(statuses, each) for statuses, each in responses.items() if each not in shown]:
        lines += [*_table(("status", "codes", "when"), (_response_row(*each) for each in fresh)), ""]
    shown += [*parameters, *responses.values()]
    return [*lines, "All else as above."] if is_repeating else lines[:-1]


def _grouped(responses: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What this operation answers by itself; statuses with one meaning share a row."""
    grouped: dict[str, dict[str, Any]] = {}
    for status, each in responses.items():
        response = resolve(each)
        same = next((statuses for statuses, other in grouped.items() if other is response), None)
        if same is not None:
            grouped[f"{same}, {status}"] = grouped.pop(same)
        elif not _is_common(each):
            grouped[status] = response
    return grouped


def _is_common(response: dict[str, Any]) -> bool:
    return "x-any-request" in resolve(response)


def _parameter_row(parameter: dict[str, Any]) -> tuple[str, ...]:
    return f"`{parameter['name']}`", parameter["in"], parameter.get("description", "")


def _response_row(status: str, response: dict[str, Any]) -> tuple[str, ...]:
    codes = dict.fromkeys([*response.get("x-codes", ()), *response.get("x-close-reasons", ())])
    shown = ", ".join(f"`{code}`" for code in codes)
    headers = ", ".join(f"`{name}`" for name in response.get("headers", ()) if name != "X-Request-Id")
    return status, shown, response["description"] + (f" Headers: {headers}." if headers else "")


def _shapes() -> list[str]:
    lines = ["## Shapes"]
    for name in ("StreamState", "ErrorBody", "StreamError"):
        shape = DOCUMENT["components"]["schemas"][name]
        fields = shape if name == "StreamState" else shape["properties"]["error"]
        lines += ["", f"### {name}", "", shape["description"], ""]
        lines += _table(("field", "type", "what it says"), (_field_row(*each) for each in fields["properties"].items()))
    return lines


def _field_row(name: str, shape: dict[str, Any]) -> tuple[str, ...]:
    return f"`{name}`", _type(shape), resolve(shape).get("description", "")


def _type(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        return str(shape["$ref"]).rpartition("/")[2]
    if "const" in shape:
        return f"`{shape['const']}`"
    if "enum" in shape:
        return ", ".join(f"`{each}`" for each in shape["enum"])
    if "anyOf" in shape:
        return " or ".join(map(_type, shape["anyOf"]))
    kind = shape.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_line(head), _line(tuple("---" for _ in head)), *map(_line, rows)]


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"
