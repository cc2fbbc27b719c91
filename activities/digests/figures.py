"""What a digest tells: figures by the selectors that the API and the console use, as JSON that is ready to be read.

Names come from clients and agents: each is cut to one line here, and escaped where it is written as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet

from activities import deadletters
from activities.digests.periods import Period
from activities.models import Activity, DeadLetter
from activities.models.dead_letter import DeadLetterState
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import Status
from agents.excerpts import excerpt
from tenants.models import Budget
from tenants.money import budgets, ledger

MOST = 10  # lines of one list: a mail is an overview
LONGEST_NAME = 100
GOOD_ENDS = (Status.DONE, Status.APPROVED)


def figures(tenant_id: UUID, period: Period, roles: Sequence[str], *, now: datetime) -> dict[str, Any]:
    """Everything of one digest, in the caller's `tenant_scope`. `roles` narrows what waits to these human roles."""
    return {
        "period": period.in_words,
        "timezone": period.zone.key,
        "people": _people(tenant_id, period, roles, now),
        "done": _done(tenant_id, period),
        "failures": _failures(tenant_id, period),
        "spend": _spend(tenant_id, period),
    }


def says_nothing(told: dict[str, Any]) -> bool:
    """Nothing waits, nothing happened, nothing was spent: nobody wants to read that."""
    return not (
        told["people"]["count"]
        or told["done"]["count"]
        or told["failures"]["count"]
        or told["failures"]["open"]
        or told["spend"]["runs"]
    )


def _people(tenant_id: UUID, period: Period, roles: Sequence[str], now: datetime) -> dict[str, Any]:
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id).filter(OPEN_FOR_PEOPLE)
    if roles:
        rows = rows.filter(human_role__in=roles)
    counts = rows.aggregate(count=Count("pk"), overdue=Count("pk", filter=Q(due_at__lt=now)))
    first = rows.order_by(F("due_at").asc(nulls_last=True), "priority", "created_at", "pk")[:MOST]
    items = [
        {
            "name": excerpt(item.name, limit=LONGEST_NAME),
            "human_role": item.human_role,
            "since": _local(item.created_at, period),
            "due": _local(item.due_at, period) if item.due_at else None,
            "overdue": item.due_at is not None and item.due_at < now,
        }
        for item in first
    ]
    return {**counts, "items": items, "more": counts["count"] - len(items)}


def _done(tenant_id: UUID, period: Period) -> dict[str, Any]:
    ended = Activity.objects.for_tenant(tenant_id).filter(
        status__in=GOOD_ENDS, finished_at__gte=period.begins, finished_at__lt=period.ends
    )
    by_role = ended.order_by().values("agent_role", "human_role").annotate(count=Count("pk"))
    found = sorted(by_role, key=lambda row: (-row["count"], row["agent_role"] or row["human_role"] or ""))
    return {
        "count": sum(row["count"] for row in found),
        "by_role": [
            {"role": row["agent_role"] or row["human_role"], "count": row["count"]} for row in found[:MOST]
        ],
        "more": max(0, len(found) - MOST),
    }


def _failures(tenant_id: UUID, period: Period) -> dict[str, Any]:
    letters = DeadLetter.objects.for_tenant(tenant_id)
    fresh = letters.filter(created_at__gte=period.begins, created_at__lt=period.ends)
    groups = list(deadletters.groups(fresh).order_by("-count", "fingerprint", "reason")[:MOST])
    newest = letters.in_bulk([UUID(group.example) for group in groups])
    return {
        "count": fresh.count(),
        "open": letters.filter(state=DeadLetterState.OPEN).count(),
        "groups": [
            {
                "role": group.agent_role,
                "count": group.count,
                "open": group.open,
                "example": excerpt(
                    str(newest[UUID(group.example)].error.get("message", "")), limit=LONGEST_NAME
                ),
            }
            for group in groups
        ],
    }


def _spend(tenant_id: UUID, period: Period) -> dict[str, Any]:
    """By the moments of the ledger's entries; its days, which are those of UTC, only find them by their index."""
    days = ledger.entries(tenant_id, first=period.begins.date(), last=period.ends.date())
    spent = days.filter(at__gte=period.begins, at__lt=period.ends).aggregate(**ledger.FIGURES)
    shown = ledger.figures_of(spent)
    own = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None).order_by("name", "pk")[:MOST]
    return {
        "cost_usd": f"{shown['cost_usd']:.2f}",
        "runs": shown["runs"],
        "tokens": shown["input_tokens"] + shown["output_tokens"],
        "budgets": [_budget(budget) for budget in own],
    }


def _budget(budget: Budget) -> dict[str, Any]:
    budgets.roll(budget)  # as it stands today
    share = f"{100 * budget.spent / budget.cap:.0f} %" if budget.cap else "all"
    spent, cap = (f"{amount.normalize() + 0:f}" for amount in (budget.spent, budget.cap))
    named = {"name": excerpt(budget.name, limit=LONGEST_NAME), "unit": budget.unit, "period": budget.period}
    return {**named, "spent": spent, "cap": cap, "share": share}


def _local(moment: datetime, period: Period) -> str:
    return f"{moment.astimezone(period.zone):%Y-%m-%d %H:%M}"
