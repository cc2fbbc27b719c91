"""Reads how a step asks people: by when, who is reminded, who is asked next, how many must agree, what happens when nobody answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipelines.definition.reading import Reader, fault_of_amount
from pipelines.definition.shapes import EscalationDefinition, OnTimeout, ReminderDefinition, StepDefinition
from pipelines.definition.values import number

LONGEST_WAIT = 366 * 86_400  # seconds
MOST_REMINDERS = 20  # and steps of an escalation
MOST_VOTERS = 100

#: Without a person who answers yes or no these mean nothing.
_OF_DECISIONS = ("quorum", "voters", "self_approval")
#: Without a person who is asked these mean nothing.
OF_PEOPLE = ("due_seconds", "reminders", "escalation", "on_timeout", *_OF_DECISIONS)


def read_people(reader: Reader, known_roles: Collection[str] | None) -> dict[str, Any]:
    """The members of a `StepDefinition` that are about people."""
    return {
        "human_role": _human_role(reader, known_roles),
        "due_seconds": reader.amount("due_seconds", low=0, above=True, high=LONGEST_WAIT),
        "reminders": _reminders(reader, known_roles),
        "escalation": _escalation(reader, known_roles),
        "on_timeout": reader.choice("on_timeout", OnTimeout),
        "quorum": reader.count("quorum", low=1, high=MOST_VOTERS),
        "voters": reader.count("voters", low=1, high=MOST_VOTERS),
        "self_approval": reader.flag("self_approval") if reader.value("self_approval") is not None else None,
    }


def check_people(reader: Reader, step: StepDefinition) -> None:
    """Whoever is asked can be late; whoever is not asked cannot. A template may yet say who does the step."""
    if step.agent_role and not step.requires_approval:
        _refuse(reader, step, OF_PEOPLE, "is for a person's step, or an agent's with requires_approval")
    if step.human_role:
        _refuse(
            reader,
            step,
            ("retry", "timeout_seconds"),
            "is for an agent's step; a person's step has due_seconds",
        )
    if step.human_role and not step.is_approval_gate and step.template is None:
        _check_task(reader, step)
    if step.voters is not None and step.voters < (step.quorum or 1):
        reader.fault("voters", "must not be fewer than quorum")
    if step.on_timeout and step.due_seconds is None and not step.template:
        reader.fault("on_timeout", "needs due_seconds")
    _check_times(reader, step, "reminders", step.reminders, "the reminder")
    _check_times(reader, step, "escalation", step.escalation, "the one")


def _check_task(reader: Reader, step: StepDefinition) -> None:
    """A task is completed and not decided."""
    _refuse(
        reader, step, _OF_DECISIONS, "is for a step with is_approval_gate: a task is completed, not decided"
    )
    if step.on_timeout in (OnTimeout.APPROVE, OnTimeout.REJECT):
        reader.fault(
            "on_timeout", "can only be escalate, unless is_approval_gate is true: nobody decides a task"
        )


def _refuse(reader: Reader, step: StepDefinition, keys: Sequence[str], message: str) -> None:
    for key in keys:
        if getattr(step, key) not in (None, ()):
            reader.fault(key, message)


def _check_times(
    reader: Reader, step: StepDefinition, key: str, chain: Sequence[ReminderDefinition | EscalationDefinition], what: str
) -> None:  # fmt: skip
    previous = 0.0
    for index, later in enumerate(chain):
        path = f"{reader.path}.{key}[{index}]"
        if step.due_seconds and later.after_seconds >= step.due_seconds:
            reader.faults.add(path, f"must come before due_seconds, which is {step.due_seconds:,}")
        if 0 < later.after_seconds <= previous:
            reader.faults.add(path, f"must come after {what} before it")
        previous = max(previous, later.after_seconds)


def _human_role(reader: Reader, known_roles: Collection[str] | None) -> str | None:
    if known_roles is not None:
        return reader.known("human_role", "role", known_roles)
    return reader.name("human_role", limit=63)


def _reminders(reader: Reader, known_roles: Collection[str] | None) -> tuple[ReminderDefinition, ...]:
    items = reader.items("reminders", limit=MOST_REMINDERS) or ()
    return tuple(_reminder(item, path, reader, known_roles) for path, item in items)


def _reminder(
    item: Any, path: str, reader: Reader, known_roles: Collection[str] | None
) -> ReminderDefinition:
    """A number of seconds, or an object that also names a role."""
    if not isinstance(item, Mapping):
        fault = fault_of_amount(item, low=0, above=True, high=LONGEST_WAIT)
        if fault:
            reader.faults.add(path, fault)
        return ReminderDefinition(0 if fault else number(item) or 0)
    after, role = _later(Reader(item, path, reader.copier), known_roles)
    return ReminderDefinition(after, role)


def _escalation(reader: Reader, known_roles: Collection[str] | None) -> tuple[EscalationDefinition, ...]:
    items = reader.items("escalation", limit=MOST_REMINDERS) or ()
    found = []
    for path, item in items:
        inner = Reader(item, path, reader.copier)
        after, role = _later(inner, known_roles)
        inner.require("human_role")
        found.append(EscalationDefinition(after, role or ""))
    return tuple(found)


def _later(inner: Reader, known_roles: Collection[str] | None) -> tuple[float, str | None]:
    after = inner.amount("after_seconds", low=0, above=True, high=LONGEST_WAIT)
    role = _human_role(inner, known_roles)
    inner.require("after_seconds")
    inner.refuse_other_keys()
    return after or 0, role
