"""What was consumed and what it cost: as pictures with their tables, and as files of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode

from console.page import PageContext, csv_of, page, render_page
from pipelines.models import PipelineRun
from tenants import clock, money
from tenants.context import tenant_scope
from tenants.models import Budget, BudgetUnit

HEADS = ("runs", "input tokens", "output tokens", "cost in dollars", "tokens without a price")


@page("usage")
def show_usage(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The days that were asked for, by day, role and pipeline, and how the budgets stand."""
    usage_filter = UsageFilter.read(request.GET)
    return render_page(
        request, visit, "console/usage/usage.html", {"usage": usage(visit.tenant_id, usage_filter)}
    )


@page("usage")
def export(request: HttpRequest, visit: PageContext, what: str) -> HttpResponse:
    """One of the tables of that page."""
    usage_filter = UsageFilter.read(request.GET)
    found = usage(visit.tenant_id, usage_filter)
    tables = {"days": found.days, "roles": found.roles, "pipelines": found.pipelines}
    if what not in tables:
        raise Http404
    rows = ([line.name, *line.figures] for line in tables[what])
    name = f"usage-{visit.who.tenant}-{what}-{usage_filter.first}-{usage_filter.last}"
    return csv_of(name, (what.removesuffix("s"), *HEADS), rows)


# What was consumed, from the ledger: by day, role and pipeline, and against the budgets. However it is grouped, it adds up to the same.


MOST_LINES = 100
NO_PIPELINE = "no pipeline"
OTHERS = "all others"


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one day, role or pipeline. `share` is that of the most expensive line."""

    name: str
    runs: int
    input_tokens: int
    output_tokens: int
    cost: Decimal
    unpriced: int
    share: float = 0.0

    @property
    def figures(self) -> tuple[Any, ...]:
        return (self.runs, self.input_tokens, self.output_tokens, self.cost, self.unpriced)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the page shows. `days` holds every day, the others what is most expensive first."""

    wanted: UsageFilter
    total: Line
    days: Sequence[Line]
    roles: Sequence[Line]
    pipelines: Sequence[Line]
    budgets: Sequence[BudgetLine]

    @property
    def costs(self) -> list[float]:
        return [float(day.cost) for day in self.days]

    @property
    def runs(self) -> list[float]:
        return [float(day.runs) for day in self.days]

    @property
    def dearest(self) -> Line | None:
        return max(self.days, key=lambda day: day.cost, default=None)

    @property
    def is_empty(self) -> bool:
        return not (self.total.runs or self.total.cost or self.total.input_tokens)


def usage(tenant_id: UUID, usage_filter: UsageFilter) -> Usage:
    """What the tenant has consumed in these days."""
    with tenant_scope(tenant_id):
        rows = _narrow(
            money.ledger_entries(tenant_id, first=usage_filter.first, last=usage_filter.last), usage_filter
        )
        by_day = {
            group["day"]: group for group in rows.values("day").annotate(**money.FIGURES).order_by("day")
        }
        roles, pipelines = _groups(rows, "agent_role"), _groups(rows, "pipeline")
        budgets = budgets_of(tenant_id)
    days = [_line(str(day), by_day.get(day, {})) for day in usage_filter.days]
    total = _sum(days)
    return Usage(
        usage_filter, total, _with_shares(days), _lines(roles, total), _lines(pipelines, total), budgets
    )


def _narrow(rows: QuerySet[Any], usage_filter: UsageFilter) -> QuerySet[Any]:
    runs = PipelineRun.objects.filter(pk=OuterRef("pipeline_run_id"))
    rows = rows.annotate(pipeline=Subquery(runs.values("version__pipeline__key")[:1]))
    if usage_filter.role:
        rows = rows.filter(agent_role=usage_filter.role)
    return rows.filter(pipeline=usage_filter.pipeline) if usage_filter.pipeline else rows


def _groups(rows: QuerySet[Any], column: str) -> list[Line]:
    """The most expensive ones, and one more if there are others."""
    groups = rows.values(column).annotate(**money.FIGURES).order_by("-sum_cost_usd", column)
    return [_line(group[column] or NO_PIPELINE, group) for group in groups[: MOST_LINES + 1]]


def _lines(found: Sequence[Line], total: Line) -> list[Line]:
    """What is listed adds up to the total, however many there are."""
    shown = list(found[:MOST_LINES])
    if len(found) <= MOST_LINES:
        return _with_shares(shown)
    pairs = zip(total.figures, _sum(shown).figures, strict=True)
    return [*_with_shares(shown), Line(OTHERS, *(whole - part for whole, part in pairs))]


def _line(name: str, group: dict[str, Any]) -> Line:
    return Line(
        name=name,
        runs=group.get("sum_runs", 0),
        input_tokens=group.get("sum_input_tokens", 0),
        output_tokens=group.get("sum_output_tokens", 0),
        cost=Decimal(group.get("sum_cost_usd", 0)).normalize() + 0,
        unpriced=group.get("sum_unpriced_tokens", 0),
    )


def _sum(lines: Sequence[Line]) -> Line:
    sums = [sum(figures) for figures in zip(*(line.figures for line in lines), strict=True)]
    return Line("total", *sums)


def _with_shares(lines: Sequence[Line]) -> list[Line]:
    most = max((line.cost for line in lines), default=Decimal(0)) or Decimal(1)
    return [replace(line, share=float(line.cost / most)) for line in lines]


# How the budgets of a tenant stand today: spent, kept for what runs, and left.


MOST_BUDGETS = 100


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One budget in its present period. `share` is what of the cap is spent or kept; it may be more than all."""

    budget: Budget
    share: float

    @property
    def tone(self) -> str:
        if self.share >= 1:
            return "bad"
        return "ask" if self.share >= float(self.budget.warning_share) else ""

    @property
    def percent(self) -> str:
        return f"{self.share:.0%}"

    @property
    def left(self) -> Decimal:
        return max(Decimal(0), self.budget.cap - self.budget.spent - self.budget.reserved).normalize() + 0

    @property
    def spent(self) -> Decimal:
        return self.budget.spent.normalize() + 0

    @property
    def reserved(self) -> Decimal:
        return self.budget.reserved.normalize() + 0

    @property
    def cap(self) -> Decimal:
        return self.budget.cap.normalize() + 0

    @property
    def is_money(self) -> bool:
        return self.budget.unit == BudgetUnit.DOLLARS

    @property
    def scope(self) -> str:
        """What it counts, in words."""
        parts = [self.budget.agent_role or "all roles"]
        parts += ["one deliverable"] if self.budget.deliverable_id else []
        parts += ["one activity"] if self.budget.activity_id else []
        return ", ".join(parts)


def budgets_of(tenant_id: UUID) -> list[BudgetLine]:
    """All of them, by name. In the caller's `tenant_scope`."""
    rows = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None).order_by("name", "pk")[:MOST_BUDGETS]
    return [_budget_line(budget) for budget in rows]


def _budget_line(budget: Budget) -> BudgetLine:
    money.roll(budget)  # as it stands today; the row follows with the next run
    used = budget.spent + budget.reserved
    share = float(used / budget.cap) if budget.cap else (1.0 if used else 0.0)
    return BudgetLine(budget, share)


# Of which days and which work somebody wants to see what was consumed. It is an address, so it can be kept and shared.


USUAL_DAYS = 30
MOST_DAYS = 366


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Both days are included. `remark` says what of the address could not be taken as it was."""

    first: date
    last: date
    role: str = ""
    pipeline: str = ""
    remark: str = ""

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    @property
    def as_query(self) -> str:
        """What an address needs to mean the same."""
        parameters = {
            "from": str(self.first),
            "to": str(self.last),
            "role": self.role,
            "pipeline": self.pipeline,
        }
        return urlencode({name: value for name, value in parameters.items() if value})

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> UsageFilter:
        """From an address. What is no day is told of, and the last 30 days are shown instead."""
        today = clock.now().date()
        words = {
            name: str(query.get(name, "")).replace("\x00", "").strip()[:200] for name in ("role", "pipeline")
        }
        try:
            last = date.fromisoformat(str(query.get("to") or today))
            first = date.fromisoformat(str(query.get("from") or last - timedelta(days=USUAL_DAYS - 1)))
        except (ValueError, OverflowError):
            return cls._usual(today, "A day is written such as 2026-05-01.", **words)
        if first > last:
            return cls._usual(today, "The first day must not be after the last.", **words)
        if (last - first).days >= MOST_DAYS:
            return cls._usual(today, f"At most {MOST_DAYS} days at once.", **words)
        return cls(first, last, **words)

    @classmethod
    def _usual(cls, today: date, remark: str, **words: str) -> UsageFilter:
        return cls(today - timedelta(days=USUAL_DAYS - 1), today, remark=remark, **words)
