"""What has become of items of the inbox that are not asked any more: somebody decided, did or withdrew them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from activities.models import Activity, ActivityEvent
from console.facts import OPEN
from console.wording import named, outcome
from tenants.context import tenant_scope
from tenants.principals import Principal

MOST = 50  # as many as a page of the inbox shows


@dataclass(frozen=True, slots=True)
class Gone:
    """An item that is over. `who` is empty where nobody is on record."""

    id: UUID
    name: str
    outcome: str
    who: str


def gone(principal: Principal, ids: Sequence[UUID]) -> list[Gone]:
    """Those of the items that are over, in the order in which they were asked about. With two queries, however many there are."""
    asked, tenant_id = list(dict.fromkeys(ids))[:MOST], principal.tenant_id
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=asked, assignee_type="human")
        over = {row.pk: row for row in rows.exclude(status__in=OPEN).only("name", "status")}
        events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=over)
        last = events.order_by("activity_id", "-at", "-seq").distinct("activity_id")
        actors = dict(last.values_list("activity_id", "actor"))
    return [
        Gone(pk, over[pk].name, outcome(over[pk].status), named(actors[pk]) if actors.get(pk) else "")
        for pk in asked
        if pk in over
    ]
