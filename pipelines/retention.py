"""Deletes old runs, executions and firings: a run with all of its work, an execution with its jobs and its firing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from activities.maintenance import retention as activities
from pipelines.models import PipelineRun
from pipelines.models.run import RunState
from tenants.retention import Kind, Rows, register
from tenants.sql import Statement

_FOLDER = Path(__file__).parent / "sql" / "retention"
_RUNS, _FORGET_RUNS, _FORGET_EXECUTIONS = (
    Statement.load(_FOLDER, name) for name in ("pipeline_runs", "forget_runs", "forget_executions")
)
_EXECUTIONS = Rows("pipelines_scheduleexecution", _FOLDER, "schedule_executions")
_FIRINGS = Rows("pipelines_firing", _FOLDER, "schedule_firings")


def connect() -> None:
    register(
        Kind("pipeline_runs", "Pipeline runs with all of their work", _forget_runs, _count_runs),
        Kind(
            "schedule_executions",
            "Executions of schedules and their jobs",
            # Deletes executions with their jobs and their firings.
            lambda tenant_id, before, most: len(
                _FORGET_EXECUTIONS.run({"tenant": tenant_id, "before": before, "most": most})
            ),
            _EXECUTIONS.count,
        ),
        Kind.of("schedule_firings", "Times of schedules that were skipped", _FIRINGS),
    )


def _forget_runs(tenant_id: UUID, before: datetime, most: int) -> int:
    """Delete ended runs, and return how many. Activities are locked before their run, as everywhere."""

    def lock_ended_runs(ids: list[UUID]) -> set[UUID]:
        runs = PipelineRun.objects.for_tenant(tenant_id)
        rows = runs.filter(pk__in=ids, finished_at__lt=before).exclude(status=RunState.RUNNING)
        locked = set(rows.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True))
        # Read after the lock, because a replay may have begun since the runs were selected.
        return locked - set(runs.filter(replay_of__in=locked).values_list("replay_of", flat=True))

    rows = _runs(tenant_id, before, min(most, activities.TREES_AT_ONCE))
    whole, _ = activities.forget_families(tenant_id, rows, before, hold=lock_ended_runs)
    return len(_FORGET_RUNS.run({"tenant": tenant_id, "runs": list(whole)})) if whole else 0


def _count_runs(tenant_id: UUID, before: datetime) -> int:
    return len({row.family for row in _runs(tenant_id, before, activities.NO_LIMIT)})


def _runs(tenant_id: UUID, before: datetime, most: int) -> list[Any]:
    return _RUNS.run({"tenant": tenant_id, "before": before, "ended": activities.ENDED, "most": most})
