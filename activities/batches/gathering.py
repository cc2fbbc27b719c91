"""Gathering: what is collected for one provider, credential and model is bound to a batch once there is enough, or it has waited enough.

Binding is one transaction and comes before sending, so that an item belongs to one batch whatever happens. Two who gather at once take
turns: the second finds less, or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Now

from activities.models import ActivityRun, BatchItem, ProviderBatch
from activities.models.batch import ItemState
from agents.batches import MOST_REQUESTS
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)

LANES = 100  # of one turn


def collected() -> QuerySet[BatchItem]:
    """What waits for a batch, of all tenants."""
    return BatchItem.objects.filter(state=ItemState.COLLECTED)


def gather() -> int:
    """Bind what is enough or old enough. Returns how many batches were made."""
    with system_scope():
        lanes = list(_ready()[:LANES])
    made = 0
    for tenant_id, provider, model in lanes:
        while _bind(tenant_id, provider, model):
            made += 1
    return made


def _ready() -> QuerySet[BatchItem, tuple[UUID, str, str]]:
    enough = (
        Q(number__gte=_size())
        | Q(oldest__lte=_old_enough())
        | Q(weight__gte=settings.ORCHESTRATOR_BATCH_MAX_BYTES)
    )
    lanes = collected().order_by().values("tenant_id", "provider", "model")
    counted = lanes.annotate(number=Count("id"), oldest=Min("created_at"), weight=Sum("bytes"))
    return counted.filter(enough).order_by("oldest").values_list("tenant_id", "provider", "model")


def _bind(tenant_id: UUID, provider: str, model: str) -> bool:
    """Make one batch, if there is enough for one; whether to look again."""
    with tenant_scope(tenant_id):
        lane = BatchItem.objects.for_tenant(tenant_id).filter(
            provider=provider, model=model, state=ItemState.COLLECTED
        )
        # Locked in the order of their ids: whoever gathers at the same time waits, and finds them bound.
        found = list(lane.order_by("id").select_for_update().only("id", "bytes", "agent_role")[: _size()])
        if not found:
            return False
        if _drop_ended(tenant_id, found):
            return True
        fitting = _fitting(found)
        full = len(found) == _size() or len(fitting) < len(found)
        if not full and not lane.filter(created_at__lte=_old_enough()).exists():
            return False
        batch = ProviderBatch.objects.create(
            tenant_id=tenant_id, agent_role=fitting[0].agent_role, provider=provider, model=model, size=len(fitting)
        )  # fmt: skip
        lane.filter(pk__in=[item.pk for item in fitting]).update(state=ItemState.BOUND, batch=batch)
    logger.info(
        "Batch bound",
        extra={
            "action": "batch_bound",
            "batch": str(batch.pk),
            "tenant": str(tenant_id),
            "items": batch.size,
        },
    )
    return True


def drop_ended(tenant_id: UUID, items: QuerySet[BatchItem]) -> int:
    """Close the open ones among the items whose runs are over. In a `tenant_scope`."""
    live = ActivityRun.objects.for_tenant(tenant_id).filter(pk=OuterRef("run_id"), status="running")
    return items.filter(~Exists(live)).update(state=ItemState.DROPPED, closed_at=Now(), body=None)


def _drop_ended(tenant_id: UUID, found: Sequence[BatchItem]) -> int:
    ids = [item.pk for item in found]
    return drop_ended(tenant_id, BatchItem.objects.for_tenant(tenant_id).filter(pk__in=ids))


def _fitting(found: Sequence[BatchItem]) -> Sequence[BatchItem]:
    """As many as a batch may hold bytes of; one at least."""
    sums = accumulate(item.bytes for item in found)
    most = settings.ORCHESTRATOR_BATCH_MAX_BYTES
    return [item for item, total in zip(found, sums, strict=True) if total <= most] or found[:1]


def _size() -> int:
    return max(1, min(settings.ORCHESTRATOR_BATCH_SIZE, MOST_REQUESTS))


def _old_enough() -> object:
    return Now() - timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)
