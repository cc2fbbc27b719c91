"""A tool: what a model is told about it, what it takes, and which calls of the API it stands for.

Arguments are held against the schema before anything is called, so that a misspelt one is a fault with its path and never ignored. What
the API refuses beyond that is passed on in its words.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from mcp_types import Tool as ToolDescription

from orchestrator.mcp.api import Answer, Api, Refusal

LONGEST_TEXT = 30_000  # characters of a text that is shown at once; the rest is read piece by piece
MOST_FAULTS = 20
LONGEST_FAULT = 300

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """`call` gets arguments that fit the schema, and raises `Refusal`."""

    name: str
    description: str
    schema: Schema
    call: Callable[[Api, dict[str, Any]], Awaitable[Answer]]
    changes: bool = False  # something in the orchestrator
    repeatable: bool = False  # the same call a second time changes nothing more

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
    """The tool's answer, or why there is none as a readable error. Never raises for what the caller or the API did."""
    values = {} if arguments is None else arguments
    try:
        if faults := faults_in(tool, values):
            raise Refusal(
                "invalid_arguments",
                f"The arguments do not fit the tool {tool.name}.",
                problem={"errors": [{"path": path, "message": message} for path, message in faults]},
            )
        answer = await tool.call(api, values)
    except Refusal as refusal:
        return _show_refusal(refusal)
    text = json.dumps(answer, ensure_ascii=False, indent=1)
    if answer.get("stop") is True:
        text += "\nThis run is over: end now. You are started again when there is something new for you."
    # A lone surrogate is JSON, and no text that could be sent.
    return CallToolResult(
        content=[TextContent(text=text.encode("utf-8", "replace").decode())], structured_content=answer
    )


def _show_refusal(refusal: Refusal) -> CallToolResult:
    problem = {
        "code": refusal.code,
        "status": refusal.status,
        "detail": refusal.detail,
        "errors": [{"path": path, "message": message} for path, message in refusal.faults],
    }
    if "stop" in refusal.problem:
        problem["stop"] = refusal.problem["stop"]
    return CallToolResult(
        content=[TextContent(text=str(refusal))], structured_content={"error": problem}, is_error=True
    )


def faults_in(tool: Tool, arguments: Any) -> list[tuple[str, str]]:
    """What does not fit, by path."""
    found = []
    for error in _validator(tool.name, json.dumps(tool.schema)).iter_errors(arguments):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
        ).lstrip(".")
        found.append((path, error.message[:LONGEST_FAULT]))
        if len(found) == MOST_FAULTS:
            break
    return found


@cache
def _validator(name: str, schema: str) -> Any:
    return jsonschema.Draft202012Validator(
        json.loads(schema), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def takes(required: Sequence[str] = (), /, **properties: Schema) -> Schema:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, longest: int, **more: Any) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest, "description": description, **more}


def identifier(description: str) -> Schema:
    return {"type": "string", "format": "uuid", "description": description}


def key(description: str) -> Schema:
    """A name that becomes a part of an address, and can leave it neither upwards nor sideways."""
    return text(description, 100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")


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
    """A part of a text, and where the next one begins."""
    end = offset + LONGEST_TEXT
    shown: dict[str, Any] = {"content": whole_text[offset:end]}
    if len(whole_text) > end or offset:
        shown |= {"characters": len(whole_text), "next_offset": end if len(whole_text) > end else None}
    return shown
