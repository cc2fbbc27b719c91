"""The job as an HTTP agent receives it: the body of the call, and the answer when it requests its job again."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from agents.contracts import AgentRequest
from agents.exceptions import PermanentAgentError
from tenants import wire_json

#: The members that a wake may add to a job. Every job has all of them, null when they do not apply.
WAKE_CONTEXT = (
    "rejection_ref",
    "reviewer_notes",
    "blocker_resolution",
    "subtask_output_ref",
    "subtask_name",
    "review_approved",
    "reviewer_feedback",
    "chosen_option",
)


def job_of(request: AgentRequest) -> dict[str, Any]:
    """Return the job. It contains the callback's token: never log it."""
    summary = ("key", "name", "description", "version", "url")
    return {
        "job_id": str(request.activity_id),
        "execution_id": str(request.run_id),
        "attempt": request.attempt,
        "agent": request.agent_role,
        "version": request.settings.version,
        "tenant_id": str(request.tenant_id),
        "deliverable_id": None if request.deliverable_id is None else str(request.deliverable_id),
        "pipeline_step": request.pipeline_step,
        "priority": request.priority,
        "params": request.params,
        "instructions": request.instructions,
        "prompt": request.prompt,
        "input": request.input,
        "wakes": request.wakes,
        "wake_reason": request.wake_reason,
        **{key: request.wake_context.get(key) for key in WAKE_CONTEXT},
        "session_id": request.session_id,
        "model": request.settings.model,
        "max_turns": request.max_turns,
        "skills": {
            "context": [{"name": file.name, "content": file.content} for file in request.skills.context],
            "manifest": [
                {name: getattr(skill, name) for name in summary} for skill in request.skills.manifest
            ],
        },
        "deadline": request.deadline,
        "callback": {"url": request.callback.url, "token": request.callback.token},
    }


def encode_job(request: AgentRequest) -> bytes:
    """Return the job as JSON: the exact bytes that are signed and sent."""
    try:
        return wire_json.dumps_stored(
            job_of(request), default=_plain, option=orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC
        )
    except orjson.JSONEncodeError as error:
        raise PermanentAgentError(
            f"The job cannot be written as JSON: {error}", code="invalid_job"
        ) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
