"""The audit trail, for admins: who did what to which object and when, with what was before and after; and the same as a file."""

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

from console.page import PageContext, csv_of, page, render_page
from tenants.context import tenant_scope
from tenants.models import AuditEntry

HEADS = (
    "number", "at", "actor kind", "actor", "operation", "outcome", "object kind", "object", "changes", "detail", "request", "address",
    "broken glass", "hash",
)  # fmt: skip


@page("audit", for_admins="The audit trail")
def show_trail(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The newest entries that fit, a page at a time."""
    found = trail(visit.tenant_id, AuditFilter.read(request.GET))
    return render_page(request, visit, "console/audit/trail.html", {"trail": found, "outcomes": OUTCOMES})


@page("audit", for_admins="The audit trail")
def export(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The entries that fit, newest first, up to ten thousand."""
    found = all_of(visit.tenant_id, AuditFilter.read(request.GET))
    return csv_of(f"audit-{visit.who.tenant}", HEADS, (cells(entry) for entry in found))


# The entries of a tenant's audit trail, newest first, along the numbers of its chain.


PAGE = 50
MOST_EXPORTED = 10_000


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs, as JSON before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry with its changes laid out."""

    row: AuditEntry
    changes: Sequence[Change]
    detail: str

    @property
    def words(self) -> str:
        return in_words(self.row.operation)

    @property
    def address(self) -> str:
        """Where what it is about is shown, without its tenant; empty when nowhere."""
        return address_of(self.row.object_kind or "", str(self.row.object_id or ""))


@dataclass(frozen=True, slots=True)
class Trail:
    """A page of entries. `older` is the query of the next page; empty at the end."""

    sought: AuditFilter
    entries: Sequence[Entry]
    older: str


def trail(tenant_id: UUID, sought: AuditFilter) -> Trail:
    """The newest entries that fit."""
    with tenant_scope(tenant_id):
        found = list(_fitting(tenant_id, sought)[: PAGE + 1])
    shown = [_entry(row) for row in found[:PAGE]]
    older = sought.behind(found[PAGE - 1].number).as_query if len(found) > PAGE else ""
    return Trail(sought, shown, older)


def all_of(tenant_id: UUID, sought: AuditFilter) -> list[AuditEntry]:
    """All that fit, up to a bound."""
    with tenant_scope(tenant_id):
        return list(_fitting(tenant_id, sought)[:MOST_EXPORTED])


def cells(entry: AuditEntry) -> tuple[Any, ...]:
    """An entry as a row of a file."""
    return (
        entry.number, entry.at, entry.actor_kind, entry.actor_name or entry.actor_id, entry.operation, entry.outcome,
        entry.object_kind, entry.object_id, _json(entry.changes), _json(entry.detail), entry.request_id, entry.ip,
        str(entry.break_glass_id or ""), entry.hash,
    )  # fmt: skip


def _fitting(tenant_id: UUID, sought: AuditFilter) -> QuerySet[Any]:
    # By the chain, whose numbers have an index; a tenant's chain has its own id.
    rows = AuditEntry.objects.for_tenant(tenant_id).filter(chain=tenant_id)
    conditions = Q()
    if sought.actor:
        conditions &= Q(actor_name=sought.actor) | Q(actor_id=sought.actor)
    if sought.operation:
        conditions &= Q(operation__icontains=sought.operation)
    if sought.kind:
        conditions &= Q(object_kind=sought.kind)
    if sought.object:
        conditions &= Q(object_id=sought.object)
    if sought.outcome:
        conditions &= Q(outcome=sought.outcome)
    if sought.from_moment:
        conditions &= Q(at__gte=sought.from_moment)
    if sought.to_moment:
        conditions &= Q(at__lt=sought.to_moment)
    if sought.before is not None:
        conditions &= Q(number__lt=sought.before)
    found: QuerySet[Any] = rows.filter(conditions).order_by("-number")
    return found


def _entry(row: AuditEntry) -> Entry:
    changes = row.changes if isinstance(row.changes, dict) else {}
    laid_out = [
        Change(name, _json(pair[0]), _json(pair[1]))
        for name, pair in changes.items()
        if isinstance(pair, list) and len(pair) == 2
    ]
    return Entry(row, laid_out, _json(row.detail) if row.detail else "")


def _json(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# What somebody looks for in the audit trail. It is an address, so it can be kept and shared.


OUTCOMES = ("done", "refused", "failed")
WORDS = ("actor", "operation", "kind", "object", "outcome", "since", "until")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Days are UTC's, both included. `before` is the number of the entry that the page begins behind."""

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
        """From an address. What is no day is told of, and not looked for."""
        words = {name: str(query.get(name, "")).replace("\x00", "").strip()[:200] for name in WORDS}
        if words["outcome"] not in OUTCOMES:
            words["outcome"] = ""
        number, remark = str(query.get("before", "")), ""
        for name in ("since", "until"):
            if words[name] and _day(words[name]) is None:
                words[name], remark = "", "A day is written such as 2026-05-01."
        return cls(**words, before=int(number[:15]) if number.isdecimal() else None, remark=remark)

    @property
    def from_moment(self) -> datetime | None:
        return _start(_day(self.since))

    @property
    def to_moment(self) -> datetime | None:
        """The end of the last day; none for the last day that there is."""
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
        """All that fits, from whichever page it is asked."""
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


# What an entry of the audit trail says in words, and the page of what it is about.


_DONE = {"POST": "created", "PUT": "changed", "PATCH": "changed", "DELETE": "removed"}
#: Kinds of objects that have a page here, by the name of its address.
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
    """An operation of the API as a verb: `POST /queues/{role}/pause/` is `pause`, `POST /activities/` is `created`. Others speak for
    themselves.
    """
    method, _, path = operation.partition(" ")
    if method not in _DONE:
        return operation.replace(".", " ").replace("_", " ")
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and not parts[-1].startswith("{"):
        return parts[-1].replace("-", " ").replace("_", " ")
    return _DONE[method]


def address_of(kind: str, object_id: str) -> str:
    """Where the object is shown, without its tenant; empty for what has no page."""
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
