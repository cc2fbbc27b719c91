"""The audit trail for admins: who did what to which object and when, with the values before and after; also as CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import django_filters
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from console.page import PageContext, csv_of, page
from tenants.context import tenant_scope
from tenants.models import AuditEntry

HEADS = (
    "number", "at", "actor kind", "actor", "operation", "outcome", "object kind", "object", "changes", "detail", "request", "address",
    "broken glass", "hash",
)  # fmt: skip


PAGE = 50
MOST_EXPORTED = 10_000


@page("audit", for_admins="The audit trail")
def show_trail(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The matching entries, newest first, page by page."""
    matching = _filter_of(request, visit)
    with tenant_scope(visit.tenant_id):
        rows = list(matching.qs[: PAGE + 1])
    context = {
        "filter": matching,
        "entries": [_entry(row) for row in rows[:PAGE]],
        "older": _query_of(request, before=str(rows[PAGE - 1].number)) if len(rows) > PAGE else "",
        "full_query": _query_of(request, before=""),
        "is_narrowed": any(matching.form.cleaned_data.values()),
        "outcomes": OUTCOMES,
    }
    return visit.render("console/audit/trail.html", context)


@page("audit", for_admins="The audit trail")
def export(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The matching entries as CSV, newest first, up to ten thousand."""
    with tenant_scope(visit.tenant_id):
        entries = list(_filter_of(request, visit).qs[:MOST_EXPORTED])
    return csv_of(f"audit-{visit.who.tenant}", HEADS, (cells(entry) for entry in entries))


# The filter of a tenant's audit trail. It is part of the address, so it can be bookmarked and shared.


OUTCOMES = ("done", "refused", "failed")


def _day(lookup: str) -> django_filters.DateFilter:
    """Return the filter of a day in UTC, which is included."""
    return django_filters.DateFilter("at", lookup, error_messages={"invalid": "Enter days as YYYY-MM-DD."})


class AuditFilter(django_filters.FilterSet):
    """Invalid values are reported and ignored. The page starts after the entry with the number `before`."""

    actor = django_filters.CharFilter(method="by_actor")
    operation = django_filters.CharFilter(lookup_expr="icontains")
    kind = django_filters.CharFilter("object_kind")
    object = django_filters.CharFilter("object_id")
    outcome = django_filters.ChoiceFilter(choices=[(name, name) for name in OUTCOMES])
    since = _day("date__gte")
    until = _day("date__lte")
    before = django_filters.NumberFilter("number", "lt", max_digits=15, decimal_places=0)

    def by_actor(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(actor_name=value) | Q(actor_id=value))


def _filter_of(request: HttpRequest, visit: PageContext) -> AuditFilter:
    # Filter by chain, because its numbers have an index. The id of a tenant's chain is the tenant's.
    rows = AuditEntry.objects.for_tenant(visit.tenant_id).filter(chain=visit.tenant_id)
    return AuditFilter(request.GET, rows.order_by("-number"))


def _query_of(request: HttpRequest, *, before: str) -> str:
    """Return the query string of the page after the entry `before`."""
    words = {**{name: request.GET.get(name, "") for name in AuditFilter.base_filters}, "before": before}
    return urlencode({name: word for name, word in words.items() if word})


@dataclass(frozen=True, slots=True)
class Change:
    """A changed field, with its JSON before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Entry:
    row: AuditEntry
    changes: Sequence[Change]
    detail: str

    @property
    def words(self) -> str:
        return in_words(self.row.operation)

    @property
    def address(self) -> str:
        """The address of its object's page, without the tenant; empty if there is none."""
        return address_of(self.row.object_kind or "", str(self.row.object_id or ""))


def cells(entry: AuditEntry) -> tuple[Any, ...]:
    """Return an entry as a row of the CSV file."""
    return (
        entry.number, entry.at, entry.actor_kind, entry.actor_name or entry.actor_id, entry.operation, entry.outcome,
        entry.object_kind, entry.object_id, _json(entry.changes), _json(entry.detail), entry.request_id, entry.ip,
        str(entry.break_glass_id or ""), entry.hash,
    )  # fmt: skip


def _entry(row: AuditEntry) -> Entry:
    changes = row.changes if isinstance(row.changes, dict) else {}
    pairs = [
        Change(name, _json(pair[0]), _json(pair[1]))
        for name, pair in changes.items()
        if isinstance(pair, list) and len(pair) == 2
    ]
    return Entry(row, pairs, _json(row.detail) if row.detail else "")


def _json(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# The label of an entry's operation, and the page of its object.


_DONE = {"POST": "created", "PUT": "changed", "PATCH": "changed", "DELETE": "removed"}
#: The name of the URL by the kind of object.
_PAGES = {
    "activities": "activity",
    "pipeline-runs": "run",
    "schedules": "schedule",
    "queues": "queue",
    "agents": "agent",
    "agent-configs": "agent",
}


def in_words(operation: str) -> str:
    """Return an operation of the API as a verb: `POST /queues/{role}/pause/` is `pause`, `POST /activities/` is `created`."""
    method, _, path = operation.partition(" ")
    if method not in _DONE:
        return operation.replace(".", " ").replace("_", " ")
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and not parts[-1].startswith("{"):
        return parts[-1].replace("-", " ").replace("_", " ")
    return _DONE[method]


def address_of(kind: str, object_id: str) -> str:
    """Return the address of the object's page, without the tenant; empty if it has none."""
    try:
        return reverse(f"console:{_PAGES[kind]}", args=[object_id])
    except (KeyError, NoReverseMatch):
        return ""
