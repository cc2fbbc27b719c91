"""Work that is not done yet, as a reference to its agent: an agent that goes away leaves it standing."""

from __future__ import annotations

from django.db.models import Count

from activities import states
from activities.models import Activity
from agents.references import Broken, Reference, Source
from tenants.context import SYSTEM
from tenants.models import Tenant


def of(role: str) -> list[Reference]:
    """One reference for each tenant that has open activities of the role."""
    # The tenants are named, so that the index by tenant and status serves.
    tenants = dict(Tenant.objects.using(SYSTEM).filter(is_active=True).values_list("pk", "slug"))
    open_ones = Activity.objects.using(SYSTEM).filter(
        tenant_id__in=list(tenants), status__in=sorted(states.LIVE), agent_role=role
    )
    counts = open_ones.order_by().values("tenant_id").annotate(number=Count("pk"))
    return [
        Reference("activities", f"{row['number']:,} open", row["tenant_id"], tenants[row["tenant_id"]], role)
        for row in counts
    ]


def broken() -> list[Broken]:
    """None: work was checked when it was submitted, and waits when its agent is switched off."""
    return []


SOURCE = Source(of, broken)
