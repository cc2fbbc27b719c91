"""The usage page: cost, runs and tokens by day, role and pipeline, the budgets, and CSV files of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode

from console.page import PageContext, csv_of, page, text_in
from pipelines import selectors
from tenants import clock, money
from tenants.context import tenant_scope
from tenants.models import Budget

HEADS = ("runs", "input tokens", "output tokens", "cost in dollars", "tokens without a price")


@page("usage")
def show_usage(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The usage of the requested days by day, role and pipeline, and the state of the budgets."""
    usage_filter = UsageFilter.read(request.GET)
    return visit.render("console/usage/usage.html", {"usage": usage(visit.tenant_id, usage_filter)})


@page("usage")
def export(request: HttpRequest, visit: PageContext, what: str) -> HttpResponse:
    """A table of the page as CSV."""
    usage_filter = UsageFilter.read(request.GET)
    figures = usage(visit.tenant_id, usage_filter)
    tables = {"days": figures.days, "roles": figures.roles, "pipelines": figures.pipelines}
    if what not in tables:
        raise Http404
    rows = ([line.name, *line.figures] for line in tables[what])
    name = f"usage-{visit.who.tenant}-{what}-{usage_filter.first}-{usage_filter.last}"
    return csv_of(name, (what.removesuffix("s"), *HEADS), rows)


# Usage from the ledger, by day, role and pipeline. Every grouping has the same total.


MOST_LINES = 100
NO_PIPELINE = "no pipeline"
OTHERS = "all others"


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one day, role or pipeline. `share` is relative to the most expensive line."""

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
    """The usage page. `days` has every day; the other lists start with the most expensive line."""

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
    with tenant_scope(tenant_id):
        rows = _apply_filter(
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


def _apply_filter(rows: QuerySet[Any], usage_filter: UsageFilter) -> QuerySet[Any]:
    rows = selectors.with_pipeline(rows)
    if usage_filter.role:
        rows = rows.filter(agent_role=usage_filter.role)
    return rows.filter(pipeline=usage_filter.pipeline) if usage_filter.pipeline else rows


def _groups(rows: QuerySet[Any], column: str) -> list[Line]:
    """Return the most expensive groups, and one more if there are others."""
    groups = rows.values(column).annotate(**money.FIGURES).order_by("-sum_cost_usd", column)
    return [_line(group[column] or NO_PIPELINE, group) for group in groups[: MOST_LINES + 1]]


def _lines(groups: Sequence[Line], total: Line) -> list[Line]:
    """Return the listed lines. If there are too many, a last line holds the rest, so that the sum is always the total."""
    listed = list(groups[:MOST_LINES])
    if len(groups) <= MOST_LINES:
        return _with_shares(listed)
    pairs = zip(total.figures, _sum(listed).figures, strict=True)
    return [*_with_shares(listed), Line(OTHERS, *(whole - part for whole, part in pairs))]


def _line(name: str, group: dict[str, Any]) -> Line:
    return Line(
        name=name,
        runs=group.get("sum_runs", 0),
        input_tokens=group.get("sum_input_tokens", 0),
        output_tokens=group.get("sum_output_tokens", 0),
        cost=money.without_trailing_zeros(group.get("sum_cost_usd", 0)),
        unpriced=group.get("sum_unpriced_tokens", 0),
    )


def _sum(lines: Sequence[Line]) -> Line:
    sums = [sum(figures) for figures in zip(*(line.figures for line in lines), strict=True)]
    return Line("total", *sums)


def _with_shares(lines: Sequence[Line]) -> list[Line]:
    most = max((line.cost for line in lines), default=Decimal(0)) or Decimal(1)
    return [replace(line, share=float(line.cost / most)) for line in lines]


# The budgets of a tenant today: spent, reserved and left.


MOST_BUDGETS = 100


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One budget in its present period. `share` is the spent and reserved part of the cap; it may exceed 1."""

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
    def scope(self) -> str:
        """A description of what it counts."""
        parts = [self.budget.agent_role or "all roles"]
        parts += ["one deliverable"] if self.budget.deliverable_id else []
        parts += ["one activity"] if self.budget.activity_id else []
        return ", ".join(parts)


def budgets_of(tenant_id: UUID) -> list[BudgetLine]:
    """Return all budgets, ordered by name. In the caller's `tenant_scope`."""
    rows = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None).order_by("name", "pk")[:MOST_BUDGETS]
    return [_budget_line(budget) for budget in rows]


def _budget_line(budget: Budget) -> BudgetLine:
    money.roll(budget)  # for the present period; the row is updated by the next run
    used = budget.spent + budget.reserved
    share = float(used / budget.cap) if budget.cap else (1.0 if used else 0.0)
    return BudgetLine(budget, share)


# The filter of the page. It is part of the address, so it can be bookmarked and shared.


USUAL_DAYS = 30
MOST_DAYS = 366


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """A filter; both days are included. `remark` explains an invalid value of the address."""

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
        parameters = {
            "from": str(self.first),
            "to": str(self.last),
            "role": self.role,
            "pipeline": self.pipeline,
        }
        return urlencode({name: value for name, value in parameters.items() if value})

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> UsageFilter:
        """Parse a query string. Invalid days get a remark and are replaced by the last 30 days."""
        today = clock.now().date()
        words = {name: text_in(query, name) for name in ("role", "pipeline")}
        try:
            last = date.fromisoformat(str(query.get("to") or today))
            first = date.fromisoformat(str(query.get("from") or last - timedelta(days=USUAL_DAYS - 1)))
        except (ValueError, OverflowError):
            return cls._usual(today, "Enter days as YYYY-MM-DD.", **words)
        if first > last:
            return cls._usual(today, "The first day must not be after the last.", **words)
        if (last - first).days >= MOST_DAYS:
            return cls._usual(today, f"Choose at most {MOST_DAYS} days.", **words)
        return cls(first, last, **words)

    @classmethod
    def _usual(cls, today: date, remark: str, **words: str) -> UsageFilter:
        return cls(today - timedelta(days=USUAL_DAYS - 1), today, remark=remark, **words)
