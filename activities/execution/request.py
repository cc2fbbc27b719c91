"""Builds the request of a run: everything that its agent receives.

The request is the same whether a worker calls the agent or an agent fetches its job again. Only the random marker of the prompt differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from activities import outputs, run_tokens
from activities.execution import prompt
from activities.outputs import StoredOutput
from activities.run_tokens import RunToken
from activities.submission import ASKED_BY
from agents.configuration import RoleSettings
from agents.contracts import AgentRequest
from agents.exceptions import PermanentAgentError
from agents.governor import providers
from agents.skills import Knowledge, is_local

logger = logging.getLogger(__name__)

#: References in a wake's payload, and the names of the outputs in its prompt.
_REFERENCES = {"rejection_ref": "rejected_output", "subtask_output_ref": "subtask_output"}


@dataclass(frozen=True, slots=True)
class Material:
    """The inputs of a run. `outputs`: those that its wakes refer to, by reference. `missing`: references to inputs that do not exist."""

    input: Mapping[str, Any] | None = None
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The facts of a run that are not in the row of its activity. `wakes`: `{id, reason, payload}`, oldest first."""

    token: RunToken
    number: int
    wakes: Sequence[Mapping[str, Any]]
    role: RoleSettings
    knowledge: Knowledge
    timeout_seconds: float
    deadline: datetime


def at_hand(claimed: Any) -> Material:
    """Return the input of a claimed activity that the claim has already read."""
    if claimed.input_ref is None:
        return Material(_inline(claimed.input))
    return Material(
        {"ref": str(claimed.input_ref), "content": claimed.input_content, "data": claimed.input_data}
    )


def fetch(activity: Any, wakes: Iterable[Mapping[str, Any]]) -> Material:
    """Read all inputs of an activity. Call it outside a transaction, because MongoDB may be slow.

    The reference to the outputs of a fan-out is a list. Its `content` and `data` are lists in the same order, with null for failed
    branches. The data of all such steps is also the `data` of the input itself.

    `activity`: a model or a claimed row. Raises `OutputUnavailable`.
    """
    steps: Mapping[str, Any] = (activity.input or {}).get("refs") or {}
    own = [str(activity.input_ref)] if activity.input_ref else []
    of_steps = [str(each) for reference in steps.values() for each in _as_list(reference) if each]
    of_wakes = {str(reference) for wake in wakes for reference in _references(wake["payload"]).values()}
    stored = _read(activity.tenant_id, {*own, *of_steps, *of_wakes})
    input_ = _show_output(own[0], stored.get(own[0])) if own else _inline(activity.input)
    if steps:
        outputs_of_steps = {step: _output_of_step(reference, stored) for step, reference in steps.items()}
        lists = {
            step: outputs_of_steps[step]["data"]
            for step, reference in steps.items()
            if isinstance(reference, list)
        }
        input_ = {**(input_ or _show_output(None, None)), "steps": outputs_of_steps}
        if lists and input_["data"] is None:
            input_["data"] = lists
    return Material(
        input=input_,
        outputs={reference: _show_output(reference, stored.get(reference)) for reference in of_wakes},
        missing=[reference for reference in dict.fromkeys((*own, *of_steps)) if reference not in stored],
    )


def build(activity: Any, attempt: Attempt, material: Material) -> AgentRequest:
    """Build the request, with a new token. `activity`: a model or a claimed row."""
    token, wakes = attempt.token, attempt.wakes
    agent_skills = attempt.knowledge.as_skills(
        f"{run_tokens.address_of(token.run_id)}skills/", as_files=is_local(attempt.role.adapter)
    )
    # A model gets instructions and context in its system prompt, which is cached for all runs of the role. Repeating them would cost twice.
    to_model = attempt.role.adapter.adapter in providers.NAMES
    build_prompt = partial(
        prompt.build,
        name=activity.name, description=activity.description, instructions="" if to_model else attempt.role.instructions,
        params=activity.params, context=() if to_model else agent_skills.context,
        inputs=material.input, wakes=[_describe_wake(wake, material) for wake in wakes],
        asked_by=str((activity.agent_options or {}).get(ASKED_BY) or ""),
    )  # fmt: skip
    sign = run_tokens.issuing(token)
    # Few inline functions read the prompt or the token, so these are built when they are read. All other agents need both.
    inline = attempt.role.adapter.adapter == "inline"
    return AgentRequest(
        tenant_id=token.tenant_id, activity_id=token.activity_id, run_id=token.run_id, idempotency_key=str(wakes[0]["id"]),
        agent_role=activity.agent_role, attempt=attempt.number, prompt=partial(_within_call, build_prompt) if inline else build_prompt(),
        settings=attempt.role.adapter, callback=sign if inline else sign(),
        timeout_seconds=attempt.timeout_seconds, deadline=attempt.deadline,
        name=activity.name, deliverable_id=activity.deliverable_id, pipeline_step=activity.step, priority=activity.priority,
        params=activity.params, input=material.input, wakes=tuple({"reason": wake["reason"], **wake["payload"]} for wake in wakes),
        wake_reason=wakes[-1]["reason"], wake_context=_merge_payloads(wakes), session_id=token.session_id or None,
        max_turns=(activity.agent_options or {}).get("max_turns"),
        instructions=attempt.role.instructions, skills=agent_skills,
    )  # fmt: skip


def _within_call(build_prompt: Callable[[], str]) -> str:
    """Build the prompt while its agent is called. An error in it is a bug of ours, so the run is not retried."""
    try:
        return build_prompt()
    except Exception as error:
        logger.exception("Prompt could not be made", extra={"action": "prompt_broke"})
        raise PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error") from error


def _describe_wake(wake: Mapping[str, Any], material: Material) -> dict[str, Any]:
    """Return a wake for the prompt, with the outputs that it refers to."""
    references = _references(wake["payload"])
    texts = {name: material.outputs.get(str(reference)) for name, reference in references.items()}
    return {"reason": wake["reason"], **wake["payload"], **texts}


def _merge_payloads(wakes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the payloads of the wakes. For each member, the newest value that is not null wins."""
    merged: dict[str, Any] = {}
    for wake in wakes:
        merged |= {name: value for name, value in wake["payload"].items() if value is not None}
    return merged


def _references(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {output: payload[name] for name, output in _REFERENCES.items() if payload.get(name) is not None}


def _as_list(reference: Any) -> list[Any]:
    return reference if isinstance(reference, list) else [reference]


def _read(tenant_id: UUID, references: Iterable[str]) -> dict[str, StoredOutput]:
    """Return the outputs that exist, by reference."""
    ids: dict[str, UUID] = {}
    for reference in references:
        try:
            ids[reference] = UUID(reference)
        except ValueError:
            continue
    stored = outputs.read_many(tenant_id, set(ids.values())) if ids else {}
    return {reference: stored[output_id] for reference, output_id in ids.items() if output_id in stored}


def _output_of_step(reference: Any, stored: Mapping[str, StoredOutput]) -> dict[str, Any]:
    if not isinstance(reference, list):
        return _show_output(str(reference), stored.get(str(reference)))
    branches = [stored.get(str(each)) for each in reference]
    return {
        "ref": None,
        "refs": [str(each) if each else None for each in reference],
        "content": [output.content if output else None for output in branches],
        "data": [output.data if output else None for output in branches],
    }


def _show_output(reference: str | None, output: Any) -> dict[str, Any]:
    return {
        "ref": reference,
        "content": output.content if output else None,
        "data": output.data if output else None,
    }


def _inline(input_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not input_:
        return None
    return {"ref": None, "content": input_.get("content"), "data": input_.get("data")}
