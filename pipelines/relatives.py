"""Relatives of a pipeline run: the run that it replays, its own replays, their replays, and so on.

All of them do the same work, so at most one of them may work at a time: an ended run is replayed, and its failed work is retried or
reassigned, only while none of its relatives works.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from uuid import UUID

from pipelines.exceptions import NotFound
from pipelines.models import PipelineRun
from tenants.context import APP
from tenants.sql import Array, Statement

_RELATIVES = Statement.load(Path(__file__).parent / "sql", "relatives")


def find_working(tenant_id: UUID, run_ids: Iterable[UUID]) -> dict[UUID, UUID]:
    """Return, for each of these runs that has one, the id of a relative that has not ended. One query."""
    rows = _RELATIVES.run({"tenant": tenant_id, "runs": Array(set(run_ids))}, using=APP)
    return {row.run: row.working for row in rows if row.working is not None}


def find_overtaken(tenant_id: UUID, run_ids: Iterable[UUID]) -> set[UUID]:
    """Return those of these runs that have a newer relative among them. One query."""
    rows = _RELATIVES.run({"tenant": tenant_id, "runs": Array(set(run_ids))}, using=APP)
    newest = {row.first: row.run for row in sorted(rows, key=attrgetter("run"))}
    return {row.run for row in rows if row.run != newest[row.first]}


def lock(tenant_id: UUID, run_id: UUID) -> tuple[PipelineRun, UUID | None]:
    """Lock a run whose work is to be done again. Returns it, and the id of a relative that has not ended. Raises `NotFound`.

    Also locks the oldest relative, so that of two relatives whose work is to be done again at the same time, the second finds the first.
    """
    rows = _RELATIVES.run({"tenant": tenant_id, "runs": Array([run_id])}, using=APP)
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk__in={run_id, *(row.first for row in rows)})
    locked = {run.pk: run for run in runs.order_by("pk").select_for_update()}
    if run_id not in locked:
        raise NotFound("pipeline run", run_id)
    return locked[run_id], find_working(tenant_id, [run_id]).get(run_id)
