"""Parking: a run waits for a batch, holding no slot, with its request beside it.

Work of a group keeps its slots but for the worker's seat: the group waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from django.db.models import Q
from django.db.models.functions import Now

from activities import relay
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import RunSuperseded
from activities.models import ActivityRun, BatchItem
from activities.models.batch import OPEN_ITEMS, ItemState
from activities.run_tokens import RunToken
from agents.contracts import BATCHES_OF, AgentRequest, Parked
from tenants.context import tenant_scope


def with_history(request: AgentRequest, row: Any) -> AgentRequest:
    """The request, with what decides whether it may wait for a batch. `row` is the claimed activity."""
    if request.settings.adapter not in BATCHES_OF:
        return request
    moments = [moment for moment in (row.expires_at, row.due_at) if moment is not None]
    moved = _moved(row)
    begun = moved.begun if moved is not None and moved.fence == row.fence - 1 else None
    return replace(request, wanted_by=min(moments, default=None), at_once=moved is not None, begun=begun)


def _moved(row: Any) -> BatchItem | None:
    """The item with which the work has left a batch, until it has come to an end or was put aside since."""
    with tenant_scope(row.tenant_id):
        items = BatchItem.objects.for_tenant(row.tenant_id).filter(activity_id=row.id, state=ItemState.MOVED)
        moved: BatchItem | None = items.order_by("-fence").first()
        if moved is None:
            return None
        ended_well = Q(status="completed") | ~Q(ended_by_tool="")
        runs = ActivityRun.objects.for_tenant(row.tenant_id).filter(ended_well, activity_id=row.id)
        return None if runs.filter(fence__gt=moved.fence).exists() else moved


def park(run: RunToken, parked: Parked, row: Any) -> None:
    """Keep the run's request, and let its slots go. Raises `RunSuperseded`."""
    holds_up_group = bool(row.group_key or row.files)
    with tenant_scope(run.tenant_id):
        # The item first: its key locks the activity, which goes before the run.
        BatchItem.objects.create(
            tenant_id=run.tenant_id, activity_id=run.activity_id, run_id=run.run_id, fence=run.fence, briefing=run.briefing,
            agent_role=row.agent_role, provider=parked.provider, model=parked.model, body=dict(parked.body),
            bytes=len(orjson.dumps(parked.body)), leave_at=parked.leave_at,
        )  # fmt: skip
        runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(
            pk=run.run_id, fence=run.fence, status="running", accepted_at=None
        )
        grants = list(runs.values_list("grant", flat=True))
        if not runs.update(accepted_at=Now(), worker_id=None, parked=not holds_up_group):
            raise RunSuperseded(run.run_id)
        if not holds_up_group:
            relay.after_commit(Exchange(releases=[Release(run.activity_id, grant) for grant in grants]))


def token_of(item: BatchItem) -> RunToken:
    """What proves the run of an item."""
    return RunToken(item.tenant_id, item.activity_id, item.run_id, item.fence, item.briefing)


def close(item: BatchItem, state: ItemState, *, begun: Mapping[str, Any] | None = None) -> bool:
    """End an open item; False when somebody else was first. The last that its transaction locks."""
    items = BatchItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk, state__in=OPEN_ITEMS)
    kept = None if begun is None else dict(begun)
    return bool(items.update(state=state, closed_at=Now(), body=None, begun=kept))
