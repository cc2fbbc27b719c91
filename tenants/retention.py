"""Retention: how long rows of each kind are kept, by tenant, and how they are deleted in small portions.

An app registers its kinds in a module `retention` of its own; this module does not know what they are about. A tenant's own policy takes
precedence over the platform's default. Rows are deleted kind by kind and tenant by tenant, in small transactions of one tenant each. Every
portion is complete in itself, so a pass may be interrupted anywhere, be repeated, or run twice at once: locked rows are skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from tenants import clock, outages
from tenants.context import APP, SYSTEM, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tenants.models.retention import (
    LONGEST_DAYS,
    DepartedTenant,
    RetentionPass,
    RetentionPolicy,
    RetentionTally,
)
from tenants.sql import Statement, lock_name
from tenants.wire_json import whole_number

logger = logging.getLogger(__name__)

#: Deletes at most so many rows (tenant, older than, most) in the caller's `tenant_scope`; returns how many it deleted.
Portion = Callable[[UUID, datetime, int], int]
#: How many rows (tenant, older than) a portion without a limit would delete.
Count = Callable[[UUID, datetime], int]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rows. When `portion` returns 0, nothing is left to delete for that tenant."""

    name: str
    title: str
    portion: Portion
    count: Count

    @classmethod
    def of(cls, name: str, title: str, rows: Rows | RowsInTurn) -> Self:
        return cls(name, title, rows.portion, rows.count)

    @property
    def default_days(self) -> float | None:
        """Return the default number of days. None: never deleted, unless the tenant's own policy says otherwise."""
        return settings.ORCHESTRATOR_RETENTION_DAYS[self.name]


_kinds: dict[str, Kind] = {}


def register(*kinds: Kind) -> None:
    """Delete rows of these kinds from now on. Registering a kind again replaces it."""
    _kinds.update({kind.name: kind for kind in kinds})


def all_kinds() -> Mapping[str, Kind]:
    """By name, in the order of their names."""
    return dict(sorted(_kinds.items()))


# Kinds that are rows of tables: a query in a file finds them.


@dataclass(frozen=True, slots=True)
class Rows:
    """`<folder>/<name>.sql` selects the `id`s of rows of `table` under the alias `r`; parameters: tenant, before."""

    table: str
    folder: Path
    name: str

    def portion(self, tenant_id: UUID, before: datetime, most: int) -> int:
        """Delete a portion with one statement. Locked rows are left for the next portion; foreign keys delete what refers to the rows."""
        rows = f"{self._query()} LIMIT %(most)s FOR UPDATE OF r SKIP LOCKED"
        text = f"DELETE FROM {self.table} WHERE tenant_id = %(tenant)s AND id IN ({rows}) RETURNING id"  # noqa: S608
        return len(self._run(text, tenant=tenant_id, before=before, most=most))

    def count(self, tenant_id: UUID, before: datetime) -> int:
        text = f"SELECT count(*) AS count FROM ({self._query()}) AS found"  # noqa: S608
        return int(self._run(text, tenant=tenant_id, before=before)[0].count)

    def _query(self) -> str:
        return Statement.load(self.folder, self.name).text

    def _run(self, text: str, **parameters: Any) -> list[Any]:
        return Statement(name=self.name, text=text).run(parameters)


@dataclass(frozen=True, slots=True)
class RowsInTurn:
    """A kind of several tables. All rows of one table go before those of the next, so that no cascade deletes more than a portion."""

    tables: tuple[Rows, ...]

    def portion(self, tenant_id: UUID, before: datetime, most: int) -> int:
        counts = (table.portion(tenant_id, before, most) for table in self.tables)
        return next(filter(None, counts), 0)

    def count(self, tenant_id: UUID, before: datetime) -> int:
        return sum(table.count(tenant_id, before) for table in self.tables)


# The kinds of this app: answers kept for idempotency, and the ledger.


_FOLDER = Path(__file__).parent / "sql" / "retention"
_FORGET_USAGE = Statement.load(_FOLDER, "forget_usage")

_KEYS = Rows("tenants_idempotentrequest", _FOLDER, "idempotency_keys")
_USAGE = Rows("tenants_usageentry", _FOLDER, "usage")


def register_own_kinds() -> None:
    register(
        Kind.of("idempotency_keys", "Answers kept for Idempotency-Key", _KEYS),
        Kind("usage", "Entries of the ledger; their totals by month stay", _forget_usage, _USAGE.count),
    )


def _forget_usage(tenant_id: UUID, before: datetime, most: int) -> int:
    rows = _FORGET_USAGE.run({"tenant": tenant_id, "before": before, "most": most})
    return int(rows[0].deleted)


NEVER = "never"


class RetentionInvalid(TenantError):
    """A policy names an unknown kind, or an invalid number of days. `errors` has each error by its path."""

    code = "invalid_retention"
    status = 400

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in errors))
        self.errors = errors


def days_of(tenant_id: UUID) -> dict[str, float | None]:
    """Return the days in force for a tenant, by kind."""
    own = own_days_of(tenant_id)
    return {name: own.get(name, kind.default_days) for name, kind in all_kinds().items()}


def own_days_of(tenant_id: UUID) -> dict[str, int | None]:
    """Return the days that the tenant has set itself, by kind."""
    with tenant_scope(tenant_id):
        return dict(RetentionPolicy.objects.for_tenant(tenant_id).values_list("kind", "days"))


def cutoff(days: float | None) -> datetime | None:
    """Return the time before which rows may be deleted; None if none may."""
    return None if days is None else clock.now() - timedelta(days=days)


def lock_policies(tenant_id: UUID) -> None:
    """Let nobody else replace the tenant's policies until the transaction ends. A tenant without policies has no row to lock."""
    lock_name(f"retention:{tenant_id}", using=APP)


def replace_policies(tenant_id: UUID, policies: Mapping[str, object], *, actor: str) -> None:
    """Set the tenant's own policies: days, or "never", by kind. Kinds left out get the default again. Raises `RetentionInvalid`."""
    if errors := [(kind, error) for kind, value in policies.items() if (error := _error(kind, value))]:
        raise RetentionInvalid(errors)
    days = {kind: whole_number(value) for kind, value in policies.items()}
    with tenant_scope(tenant_id):
        lock_policies(tenant_id)
        rows = RetentionPolicy.objects.for_tenant(tenant_id)
        rows.exclude(kind__in=days).delete()
        for kind, value in days.items():
            row, was_created = RetentionPolicy.objects.get_or_create(
                tenant_id=tenant_id, kind=kind, defaults={"days": value, "updated_by": actor}
            )
            if not was_created and row.days != value:
                rows.filter(pk=row.pk).update(
                    days=value, version=F("version") + 1, updated_by=actor, updated_at=Now()
                )


def overrides(kind: str) -> dict[UUID, int | None]:
    """Return the days that tenants have set for one kind, by tenant. For files, which are deleted for all tenants at once."""
    with system_scope():
        return dict(RetentionPolicy.objects.filter(kind=kind).values_list("tenant_id", "days"))


def tenants_in_order() -> list[UUID]:
    """Yield every tenant, in the order in which a pass visits them."""
    with system_scope():
        return list(Tenant.objects.order_by("pk").values_list("pk", flat=True))


def list_departed_tenants() -> set[UUID]:
    """Return the tenants that were off-boarded. All their remaining data may be deleted."""
    with system_scope():
        return set(DepartedTenant.objects.values_list("pk", flat=True))


def _error(kind: str, value: object) -> str:
    if kind not in all_kinds():
        return f"is not a kind of rows with a retention time; these are: {', '.join(all_kinds())}"
    if value == NEVER:
        return ""
    if not 1 <= (whole_number(value) or 0) <= LONGEST_DAYS:
        return f'must be "{NEVER}" or whole days from 1 to {LONGEST_DAYS}'
    return ""


PORTION = 200  # rows in one transaction, which locks them for a few milliseconds
TURN_SECONDS = 10.0  # of a worker's time, before other tasks have their turn
PASS_INTERVAL = timedelta(hours=1)
GOING_ON = timedelta(seconds=1)


def list_due_passes() -> QuerySet[RetentionPass]:
    """Kinds whose next pass is due, for the background task."""
    return RetentionPass.objects.filter(due_at__lte=Now())


def purge_in_turns(*, within: float = TURN_SECONDS) -> int:
    """Work on the kinds that are due, for about so many seconds; returns how many rows were deleted."""
    until, total = time.monotonic() + within, 0
    while time.monotonic() < until and (kind := _claim()) is not None:
        total += _pass(kind, until)
    return total


def purge(tenant_id: UUID, kind: Kind, *, until: float | None = None) -> int:
    """Delete the expired rows of one kind at one tenant, until none is left or the monotonic clock reaches `until`."""
    before, deleted = cutoff(days_of(tenant_id)[kind.name]), 0
    if before is None:
        return 0
    while until is None or time.monotonic() < until:
        with tenant_scope(tenant_id):
            count = kind.portion(tenant_id, before, PORTION)
        if not count:
            break
        deleted += count
    _count(tenant_id, kind.name, deleted)
    return deleted


def count(tenant_id: UUID, kind: Kind) -> int:
    """Return how many rows `purge` would delete now."""
    before = cutoff(days_of(tenant_id)[kind.name])
    if before is None:
        return 0
    with tenant_scope(tenant_id):
        return kind.count(tenant_id, before)


def _claim() -> Kind | None:
    """Take a kind that is due, if any. It is postponed at once, so two workers take different kinds. If one dies, it is due again."""
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
        has_failed = True
        with outages.one_of_many(
            logger, "Rows of a tenant could not be deleted", action="retention_failed", tenant=str(tenant_id), kind=kind.name
        ):  # fmt: skip
            try:
                deleted += purge(tenant_id, kind, until=until)
                has_failed = False
            except OperationalError as error:
                if outages.is_away(error) or outages.is_contention(error):
                    raise
                # A statement took too long, perhaps only for this tenant.
                facts = {"action": "retention_slow", "tenant": str(tenant_id), "kind": kind.name}
                logger.warning("The rows of a tenant were not deleted in time", extra=facts)
        is_over = time.monotonic() >= until
        if has_failed or not is_over:
            reached = tenant_id
        if is_over:
            break
    else:
        _book(kind.name, rows=F("rows") + deleted, total=F("total") + deleted, reached=None, ended_at=Now())
        return deleted
    values = {} if reached is None else {"reached": reached}
    _book(kind.name, rows=F("rows") + deleted, total=F("total") + deleted, due_at=Now() + GOING_ON, **values)
    return deleted


def _from_where_it_stopped(kind: str) -> Iterator[UUID]:
    with system_scope():
        reached = RetentionPass.objects.values_list("reached", flat=True).get(pk=kind)
    return (each for each in tenants_in_order() if reached is None or each > reached)


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
    """Make sure that every kind has its `RetentionPass`; with `due`, make all of them due now."""
    with system_scope():
        RetentionPass.objects.bulk_create(map(RetentionPass, all_kinds()), ignore_conflicts=True)
        if due:
            RetentionPass.objects.update(due_at=Now())
