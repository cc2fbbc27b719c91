"""A snapshot of the parts of the OpenAPI schema that clients rely on, and the breaking changes between two snapshots.

`python -m tests.fuzzing.snapshot` writes the file. Additions are always allowed; removals need a deprecation first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from tests.architecture import tree

FILE = tree.ROOT / "docs" / "openapi-operations.json"

Operations = dict[str, dict[str, Any]]


def snapshot_of(document: dict[str, Any]) -> Operations:
    """Return the address, the parameters, and the members of the request and the answers of each operation."""
    return {
        operation["operationId"]: {
            "address": f"{method.upper()} {address}",
            "parameters": {
                each["name"]: each.get("required", False) for each in operation.get("parameters", ())
            },
            "request": _members(document, operation.get("requestBody", {})),
            "answers": {
                status: sorted(_members(document, answer))
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            },
        }
        for address, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def breaking_changes(before: Operations, now: Operations) -> Iterator[str]:
    """Yield the changes that would break an existing client."""
    for name, old in before.items():
        new = now.get(name)
        if new is None or new["address"] != old["address"]:
            yield f"{name}: {old['address']} was removed, or has another name or address"
            continue
        for kind in ("parameters", "request"):
            yield from (
                f"{name}: {each} is no longer among {kind}" for each in old[kind].keys() - new[kind].keys()
            )
            needed = (each for each, required in new[kind].items() if required and not old[kind].get(each))
            yield from (f"{name}: {each} of {kind} is now required" for each in needed)
        for status, members in old["answers"].items():
            lost = set(members) - set(new["answers"].get(status, ()))
            yield from (f"{name}: {each} is no longer in the answer {status}" for each in sorted(lost))


def _members(document: dict[str, Any], body: dict[str, Any]) -> dict[str, bool]:
    """Return the members of a JSON body, including all alternatives, and whether each is required."""
    schemas = [kind.get("schema", {}) for kind in body.get("content", {}).values()]
    members: dict[str, bool] = {}
    while schemas:
        schema = schemas.pop()
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        schemas += [*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())]
        required = schema.get("required", ())
        members |= {name: name in required for name in schema.get("properties", {})}
    return dict(sorted(members.items()))


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.test")
    import django

    django.setup()
    from drf_spectacular.generators import SchemaGenerator

    document = SchemaGenerator().get_schema(request=None, public=True)
    FILE.write_text(json.dumps(snapshot_of(document), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
