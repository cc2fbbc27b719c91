"""One pipeline run as its page shows it: the picture of its steps as they stand, and each of them in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Count
from django.http import Http404
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from activities.models import Activity
from activities.states import RUNNING
from console.labels import tone_of
from console.page import PAGE_WIDTH
from pipelines import diagram, selectors, versions
from pipelines.definition import DefinitionError
from pipelines.diagram import Counts, StepPicture
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason, StepState
from pipelines.selectors import BranchRow, StepRow
from pipelines.subjects import subject_of
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

MOST_BRANCHES = 50  # of a step that are listed
MOST_REPLAYS = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the run."""

    shown: StepRow
    begun: datetime | None
    ended: datetime | None
    who: str
    running: int = 0  # of its branches, when it was fanned out

    @property
    def waiting(self) -> int:
        """Of its branches that are not over, those on which nobody works: they wait for their turn, or for people."""
        counts = self.shown.counts
        return max(0, counts.active - self.running) if counts else 0

    @property
    def status(self) -> str:
        run = self.shown.run
        if run.status == StepState.SKIPPED and run.reason == StepReason.CONDITION:
            return "condition_unmet"
        return self.shown.activity_status or run.status

    @property
    def why(self) -> str:
        """Why it was left out, or failed before it came to its activity."""
        run = self.shown.run
        return str((run.error or {}).get("message") or (run.get_reason_display() if run.reason else ""))

    @property
    def lasted(self) -> timedelta | None:
        return (self.ended or clock.now()) - self.begun if self.begun else None

    @property
    def branches(self) -> Sequence[BranchRow]:
        return self.shown.branches


@dataclass(frozen=True, slots=True)
class Detail:
    """What the page shows."""

    run: PipelineRun
    steps: Sequence[Step]
    picture: SafeString
    replays: Sequence[PipelineRun]
    may_cancel: bool
    may_replay: bool

    @property
    def pipeline(self) -> str:
        return self.run.version.pipeline.name or self.run.version.pipeline.key

    @property
    def subject(self) -> str:
        """What it is about, else the name of its pipeline."""
        return subject_of(self.run.name, self.run.params) or self.pipeline

    @property
    def stands_at(self) -> Sequence[Step]:
        """The steps at which something happens or is asked now."""
        return [step for step in self.steps if tone_of(step.status) in ("live", "ask", "bad")]

    @property
    def lasted(self) -> timedelta:
        return (self.run.finished_at or clock.now()) - self.run.started_at


def detail(who: Principal, run_id: UUID) -> Detail:
    """Raises `Http404`."""
    with tenant_scope(who.tenant_id):
        run = found(who.tenant_id, run_id)
        shown = selectors.steps_of(who.tenant_id, [run], branches=MOST_BRANCHES)[run.pk]
        steps = _steps(who.tenant_id, run, shown)
        drawn = _drawn(run, steps, who.tenant)
        again = PipelineRun.objects.for_tenant(who.tenant_id).filter(replay_of=run_id)
        replays = list(again.only("id", "status", "started_at", "replay_from")[:MOST_REPLAYS])
    operates, running = who.role.includes(Role.OPERATOR), run.status == RunState.RUNNING
    return Detail(run, steps, drawn, replays, operates and running, operates and not running)


def found(tenant_id: UUID, run_id: UUID) -> PipelineRun:
    """Raises `Http404`. In the caller's `tenant_scope`."""
    run = selectors.runs(tenant_id).filter(pk=run_id).first()
    if run is None:
        raise Http404
    return run


def _steps(tenant_id: UUID, run: PipelineRun, shown: Sequence[StepRow]) -> list[Step]:
    ids = {step.run.activity_id for step in shown if step.run.activity_id}
    done_by: Mapping[UUID, Any] = (
        Activity.objects.for_tenant(tenant_id)
        .only("id", "tenant_id", "started_at", "finished_at", "agent_role", "human_role")
        .in_bulk(ids)
        if ids
        else {}
    )
    running = _running_branches(tenant_id, run) if any(step.counts for step in shown) else {}
    steps = [
        _step(step, done_by.get(step.run.activity_id) if step.run.activity_id else None) for step in shown
    ]
    return [replace(step, running=running.get(step.shown.run.step, 0)) for step in steps]


def _running_branches(tenant_id: UUID, run: PipelineRun) -> dict[str, int]:
    """By step: on how many of its branches an agent or a person is at work."""
    branches = StepRun.objects.for_tenant(tenant_id).filter(run_id=run.pk, branch__gt=0)
    busy = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=branches.values("activity_id"), status__in=RUNNING
    )
    return dict(busy.order_by().values_list("step").annotate(count=Count("pk")))


def _step(step: StepRow, activity: Any) -> Step:
    if activity is None:
        return Step(step, None, step.run.settled_at, "")
    who = activity.agent_role or activity.human_role or ""
    return Step(step, activity.started_at, activity.finished_at, who)


def _drawn(run: PipelineRun, steps: Sequence[Step], tenant: str) -> SafeString:
    try:
        definition = versions.compiled(run.version_id).definition
    except DefinitionError:
        return SafeString("")  # An old version that the present program cannot read; the steps are listed.
    svg = diagram.draw(
        definition,
        {step.shown.run.step: _pictured(step, tenant) for step in steps},
        title=f"{definition.name}: {run.status}",
        counts=_counts(steps),
        styled=False,
        widest=PAGE_WIDTH,
    )
    return mark_safe(svg)  # noqa: S308  # `draw` escapes every text and checks every link


def _pictured(step: Step, tenant: str) -> StepPicture:
    run = step.shown.run
    href = reverse("console:activity", args=[run.activity_id]) if run.activity_id else _branches_of(step)
    ended = step.begun and step.ended
    return StepPicture(
        status=step.status,
        detail=f"{step.lasted.total_seconds():.1f} s" if ended and step.lasted else "",
        href=f"{href}{'&' if '?' in href else '?'}{urlencode({'tenant': tenant})}" if href else None,
        round=run.round,
    )


def _branches_of(step: Step) -> str:
    """The list of the activities of a step that was fanned out."""
    run = step.shown.run
    if not run.branches:
        return ""
    return f"{reverse('console:activities')}?{urlencode({'q': f'run:{run.run_id} step:{run.step}'})}"


def _counts(steps: Sequence[Step]) -> Counts:
    return {
        step.shown.run.step: {
            "failed": counts.failed,
            "in_progress": step.running,
            "created": step.waiting,
            "done": counts.done,
        }
        for step in steps
        if (counts := step.shown.counts) is not None
    }
