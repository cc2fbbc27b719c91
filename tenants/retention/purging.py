"""Deleting what has been kept long enough: kind by kind, tenant by tenant, in small transactions of each tenant's own.

Every portion is complete in itself, so a pass may die anywhere, be repeated, or run twice at once: rows that another holds are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models.retention import RetentionPass, RetentionTally
from tenants.retention import policies
from tenants.retention.kinds import Kind, all_kinds

PORTION = 200  # rows in one transaction: a few milliseconds of locks
TURN_SECONDS = 10.0  # of a worker's time, before others have their turn
PASS_INTERVAL = timedelta(hours=1)
GOING_ON = timedelta(seconds=1)


def waiting() -> QuerySet[RetentionPass]:
    """Kinds whose next pass is due, for the background task."""
    return RetentionPass.objects.filter(due_at__lte=Now())


def purge_in_turns(*, within: float = TURN_SECONDS) -> int:
    """Take turns at kinds that are due, for about so many seconds; returns how many rows went."""
    until, total = time.monotonic() + within, 0
    while time.monotonic() < until and (kind := _claim()) is not None:
        total += _pass(kind, until)
    return total


def purge(tenant_id: UUID, kind: Kind, *, now: datetime | None = None, until: float | None = None) -> int:
    """Delete what is over of one kind at one tenant, until nothing is left or the monotonic clock says `until`."""
    before, deleted = policies.before(policies.days_of(tenant_id)[kind.name], now=now), 0
    if before is None:
        return 0
    while until is None or time.monotonic() < until:
        with tenant_scope(tenant_id):
            gone = kind.portion(tenant_id, before, PORTION)
        if not gone:
            break
        deleted += gone
    _count(tenant_id, kind.name, deleted)
    return deleted


def count(tenant_id: UUID, kind: Kind, *, now: datetime | None = None) -> int:
    """How many rows `purge` would delete now."""
    before = policies.before(policies.days_of(tenant_id)[kind.name], now=now)
    if before is None:
        return 0
    with tenant_scope(tenant_id):
        return kind.count(tenant_id, before)


def _claim() -> Kind | None:
    """A kind that is due. It is put off at once, so that two at work take different ones; if we die, it is due again after the interval."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        due = RetentionPass.objects.filter(due_at__lte=Now(), kind__in=all_kinds()).order_by("due_at")
        row = due.select_for_update(skip_locked=True).first()
        if row is None:
            return None
        fresh = {"began_at": Now(), "ended_at": None, "rows": 0} if row.ended_at or not row.began_at else {}
        _book(row.kind, due_at=Now() + PASS_INTERVAL, **fresh)
        return all_kinds()[row.kind]


def _pass(kind: Kind, until: float) -> int:
    deleted, reached = 0, None
    for tenant_id in _from_where_it_stopped(kind.name):
        deleted += purge(tenant_id, kind, until=until)
        if time.monotonic() >= until:
            break
        reached = tenant_id
    else:
        _book(kind.name, rows=F("rows") + deleted, total=F("total") + deleted, reached=None, ended_at=Now())
        return deleted
    kept = {} if reached is None else {"reached": reached}
    _book(
        kind.name,
        rows=F("rows") + deleted,
        total=F("total") + deleted,
        due_at=Now() + GOING_ON,
        **kept,
    )
    return deleted


def _from_where_it_stopped(kind: str) -> Iterator[UUID]:
    with system_scope():
        reached = RetentionPass.objects.values_list("reached", flat=True).get(pk=kind)
    return (each for each in policies.tenants() if reached is None or each > reached)


def _book(kind: str, **changes: object) -> None:
    with system_scope():
        RetentionPass.objects.filter(pk=kind).update(**changes)


def _count(tenant_id: UUID, kind: str, deleted: int) -> None:
    if not deleted:
        return
    with tenant_scope(tenant_id):
        RetentionTally.objects.get_or_create(tenant_id=tenant_id, kind=kind)
        RetentionTally.objects.for_tenant(tenant_id).filter(kind=kind).update(
            deleted=F("deleted") + deleted, last_deleted=deleted, last_at=Now()
        )


def arrange(*, due: bool = False) -> None:
    """Have every kind in the leader's book; with `due`, as one to be looked at as soon as possible."""
    with system_scope():
        RetentionPass.objects.bulk_create(map(RetentionPass, all_kinds()), ignore_conflicts=True)
        if due:
            RetentionPass.objects.update(due_at=Now())
