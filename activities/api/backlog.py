"""How much work of a role may wait for a tenant before submissions are refused.

The count is taken at most every few seconds per process, and what this process accepts in between is added, so a submission costs
nothing; the bound is on memory and patience, not exact over processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from django.conf import settings
from django.db.models import Count

from activities.exceptions import ActivityError
from activities.models import Activity
from activities.states import Status
from tenants.remembered import Remembered

KEPT_SECONDS = 2.0
RETRY_SECONDS = 10  # by then a tenth of a second's work of a few workers is gone, and the count is new


class BacklogFull(ActivityError):
    """As much work of this role is waiting as may wait."""

    code = "backlog_full"
    status = 429
    retry_after = RETRY_SECONDS


_counts: Remembered[Counter[str]] = Remembered(seconds=KEPT_SECONDS, entries=10_000)


def make_room(tenant_id: UUID, roles: Iterable[str]) -> None:
    """Raise `BacklogFull` unless one more activity for each of these roles may wait. In the caller's `tenant_scope`."""
    wanted = Counter(roles)
    if not wanted:
        return
    waiting = _counts.recall(str(tenant_id))
    if waiting is None:
        waiting = _counts.keep(str(tenant_id), _counted(tenant_id))
    for role, more in wanted.items():
        if waiting[role] + more > settings.ORCHESTRATOR_MAX_BACKLOG:
            raise BacklogFull(
                f"{waiting[role]} activities wait for {role}; {settings.ORCHESTRATOR_MAX_BACKLOG} may."
            )
    waiting.update(wanted)


def _counted(tenant_id: UUID) -> Counter[str]:
    ready = Activity.objects.for_tenant(tenant_id).filter(status=Status.CREATED, assignee_type="agent")
    return Counter(dict(ready.order_by().values_list("agent_role").annotate(count=Count("pk"))))
