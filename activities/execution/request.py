"""The request of a run: all that its agent is told, from the rows of the run and from wherever its outputs are kept.

Built in one way, whether a worker calls the agent or an agent asks for its job again. Only the random marker of the prompt differs.

The prompt has one template per wake reason, so the agent never guesses why it was started. Each wake of a run has its section, in the
order in which they came; the newest decides what else is told. Text from outside (parameters, the client's context, earlier outputs, notes)
stands in blocks whose marker is random for each prompt and occurs nowhere else in it, so no text can pretend that its block has ended. The
templates are ours; nothing from outside is ever compiled as a template.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import jinja2
import orjson
from django.conf import settings
from jinja2.sandbox import ImmutableSandboxedEnvironment

from activities import outputs, run_tokens
from activities.outputs import StoredOutput
from activities.run_tokens import RunToken
from activities.submission import ASKED_BY
from agents import prompt_blocks, skills
from agents.configuration import RoleSettings
from agents.contracts import AgentRequest, ContextFile
from agents.exceptions import PermanentAgentError
from agents.governor import providers
from agents.skills import Knowledge, is_local
from tenants import wire_json

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
        build_prompt,
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


LONGEST_BLOCK = 200_000  # Characters of one outside text; the rest is cut and says so.

#: What a section may ask of its wake. A wake that does not have it says nothing about it.
_OF_A_WAKE = (
    *("rejected_output", "reviewer_notes"),
    *("blocker_type", "blocker_message", "blocker_resolution", "blocker_outcome"),
    *("subtask_name", "subtask_outcome", "subtask_output", "subtask_error"),
    *("review_approved", "reviewer_feedback", "outcome", "question", "approval", "approval_type", "title", "chosen_option"),
    *("kind", "source", "text", "content"),
)  # fmt: skip


def build_prompt(
    *,
    name: str,
    description: str,
    wakes: Sequence[Mapping[str, Any]],
    instructions: str = "",
    params: Mapping[str, Any] | None = None,
    context: Sequence[ContextFile] = (),
    inputs: Mapping[str, Any] | None = None,
    asked_by: str = "",
) -> str:
    """Render the prompt. `asked_by`: the role of the agent that wrote the task, whose words stand in blocks; empty for people and programs.

    `inputs` is the output of the step before, `{content, data}`; of several steps, such by their names in `steps`. `wakes` are those of the
    run, oldest first and at least one: the reason and the payload, in which `rejected_output` and `subtask_output` are outputs as well.
    """
    facts = {
        "name": _line(name), "description": description.strip(), "asked_by": asked_by, "instructions": instructions.strip(),
        "params": as_json(params) if params else "", "context": [(_line(file.name), file.content) for file in context],
        "outputs": _outputs(inputs), "wakes": [_show_wake(wake) for wake in wakes],
    }  # fmt: skip
    template = _environment(str(settings.BASE_DIR / "templates" / "prompts")).get_template("base.md")
    while True:
        block = _Blocks(secrets.token_hex(8))
        text = template.render(facts, block=block)
        if text.count(block.marker) == 2 * block.count:
            return text


class _Blocks:
    """Wraps outside text for one prompt."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.count = 0

    def __call__(self, title: str, text: str) -> str:
        self.count += 1
        if len(text) > LONGEST_BLOCK:
            text = f"{text[:LONGEST_BLOCK]}\n[{len(text) - LONGEST_BLOCK} further characters left out]"
        return prompt_blocks.wrap_block(title, text, self.marker)


def as_json(value: Any) -> str:
    """For a model to read: indented, and every letter as it is."""
    return wire_json.dumps_stored(
        value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    ).decode()


def _line(text: str) -> str:
    """On one line, as a heading has to be."""
    return " ".join(text.split())


def _show_wake(wake: Mapping[str, Any]) -> dict[str, Any]:
    """A wake with everything that sections ask about, as text."""
    shown = {"reason": wake["reason"], **{name: wake.get(name) for name in _OF_A_WAKE}}
    for name in ("rejected_output", "subtask_output"):
        shown[name] = [text for _, text in _texts(shown[name] or {})]
    if not isinstance(shown["content"], str | None):
        shown["content"] = as_json(shown["content"])  # any JSON, a number as well
    return {name: as_json(value) if isinstance(value, dict) else value for name, value in shown.items()}


def _outputs(inputs: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """What an output consists of, or those of several steps: output or data, of which step, and the text."""
    steps: Mapping[str, Any] = (inputs or {}).get("steps") or {}
    lists = any("refs" in output for output in steps.values())
    # With lists among them, the data of the whole repeats what is told step by step.
    own = {**(inputs or {}), "data": None} if lists else inputs or {}
    by_step = [("", own), *(part for step, output in steps.items() for part in _parts(step, output))]
    return [(what, _line(step), text) for step, output in by_step for what, text in _texts(output)]


def _parts(step: str, output: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The output of a step; of one that was fanned out, those of its branches, counted from 1."""
    if "refs" not in output:
        return [(step, output)]
    branches = zip(output["content"], output["data"], strict=True)
    return [
        (f"{step}, part {number}", {"content": content, "data": data})
        for number, (content, data) in enumerate(branches, start=1)
    ]


def _texts(output: Mapping[str, Any]) -> list[tuple[str, str]]:
    content, data = output.get("content"), output.get("data")
    return [
        *([("Output", content)] if content else []),
        *([("Data", as_json(data))] if data is not None else []),
    ]


@cache
def _environment(folder: str) -> jinja2.Environment:
    return ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(Path(folder)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # plain text for a model, shown nowhere as HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # they come with the code, and looking at their files would cost more than rendering them
    )
