"""Turns plain data into a `PipelineDefinition`: reads every step, then checks the dependencies between them.

A step without `depends_on` gets its dependencies from its position in the list:

    not parallel   it runs after the step before it
    parallel       it runs at the same time as the step before it, because it has the same dependencies

The first step has none. So consecutive parallel steps run at the same time, and a step that waits for all of
them lists them in its `depends_on`. An empty list means no dependencies. Nothing is added to an explicit list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.definition.errors import Errors, at, quote_value
from pipelines.definition.reading import JsonCopier, Reader, error_of_amount, error_of_text, number
from pipelines.definition.shapes import (
    EscalationDefinition,
    OnTimeout,
    PipelineDefinition,
    ReminderDefinition,
    RetryDefinition,
    RetryStrategy,
    StepDefinition,
)
from pipelines.graph import UpstreamFailure, find_cycles
from pipelines.subjects import error_of_template

StepsCheck = Callable[[Mapping[str, Any], Sequence[StepDefinition]], Iterable[tuple[int, str, str]]]

MAX_STEPS = 2_000
# Of all steps together; each parallel step repeats the dependencies of the step before it.
MAX_DEPENDENCIES = 50_000


def parse(
    data: Any,
    *,
    known_roles: Collection[str],
    known_templates: Collection[str],
    has_members_of_templates: bool = False,
    known_human_roles: Collection[str] | None = None,
    check_expression: Callable[[str], str | None] | None = None,
    check_steps: StepsCheck | None = None,
) -> PipelineDefinition:
    """Return the definition in `data`, without changing it. Raises DefinitionError with every error.

    `known_roles` are the agents' roles. People's roles are checked only with `known_human_roles`.
    `has_members_of_templates`: the steps contain the members of their templates, so whatever a step lacks is missing.
    `check_expression` takes the text of each `when` and `for_each`, and returns an error or None.
    `check_steps` takes the pipeline's parameters and all steps with their dependencies, and yields errors:
    the step's index, the path within the step, and the message.
    """
    errors = Errors()
    world = World(
        roles=frozenset(known_roles),
        templates=frozenset(known_templates),
        resolved=frozenset(known_templates if has_members_of_templates else ()),
        human_roles=None if known_human_roles is None else frozenset(known_human_roles),
        check_expression=check_expression,
    )
    definition = _read(Reader(data, "", JsonCopier(errors)), world)
    for index, place, message in check_steps(definition.params, definition.steps) if check_steps else ():
        errors.add(f"{at('steps', index)}{place}", message)
    errors.raise_if_any()
    return definition


def _read(reader: Reader, world: World) -> PipelineDefinition:
    key, name = reader.identifier("key"), reader.name("name")
    description, params = reader.text("description", limit=20_000, blank=True), reader.mapping("params")
    subject = _subject(reader)
    enabled = None if reader.value("enabled") is None else reader.flag("enabled")
    for required in ("key", "name", "steps"):
        reader.require(required)
    items = reader.items("steps", limit=MAX_STEPS)
    if items == []:
        reader.error("steps", "must have at least one member")
    reader.refuse_other_keys()
    drafts = [read_step(Reader(item, path, reader.copier), world) for path, item in items or ()]
    return PipelineDefinition(
        key=key or "",
        name=name or "",
        description=description or "",
        params=params,
        subject=subject,
        enabled=enabled,
        steps=_connect(drafts, reader.errors),
    )


def _subject(reader: Reader) -> str:
    template = reader.name("subject")
    error = None if template is None else error_of_template(template)
    if error:
        reader.error("subject", error)
    return template or ""


def _connect(drafts: list[Draft], errors: Errors) -> tuple[StepDefinition, ...]:
    """Return the steps with their dependencies, and add an error for each that is invalid."""
    _refuse_duplicate_ids(drafts, errors)
    ids = dict.fromkeys(draft.step.id for draft in drafts if draft.step.id)
    steps: list[StepDefinition] = []
    for draft in drafts:
        previous = steps[-1] if steps else None
        is_explicit = draft.depends_on is not None
        depends_on = (
            _name_dependencies(draft, ids, errors)
            if is_explicit
            else _implied_dependencies(draft.step, previous)
        )
        steps.append(replace(draft.step, depends_on=depends_on))
    if sum(len(step.depends_on) for step in steps) > MAX_DEPENDENCIES:
        errors.add("steps", f"must have at most {MAX_DEPENDENCIES:,} dependencies together")
    else:
        _refuse_cycles(steps, drafts, errors)
    return tuple(steps)


def _refuse_duplicate_ids(drafts: list[Draft], errors: Errors) -> None:
    first: dict[str, str] = {}
    for draft in drafts:
        if draft.step.id and first.setdefault(draft.step.id, draft.path) != draft.path:
            errors.add(
                f"{draft.path}.id",
                f"{quote_value(draft.step.id)} is already the id of {first[draft.step.id]}",
            )


def _implied_dependencies(step: StepDefinition, previous: StepDefinition | None) -> tuple[str, ...]:
    if previous is None:
        return ()
    return previous.depends_on if step.parallel else (previous.id,)


def _name_dependencies(draft: Draft, ids: Collection[str], errors: Errors) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for path, dependency in draft.depends_on or ():
        if dependency == draft.step.id:
            errors.add(path, "a step cannot depend on itself")
        elif dependency not in ids:
            errors.add_unknown(path, "step", dependency, ids)
        elif dependency in names:
            errors.add(path, f"{quote_value(dependency)} is named twice")
        else:
            names[dependency] = None
    return tuple(names)


def _refuse_cycles(steps: list[StepDefinition], drafts: list[Draft], errors: Errors) -> None:
    dependencies: dict[str, tuple[str, ...]] = {}
    paths: dict[str, str] = {}
    for step, draft in zip(steps, drafts, strict=True):
        if step.id and step.id not in dependencies:
            dependencies[step.id] = step.depends_on
            paths[step.id] = f"{draft.path}.depends_on" if draft.depends_on else draft.path
    for cycle in find_cycles(dependencies):
        errors.add(paths[cycle[0]], f"the steps wait for each other in a cycle: {' -> '.join(cycle)}")


# One step, with every error that does not concern other steps.


DAY = 86_400  # seconds
LONGEST_RUN = 7 * DAY  # far longer than a provider's batch, which may take a day
LONGEST_EXPRESSION = 2_000  # characters
MOST_DEPENDENCIES = 2_000
MOST_ATTEMPTS = 50
LONGEST_DELAY = DAY  # between two attempts


@dataclass(frozen=True, slots=True)
class World:
    """What exists outside the definition."""

    roles: frozenset[str]
    templates: frozenset[str]
    resolved: frozenset[str]  # templates whose members their steps contain
    human_roles: frozenset[str] | None
    check_expression: Callable[[str], str | None] | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A step and its unchecked `depends_on`: paths and names, or None if it has none."""

    step: StepDefinition
    path: str
    depends_on: tuple[tuple[str, str], ...] | None


def read_step(reader: Reader, world: World) -> Draft:
    step = StepDefinition(
        id=reader.identifier("id") or "",
        name=reader.name("name"),
        description=reader.text("description", limit=20_000, blank=True) or "",
        template=reader.read_known("template", "template", world.templates),
        agent_role=reader.read_known("agent_role", "role", world.roles, lambda name: name.replace("_", "-")),
        is_approval_gate=reader.flag("is_approval_gate"),
        requires_approval=reader.flag("requires_approval"),
        parallel=reader.flag("parallel"),
        on_upstream_failure=reader.choice("on_upstream_failure", UpstreamFailure) or UpstreamFailure.FAIL,
        when=_expression(reader, "when", world),
        for_each=_expression(reader, "for_each", world),
        params=reader.mapping("params"),
        retry=_retry(reader),
        timeout_seconds=reader.amount("timeout_seconds", low=0, above=True, high=LONGEST_RUN),
        priority=reader.count("priority", low=1, high=20),
        max_rounds=reader.count("max_rounds", low=1, high=50),
        dependency_timeout_seconds=reader.amount(
            "dependency_timeout_seconds", low=0, above=True, high=LONGEST_WAIT
        ),
        **read_people(reader, world.human_roles),
    )
    depends_on = _depends_on(reader)
    reader.require("id")
    has_more = reader.value("template") is not None and step.template not in world.resolved
    _check_assignee(reader, step, has_more=has_more)
    _check_people(reader, step, has_more=has_more)
    reader.refuse_other_keys()
    return Draft(step, reader.path, depends_on)


def _expression(reader: Reader, key: str, world: World) -> str | None:
    text = reader.text(key, limit=LONGEST_EXPRESSION)
    error = world.check_expression(text) if text is not None and world.check_expression else None
    if error:
        reader.error(key, error)
    return text


def _depends_on(reader: Reader) -> tuple[tuple[str, str], ...] | None:
    """Return the paths and names in `depends_on`. Null is an error: it could mean "none" or "the step before"."""
    if reader.is_null("depends_on"):
        reader.error("depends_on", "must be a list; [] means that the step depends on nothing")
    items = reader.items("depends_on", limit=MOST_DEPENDENCIES)
    if items is None:
        return None
    names = []
    for path, item in items:
        error = error_of_text(item, limit=100_000)
        if error:
            reader.errors.add(path, error)
        else:
            names.append((path, item))
    return tuple(names)


def _retry(reader: Reader) -> RetryDefinition | None:
    given = read_retry(reader)
    if given is None:
        return None
    standard = RetryDefinition()
    base = given.get("base_seconds", standard.base_seconds)
    retry = RetryDefinition(**{"max_seconds": max(base, standard.max_seconds), **given})
    if "base_seconds" not in given and retry.max_seconds < base:
        path = at(at(reader.path, "retry"), "max_seconds")
        reader.errors.add(path, f"must not be below base_seconds, which is {base:,}")
    return retry


def read_retry(reader: Reader) -> dict[str, Any] | None:
    """Return the members of a retry policy that are set, or None if there is no policy."""
    inner = reader.inner("retry")
    if inner is None:
        return None
    retry: dict[str, Any] = {
        "max_attempts": inner.count("max_attempts", low=1, high=MOST_ATTEMPTS),
        "strategy": inner.choice("strategy", RetryStrategy),
        "base_seconds": inner.amount("base_seconds", low=0, high=LONGEST_DELAY),
        "multiplier": inner.amount("multiplier", low=1, high=100),
        "max_seconds": inner.amount("max_seconds", low=0, high=LONGEST_DELAY),
        "jitter": inner.amount("jitter", low=0, high=1),
    }
    base, longest = retry["base_seconds"], retry["max_seconds"]
    if base is not None and longest is not None and longest < base:
        inner.error("max_seconds", f"must not be below base_seconds, which is {base:,}")
    inner.refuse_other_keys()
    return {name: value for name, value in retry.items() if value is not None}


def _check_assignee(reader: Reader, step: StepDefinition, *, has_more: bool) -> None:
    """Check who does the step. `has_more`: members that the step lacks may come from its template."""
    if step.agent_role and step.human_role:
        reader.error("human_role", "cannot be given together with agent_role: one of them does the step")
    has_assignee = any(reader.value(key) is not None for key in ("agent_role", "human_role"))
    if reader.is_object and not has_assignee and not has_more:
        unless = (
            "because the template has no role" if step.template else "unless human_role or template is given"
        )
        reader.error("agent_role", f"is required, {unless}")
    if step.is_approval_gate and step.agent_role:
        reader.error("is_approval_gate", "is for a person's step; an agent's step has requires_approval")
    if step.requires_approval and step.human_role:
        reader.error("requires_approval", "is for an agent's step; a person's step has is_approval_gate")
    if step.is_approval_gate and step.requires_approval:
        reader.error("requires_approval", "cannot be given together with is_approval_gate")


# How a step asks people: due time, reminders, escalation, votes, and the outcome when nobody answers.


LONGEST_WAIT = 366 * 86_400  # seconds
MOST_REMINDERS = 20  # and steps of an escalation
MOST_VOTERS = 100

#: Only for steps that ask a person for a decision.
_OF_DECISIONS = ("quorum", "voters", "self_approval")
#: Only for steps that ask a person.
OF_PEOPLE = ("due_seconds", "reminders", "escalation", "on_timeout", *_OF_DECISIONS)


def read_people(reader: Reader, known_roles: Collection[str] | None) -> dict[str, Any]:
    """Return the members of a `StepDefinition` that concern people."""
    items = reader.items("reminders", limit=MOST_REMINDERS) or ()
    return {
        "human_role": _human_role(reader, known_roles),
        "due_seconds": reader.amount("due_seconds", low=0, above=True, high=LONGEST_WAIT),
        "reminders": tuple(_reminder(item, path, reader, known_roles) for path, item in items),
        "escalation": _escalation(reader, known_roles),
        "on_timeout": reader.choice("on_timeout", OnTimeout),
        "quorum": reader.count("quorum", low=1, high=MOST_VOTERS),
        "voters": reader.count("voters", low=1, high=MOST_VOTERS),
        "self_approval": reader.flag("self_approval") if reader.value("self_approval") is not None else None,
    }


def _check_people(reader: Reader, step: StepDefinition, *, has_more: bool) -> None:
    """Allow deadlines and votes only for steps that ask a person. `has_more` is as above."""
    if step.agent_role and not step.requires_approval:
        _refuse(reader, step, OF_PEOPLE, "is for a person's step, or an agent's with requires_approval")
    if step.human_role:
        _refuse(
            reader,
            step,
            ("retry", "timeout_seconds"),
            "is for an agent's step; a person's step has due_seconds",
        )
    if step.human_role and not step.is_approval_gate and not has_more:
        _check_task(reader, step)
    if step.voters is not None and step.voters < (step.quorum or 1):
        reader.error("voters", "must not be fewer than quorum")
    if step.on_timeout and step.due_seconds is None and not has_more:
        reader.error("on_timeout", "needs due_seconds")
    _check_times(reader, step, "reminders", step.reminders, "the reminder")
    _check_times(reader, step, "escalation", step.escalation, "the one")


def _check_task(reader: Reader, step: StepDefinition) -> None:
    """Refuse votes and default decisions: a task is completed, not decided."""
    _refuse(
        reader, step, _OF_DECISIONS, "is for a step with is_approval_gate: a task is completed, not decided"
    )
    if step.on_timeout in (OnTimeout.APPROVE, OnTimeout.REJECT):
        reader.error(
            "on_timeout", "can only be escalate, unless is_approval_gate is true: nobody decides a task"
        )


def _refuse(reader: Reader, step: StepDefinition, keys: Sequence[str], message: str) -> None:
    for key in keys:
        if getattr(step, key) not in (None, ()):
            reader.error(key, message)


def _check_times(
    reader: Reader, step: StepDefinition, key: str, chain: Sequence[ReminderDefinition | EscalationDefinition], what: str
) -> None:  # fmt: skip
    previous = 0.0
    for index, item in enumerate(chain):
        path = f"{reader.path}.{key}[{index}]"
        if step.due_seconds and item.after_seconds >= step.due_seconds:
            reader.errors.add(path, f"must come before due_seconds, which is {step.due_seconds:,}")
        if 0 < item.after_seconds <= previous:
            reader.errors.add(path, f"must come after {what} before it")
        previous = max(previous, item.after_seconds)


def _human_role(reader: Reader, known_roles: Collection[str] | None) -> str | None:
    if known_roles is not None:
        return reader.read_known("human_role", "role", known_roles)
    return reader.name("human_role", limit=63)


def _reminder(
    item: Any, path: str, reader: Reader, known_roles: Collection[str] | None
) -> ReminderDefinition:
    """Read a reminder: a number of seconds, or an object that also names a role."""
    if not isinstance(item, Mapping):
        error = error_of_amount(item, low=0, above=True, high=LONGEST_WAIT)
        if error:
            reader.errors.add(path, error)
        return ReminderDefinition(0 if error else number(item) or 0)
    after, role = _read_delay_and_role(Reader(item, path, reader.copier), known_roles)
    return ReminderDefinition(after, role)


def _escalation(reader: Reader, known_roles: Collection[str] | None) -> tuple[EscalationDefinition, ...]:
    items = reader.items("escalation", limit=MOST_REMINDERS) or ()
    levels = []
    for path, item in items:
        inner = Reader(item, path, reader.copier)
        after, role = _read_delay_and_role(inner, known_roles)
        inner.require("human_role")
        levels.append(EscalationDefinition(after, role or ""))
    return tuple(levels)


def _read_delay_and_role(inner: Reader, known_roles: Collection[str] | None) -> tuple[float, str | None]:
    after = inner.amount("after_seconds", low=0, above=True, high=LONGEST_WAIT)
    role = _human_role(inner, known_roles)
    inner.require("after_seconds")
    inner.refuse_other_keys()
    return after or 0, role
