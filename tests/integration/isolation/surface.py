"""The API as its schema describes it: operations, places for ids, and minimal bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.integration.test_api_openapi import schema as whole

LONGEST_NAME = 500
METHODS = ("get", "post", "put", "patch", "delete")
# Bodies for operations whose schema does not suffice to generate one.
STEPS = [{"id": "a", "agent_role": "qa"}]
BODIES = {
    "/api/v1/pipelines/": {"key": "$word", "name": "$word", "steps": [{"id": "a", "template": "$word"}]},
    "/api/v1/pipelines/{key}/": {"name": "x", "steps": STEPS},
    "/api/v1/mailboxes/{key}/items/": {"kind": "message", "text": "$word"},
    "/api/v1/webhooks/": {"url": "https://93.184.216.34/hook"},
    "/api/v1/webhooks/{id}/": {"url": "https://93.184.216.34/hook"},
    "/api/v1/activities/{id}/reassign/": {"reason": "x", "human_role": "editor"},
}
# Operations that create the object that the address names if it does not exist.
CREATE_BY_NAME = {"/api/v1/mailboxes/{key}/items/"}
# Filters over the caller's own audit trail, which contains each of the caller's requests.
RECORDS_OF_REQUESTS = {("/api/v1/audit/", "object")}
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Operation:
    method: str
    address: str
    parameters: tuple[str, ...]  # of the address
    queries: tuple[tuple[str, str], ...]  # name and format
    content: Any  # schema of the body, or None
    of_runs: bool  # entered with the token of a run
    statuses: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.address.removeprefix('/api/v1/')}"

    @property
    def creates_by_name(self) -> bool:
        """Return whether the operation creates an object under the name in its address."""
        return self.method == "put" or (self.method == "post" and self.address in CREATE_BY_NAME)

    def body(self, word: str) -> Any:
        """Return a minimal body that the schema accepts."""
        if self.content is None:
            return None
        return _filled(BODIES[self.address], word) if self.address in BODIES else least(self.content, word)

    def places(self) -> Iterator[tuple[Path, str]]:
        """Yield the paths in the body that take an id or a name, and whether it is a "uuid" or a "word"."""
        if self.content is not None:
            yield from _places(self.content, ())


@cache
def operations() -> list[Operation]:
    """Return reading operations first, then those of a run's agent. Those that create or delete come last, because others need the data."""
    every = [
        _operation(method, address, description)
        for address, methods in whole()["paths"].items()
        for method, description in methods.items()
        if method in METHODS
    ]
    return sorted(every, key=_order)


def _order(each: Operation) -> tuple[bool, bool, int, bool, bool]:
    makes = each.creates_by_name and "201" in each.statuses
    agents = -len(each.parameters) if each.of_runs else 0
    return each.method != "get", not each.of_runs, agents, each.method == "delete", makes


def _operation(method: str, address: str, description: dict[str, Any]) -> Operation:
    queries = tuple(
        (each["name"], str(each["schema"].get("format") or each["schema"].get("type")))
        for each in description.get("parameters", ())
        if each["in"] == "query"
    )
    content = description.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    schemes = {name for choice in description.get("security", ()) for name in choice}
    return Operation(
        method, address, tuple(re.findall(r"\{(\w+)\}", address)), queries, content,
        schemes == {"run_token"}, frozenset(description["responses"]),
    )  # fmt: skip


def resolved(schema: Any) -> Any:
    while "$ref" in schema:
        schema = whole()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def kinds(schema: Any) -> list[Any]:
    """Return the schema's alternatives without null."""
    schema = resolved(schema)
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return [kind for each in schema[key] for kind in kinds(each)]
    if "allOf" in schema:
        return kinds(schema["allOf"][0])
    types = schema.get("type")
    return [] if types == "null" or schema.get("enum") == [None] else [schema]


def least(schema: Any, word: str) -> Any:
    """Return the smallest valid value, with the word for required texts."""
    (kind, *_) = kinds(schema)
    types = kind.get("type", "object")
    first = types if isinstance(types, str) else types[0]
    if "enum" in kind:
        return kind["enum"][0]
    if first == "object":
        members = kind.get("properties", {})
        return {name: least(members[name], word) for name in kind.get("required", ())}
    if first == "array":
        return [least(kind["items"], word)]
    if first in {"integer", "number"}:
        return max(1, kind.get("minimum", 1))
    if first == "boolean":
        return True
    by_format = {
        "uuid": "00000000-0000-7000-8000-000000000000",
        "date-time": "2030-01-01T00:00:00Z",
        "decimal": "1",
    }
    return by_format.get(kind.get("format", ""), word)


def _filled(part: Any, word: str) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, word) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(each, word) for each in part]
    return word if part == "$word" else part


def _places(schema: Any, path: Path, depth: int = 0) -> Iterator[tuple[Path, str]]:
    seen: set[tuple[Path, str]] = set()
    for kind in kinds(schema) if depth < 6 else ():
        types = kind.get("type", "object")
        first = types if isinstance(types, str) else types[0]
        if first == "object":
            for name, member in kind.get("properties", {}).items():
                seen.update(_places(member, (*path, name), depth + 1))
        elif first == "array":
            seen.update(_places(kind["items"], (*path, 0), depth + 1))
        elif first == "string" and _may_name(kind):
            seen.add((path, kind.get("format") or "word"))
    yield from sorted(seen, key=str)


def _may_name(kind: Any) -> bool:
    """Return whether the text may be an id or a name, which long texts are not."""
    return (
        "enum" not in kind
        and kind.get("format") in {None, "uuid"}
        and kind.get("maxLength", 0) <= LONGEST_NAME
    )


def put(body: Any, path: Path, value: Any) -> Any:
    """Return a copy of the body with the value at the path. Missing lists and objects are created."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, int):
        inner = body[0] if isinstance(body, list) and body else {}
        return [put(inner, tuple(rest), value)]
    copy = deepcopy(body) if isinstance(body, dict) else {}
    copy[step] = put(copy.get(step), tuple(rest), value)
    return copy
