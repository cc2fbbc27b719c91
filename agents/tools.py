"""The five tools as a model is told about them: what each is for, and what it takes as JSON Schema.

The schemas are for models, short and with advice. What a call may really hold is decided where it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool by its name. `ends_run` tells what calling it usually means: the work waits, and goes on in a run of its own."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    ends_run: str  # always, sometimes


def _object(required: list[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _text(description: str, longest: int) -> Mapping[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest, "description": description}


def _names(description: str, form: str = "") -> Mapping[str, Any]:
    kind: dict[str, Any] = {"type": "string", **({"format": form} if form else {})}
    return {"type": "array", "items": kind, "maxItems": 50, "description": description}


_AGENT_ROLE = _text("Role of the agent, if an agent shall do it. Give either this or human_role.", 63)
_HUMAN_ROLE = _text("Role of the person, such as editor. Give either this or agent_role.", 63)
_ASKED = _text(
    "Role of the person who is asked, such as editor. Left out, somebody responsible is found.", 63
)

DEFINITIONS: tuple[ToolDefinition, ...] = (
    ToolDefinition(
        "report_blocker",
        "Report that something outside your power keeps you from doing the work: an expired authorisation, a missing integration, "
        "an outage. A person is asked to resolve it, and you are started again with the resolution. Ends this run.",
        _object(
            ["type", "message"],
            type=_text("channel_auth_expired, missing_integration, api_outage, or another short name.", 63),
            message=_text("What is wrong, and what would resolve it.", 2_000),
            channel_id={"type": "string", "format": "uuid", "description": "The channel that is concerned, if it is one."},
        ),
        "always",
    ),
    ToolDefinition(
        "create_subtask",
        "Have a part of the work done by another agent or a person. A blocking subtask ends this run, and you are started again with its "
        "output. One that is not blocking is done beside your work.",
        _object(
            ["name", "description", "blocking"],
            name=_text("A short name.", 200),
            description=_text("All that whoever does it needs to know.", 20_000),
            agent_role=_AGENT_ROLE,
            human_role=_HUMAN_ROLE,
            params={"type": "object", "description": "Parameters for the agent."},
            model=_text("Model of the agent, if another one than usual suits the task.", 200),
            max_turns={"type": "integer", "minimum": 1, "maximum": 200, "description": "Answers that the agent may need at most."},
            blocking={"type": "boolean", "description": "Whether you cannot go on without its result."},
        ),
        "sometimes",
    ),
    ToolDefinition(
        "request_human_review",
        "Ask a person a question in the middle of the work. You are started again with the answer. Ends this run.",
        _object(
            ["question"],
            question=_text("What you want to know.", 2_000),
            content=_text("What it is about, for the person to look at.", 200_000),
            human_role=_ASKED,
        ),
        "always",
    ),
    ToolDefinition(
        "create_approval",
        "Have a person decide about a direction, with options to choose from, for your work or for several activities at once: your "
        "subtasks, and what waits in your pipeline run or deliverable. Ends this run when your own work is among them.",
        _object(
            ["type", "title"],
            type=_text("content_direction, brand_direction, or another short name.", 63),
            title=_text("The question in one line.", 200),
            description=_text("What the person needs to know to decide.", 20_000),
            options={
                "type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "maxItems": 50, "uniqueItems": True,
                "description": "What may be chosen from. Left out: yes or no.",
            },
            activity_ids={
                "type": "array", "items": {"type": "string", "format": "uuid"},
                "description": "The activities that wait for the decision. Left out: your own, or those of the scope.",
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
        "sometimes",
    ),
    ToolDefinition(
        "reassign_task",
        "Hand the whole work on to a better suited agent or person. Ends this run, and your part.",
        _object(
            ["reason"],
            agent_role=_AGENT_ROLE,
            human_role=_HUMAN_ROLE,
            reason=_text("Why somebody else should do it.", 2_000),
        ),
        "always",
    ),
)  # fmt: skip
