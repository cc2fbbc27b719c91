"""Suspending a tenant: its tokens open nothing, nothing of it starts, and what runs is told to stop. Nothing is deleted."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from activities import cancellation, relay
from activities.activity_tree import ENDED
from activities.exceptions import ActivityError
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
MOST_ROUNDS = 1_000  # one for each level of what waits for each other; no tree is nearly as deep

Tell = Callable[[str], object]
Find = Callable[[UUID, UUID], list[UUID]]  # a page of what goes on, after this id
Stop = Callable[[UUID, UUID], bool]  # whether it could be told to


def suspend(tenant: Tenant, tell: Tell) -> int:
    """Idempotent. Tokens are refused within a second, grants stop at the leader's next tick; returns how much work was told to stop."""
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


def _until_none_moves(tenant_id: UUID, find: Find, stop: Stop) -> int:
    """Some end with others, and some can end only after others: so again, until a whole round moves nothing."""
    total = 0
    for _ in range(MOST_ROUNDS):
        moved = _stop_each(tenant_id, find, stop)
        if not moved:
            break
        total += moved
    return total


def _stop_each(tenant_id: UUID, find: Find, stop: Stop) -> int:
    """Once each, page by page; returns how many could be."""
    moved, after = 0, UUID(int=0)
    while found := find(tenant_id, after):
        moved += sum(stop(tenant_id, each) for each in found)
        after = found[-1]
    return moved


def _running(tenant_id: UUID, after: UUID) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = PipelineRun.objects.for_tenant(tenant_id).filter(status=RunState.RUNNING, pk__gt=after)
        return list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])


def _open(tenant_id: UUID, after: UUID) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).exclude(status__in=ENDED).filter(pk__gt=after)
        return list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])


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
