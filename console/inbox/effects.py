"""What an answer sets going: the agent that wakes, the steps that start, the round that begins. In words, before anybody answers.

Reads only, in the caller's `tenant_scope`. It says what would follow now; what follows is decided when the answer is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from activities.states import LinkKind, Status
from console.labels import kind_of
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.subjects import subject_of
from pipelines.versions import Compiled

MOST_STEPS = 8
_SETTLED = ("done", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Consequence:
    """`after` is the answer that leads to it; empty when any does."""

    after: str
    words: str


@dataclass(frozen=True, slots=True)
class About:
    """What is known about an item that is asked of people."""

    item: Any
    relation: str | None  # what the item is to `waits`, as a LinkKind
    subject: Any | None  # the activity that it is about
    waits: Any | None  # the activity that waits for the answer
    place: Place | None
    linked: int  # activities that wait for this approval


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a pipeline an item stands."""

    run_id: Any
    about: str  # what the run is about
    pipeline: str
    version: int
    step: str
    number: int  # of the round
    following: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()


def place_of(item: Any, subject: Any | None) -> Place | None:
    """The step of the run that an item belongs to, by itself or through what it is about."""
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
    """Each next step, with what else it waits for."""
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
        yield f"{len(following) - MOST_STEPS} further steps are looked at"


def consequences(about: About) -> list[Consequence]:
    """What each answer leads to."""
    kind = kind_of(about.item.link_kind, is_approval_gate=about.item.is_approval_gate)
    if about.relation == LinkKind.RESOLUTION:
        kind = "resolution"  # also when it was handed on to somebody else
    return list(_TOLD[kind](about))


Told = Iterator[Consequence]


def _of_gate(about: About) -> Told:
    item, place = about.item, about.place
    what = "the result counts" if item.link_kind == LinkKind.GATE else "the work goes on"
    yield Consequence("Approve", _sentence([what, *_next(place)]))
    if item.link_kind == LinkKind.REASSIGNED_FROM:
        yield Consequence("Send back", "The step fails: the work was handed to people, and no agent has it.")
    elif item.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        yield Consequence("Send back", "No further round begins by itself: people are asked what to do.")
    elif item.link_kind == LinkKind.GATE and about.subject is not None:
        role = about.subject.agent_role
        yield Consequence("Send back", f"{role} begins round {item.round + 1} with your notes.")
    elif place is not None and place.producers:
        yield Consequence("Send back", f"{_list_names(place.producers)} is done again with your notes.")
    else:
        closed = "No agent made this, so the step fails." if place else "It is closed as rejected."
        yield Consequence("Send back", closed)


def _of_approval(about: About) -> Told:
    if about.linked:
        who, them = (
            ("1 activity wakes", "it") if about.linked == 1 else (f"{about.linked} activities wake", "them")
        )
        yield Consequence(
            "", f"{who} with your answer, whatever it is, as soon as nothing else holds {them}."
        )
    else:
        yield Consequence("", "No activity waits for it; the answer is kept.")


def _of_waiting_agent(about: About) -> Told:
    """A review or a blocker."""
    waits = about.waits
    if waits is None or waits.status not in (Status.BLOCKED, Status.AWAITING_REVIEW):
        yield Consequence("", "Nothing waits for it any more; the answer is kept.")
        return
    yield Consequence("", f"{waits.agent_role} wakes with your answer and goes on with “{waits.name}”.")


def _of_task(about: About) -> Told:
    waits = about.waits
    if about.relation == LinkKind.SUBTASK and waits is not None:
        if waits.status == Status.AWAITING_SUBTASK:
            goes_on = f"{waits.agent_role} wakes with your result and goes on with “{waits.name}”."
        else:
            goes_on = f"The result is kept; {waits.agent_role} does not wait for it."
        yield Consequence("Complete", goes_on)
    elif about.place is not None:
        yield Consequence("Complete", _sentence(_next(about.place)))
    else:
        yield Consequence("Complete", "Nothing else waits for it.")


def _of_escalation(about: About) -> Told:
    failed = about.subject
    if failed is not None and failed.status in (Status.FAILED, Status.NEEDS_REVIEW):
        goes_on = ", and its pipeline run goes on" if failed.pipeline_run_id else ""
        yield Consequence("Try again", f"{failed.agent_role} starts again with all its attempts{goes_on}.")
        yield Consequence("Cancel the work", "It ends without a result, and what depends on it is told.")
    yield Consequence("Close", "This question closes; the work stays as it is.")


_TOLD = {
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
    return list(place.following) or ["no step follows in the pipeline"]


def _sentence(parts: Sequence[str]) -> str:
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]}."


def _list_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
