"""Steps that have waited too long for what they depend on: they fail, and their run goes on by its rules.

The time begins when the work of the first of a step's dependencies begins, and lasts as long as the step's
`dependency_timeout_seconds` says. What people take does not count: while one of them is asked, and anew from the last answer that was
given in the run. The time on a step's row is when to look, and never too late.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Max, Min, Q, QuerySet
from django.db.models.functions import Now

from activities.models import Activity
from activities.states import LIVE, Status
from pipelines import progression, starting, versions
from pipelines.graph import SETTLED, StepState
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState
from pipelines.versions import Compiled
from tenants import clock
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

TASK = "pipelines.fail_overdue"
CODE = "dependency_timeout"
NAMED = 3  # slow steps that the error names; it counts the rest
AT_ONCE = 1_000  # steps that are looked at in one go

#: An agent's work that somebody else must act on first.
_ASKED = (Status.AWAITING_APPROVAL, Status.AWAITING_REVIEW, Status.BLOCKED)


def waiting() -> QuerySet[StepRun]:
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
        run = progression.locked(tenant_id).get(pk=run_id)
        rows = StepRun.objects.for_tenant(tenant_id).filter(
            run_id=run_id, step=step, branch=0, waits_until__lte=now
        )
        row = rows.first()
        if row is None:
            return False
        plan = versions.compiled(run.version_id)
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
    asked = Q(parent_id__in=activity_ids, assignee_type="human")
    return activities.filter(of_people | asked).exists()


def _seconds(plan: Compiled, step: str) -> float:
    return plan.step(step).dependency_timeout_seconds or starting.DEPENDENCY_TIMEOUT_SECONDS


def _fail(run: PipelineRun, plan: Compiled, step: str, slow: Sequence[str]) -> None:
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    named = ", ".join(slow[:NAMED]) + more
    verb = "has" if len(slow) == 1 else "have"
    message = f"{named} {verb} not ended within {_seconds(plan, step):,.10g} s."
    progression.give_up(run, plan, step, CODE, message)
