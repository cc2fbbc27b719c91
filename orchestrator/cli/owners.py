"""Whose work a command is about: the named tenant, the only one, or the one that an id belongs to. And all tenants, for the platform."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from activities import queue_stats
from activities.models import Activity
from pipelines.management.commands.load_pipeline import owner_of
from pipelines.models import PipelineRun
from tenants import registration
from tenants.context import system_scope
from tenants.models import Tenant

__all__ = ("all_of_them", "of_activity", "of_run", "owner_of", "standing_of_all")


def all_of_them(slug: str | None) -> list[Tenant]:
    """Every tenant, or the named one."""
    if slug is not None:
        return [registration.find(slug)]
    with system_scope():
        return list(Tenant.objects.order_by("slug"))


def of_activity(slug: str | None, activity_id: UUID) -> Tenant:
    """Raises `CommandError` when nobody has such an activity, or not the named tenant."""
    return _of(slug, Activity, activity_id, "activity", "Ids are in the lists of the API and of the admin.")


def of_run(slug: str | None, run_id: UUID) -> Tenant:
    """As `of_activity`, for a run of a pipeline."""
    return _of(
        slug, PipelineRun, run_id, "pipeline run", "Ids are in /api/v1/pipeline-runs/ and in the admin."
    )


def standing_of_all() -> queue_stats.QueueStats:
    with system_scope():
        return queue_stats.stats_of_queues()


def _of(slug: str | None, model: Any, row_id: UUID, what: str, where: str) -> Tenant:
    with system_scope():
        rows = (
            model.objects.filter(pk=row_id)
            if slug is None
            else model.objects.filter(pk=row_id, tenant__slug=slug)
        )
        found: Tenant | None = Tenant.objects.filter(pk__in=rows.values("tenant_id")).first()
    if found is None:
        whose = f"the tenant {slug!r} has" if slug else "there is"
        raise CommandError(f"No {what} {row_id}: {whose} none of this id. {where}")
    return found
