"""The pulse of a tenant: how many runs ended in each hour of the last day, what today has cost, and how far its budgets are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Count, Q
from django.db.models.functions import TruncHour

from activities.models import ActivityRun
from activities.states import RunStatus
from console.agents import ENDED
from console.usage import BudgetLine, budgets_of
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import first_id_at
from tenants.money import ledger

HOURS = 24
HOUR = timedelta(hours=1)
LONGEST_RUN = timedelta(hours=24)  # one that began before and ended within the day is counted as well
NAMED = 5  # budgets, those that are used most


@dataclass(frozen=True, slots=True)
class Pulse:
    """Figures by hour, oldest first; the last one is the hour that is not over. Money in dollars."""

    ended: Sequence[int]
    failed: int
    today: Decimal
    budgets: Sequence[BudgetLine]

    @property
    def total(self) -> int:
        return sum(self.ended)

    @property
    def words(self) -> str:
        return f"Runs that ended in each of the last {HOURS} hours: {', '.join(map(str, self.ended))}"


def pulse_of(tenant_id: UUID, *, now: datetime | None = None) -> Pulse | None:
    """For a tenant; None when PostgreSQL does not answer, which the page says elsewhere."""
    moment = now or clock.now()
    try:
        with tenant_scope(tenant_id):
            ended, failed = _by_hour(tenant_id, moment)
            today = ledger.entries(tenant_id, first=moment.date()).aggregate(**ledger.FIGURES)
            budgets = sorted(budgets_of(tenant_id), key=lambda line: -line.share)[:NAMED]
    except DatabaseError:
        return None
    return Pulse(ended, failed, ledger.figures_of(today)["cost_usd"], budgets)


def _by_hour(tenant_id: UUID, now: datetime) -> tuple[list[int], int]:
    last = now.replace(minute=0, second=0, microsecond=0)
    first = last - (HOURS - 1) * HOUR
    # Along the key, which grows with time: there is no index by the end of a run.
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(
        pk__gte=first_id_at(first - LONGEST_RUN), ended_at__gte=first, status__in=ENDED
    )
    counted = rows.order_by().annotate(hour=TruncHour("ended_at", tzinfo=UTC)).values("hour").annotate(
        count=Count("pk"), failed=Count("pk", filter=~Q(status=RunStatus.COMPLETED))
    )  # fmt: skip
    found = {row["hour"]: row for row in counted}
    hours: list[Mapping[str, Any]] = [found.get(first + number * HOUR, {}) for number in range(HOURS)]
    return [hour.get("count", 0) for hour in hours], sum(hour.get("failed", 0) for hour in hours)
