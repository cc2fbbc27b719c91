"""Tools: their descriptions, schemas of arguments, and calls of the API.

Arguments are validated by the schema before the call, so a misspelt one is an error with its path and is never ignored. Errors of the API
are passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from mcp_types import Tool as ToolDescription

from agents.tools import text_schema
from orchestrator.mcp.api import Answer, Api, Refusal

LONGEST_TEXT = 30_000  # characters of a text per call; the rest is read in further calls
MOST_ERRORS = 20
LONGEST_ERROR = 300

Schema = Mapping[str, Any]
Call = Callable[[Api, dict[str, Any]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `call` gets valid arguments, and may raise `Refusal`."""

    name: str
    description: str
    schema: Schema
    call: Call
    changes: bool = False  # whether it changes anything
    repeatable: bool = False  # whether the same call again changes nothing more

    def describe(self) -> ToolDescription:
        return ToolDescription(
            name=self.name,
            description=self.description,
            input_schema=dict(self.schema),
            annotations=ToolAnnotations(
                read_only_hint=not self.changes,
                destructive_hint=self.changes,
                idempotent_hint=self.repeatable or not self.changes,
                open_world_hint=False,
            ),
        )


async def use(tool: Tool, api: Api, arguments: Any) -> CallToolResult:
    """Return the tool's answer, or a readable error. Never raises because of the caller or the API."""
    values = {} if arguments is None else arguments
    try:
        if errors := find_errors(tool, values):
            raise Refusal(
                "invalid_arguments",
                f"The arguments of the tool {tool.name} are invalid.",
                problem={"errors": [{"path": path, "message": message} for path, message in errors]},
            )
        answer = await tool.call(api, _with_integers(tool, values))
    except Refusal as refusal:
        return _refusal_result(refusal)
    text = json.dumps(answer, ensure_ascii=False, indent=1)
    if answer.get("stop") is True:
        text += "\nThis run is over: end now. You are started again when there is something new for you."
    # JSON may contain a lone surrogate, which cannot be encoded.
    return CallToolResult(
        content=[TextContent(text=text.encode("utf-8", "replace").decode())], structured_content=answer
    )


def _with_integers(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with 5 for 5.0, which is an integer in JSON Schema, and which some clients send."""
    integers = {name for name, each in tool.schema["properties"].items() if each.get("type") == "integer"}
    return {name: int(value) if name in integers else value for name, value in arguments.items()}


def _refusal_result(refusal: Refusal) -> CallToolResult:
    problem = {
        "code": refusal.code,
        "status": refusal.status,
        "detail": refusal.detail,
        "errors": [{"path": path, "message": message} for path, message in refusal.errors],
    }
    if "stop" in refusal.problem:
        problem["stop"] = refusal.problem["stop"]
    return CallToolResult(
        content=[TextContent(text=str(refusal))], structured_content={"error": problem}, is_error=True
    )


def find_errors(tool: Tool, arguments: Any) -> list[tuple[str, str]]:
    """Return the errors in the arguments, as path and message."""
    errors = []
    for error in _validator(tool.name, json.dumps(tool.schema)).iter_errors(arguments):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
        ).lstrip(".")
        errors.append((path, error.message[:LONGEST_ERROR]))
        if len(errors) == MOST_ERRORS:
            break
    return errors


def _check_pattern(
    validator: Any, pattern: str, value: Any, schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    # In JSON Schema `$` is the end of the text. In Python it also matches before a line break at the end.
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _check_pattern})


@cache
def _validator(name: str, schema: str) -> Any:
    return _Validator(json.loads(schema), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def identifier(description: str) -> Schema:
    return {"type": "string", "format": "uuid", "description": description}


def key(description: str) -> Schema:
    """Return the schema of a name that is used in a URL path. It cannot contain slashes or dots."""
    return text_schema(description, 100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")


def whole_number(description: str, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def anything(description: str) -> Schema:
    return {"description": description}


def members(description: str) -> Schema:
    return {"type": "object", "description": description}


def one_of(description: str, *choices: str) -> Schema:
    return {"type": "string", "enum": list(choices), "description": description}


def piece(whole_text: str, offset: int = 0) -> dict[str, Any]:
    """Return a part of a text, and the offset of the next part."""
    end = offset + LONGEST_TEXT
    part: dict[str, Any] = {"content": whole_text[offset:end]}
    if len(whole_text) > end or offset:
        part |= {"characters": len(whole_text), "next_offset": end if len(whole_text) > end else None}
    return part
