"""Reads the rows of data sources: a tenant's own datasets, and a few tables of the platform.

Rows are read a page at a time in a stable order, in short transactions of the tenant. So ten thousand rows need no more
memory than a page, and nothing stays locked. The results are JSON values of the fields' types.

    catalogue_of(tenant_id)           the tables with their fields' types, for `data_sources.check` and `resolve`
    values_of(tenant_id, query)       the values of a query and their number; they can be iterated repeatedly

Nothing is read before the values are iterated or counted; then `SourceUnavailable` is raised if they cannot be read.
The sources `api`, `file` and `cache` may block: iterate over their values outside of transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import Any
from uuid import UUID

from pipelines.data_sources import Catalogue, Query, Source, Table
from pipelines.models import Dataset
from pipelines.tables import fetched, relations
from pipelines.tables.fetched import BadTable, csv_lines
from pipelines.tables.relations import Row, shape_of
from tenants.context import tenant_scope


@dataclass(frozen=True)
class Values:
    """The values of a query. Each iteration reads them again, because a product iterates repeatedly.

    An address is called only once: this object keeps its rows.
    """

    tenant_id: UUID
    query: Query

    def __iter__(self) -> Iterator[Any]:
        if self.query.literal is not None:
            return iter((plain(self.query.literal),))
        return (_value(row, self.query.fields) for row in islice(self._rows(), self.query.options.limit))

    @cached_property
    def count(self) -> int:
        """How many values there are now, if possible without reading them. Computed once."""
        if self.query.literal is not None:
            return 1
        limit = self.query.options.limit
        if self.query.source is not Source.DB:
            return sum(1 for _ in islice(self._rows(), limit))
        number = relations.count(self.tenant_id, self.query)
        return number if limit is None else min(number, limit)

    def _rows(self) -> Iterator[Row]:
        if self.query.source is Source.DB:
            return relations.rows(self.tenant_id, self.query)
        return (
            iter(self._fetched_rows)
            if self.query.source is Source.API
            else fetched.rows(self.tenant_id, self.query)
        )

    @cached_property
    def _fetched_rows(self) -> list[Row]:
        return list(fetched.rows(self.tenant_id, self.query))


def values_of(tenant_id: UUID, query: Query) -> Values:
    """Return the values of a query, unread. Counting or iterating raises `SourceUnavailable` if they cannot be read."""
    return Values(tenant_id, query)


def rows_of(tenant_id: UUID, query: Query) -> Iterator[Row]:
    """Yield whole rows as JSON values. Raises `SourceUnavailable`."""
    for row in Values(tenant_id, query)._rows():
        yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """Return a field's value as JSON: a time becomes text, in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def _value(row: Row, fields: tuple[str, ...]) -> Any:
    """Return the value of one field, or an object of several."""
    if len(fields) == 1:
        return plain(row.get(fields[0]))
    return {name: plain(row.get(name)) for name in fields}


def catalogue_of(tenant_id: UUID) -> Catalogue:
    """Return all tables that the tenant's data sources may name, by source. A dataset hides a declared table of the same name."""
    catalogue: dict[Source, dict[str, Table]] = {source: {} for source in Source}
    catalogue[Source.DB].update({name: table.shape for name, table in relations.TABLES.items()})
    with tenant_scope(tenant_id):
        for dataset in Dataset.objects.for_tenant(tenant_id):
            catalogue[Source(dataset.source)][dataset.name] = shape_of(dataset)
    return catalogue
