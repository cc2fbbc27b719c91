"""Handles steps that wait: for outputs in MongoDB, for room in a backlog, or for their dependencies for too long.

A waiting step is marked in the transaction in which it would have been decided or started, so it is never lost. If a process dies, the
mark remains. Two processes that handle the same run do so one after the other, and the second has nothing left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.db.models import Max, Min, Q, QuerySet
from django.db.models.functions import Now

from activities import activity_tree, outputs
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from activities.pauses import read_pauses
from activities.states import LIVE, Status
from pipelines import inputs, progression, versions
from pipelines.graph import SETTLED, StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason
from pipelines.progression import Known
from pipelines.versions import Compiled
from tenants import clock, outages, sweeps
from tenants.context import tenant_scope
from tenants.models import BudgetWait
from tenants.sweeps import TURN_SECONDS, Sweep

logger = logging.getLogger(__name__)

_UNADMITTED, _OVERDUE, _UNDECIDED = Sweep[Any](), Sweep[Any](), Sweep[Any]()


# Steps for which there was no room in their role's backlog: they start when there is room. Work that is submitted while there is room does
# not wait for them.


def steps_unadmitted() -> QuerySet[StepRun]:
    """Return the steps that wait for room, of all tenants."""
    return StepRun.objects.filter(reason=StepReason.BACKLOG, status=StepState.PENDING)


def admit_steps(*, within: float = TURN_SECONDS) -> int:
    """Start the steps for which there is room now, oldest runs first, and return how many. A failure does not stop the others."""
    started = 0
    full: set[tuple[UUID, str | None]] = set()
    marked = sweeps.pages(steps_unadmitted(), "run_id", "pk", "tenant_id", "run__version_id", "step")
    for run_id, rows in groupby(_UNADMITTED.turn(marked, within=within), itemgetter(0)):
        *_, tenants, versions_of_steps, steps = zip(*rows, strict=True)
        tenant_id, version_id = tenants[0], versions_of_steps[0]
        with outages.one_of_many(
            logger, "A step that waits for room could not be started", action="step_not_admitted",
            tenant=str(tenant_id), run=str(run_id),
        ):  # fmt: skip
            if {(tenant_id, role) for role in _roles_of(tenant_id, version_id, steps)} <= full:
                continue
            roles_without_room = admit(tenant_id, run_id)
            full |= {(tenant_id, role) for role in roles_without_room}
            started += len(steps) - len(roles_without_room)
    return started


def admit(tenant_id: UUID, run_id: UUID) -> list[str | None]:
    """Start the marked steps of one run for which there is room. Return the roles of the others. Idempotent."""
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        marked = steps_unadmitted().filter(tenant_id=tenant_id, run_id=run_id)
        if run.status != RunState.RUNNING or not marked.update(reason=""):
            return []
        plan = versions.compile_version(run.version_id)
        progression.start_following(run, plan, plan.graph.advance(progression.states_of(run_id)))
        return [plan.step(step).agent_role for step in marked.all().values_list("step", flat=True)]


def _roles_of(tenant_id: UUID, version_id: UUID, steps: Iterable[str]) -> list[str | None]:
    with tenant_scope(tenant_id):
        plan = versions.compile_version(version_id)
    return [plan.step(step).agent_role for step in steps]


# Steps that have waited too long for their dependencies: they fail, and their run continues by its rules.
#
# The `dependency_timeout_seconds` of a step begin when the first of its dependencies starts to work. Time that people take does not count:
# the timeout does not expire while a person is asked, and it restarts with the last answer in the run. If work that the step waits for is
# paused or switched off, has a later date, or waits for money or for room in a backlog when the time is over, the time begins again.
# Subtasks that this work waits for count as well. `waits_until` on a step's row is the time of the next check, and never too late.


CODE = "dependency_timeout"
MOST_NAMED = 3  # slow steps that the error lists; it counts the rest

#: An agent's activity in these states waits for people.
_WAITING_FOR_PEOPLE = (Status.AWAITING_APPROVAL, Status.AWAITING_REVIEW, Status.BLOCKED)


def steps_overdue() -> QuerySet[StepRun]:
    """Return the steps whose time is over, of all tenants."""
    return StepRun.objects.filter(waits_until__lte=Now())


def fail_overdue(*, now: datetime | None = None) -> int:
    """Fail the steps that have waited too long, and return how many. `now` replaces the current time."""
    now = now or clock.now()
    due = StepRun.objects.filter(waits_until__lte=now)
    rows = sweeps.pages(due, "waits_until", "pk", "tenant_id", "run_id", "step")
    failed = 0
    for *_, tenant_id, run_id, step in _OVERDUE.turn(rows):
        with outages.one_of_many(
            logger, "An overdue step could not be failed", action="step_overdue",
            tenant=str(tenant_id), run=str(run_id), step=step,
        ):  # fmt: skip
            failed += fail_if_overdue(tenant_id, run_id, step, now=now)
    return failed


def fail_if_overdue(tenant_id: UUID, run_id: UUID, step: str, *, now: datetime) -> bool:
    """Fail one step if its time is over, or give it more time. Return whether it failed. Idempotent."""
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        rows = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step=step, branch=0, waits_until__lte=now
        )
        row = rows.first()
        if row is None:
            return False
        plan = versions.compile_version(run.version_id)
        states = progression.states_of(run.pk)
        slow = [each for each in plan.graph.dependencies_of(step) if states.get(each) not in SETTLED]
        if run.status != RunState.RUNNING or row.status != StepState.PENDING or not slow:
            rows.update(waits_until=None)  # It no longer waits.
            return False
        more = _more_time(run, plan, step, now)
        if more is not None:
            rows.update(waits_until=more)
            return False
        _fail(run, plan, step, slow)
        return True


def _more_time(run: PipelineRun, plan: Compiled, step: str, now: datetime) -> datetime | None:
    """Return until when the step may still wait, or None if its time is over."""
    patience = timedelta(seconds=plan.patience_of(step))
    started = _first_start(run, plan.graph.dependencies_of(step))
    before = plan.graph.ancestors_of(step)
    if started is None or steps_unadmitted().filter(run_id=run.pk, step__in=before).exists():
        return now + patience
    active = _active_activities(run, before)
    if _with_people(run.tenant_id, active) or _is_held_back(run.tenant_id, active, now):
        return now + patience
    answers = Activity.objects.for_tenant(run.tenant_id).filter(pipeline_run_id=run.pk, assignee_type="human")
    answered = answers.aggregate(last=Max("finished_at"))["last"]
    until: datetime = max(started, answered or started) + patience
    return until if until > now else None


def _first_start(run: PipelineRun, steps: Iterable[str]) -> datetime | None:
    """Return when the first of these steps started to work. Waiting for a worker does not count."""
    done_by = StepRun.objects.for_tenant(run.tenant_id).filter(run_id=run.pk, step__in=list(steps))
    activities = Activity.objects.for_tenant(run.tenant_id).filter(pk__in=done_by.values("activity_id"))
    return activities.aggregate(first=Min("started_at"))["first"]


def _active_activities(run: PipelineRun, steps: Iterable[str]) -> list[UUID]:
    """Return the activities that do the work of these steps, and the subtasks for which they wait, at any depth."""
    active = StepRun.objects.for_tenant(run.tenant_id).filter(
        run_id=run.pk, step__in=list(steps), status=StepState.ACTIVE
    )
    found: list[UUID] = []
    ids = [each for each in active.values_list("activity_id", flat=True) if each is not None]
    while ids:
        found += ids
        parents = Activity.objects.for_tenant(run.tenant_id).filter(
            pk__in=ids, status=Status.AWAITING_SUBTASK
        )
        awaited = activity_tree.counterparts_of(run.tenant_id, parents).values()
        ids = [each.pk for each in chain.from_iterable(awaited)]
    return found


def _with_people(tenant_id: UUID, activity_ids: Sequence[UUID]) -> bool:
    activities = Activity.objects.for_tenant(tenant_id).filter(status__in=LIVE)
    of_people = Q(pk__in=activity_ids) & (Q(assignee_type="human") | Q(status__in=_WAITING_FOR_PEOPLE))
    questions = Q(parent_id__in=activity_ids, assignee_type="human")
    return activities.filter(of_people | questions).exists()


def _is_held_back(tenant_id: UUID, activity_ids: Sequence[UUID], now: datetime) -> bool:
    """Whether one of these cannot start because of a pause, a switch, a date or a budget."""
    rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=activity_ids, status=Status.CREATED)
    if BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=rows.values("pk")).exists():
        return True
    waiting = list(rows.only("agent_role", "pipeline_id", "schedule_id", "run_now_at", "not_before"))
    if any(each.not_before is not None and each.not_before > now for each in waiting):
        return True
    paused = read_pauses(tenant_id, {each.agent_role for each in waiting if each.agent_role})
    return any(paused.of(each) is not None for each in waiting)


def _fail(run: PipelineRun, plan: Compiled, step: str, slow: Sequence[str]) -> None:
    more = f" and {len(slow) - MOST_NAMED} more" if len(slow) > MOST_NAMED else ""
    named = ", ".join(slow[:MOST_NAMED]) + more
    verb = "has" if len(slow) == 1 else "have"
    message = f"{named} {verb} not ended within {plan.patience_of(step):,.10g} s."
    progression.give_up(run, plan, step, CODE, message)


# Steps whose conditions read outputs that have moved to MongoDB: the outputs are read outside of any transaction, then the step is decided
# under the run's lock.


def runs_undecided() -> QuerySet[StepRun]:
    """Return the steps to decide, of all tenants."""
    return StepRun.objects.filter(reason=StepReason.EVALUATING)


def decide_waiting() -> int:
    """Decide all waiting steps, and return for how many runs. A failure is retried at the next hint and does not stop the others.

    A MongoDB that is unavailable ends the turn, because each run would wait for it, and the worker has other tasks.
    """
    runs = sweeps.pages(runs_undecided().distinct(), "run_id", "tenant_id")
    decided = 0
    for run_id, tenant_id in _UNDECIDED.turn(runs):
        with outages.one_of_many(
            logger,
            "A step could not be decided",
            action="step_undecided",
            tenant=str(tenant_id),
            run=str(run_id),
        ):
            try:
                decide_run(tenant_id, run_id)
            except OutputUnavailable:
                break  # the mark remains
            decided += 1
    return decided


def decide_run(tenant_id: UUID, run_id: UUID) -> None:
    """Decide the marked steps of one run. Idempotent. Raises `OutputUnavailable`."""
    steps, known = _read(tenant_id, run_id)
    if not steps:
        return
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step__in=steps, reason=StepReason.EVALUATING
        )
        # Read the states again, because a dependency may have been rejected meanwhile.
        if marked.update(reason="") and run.status == RunState.RUNNING:
            plan = versions.compile_version(run.version_id)
            following = plan.graph.advance(progression.states_of(run_id))
            progression.start_following(run, plan, following, known=known)


def _read(tenant_id: UUID, run_id: UUID) -> tuple[list[str], Known]:
    """Read the marked steps, and the outputs for their expressions that are not in PostgreSQL."""
    with tenant_scope(tenant_id):
        run = PipelineRun.objects.for_tenant(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, reason=StepReason.EVALUATING)
        steps = list(marked.values_list("step", flat=True))
        missing = inputs.read_inputs(
            tenant_id, run_id, versions.compile_version(run.version_id), steps, {}
        ).missing
    stored = outputs.read_many(tenant_id, missing) if missing else {}
    return steps, {reference: stored.get(reference) for reference in missing}
