"""The entries of a tenant's audit trail, newest first, along the numbers of its chain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from console.audit import wording
from console.audit.sought import Sought
from tenants.context import tenant_scope
from tenants.models import AuditEntry

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
        return wording.in_words(self.row.operation)

    @property
    def address(self) -> str:
        """Where what it is about is shown, without its tenant; empty when nowhere."""
        return wording.address_of(self.row.object_kind or "", str(self.row.object_id or ""))


@dataclass(frozen=True, slots=True)
class Trail:
    """A page of entries. `older` is the query of the next page; empty at the end."""

    sought: Sought
    entries: Sequence[Entry]
    older: str


def trail(tenant_id: UUID, sought: Sought) -> Trail:
    """The newest entries that fit."""
    with tenant_scope(tenant_id):
        found = list(_fitting(tenant_id, sought)[: PAGE + 1])
    shown = [_entry(row) for row in found[:PAGE]]
    older = sought.behind(found[PAGE - 1].number).as_query if len(found) > PAGE else ""
    return Trail(sought, shown, older)


def all_of(tenant_id: UUID, sought: Sought) -> list[AuditEntry]:
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


def _fitting(tenant_id: UUID, sought: Sought) -> QuerySet[Any]:
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
        Change(name, _json(pair[0]), _json(pair[1])) for name, pair in changes.items() if _is_pair(pair)
    ]
    return Entry(row, laid_out, _json(row.detail) if row.detail else "")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _json(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
