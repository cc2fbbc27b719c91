"""Fields of request bodies in the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.test_api_openapi import schema


def members_of(part: Any, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a body's schema, including nested ones."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from members_of(schema()["components"]["schemas"][name], seen | {name})
        return
    for name, member in part.get("properties", {}).items():
        yield name, member
        yield from members_of(member, seen)
    for nested in (*part.get("oneOf", ()), *part.get("allOf", ()), *part.get("anyOf", ()), part.get("items")):
        if nested:
            yield from members_of(nested, seen)
