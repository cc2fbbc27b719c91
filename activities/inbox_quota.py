"""What agents may put into the inbox: so many open items for each tenant and role, and the same question only once.

People answer questions one by one; an agent asks them by the thousand. What it asks beyond the quota is refused, so that what others ask
stays visible. What it asks again while the first is open is that first one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.conf import settings

from activities.exceptions import QuotaExceeded
from activities.models import Activity, ApprovalLink
from activities.states import LinkKind, Status

#: What agents ask of people with tools. A gate is not among them: whoever submitted the work has asked for it.
ASKED = (
    LinkKind.REVIEW,
    LinkKind.RESOLUTION,
    LinkKind.APPROVAL,
    LinkKind.SUBTASK,
    LinkKind.REASSIGNED_FROM,
)
_OPEN = (Status.CREATED, Status.IN_PROGRESS)


def refuse_flood(asking: Any) -> None:
    """Raise `QuotaExceeded` when agents of the role of `asking`, a row of Activity, have put enough into the tenant's inbox.

    Calls that come at once may each find the last place free, so there can be as many more as calls are under way.
    """
    most = settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        assignee_type="human",
        status__in=_OPEN,
        link_kind__in=ASKED,
        parent__tenant_id=asking.tenant_id,
        parent__agent_role=asking.agent_role,
    )
    if rows.order_by().values("pk")[:most].count() >= most:
        raise QuotaExceeded(
            "inbox", f"Agents of the role {asking.agent_role} may have {most} open questions to people."
        )


def same_task(asking: Activity, *, name: str, description: str, human_role: str) -> UUID | None:
    """A person's subtask that the same activity has asked for in the same words and that is still open."""
    return _first(asking, LinkKind.SUBTASK, name, description, human_role)


def same_approval(
    asking: Activity, *, kind: str, name: str, description: str, human_role: str, linked: Iterable[UUID]
) -> UUID | None:
    """An approval of that type over the same activities that the same activity has asked for in the same words and that is still open."""
    found = _first(asking, LinkKind.APPROVAL, name, description, human_role, metadata__approval_type=kind)
    if found is None:
        return None
    links = ApprovalLink.objects.for_tenant(asking.tenant_id).filter(approval_id=found)
    return found if set(links.values_list("activity_id", flat=True)) == set(linked) else None


def _first(
    asking: Activity, kind: LinkKind, name: str, description: str, human_role: str, **more: Any
) -> UUID | None:
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        parent_id=asking.pk,
        link_kind=kind,
        status__in=_OPEN,
        name=name,
        description=description,
        human_role=human_role,
        **more,
    )
    found: UUID | None = rows.order_by("created_at").values_list("pk", flat=True).first()
    return found
