"""Writes the reference of the HTTP API in Markdown, from the OpenAPI schema of the program. Needs no server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from documentation import repository

Schema = Mapping[str, Any]
JSON = "application/json"
CHOICE = re.compile(r"^\* `(?P<value>[^`]*)` - (?P<label>.*)$", re.MULTILINE)
#: Headers that every operation accepts or returns; the page explains them once, above all operations.
EVERYWHERE = {"Idempotency-Key", "If-Match", "If-None-Match"}
REFUSALS = ("4", "5")


def schema() -> Schema:
    """Return the schema of this version of the program."""
    command = [sys.executable, "manage.py", "spectacular", "--api-version", "v1", "--format", "openapi-json"]
    done = subprocess.run(command, cwd=repository.ROOT, capture_output=True, text=True, check=True)
    document: Schema = json.loads(done.stdout)
    return document


def write_reference(document: Schema) -> str:
    """Return a section for each tag with its operations, and at the end the objects."""
    operations: dict[str, list[str]] = defaultdict(list)
    for address, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            operations[operation["tags"][0]].append(_operation(document, method, address, operation))
    parts = [f"## {_title(tag)}\n\n" + "\n".join(operations[tag]) for tag in sorted(operations)]
    return "\n".join([*parts, "## Objects\n", *_objects(document)])


def _operation(document: Schema, method: str, address: str, operation: Schema) -> str:
    lines = [f"### {method.upper()} {address}\n", f"**{operation.get('summary', '').rstrip('.')}.**"]
    if operation.get("deprecated"):
        lines.append("\nThis operation is deprecated.")
    if operation.get("description"):
        lines.append(f"\n{_text(operation['description'])}")
    lines += _parameters(operation)
    lines += _body(document, operation)
    answers = [_answer(document, status, answer) for status, answer in operation["responses"].items()]
    return "\n".join([*lines, f"\nAnswers: {'; '.join(answers)}.", ""])


def _parameters(operation: Schema) -> Iterator[str]:
    parameters = [each for each in operation.get("parameters", ()) if each["name"] not in EVERYWHERE]
    if not parameters:
        return
    yield "\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |"
    for each in parameters:
        needed = " (required)" if each.get("required") and each["in"] != "path" else ""
        meaning = _cell(each.get("description", ""))
        yield f"| `{each['name']}`{needed} | {each['in']} | {_type(each.get('schema', {}))} | {meaning} |"


def _body(document: Schema, operation: Schema) -> Iterator[str]:
    bodies = operation.get("requestBody", {}).get("content", {})
    if JSON not in bodies:
        return
    yield f"\nBody: {_type(bodies[JSON]['schema'])}"
    for example in bodies[JSON].get("examples", {}).values():
        yield f"\n{example.get('summary', 'Example')}:\n\n```json\n{json.dumps(example['value'], indent=2)}\n```"


def _answer(document: Schema, status: str, answer: Schema) -> str:
    kinds = answer.get("content", {})
    if status.startswith(REFUSALS) or not kinds:
        return f"`{status}`"
    return f"`{status}` with {_type(next(iter(kinds.values())).get('schema', {}))}"


def _objects(document: Schema) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name}\n"
        if schema.get("description"):
            yield f"{_text(schema['description'])}\n"
        if schema.get("properties"):
            yield _members(schema)
        else:
            yield f"{_type(schema)}\n"


def _members(schema: Schema) -> str:
    required = set(schema.get("required", ()))
    lines = ["| member | type | meaning |", "| --- | --- | --- |"]
    for name, member in schema["properties"].items():
        needed = " (required)" if name in required and not member.get("readOnly") else ""
        lines.append(f"| `{name}`{needed} | {_type(member)} | {_cell(member.get('description', ''))} |")
    return "\n".join([*lines, ""])


def _type(schema: Schema) -> str:
    """Return a type in words, with a link to its object."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key, joint in (("allOf", " and "), ("oneOf", " or "), ("anyOf", " or ")):
        if key in schema:
            return joint.join(dict.fromkeys(_type(each) for each in schema[key]))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kinds = schema.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    words = " or ".join(kind for kind in kinds if kind != "null") or "null"
    if "array" in kinds:
        words = f"list of {_type(schema.get('items', {}))}"
    described = f"{words} ({schema['format']})" if schema.get("format") else words
    return described + (" or null" if ("null" in kinds and len(kinds) > 1) or schema.get("nullable") else "")


def _title(tag: str) -> str:
    return tag.replace("-", " ").replace("_", " ").capitalize()


def _text(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    """Return the text on one line, without labels of choices that only repeat their values."""
    text = CHOICE.sub(_choice, text)
    return " ".join(_text(text).split()).replace("|", "\\|")


def _choice(match: re.Match[str]) -> str:
    value, label = match["value"], match["label"]
    return "" if label.casefold().replace(" ", "_") == value.casefold() else f"`{value}`: {label}. "
