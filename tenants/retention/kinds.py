"""The kinds of rows that have an age, as the apps register them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from tenants.sql import Statement

#: Deletes at most so many (tenant, older than, most) in the caller's `tenant_scope`; returns how many it took.
Portion = Callable[[UUID, datetime, int], int]
#: How many rows (tenant, older than) a portion without end would delete.
Count = Callable[[UUID, datetime], int]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. A portion that returns 0 has nothing left to do for that tenant."""

    name: str
    title: str
    portion: Portion
    count: Count

    @property
    def default_days(self) -> float | None:
        """None: never deleted, unless the tenant says otherwise."""
        days: float | None = settings.ORCHESTRATOR_RETENTION_DAYS[self.name]
        return days


_kinds: dict[str, Kind] = {}


def register(*kinds: Kind) -> None:
    """Have rows of these kinds deleted from now on. Registering a kind again replaces it."""
    _kinds.update({kind.name: kind for kind in kinds})


def all_kinds() -> Mapping[str, Kind]:
    """By name, in the order of their names."""
    return dict(sorted(_kinds.items()))


# Kinds that are rows of tables: a question that finds them in a file, and how to delete and count what it finds.


@dataclass(frozen=True, slots=True)
class Rows:
    """`<folder>/<name>.sql` selects the `id`s of rows of `table` under the alias `r`; parameters: tenant, before."""

    table: str
    folder: Path
    name: str

    def portion(self, tenant_id: UUID, before: datetime, most: int) -> int:
        """One bounded statement. Rows that somebody else holds are left for the next time; who refers to them goes by its key."""
        found = f"{self._question()} LIMIT %(most)s FOR UPDATE OF r SKIP LOCKED"
        text = f"DELETE FROM {self.table} WHERE tenant_id = %(tenant)s AND id IN ({found}) RETURNING id"  # noqa: S608
        return len(self._run(text, tenant=tenant_id, before=before, most=most))

    def count(self, tenant_id: UUID, before: datetime) -> int:
        text = f"SELECT count(*) AS count FROM ({self._question()}) AS found"  # noqa: S608
        return int(self._run(text, tenant=tenant_id, before=before)[0].count)

    def _question(self) -> str:
        return Statement.load(self.folder, self.name).text

    def _run(self, text: str, **parameters: Any) -> list[Any]:
        return Statement(name=self.name, text=text).run(parameters)


@dataclass(frozen=True, slots=True)
class RowsInTurn:
    """A kind of several tables. Rows of the first go before those of the next, so that no deletion takes more with it than a portion."""

    tables: tuple[Rows, ...]

    def portion(self, tenant_id: UUID, before: datetime, most: int) -> int:
        gone = (table.portion(tenant_id, before, most) for table in self.tables)
        return next(filter(None, gone), 0)

    def count(self, tenant_id: UUID, before: datetime) -> int:
        return sum(table.count(tenant_id, before) for table in self.tables)


# The kinds of this app: answers kept for idempotency, and the ledger.


_FOLDER = Path(__file__).parent / "sql"
_FORGET_USAGE = Statement.load(_FOLDER, "forget_usage")

_KEYS = Rows("tenants_idempotentrequest", _FOLDER, "idempotency_keys")
_USAGE = Rows("tenants_usageentry", _FOLDER, "usage")


def connect() -> None:
    register(
        Kind("idempotency_keys", "Answers kept for Idempotency-Key", _KEYS.portion, _KEYS.count),
        Kind("usage", "Entries of the ledger; their totals by month stay", _forget_usage, _USAGE.count),
    )


def _forget_usage(tenant_id: UUID, before: datetime, most: int) -> int:
    found = _FORGET_USAGE.run({"tenant": tenant_id, "before": before, "most": most})
    return int(found[0].deleted)
