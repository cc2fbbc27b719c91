"""The definitions of the five tools for models: the purpose of each, and its arguments as JSON Schema.

The schemas are for models: short, and with advice. The receiver of a call validates it, and they refuse nothing that it accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    name: str
    description: str
    input_schema: Mapping[str, Any]


def object_schema(required: Sequence[str] = (), /, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text_schema(description: str, longest: int, *, least: int = 1, **more: Any) -> Mapping[str, Any]:
    return {
        "type": "string",
        "minLength": least,
        "maxLength": longest,
        "description": description,
        **more,
    }


def _names(description: str, form: str = "") -> Mapping[str, Any]:
    kind: dict[str, Any] = {"type": "string", **({"format": form} if form else {})}
    return {"type": "array", "items": kind, "maxItems": 50, "description": description}


_AGENT_ROLE = text_schema("Role of the agent, if an agent is to do it. Set either this or human_role.", 63)
_HUMAN_ROLE = text_schema("Role of the person, such as editor. Set either this or agent_role.", 63)
_ASKED = text_schema(
    "Role of the person to ask, such as editor. If omitted, a responsible person is chosen.", 63
)

DEFINITIONS: tuple[ToolDefinition, ...] = (
    ToolDefinition(
        "report_blocker",
        "Report that something outside your power keeps you from doing the work: an expired authorisation, a missing integration, "
        "an outage. A person is asked to resolve it, and you are started again with the resolution. Ends this run.",
        object_schema(
            ["type", "message"],
            type=text_schema("channel_auth_expired, missing_integration, api_outage, or another short name.", 63),
            message=text_schema("What is wrong, and what would resolve it.", 2_000),
            channel_id={"type": "string", "format": "uuid", "description": "The affected channel, if there is one."},
        ),
    ),
    ToolDefinition(
        "create_subtask",
        "Have a part of the work done by another agent or a person. A blocking subtask ends this run, and you are started again with its "
        "output. One that is not blocking is done while you continue.",
        object_schema(
            ["name", "blocking"],
            name=text_schema("A short name.", 200),
            description=text_schema("Everything that the agent or person needs to know to do it.", 20_000, least=0),
            agent_role=_AGENT_ROLE,
            human_role=_HUMAN_ROLE,
            params={"type": "object", "description": "Parameters for the agent."},
            model=text_schema("Model of the agent, if the task needs another one than usual.", 200),
            max_turns={"type": "integer", "minimum": 1, "maximum": 200, "description": "The maximum of answers that the agent may use."},
            blocking={"type": "boolean", "description": "Whether you cannot continue without its result."},
        ),
    ),
    ToolDefinition(
        "request_human_review",
        "Ask a person a question in the middle of the work. You are started again with the answer. Ends this run.",
        object_schema(
            ["question"],
            question=text_schema("What you want to know.", 2_000),
            content=text_schema("The material that the question is about, for the person to read.", 200_000, least=0),
            human_role=_ASKED,
        ),
    ),
    ToolDefinition(
        "create_approval",
        "Have a person decide about a direction, with options to choose from, for your work or for several activities at once: your "
        "subtasks, and what waits in your pipeline run or deliverable. Ends this run when your own work is among them.",
        object_schema(
            ["type", "title"],
            type=text_schema("content_direction, brand_direction, or another short name.", 63),
            title=text_schema("The question in one line.", 200),
            description=text_schema("What the person needs to know to decide.", 20_000, least=0),
            options={
                "type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "maxItems": 50, "uniqueItems": True,
                "description": "The options to choose from. If omitted: yes or no.",
            },
            activity_ids={
                "type": "array", "items": {"type": "string", "format": "uuid"},
                "description": "The activities that wait for the decision. If omitted: your own, or those of the scope.",
            },
            scope={
                "type": "object", "additionalProperties": False,
                "properties": {
                    "pipelines": _names("Ids of pipelines.", "uuid"), "deliverables": _names("Ids of deliverables.", "uuid"),
                    "roles": _names("Roles of agents."), "groups": _names("Group keys."),
                },
                "description": "Only if people have granted your role to hold it: work of others that waits. The answer says what is held.",
            },
            human_role=_ASKED,
        ),
    ),
    ToolDefinition(
        "reassign_task",
        "Reassign the whole work to a better suited agent or person. Ends this run, and your part.",
        object_schema(
            ["reason"],
            agent_role=_AGENT_ROLE,
            human_role=_HUMAN_ROLE,
            reason=text_schema("Why somebody else should do it.", 2_000),
        ),
    ),
)  # fmt: skip
