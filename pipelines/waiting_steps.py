"""Steps of runs under way that wait, marked: for outputs in MongoDB, for room in a backlog, or too long for what they depend on.

A step is marked in the transaction in which it would have been decided or started, so it is never lost. A process that dies meanwhile
leaves the mark; two that look at the same run do so one after the other, and the second finds nothing left to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max, Min, Q, QuerySet
from django.db.models.functions import Now

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from activities.states import LIVE, Status
from pipelines.graph import SETTLED, StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason
from pipelines.progression import Known
from pipelines.versions import Compiled
from tenants import clock, outages
from tenants.context import system_scope, tenant_scope

from . import inputs, progression, starting, versions

logger = logging.getLogger(__name__)

PAGE = 500
AT_ONCE = 1_000  # steps or runs that are looked at in one go
TURN_SECONDS = 20.0  # Then the queue gets its worker back. While steps wait, the next hint is on its way.


# Steps for which there was no room in their role's backlog: they start when there is some. Work that is submitted while there is room does
# not wait for them.


def steps_unadmitted() -> QuerySet[StepRun]:
    """Steps without room, of all tenants."""
    rows: QuerySet[StepRun] = StepRun.objects.filter(reason=StepReason.BACKLOG, status=StepState.PENDING)
    return rows


def admit_steps(*, within: float = TURN_SECONDS) -> int:
    """Start what there is room for by now, oldest runs first; how many steps that were. One that cannot be started holds up no other."""
    until, started = time.monotonic() + within, 0
    full: set[tuple[UUID, str | None]] = set()
    for tenant_id, run_id, roles in _runs():
        if {(tenant_id, role) for role in roles} <= full:
            continue
        try:
            still = admit(tenant_id, run_id)
        except Exception as error:
            if outages.may_pass(error):
                raise
            facts = {"action": "step_not_admitted", "tenant": str(tenant_id), "run": str(run_id)}
            logger.exception("A step that waits for room could not be looked at", extra=facts)
            continue
        full |= {(tenant_id, role) for role in still}
        started += len(roles) - len(still)
        if time.monotonic() > until:
            break
    return started


def admit(tenant_id: UUID, run_id: UUID) -> list[str | None]:
    """Start the marked steps of one run for which there is room; the roles of those for which there is none. Idempotent."""
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        marked = steps_unadmitted().filter(tenant_id=tenant_id, run_id=run_id)
        if run.status != RunState.RUNNING or not marked.update(reason=""):
            return []
        plan = versions.compile_version(run.version_id)
        progression.start_following(run, plan, plan.graph.advance(progression.states_of(run_id)))
        return [plan.step(step).agent_role for step in marked.all().values_list("step", flat=True)]


def _runs() -> Iterator[tuple[UUID, UUID, list[str | None]]]:
    """Tenant, run, and the roles of its marked steps."""
    last: UUID | None = None
    while True:
        with system_scope():
            rows = steps_unadmitted() if last is None else steps_unadmitted().filter(run_id__gt=last)
            runs = list(rows.order_by("run_id").values_list("run_id", flat=True).distinct()[:PAGE])
            marked: Any = steps_unadmitted().filter(run_id__in=runs).order_by("run_id")
            found = list(marked.values_list("tenant_id", "run_id", "run__version_id", "step"))
        by_run: dict[UUID, tuple[UUID, UUID, list[str]]] = {}
        for tenant_id, run_id, version_id, step in found:
            by_run.setdefault(run_id, (tenant_id, version_id, []))[2].append(step)
        for run_id, (tenant_id, version_id, steps) in by_run.items():
            with tenant_scope(tenant_id):
                plan = versions.compile_version(version_id)
            yield tenant_id, run_id, [plan.step(step).agent_role for step in steps]
        if len(runs) < PAGE:
            return
        last = runs[-1]


# Steps that have waited too long for what they depend on: they fail, and their run goes on by its rules.
#
# The time begins when the work of the first of a step's dependencies begins, and lasts as long as the step's
# `dependency_timeout_seconds` says. What people take does not count: while one of them is asked, and again from the last answer that was
# given in the run. The time on a step's row is when to look, and never too late.


CODE = "dependency_timeout"
NAMED = 3  # slow steps that the error names; it counts the rest

#: An agent's work that somebody else must act on first.
_ASKED = (Status.AWAITING_APPROVAL, Status.AWAITING_REVIEW, Status.BLOCKED)


def steps_overdue() -> QuerySet[StepRun]:
    """Steps whose time is over, of all tenants."""
    return StepRun.objects.filter(waits_until__lte=Now())


def fail_overdue(*, now: datetime | None = None) -> int:
    """Fail what has waited too long; how many steps that were. `now` stands for the time that it is."""
    now = now or clock.now()
    with system_scope():
        due = StepRun.objects.filter(waits_until__lte=now).order_by("waits_until")
        rows = list(due.values_list("tenant_id", "run_id", "step")[:AT_ONCE])
    return sum(_end_safely(*row, now) for row in rows)


def _end_safely(tenant_id: UUID, run_id: UUID, step: str, now: datetime) -> bool:
    try:
        return end_waiting(tenant_id, run_id, step, now=now)
    except Exception:
        logger.exception(
            "An overdue step could not be ended",
            extra={"action": "step_overdue", "tenant": str(tenant_id), "run": str(run_id), "step": step},
        )
        return False


def end_waiting(tenant_id: UUID, run_id: UUID, step: str, *, now: datetime) -> bool:
    """Fail one step if its time is over, or give it more; whether it failed. Idempotent."""
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        rows = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step=step, branch=0, waits_until__lte=now
        )
        row = rows.first()
        if row is None:
            return False
        plan = versions.compile_version(run.version_id)
        slow = _slow(run, plan, step)
        if run.status != RunState.RUNNING or row.status != StepState.PENDING or not slow:
            rows.update(waits_until=None)  # Nothing is waited for any more.
            return False
        more = _more_time(run, plan, step, now)
        if more is not None:
            rows.update(waits_until=more)
            return False
        _fail(run, plan, step, slow)
        return True


def _slow(run: PipelineRun, plan: Compiled, step: str) -> list[str]:
    states = progression.states_of(run.pk)
    return [each for each in plan.graph.dependencies_of(step) if states.get(each) not in SETTLED]


def _more_time(run: PipelineRun, plan: Compiled, step: str, now: datetime) -> datetime | None:
    """Until when the step may wait since nothing it waits for has begun, or because people were asked."""
    patience = timedelta(seconds=_seconds(plan, step))
    begun = _first_start(run, plan.graph.dependencies_of(step))
    if begun is None or _with_people(run.tenant_id, _at_work(run, plan.graph.ancestors_of(step))):
        return now + patience
    answers = Activity.objects.for_tenant(run.tenant_id).filter(pipeline_run_id=run.pk, assignee_type="human")
    answered = answers.aggregate(last=Max("finished_at"))["last"]
    until: datetime = max(begun, answered or begun) + patience
    return until if until > now else None


def _first_start(run: PipelineRun, steps: Iterable[str]) -> datetime | None:
    """When the work of one of these steps began first. What only waits for a worker has not begun."""
    done_by = StepRun.objects.for_tenant(run.tenant_id).filter(run_id=run.pk, step__in=list(steps))
    activities = Activity.objects.for_tenant(run.tenant_id).filter(pk__in=done_by.values("activity_id"))
    begun: datetime | None = activities.aggregate(first=Min("started_at"))["first"]
    return begun


def _at_work(run: PipelineRun, steps: Iterable[str]) -> list[UUID]:
    """The activities of those of these steps that are under way."""
    active = StepRun.objects.for_tenant(run.tenant_id).filter(
        run_id=run.pk, step__in=list(steps), status=StepState.ACTIVE
    )
    return [found for found in active.values_list("activity_id", flat=True) if found is not None]


def _with_people(tenant_id: UUID, activity_ids: Sequence[UUID]) -> bool:
    activities = Activity.objects.for_tenant(tenant_id).filter(status__in=LIVE)
    of_people = Q(pk__in=activity_ids) & (Q(assignee_type="human") | Q(status__in=_ASKED))
    questions = Q(parent_id__in=activity_ids, assignee_type="human")
    return activities.filter(of_people | questions).exists()


def _seconds(plan: Compiled, step: str) -> float:
    return plan.step(step).dependency_timeout_seconds or starting.DEPENDENCY_TIMEOUT_SECONDS


def _fail(run: PipelineRun, plan: Compiled, step: str, slow: Sequence[str]) -> None:
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    named = ", ".join(slow[:NAMED]) + more
    verb = "has" if len(slow) == 1 else "have"
    message = f"{named} {verb} not ended within {_seconds(plan, step):,.10g} s."
    progression.give_up(run, plan, step, CODE, message)


# Steps whose conditions read outputs that have moved to MongoDB: these are read outside of any transaction, then the step is decided under
# the run's lock.


def runs_undecided() -> QuerySet[StepRun]:
    """What is to be decided, of all tenants."""
    return StepRun.objects.filter(reason=StepReason.EVALUATING)


def decide_waiting() -> int:
    """Decide all there is; how many runs went on. What fails is tried again at the next hint, and stands in nobody's way."""
    with system_scope():
        runs = list(runs_undecided().values_list("tenant_id", "run_id").distinct()[:AT_ONCE])
    return sum(_decide_safely(tenant_id, run_id) for tenant_id, run_id in runs)


def _decide_safely(tenant_id: UUID, run_id: UUID) -> bool:
    try:
        decide_run(tenant_id, run_id)
    except OutputUnavailable:
        return False  # MongoDB is away: the mark stays.
    except Exception:
        logger.exception(
            "A step could not be decided",
            extra={"action": "step_undecided", "tenant": str(tenant_id), "run": str(run_id)},
        )
        return False
    return True


def decide_run(tenant_id: UUID, run_id: UUID) -> None:
    """Decide the marked steps of one run. Idempotent. Raises `OutputUnavailable`."""
    steps, known = _read(tenant_id, run_id)
    if not steps:
        return
    with tenant_scope(tenant_id):
        run = progression.lock_runs(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step__in=steps, reason=StepReason.EVALUATING, status=StepState.PENDING
        )
        # From the states as they are now: what a step depends on may have been sent back meanwhile.
        if marked.update(reason="") and run.status == RunState.RUNNING:
            plan = versions.compile_version(run.version_id)
            following = plan.graph.advance(progression.states_of(run_id))
            progression.start_following(run, plan, following, known=known)


def _read(tenant_id: UUID, run_id: UUID) -> tuple[list[str], Known]:
    """The marked steps, and what is not in PostgreSQL of all that their expressions read."""
    with tenant_scope(tenant_id):
        run = PipelineRun.objects.for_tenant(tenant_id).get(pk=run_id)
        marked = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, reason=StepReason.EVALUATING)
        steps = list(marked.values_list("step", flat=True))
        missing = inputs.read_inputs(
            tenant_id, run_id, versions.compile_version(run.version_id), steps, {}
        ).missing
    found = outputs.read_many(tenant_id, missing) if missing else {}
    return steps, {reference: found.get(reference) for reference in missing}
