"""Kinds that are rows of tables: a question that finds them in a file, and how to delete and count what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from tenants.sql import Statement


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
