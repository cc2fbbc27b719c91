"""Suspending a tenant: its tokens open nothing, nothing of it starts, and what runs is told to stop. Nothing is deleted."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from activities import cancellation, relay
from activities.exceptions import ActivityError
from activities.families import ENDED
from activities.models import Activity
from pipelines import cancellation as pipelines
from pipelines.exceptions import PipelineError
from pipelines.models import PipelineRun
from pipelines.models.run import RunState
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.signals import tenant_changed

ACTOR = "command:offboard_tenant"
REASON = "the tenant was suspended"
PAGE = 500
MOST_ROUNDS = 10_000

Tell = Callable[[str], object]


def suspend(tenant: Tenant, tell: Tell) -> int:
    """Idempotent. Tokens are refused within a second, grants stop at the keeper's next tick; returns how much work was told to stop."""
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(is_active=False)
        tenant.is_active = False
        tenant_changed.send(sender=Tenant, tenant=tenant)
    stopped = _until_none_moves(tenant.pk, _running, _stop_run) + _until_none_moves(
        tenant.pk, _open, _stop_work
    )
    relay.flush()
    tell(f"{stopped} told to stop")
    return stopped


def _until_none_moves(
    tenant_id: UUID, find: Callable[[UUID, set[UUID]], list[UUID]], stop: Callable[[UUID, UUID], bool]
) -> int:
    """Some end with others, and some can end only after others: so again, until a whole round moves nothing."""
    total, refused = 0, set[UUID]()
    for _ in range(MOST_ROUNDS):
        found = find(tenant_id, refused)
        if not found:
            if not refused:
                break
            refused, again = set(), find(tenant_id, set())
            moved = sum(stop(tenant_id, each) for each in again)
            if not moved:
                break
            total += moved
            continue
        for each in found:
            if stop(tenant_id, each):
                total += 1
            else:
                refused.add(each)
    return total


def _running(tenant_id: UUID, refused: set[UUID]) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = PipelineRun.objects.for_tenant(tenant_id).filter(status=RunState.RUNNING)
        return list(rows.exclude(pk__in=refused).order_by("pk").values_list("pk", flat=True)[:PAGE])


def _open(tenant_id: UUID, refused: set[UUID]) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).exclude(status__in=ENDED)
        return list(rows.exclude(pk__in=refused).order_by("pk").values_list("pk", flat=True)[:PAGE])


def _stop_run(tenant_id: UUID, run_id: UUID) -> bool:
    try:
        pipelines.cancel_run(tenant_id, run_id, actor=ACTOR, reason=REASON)
    except PipelineError:
        return False
    return True


def _stop_work(tenant_id: UUID, activity_id: UUID) -> bool:
    try:
        cancellation.cancel(tenant_id, activity_id, actor=ACTOR, reason=REASON)
    except ActivityError:
        return False  # It has ended meanwhile, or ends with another.
    return True
