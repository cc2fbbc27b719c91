"""Jobs: written down with all of their items, and called off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from activities.exceptions import ActivityError
from activities.models import BulkJob
from activities.models.bulk import BulkAction, BulkStatus
from tenants.context import APP
from tenants.identifiers import uuid7
from tenants.sql import Statement

MOST = 50_000  # items of one job

_ADD = Statement.load(Path(__file__).parents[1] / "sql", "add_bulk_items")


class CountChanged(ActivityError):
    """The filter finds another number of activities than the caller expects. Nothing was done."""

    code = "count_changed"
    status = 409

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"The filter finds {found} activities by now, not {expected}. Look at them again.")
        self.problem_members = {"count": found}


class TooMany(ActivityError):
    """More activities than one job may have."""

    code = "too_many_items"
    status = 409


class BulkJobNotFound(ActivityError):
    """No such bulk job in this tenant."""

    code = "not_found"
    status = 404


class BulkEnded(ActivityError):
    """The job has ended, so it cannot be cancelled."""

    code = "bulk_job_ended"
    status = 409


def start(
    tenant_id: UUID,
    action: str,
    ids: Sequence[UUID],
    *,
    expected: int,
    filter: Mapping[str, Any],
    arguments: Mapping[str, Any],
    actor: str,
) -> BulkJob:
    """Write a job down; workers begin within seconds. In the caller's `tenant_scope`. Raises `CountChanged`, `TooMany`."""
    if len(ids) != expected:
        raise CountChanged(expected, len(ids))
    if len(ids) > MOST:
        raise TooMany(f"One job takes at most {MOST:,} activities, and these are {len(ids):,}.")
    job = BulkJob.objects.create(
        tenant_id=tenant_id, action=action, filter=dict(filter), arguments=dict(arguments), total=len(ids), created_by=actor
    )  # fmt: skip
    # An heir takes the place of each, which locks more than the activity itself.
    alone = action == BulkAction.REASSIGN
    _ADD.run(
        {
            "tenant": tenant_id,
            "job": job.pk,
            "ids": [uuid7() for _ in ids],
            "activities": list(ids),
            "alone": alone,
        },
        using=APP,
    )
    job.refresh_from_db()
    return job


def cancel(tenant_id: UUID, job_id: UUID, *, actor: str) -> None:
    """What is done stays done. Idempotent. Raises `BulkEnded`. Waits for the portion that is being dealt with."""
    moved = (
        BulkJob.objects.for_tenant(tenant_id)
        .filter(pk=job_id, status=BulkStatus.RUNNING)
        .update(status=BulkStatus.CANCELLED, cancelled_by=actor, finished_at=Now())
    )
    job = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).first()
    if not moved and job is not None and job.status == BulkStatus.COMPLETED:
        raise BulkEnded("The job has completed already.")


def refuse_unknown(tenant_id: UUID, job_id: UUID) -> None:
    """Raise `BulkJobNotFound` unless the tenant has such a job."""
    if not BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).exists():
        raise BulkJobNotFound(f"There is no bulk job {job_id}.")
