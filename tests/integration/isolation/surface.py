"""The API as its own schema tells it: what can be asked, where ids go, and bodies that are taken."""

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
# Bodies of which the schema says too little for one to be made from it.
STEPS = [{"id": "a", "agent_role": "qa"}]
OPEN = {
    "/api/v1/pipelines/": {"key": "$word", "name": "$word", "steps": [{"id": "a", "template": "$word"}]},
    "/api/v1/pipelines/{key}/": {"name": "x", "steps": STEPS},
    "/api/v1/mailboxes/{key}/items/": {"kind": "message", "text": "$word"},
    "/api/v1/webhooks/": {"url": "https://93.184.216.34/hook"},
    "/api/v1/webhooks/{id}/": {"url": "https://93.184.216.34/hook"},
    "/api/v1/activities/{id}/reassign/": {"reason": "x", "human_role": "editor"},
}
# They make what the address names, if it is not there yet.
MAKE_WHAT_IS_NAMED = {"/api/v1/mailboxes/{key}/items/"}
# What the caller tried is in the caller's own trail, each try under its own word and with its own outcome.
TELLS_OF_TRIES = {("/api/v1/audit/", "object")}
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
    def makes_by_name(self) -> bool:
        """Whether a name in the address that is not there is made, for the caller."""
        return self.method == "put" or (self.method == "post" and self.address in MAKE_WHAT_IS_NAMED)

    def body(self, word: str) -> Any:
        """The least that the schema takes."""
        if self.content is None:
            return None
        return _filled(OPEN[self.address], word) if self.address in OPEN else least(self.content, word)

    def places(self) -> Iterator[tuple[Path, str]]:
        """Where in the body there is room for an id or a name, and whether it is a "uuid" or a "word"."""
        if self.content is not None:
            yield from _places(self.content, ())


@cache
def operations() -> list[Operation]:
    """Reading first, then what a run's agent may do while it runs; what makes or removes things last, since then others are there."""
    found = [
        _operation(method, address, told)
        for address, methods in whole()["paths"].items()
        for method, told in methods.items()
        if method in METHODS
    ]
    return sorted(found, key=_turn)


def _turn(each: Operation) -> tuple[bool, bool, int, bool, bool]:
    makes = each.makes_by_name and "201" in each.statuses
    agents = -len(each.parameters) if each.of_runs else 0
    return each.method != "get", not each.of_runs, agents, each.method == "delete", makes


def _operation(method: str, address: str, told: dict[str, Any]) -> Operation:
    queries = tuple(
        (each["name"], str(each["schema"].get("format") or each["schema"].get("type")))
        for each in told.get("parameters", ())
        if each["in"] == "query"
    )
    content = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    schemes = {name for choice in told.get("security", ()) for name in choice}
    return Operation(
        method, address, tuple(re.findall(r"\{(\w+)\}", address)), queries, content,
        schemes == {"run_token"}, frozenset(told["responses"]),
    )  # fmt: skip


def resolved(schema: Any) -> Any:
    while "$ref" in schema:
        schema = whole()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def kinds(schema: Any) -> list[Any]:
    """The schema's alternatives but null."""
    schema = resolved(schema)
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return [kind for each in schema[key] for kind in kinds(each)]
    if "allOf" in schema:
        return kinds(schema["allOf"][0])
    types = schema.get("type")
    return [] if types == "null" or schema.get("enum") == [None] else [schema]


def least(schema: Any, word: str) -> Any:
    """The smallest value that fits, with the word where a text must be."""
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
    """Whether it is an id or short enough for a name; what people write at length names nothing."""
    return (
        "enum" not in kind
        and kind.get("format") in {None, "uuid"}
        and kind.get("maxLength", 0) <= LONGEST_NAME
    )


def put(body: Any, path: Path, value: Any) -> Any:
    """A copy of the body with the value at the place; lists and objects on the way are made."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, int):
        inner = body[0] if isinstance(body, list) and body else {}
        return [put(inner, tuple(rest), value)]
    made = deepcopy(body) if isinstance(body, dict) else {}
    made[step] = put(made.get(step), tuple(rest), value)
    return made
