"""Reads one step, with everything about it that can be told without looking at the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.definition.people import LONGEST_WAIT, check_people, read_people
from pipelines.definition.reading import Reader, fault_of_text
from pipelines.definition.shapes import RetryDefinition, RetryStrategy, StepDefinition
from pipelines.graph import UpstreamFailure

DAY = 86_400  # seconds
LONGEST_RUN = 7 * DAY  # well above a provider's batch, which may take a day
LONGEST_EXPRESSION = 2_000  # characters
MOST_DEPENDENCIES = 2_000
MOST_ATTEMPTS = 50
LONGEST_DELAY = DAY  # between two attempts


@dataclass(frozen=True, slots=True)
class World:
    """What exists outside the definition."""

    roles: frozenset[str]
    templates: frozenset[str]
    human_roles: frozenset[str] | None
    check_expression: Callable[[str], str | None] | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A step with what it says it depends on, yet unchecked: paths and names, or None if it says nothing."""

    step: StepDefinition
    path: str
    depends_on: tuple[tuple[str, str], ...] | None


def read_step(reader: Reader, world: World) -> Draft:
    step = StepDefinition(
        id=reader.identifier("id") or "",
        name=reader.name("name"),
        description=reader.text("description", limit=20_000, blank=True) or "",
        template=reader.known("template", "template", world.templates),
        agent_role=reader.known("agent_role", "role", world.roles),
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
    _check_assignee(reader, step)
    check_people(reader, step)
    reader.refuse_other_keys()
    return Draft(step, reader.path, depends_on)


def _expression(reader: Reader, key: str, world: World) -> str | None:
    text = reader.text(key, limit=LONGEST_EXPRESSION)
    fault = world.check_expression(text) if text is not None and world.check_expression else None
    if fault:
        reader.fault(key, fault)
    return text


def _depends_on(reader: Reader) -> tuple[tuple[str, str], ...] | None:
    """What the step names. A null is refused here: it could mean "none" as well as "the step before"."""
    if reader.is_null("depends_on"):
        reader.fault("depends_on", "must be a list; [] means that the step depends on nothing")
    items = reader.items("depends_on", limit=MOST_DEPENDENCIES)
    if items is None:
        return None
    named = []
    for path, item in items:
        fault = fault_of_text(item, limit=100_000)
        if fault:
            reader.faults.add(path, fault)
        else:
            named.append((path, item))
    return tuple(named)


def _retry(reader: Reader) -> RetryDefinition | None:
    inner = reader.inner("retry")
    if inner is None:
        return None
    standard = RetryDefinition()
    base = _or(inner.amount("base_seconds", low=0, high=LONGEST_DELAY), standard.base_seconds)
    longest = inner.amount("max_seconds", low=0, high=LONGEST_DELAY)
    if longest is not None and longest < base:
        inner.fault("max_seconds", f"must not be below base_seconds, which is {base:,}")
    retry = RetryDefinition(
        max_attempts=inner.count("max_attempts", low=1, high=MOST_ATTEMPTS) or standard.max_attempts,
        strategy=inner.choice("strategy", RetryStrategy) or standard.strategy,
        base_seconds=base,
        multiplier=_or(inner.amount("multiplier", low=1, high=100), standard.multiplier),
        max_seconds=_or(longest, max(base, standard.max_seconds)),
        jitter=_or(inner.amount("jitter", low=0, high=1), standard.jitter),
    )
    inner.refuse_other_keys()
    return retry


def _or(found: float | None, standard: float) -> float:
    return standard if found is None else found


def _check_assignee(reader: Reader, step: StepDefinition) -> None:
    if step.agent_role and step.human_role:
        reader.fault("human_role", "cannot be given together with agent_role: one of them does the step")
    given = any(reader.value(key) is not None for key in ("agent_role", "human_role", "template"))
    if reader.is_object and not given:
        reader.faults.add(reader.path, "agent_role, human_role or template is missing")
    if step.is_approval_gate and step.agent_role:
        reader.fault("is_approval_gate", "is for a person's step; an agent's step has requires_approval")
    if step.requires_approval and step.human_role:
        reader.fault("requires_approval", "is for an agent's step; a person's step has is_approval_gate")
    if step.is_approval_gate and step.requires_approval:
        reader.fault("requires_approval", "cannot be given together with is_approval_gate")
