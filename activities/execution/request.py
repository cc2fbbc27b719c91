"""The request of a run: all that its agent is told, from the rows of the run and from wherever its outputs are kept.

Built in one way, whether a worker calls the agent or an agent asks for its job again. Only the random marker of the prompt differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from activities import outputs, run_tokens
from activities.outputs import StoredOutput
from activities.run_tokens import RunToken
from activities.submission import ASKED_BY
from agents import skills
from agents.configuration import RoleSettings
from agents.contracts import AgentRequest
from agents.exceptions import PermanentAgentError
from agents.governor import providers
from agents.skills import Knowledge, is_local

from . import prompt

logger = logging.getLogger(__name__)

#: References in a wake's payload, and under which name its prompt finds the output.
_REFERENCES = {"rejection_ref": "rejected_output", "subtask_output_ref": "subtask_output"}


@dataclass(frozen=True, slots=True)
class Material:
    """The inputs of a run, read. `outputs` are those that its wakes refer to, by reference; `missing` are inputs that do not exist."""

    input: Mapping[str, Any] | None = None
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run, beside the row of its activity. `wakes` are `{id, reason, payload}`, oldest first."""

    token: RunToken
    number: int
    wakes: Sequence[Mapping[str, Any]]
    role: RoleSettings
    knowledge: Knowledge
    timeout_seconds: float
    deadline: datetime


def knowledge_of(tenant_id: UUID, agent_role: str, role: RoleSettings) -> Knowledge:
    """The skills and context files for the agent, in the caller's `tenant_scope`."""
    if not role.has_skills:
        return skills.NOTHING
    return skills.read_knowledge(tenant_id, agent_role, with_texts=is_local(role.adapter))


def role_for(role: RoleSettings, options: Mapping[str, Any] | None) -> RoleSettings:
    """The role's settings with what one piece of work asks for beyond them."""
    model = (options or {}).get("model")
    return replace(role, adapter=replace(role.adapter, model=model)) if model else role


def at_hand(claimed: Any) -> Material:
    """The input of a claimed activity, when the claim has found everything that it works on."""
    if claimed.input_ref is None:
        return Material(_inline(claimed.input))
    found = {"content": claimed.input_content, "data": claimed.input_data}
    return Material({"ref": str(claimed.input_ref), **found})


def fetch(activity: Any, wakes: Iterable[Mapping[str, Any]]) -> Material:
    """Read all that an activity works on. Not inside a transaction: MongoDB may take its time.

    A reference to several outputs, those of a step that was fanned out, is a list: its `content` and `data` are lists as well, in the
    same order, with null for what failed. Beside them the data of all such steps stands in the `data` of the input itself.

    `activity` is a model or a claimed row. Raises `OutputUnavailable`.
    """
    steps: Mapping[str, Any] = (activity.input or {}).get("refs") or {}
    own = [str(activity.input_ref)] if activity.input_ref else []
    of_steps = [str(reference) for named in steps.values() for reference in _as_list(named) if reference]
    spoken_of = {str(reference) for wake in wakes for reference in _references(wake["payload"]).values()}
    found = _read(activity.tenant_id, {*own, *of_steps, *spoken_of})
    input_ = _show_output(own[0], found.get(own[0])) if own else _inline(activity.input)
    if steps:
        outputs_of_steps = {step: _read_output_of(reference, found) for step, reference in steps.items()}
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
        outputs={reference: _show_output(reference, found.get(reference)) for reference in spoken_of},
        missing=[reference for reference in dict.fromkeys((*own, *of_steps)) if reference not in found],
    )


def build(activity: Any, attempt: Attempt, material: Material) -> AgentRequest:
    """The request, with a token of its own. `activity` is a model or a claimed row."""
    token, wakes = attempt.token, attempt.wakes
    known = attempt.knowledge.as_skills(
        f"{run_tokens.address_of(token.run_id)}skills/", as_files=is_local(attempt.role.adapter)
    )
    # A model is told these in its system text, the same for all runs of the role; twice would cost twice.
    to_model = attempt.role.adapter.adapter in providers.NAMES
    tell = partial(
        prompt.build,
        name=activity.name, description=activity.description, instructions="" if to_model else attempt.role.instructions,
        params=activity.params, context=() if to_model else known.context,
        inputs=material.input, wakes=[_describe_wake(wake, material) for wake in wakes],
        asked_by=str((activity.agent_options or {}).get(ASKED_BY) or ""),
    )  # fmt: skip
    sign = run_tokens.issuing(token)
    # Few functions read what they are called with as a text, or report; everybody else does, and before anything else is done.
    inline = attempt.role.adapter.adapter == "inline"
    return AgentRequest(
        tenant_id=token.tenant_id, activity_id=token.activity_id, run_id=token.run_id, idempotency_key=str(wakes[0]["id"]),
        agent_role=activity.agent_role, attempt=attempt.number, prompt=partial(_in_the_call, tell) if inline else tell(),
        settings=attempt.role.adapter, callback=sign if inline else sign(),
        timeout_seconds=attempt.timeout_seconds, deadline=attempt.deadline,
        name=activity.name, deliverable_id=activity.deliverable_id, pipeline_step=activity.step, priority=activity.priority,
        params=activity.params, input=material.input, wakes=tuple({"reason": wake["reason"], **wake["payload"]} for wake in wakes),
        wake_reason=wakes[-1]["reason"], wake_context=_latest(wakes), session_id=token.session_id or None,
        max_turns=(activity.agent_options or {}).get("max_turns"),
        instructions=attempt.role.instructions, skills=known,
    )  # fmt: skip


def _in_the_call(tell: Callable[[], str]) -> str:
    """The prompt, made while its agent is called: a mistake of ours is not the agent's, and trying again would only repeat it."""
    try:
        return tell()
    except Exception as error:
        logger.exception("Prompt could not be made", extra={"action": "prompt_broke"})
        raise PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error") from error


def _describe_wake(wake: Mapping[str, Any], material: Material) -> dict[str, Any]:
    """A wake as its prompt tells it: with the outputs that it speaks of."""
    references = _references(wake["payload"])
    read = {name: material.outputs.get(str(reference)) for name, reference in references.items()}
    return {"reason": wake["reason"], **wake["payload"], **read}


def _latest(wakes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the wakes say together; the newest one that says something about a thing has the word."""
    merged: dict[str, Any] = {}
    for wake in wakes:
        merged |= {name: value for name, value in wake["payload"].items() if value is not None}
    return merged


def _references(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {shown: payload[name] for name, shown in _REFERENCES.items() if payload.get(name) is not None}


def _as_list(reference: Any) -> list[Any]:
    return reference if isinstance(reference, list) else [reference]


def _read(tenant_id: UUID, references: Iterable[str]) -> dict[str, StoredOutput]:
    """What there is, by its reference as it was written."""
    ids: dict[str, UUID] = {}
    for reference in references:
        try:
            ids[reference] = UUID(reference)
        except ValueError:
            continue
    found = outputs.read_many(tenant_id, set(ids.values())) if ids else {}
    return {reference: found[output_id] for reference, output_id in ids.items() if output_id in found}


def _read_output_of(reference: Any, found: Mapping[str, StoredOutput]) -> dict[str, Any]:
    """The output of a step, or those of its branches."""
    if not isinstance(reference, list):
        return _show_output(str(reference), found.get(str(reference)))
    branches = [found.get(str(each)) for each in reference]
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
