"""The audit trail for admins: who did what to which object and when, with the values before and after; also as CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from console.page import PageContext, csv_of, page, text_in
from tenants.context import tenant_scope
from tenants.models import AuditEntry

HEADS = (
    "number", "at", "actor kind", "actor", "operation", "outcome", "object kind", "object", "changes", "detail", "request", "address",
    "broken glass", "hash",
)  # fmt: skip


@page("audit", for_admins="The audit trail")
def show_trail(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The matching entries, newest first, page by page."""
    context = {"trail": trail(visit.tenant_id, AuditFilter.read(request.GET)), "outcomes": OUTCOMES}
    return visit.render("console/audit/trail.html", context)


@page("audit", for_admins="The audit trail")
def export(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The matching entries as CSV, newest first, up to ten thousand."""
    entries = all_of(visit.tenant_id, AuditFilter.read(request.GET))
    return csv_of(f"audit-{visit.who.tenant}", HEADS, (cells(entry) for entry in entries))


# The entries of a tenant's audit trail, newest first, ordered by their numbers in its chain.


PAGE = 50
MOST_EXPORTED = 10_000


@dataclass(frozen=True, slots=True)
class Change:
    """A changed field, with its JSON before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry with its changes."""

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


@dataclass(frozen=True, slots=True)
class Trail:
    """A page of entries. `older` is the query string of the next page; empty on the last one."""

    filter: AuditFilter
    entries: Sequence[Entry]
    older: str


def trail(tenant_id: UUID, audit_filter: AuditFilter) -> Trail:
    """Return one page of the matching entries, newest first."""
    with tenant_scope(tenant_id):
        rows = list(_matching(tenant_id, audit_filter)[: PAGE + 1])
    older = audit_filter.behind(rows[PAGE - 1].number).as_query if len(rows) > PAGE else ""
    return Trail(audit_filter, [_entry(row) for row in rows[:PAGE]], older)


def all_of(tenant_id: UUID, audit_filter: AuditFilter) -> list[AuditEntry]:
    """Return all matching entries, up to the limit of an export."""
    with tenant_scope(tenant_id):
        return list(_matching(tenant_id, audit_filter)[:MOST_EXPORTED])


def cells(entry: AuditEntry) -> tuple[Any, ...]:
    """Return an entry as a row of the CSV file."""
    return (
        entry.number, entry.at, entry.actor_kind, entry.actor_name or entry.actor_id, entry.operation, entry.outcome,
        entry.object_kind, entry.object_id, _json(entry.changes), _json(entry.detail), entry.request_id, entry.ip,
        str(entry.break_glass_id or ""), entry.hash,
    )  # fmt: skip


def _matching(tenant_id: UUID, audit_filter: AuditFilter) -> QuerySet[Any]:
    # Filter by chain, because its numbers have an index. The id of a tenant's chain is the tenant's.
    rows = AuditEntry.objects.for_tenant(tenant_id).filter(chain=tenant_id)
    conditions = Q()
    if audit_filter.actor:
        conditions &= Q(actor_name=audit_filter.actor) | Q(actor_id=audit_filter.actor)
    if audit_filter.operation:
        conditions &= Q(operation__icontains=audit_filter.operation)
    if audit_filter.kind:
        conditions &= Q(object_kind=audit_filter.kind)
    if audit_filter.object:
        conditions &= Q(object_id=audit_filter.object)
    if audit_filter.outcome:
        conditions &= Q(outcome=audit_filter.outcome)
    if audit_filter.from_moment:
        conditions &= Q(at__gte=audit_filter.from_moment)
    if audit_filter.to_moment:
        conditions &= Q(at__lt=audit_filter.to_moment)
    if audit_filter.before is not None:
        conditions &= Q(number__lt=audit_filter.before)
    return rows.filter(conditions).order_by("-number")


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


# The filter of the audit trail. It is part of the address, so it can be bookmarked and shared.


OUTCOMES = ("done", "refused", "failed")
WORDS = ("actor", "operation", "kind", "object", "outcome", "since", "until")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter. Days are in UTC, both included. The page starts after the entry with the number `before`."""

    actor: str = ""
    operation: str = ""
    kind: str = ""
    object: str = ""
    outcome: str = ""
    since: str = ""
    until: str = ""
    before: int | None = None
    remark: str = ""

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> AuditFilter:
        """Parse a query string. Invalid days get a remark and are ignored."""
        words = {name: text_in(query, name) for name in WORDS}
        if words["outcome"] not in OUTCOMES:
            words["outcome"] = ""
        number, remark = str(query.get("before", "")), ""
        for name in ("since", "until"):
            if words[name] and _day(words[name]) is None:
                words[name], remark = "", "Enter days as YYYY-MM-DD."
        return cls(**words, before=int(number[:15]) if number.isdecimal() else None, remark=remark)

    @property
    def from_moment(self) -> datetime | None:
        return _start(_day(self.since))

    @property
    def to_moment(self) -> datetime | None:
        """The end of the last day; None for the largest date."""
        day = _day(self.until)
        return None if day is None or day == date.max else _start(day + timedelta(days=1))

    @property
    def is_narrowed(self) -> bool:
        return any(getattr(self, name) for name in WORDS)

    @property
    def as_query(self) -> str:
        parameters = {name: getattr(self, name) for name in WORDS} | {"before": self.before}
        return urlencode({name: value for name, value in parameters.items() if value})

    @property
    def full_query(self) -> str:
        """The query string without the page."""
        return replace(self, before=None).as_query

    def behind(self, number: int) -> AuditFilter:
        return replace(self, before=number)


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _start(day: date | None) -> datetime | None:
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


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
_BY_ROLE = ("queue", "agent")


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
    name = _PAGES.get(kind, "")
    if not name or not object_id:
        return ""
    if name in _BY_ROLE:
        return reverse(f"console:{name}", args=[object_id]) if _is_slug(object_id) else ""
    try:
        return reverse(f"console:{name}", args=[UUID(object_id)])
    except ValueError:
        return ""


def _is_slug(text: str) -> bool:
    return text.replace("-", "").replace("_", "").isalnum() and text.isascii()
