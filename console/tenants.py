"""All tenants of a person beside each other: what waits for people, what failed, what runs, and what it costs this month.

Read with the role of the admin, which sees the rows of the tenants that it was given and no others: one statement per figure, however
many tenants there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Count, Min, QuerySet, Sum

from activities.models import Activity
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import Status
from console.labels import in_words
from tenants import clock
from tenants.context import admin_scope
from tenants.models import BudgetWait, Tenant, UsageEntry


@dataclass(frozen=True, slots=True)
class Row:
    """One tenant."""

    tenant: Tenant
    asked: int
    oldest: str
    failed: int
    blocked: int
    held: int  # that waits for a budget
    running: int
    spent: Decimal  # dollars in this month, of UTC
    share: float  # of the tenant with the most

    @property
    def needs(self) -> int:
        """How much goes on only when a person does something."""
        return self.asked + self.failed + self.blocked + self.held

    @property
    def state(self) -> str:
        """In one word how it stands."""
        if self.tenant.paused:
            return "paused"
        return "failures" if self.failed else "needs somebody" if self.needs else "all is well"


@dataclass(frozen=True, slots=True)
class Overview:
    """Those that need somebody first."""

    rows: Sequence[Row]

    @property
    def total(self) -> Row | None:
        """The sum of all, under the tenant that comes first."""
        if not self.rows:
            return None
        figures = ("asked", "failed", "blocked", "held", "running")
        sums: dict[str, Any] = {name: sum(getattr(row, name) for row in self.rows) for name in figures}
        spent = sum((row.spent for row in self.rows), Decimal(0))
        return Row(self.rows[0].tenant, oldest="", spent=spent, share=1.0, **sums)

    @property
    def sentence(self) -> str:
        waiting = sum(1 for row in self.rows if row.needs)
        if not waiting:
            return "All is well in all of them."
        return f"{waiting} of {len(self.rows)} {'needs' if waiting == 1 else 'need'} somebody."


def overview(own: Sequence[Tenant]) -> Overview:
    """For the tenants that a person is a member of. Not inside a transaction of a tenant."""
    ids = frozenset(tenant.pk for tenant in own)
    if not ids:
        return Overview(())
    now = clock.now()
    with admin_scope(reads=ids, writes=(), platform=False):
        works = Activity.objects.filter(tenant_id__in=ids)
        asked = _by_tenant(works.filter(OPEN_FOR_PEOPLE), count=Count("pk"), oldest=Min("created_at"))
        standing = _standing(works)
        entries = UsageEntry.objects.filter(tenant_id__in=ids, day__gte=now.date().replace(day=1))
        spent = {
            key: row["dollars"] or Decimal(0)
            for key, row in _by_tenant(entries, dollars=Sum("dollars")).items()
        }
        waits = _by_tenant(BudgetWait.objects.filter(tenant_id__in=ids), count=Count("pk"))
    most = max((*spent.values(), Decimal(0)))
    rows = [
        Row(
            tenant=tenant,
            asked=asked.get(tenant.pk, {}).get("count", 0),
            oldest=_age(asked.get(tenant.pk, {}).get("oldest"), now),
            failed=standing.get((tenant.pk, Status.NEEDS_REVIEW), 0),
            blocked=standing.get((tenant.pk, Status.BLOCKED), 0),
            held=waits.get(tenant.pk, {}).get("count", 0),
            running=standing.get((tenant.pk, Status.IN_PROGRESS), 0),
            spent=spent.get(tenant.pk, Decimal(0)),
            share=float(spent.get(tenant.pk, Decimal(0)) / most) if most else 0.0,
        )
        for tenant in own
    ]
    return Overview(sorted(rows, key=lambda row: (-row.failed, -row.needs, row.tenant.slug)))


def _by_tenant(rows: QuerySet[Any], **figures: Any) -> Mapping[UUID, Mapping[str, Any]]:
    return {row["tenant_id"]: row for row in rows.order_by().values("tenant_id").annotate(**figures)}


def _standing(works: QuerySet[Any]) -> dict[tuple[UUID, str], int]:
    """How many agents' activities stand so, by tenant and status."""
    states = (Status.NEEDS_REVIEW, Status.BLOCKED, Status.IN_PROGRESS)
    rows = works.filter(status__in=states, assignee_type="agent").order_by().values("tenant_id", "status")
    return {(row["tenant_id"], row["status"]): row["count"] for row in rows.annotate(count=Count("pk"))}


def _age(since: datetime | None, now: datetime) -> str:
    return in_words((now - since).total_seconds()) if since else ""
