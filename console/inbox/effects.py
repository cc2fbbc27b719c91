"""Describes the consequences of each answer before it is given: which agent wakes, which steps start, which round begins.

Reads only, in the caller's `tenant_scope`. It describes the state of now; the engine decides when the answer takes effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from activities.decision_rules import DecisionRules
from activities.states import LinkKind, Status
from console.labels import kind_of
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.subjects import subject_of
from pipelines.versions import Compiled

MOST_STEPS = 8
REJECT = "Request changes"  # the label of the button
_SETTLED = ("done", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Consequence:
    """A consequence. `after` is the answer that has it; empty if every answer has it."""

    after: str
    words: str


@dataclass(frozen=True, slots=True)
class About:
    """The facts about an item that its consequences depend on."""

    item: Any
    relation: str | None  # the LinkKind from the item to `waits`
    subject: Any | None  # the activity that it is about
    waits: Any | None  # the activity that waits for the answer
    place: Place | None
    linked: int  # activities that wait for this approval


@dataclass(frozen=True, slots=True)
class Place:
    """The step of a pipeline run that an item belongs to."""

    run_id: Any
    about: str  # the run's subject
    pipeline: str
    version: int
    step: str
    number: int  # of the round
    following: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()


def place_of(item: Any, subject: Any | None) -> Place | None:
    """Return the step that the item, or the activity that it is about, belongs to."""
    about = item if item.pipeline_run_id and item.step else subject
    if about is None or about.pipeline_run_id is None or about.step is None:
        return None
    runs = PipelineRun.objects.for_tenant(item.tenant_id).select_related("version__pipeline")
    run = runs.defer("input", "version__definition").filter(pk=about.pipeline_run_id).first()
    plan = versions.compile_version(run.version_id) if run else None
    if run is None or plan is None or about.step not in plan.graph.dependencies:
        return None
    return Place(
        run_id=run.pk,
        about=subject_of(run.name, run.params),
        pipeline=run.version.pipeline.name,
        version=run.version.number,
        step=plan.step(about.step).title,
        number=about.round,
        following=tuple(_following(run, plan, about.step)),
        producers=tuple(
            plan.step(step).title
            for step in plan.graph.dependencies_of(about.step)
            if plan.step(step).agent_role
        ),
    )


def _following(run: Any, plan: Compiled, step: str) -> Iterator[str]:
    """Describe each next step, with the other steps that it waits for."""
    following = plan.graph.dependents_of(step)
    needed = {need for name in following[:MOST_STEPS] for need in plan.graph.dependencies_of(name)}
    steps = StepRun.objects.for_tenant(run.tenant_id).filter(
        run_id=run.pk, step__in={*needed, *following}, branch=0
    )
    states = dict(steps.values_list("step", "status"))
    for name in following[:MOST_STEPS]:
        if states.get(name) != "pending":
            continue
        others = [
            plan.step(need).title
            for need in plan.graph.dependencies_of(name)
            if need != step and states.get(need) not in _SETTLED
        ]
        title = plan.step(name).title
        yield f"{title} still waits for {_list_names(others)}" if others else f"{title} starts"
    if len(following) > MOST_STEPS:
        more = len(following) - MOST_STEPS
        yield "1 more step follows" if more == 1 else f"{more} more steps follow"


def consequences(about: About) -> list[Consequence]:
    """Return the consequences of each answer."""
    kind = kind_of(about.item.link_kind, is_approval_gate=about.item.is_approval_gate)
    if about.relation == LinkKind.RESOLUTION:
        kind = "resolution"  # also after it was reassigned
    return [*_of_vote(about.item), *_BY_KIND[kind](about)]


def _of_vote(item: Any) -> Iterator[Consequence]:
    if DecisionRules.read(item.decision_rules).is_voted_on:
        yield Consequence("", "Your answer is one vote. The following happens when enough people agree.")


def _of_gate(about: About) -> Iterator[Consequence]:
    item, place = about.item, about.place
    what = "the result is accepted" if item.link_kind == LinkKind.GATE else "the work continues"
    yield Consequence("Approve", _sentence([what, *_next(place)]))
    if item.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        yield Consequence(REJECT, "The limit of rounds is reached: an operator has to decide what to do.")
    elif item.link_kind == LinkKind.GATE and about.subject is not None:
        role = about.subject.agent_role
        yield Consequence(REJECT, f"{role} starts round {item.round + 1} with your notes.")
    elif item.branch:
        yield Consequence(REJECT, "This part of the step fails.")
    elif place is not None and place.producers:
        yield Consequence(REJECT, f"{_list_names(place.producers)} runs again with your notes.")
    elif item.link_kind == LinkKind.REASSIGNED_FROM:
        yield Consequence(
            REJECT, "The step fails: the work was reassigned to people, so no agent can revise it."
        )
    else:
        closed = "No agent produced this, so the step fails." if place else "The item is closed as rejected."
        yield Consequence(REJECT, closed)


def _of_approval(about: About) -> Iterator[Consequence]:
    if about.linked:
        who, them = (
            ("1 activity wakes", "it") if about.linked == 1 else (f"{about.linked} activities wake", "them")
        )
        yield Consequence("", f"{who} with your answer, unless something else still blocks {them}.")
    else:
        yield Consequence("", "No activity waits for this; the answer is stored.")


def _of_waiting_agent(about: About) -> Iterator[Consequence]:
    waits = about.waits
    if waits is None or waits.status not in (Status.BLOCKED, Status.AWAITING_REVIEW):
        yield Consequence("", "Nothing waits for this any more; the answer is stored.")
        return
    yield Consequence("", f"{waits.agent_role} wakes with your answer and continues “{waits.name}”.")


def _of_task(about: About) -> Iterator[Consequence]:
    waits = about.waits
    if about.relation == LinkKind.SUBTASK and waits is not None:
        if waits.status == Status.AWAITING_SUBTASK:
            effect = f"{waits.agent_role} wakes with your result and continues “{waits.name}”."
        else:
            effect = f"The result is stored; {waits.agent_role} does not wait for it."
        yield Consequence("Complete", effect)
    elif about.place is not None:
        yield Consequence("Complete", _sentence(_next(about.place)))
    else:
        yield Consequence("Complete", "Nothing else waits for this.")


def _of_escalation(about: About) -> Iterator[Consequence]:
    failed = about.subject
    if failed is not None and failed.status in (Status.FAILED, Status.NEEDS_REVIEW):
        run = ", and its pipeline run continues" if failed.pipeline_run_id else ""
        yield Consequence("Retry", f"{failed.agent_role} starts again with all its attempts{run}.")
        yield Consequence("Cancel the work", "It ends without a result, and dependent work is notified.")
    yield Consequence("Close", "This item closes; the failed work stays as it is.")


_BY_KIND = {
    "gate": _of_gate,
    "approval": _of_approval,
    "review": _of_waiting_agent,
    "resolution": _of_waiting_agent,
    "task": _of_task,
    "escalation": _of_escalation,
}


def _next(place: Place | None) -> list[str]:
    if place is None:
        return []
    return list(place.following) or ["it is the last step of the pipeline"]


def _sentence(parts: Sequence[str]) -> str:
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]}."


def _list_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
