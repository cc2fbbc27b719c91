"""What data sources may read: a tenant's own datasets, and the few tables of the platform that are declared here.

Everything is read a page at a time in a lasting order, in short transactions of the tenant, so ten thousand rows need no more
memory than a page and no table is held. What comes out are JSON values of the fields' types: nobody outside sees a model,
a cursor or an answer of the network.

    catalogue_of(tenant_id)           the tables with their fields' types, for `data_sources.check` and `resolve`
    values_of(tenant_id, query)       the values of a query, to be gone through as often as needed, and how many they are

Nothing is read before the values are gone through or counted; then what cannot be had raises `SourceUnavailable`. Sources
`api`, `file` and `cache` wait for others: go through their values outside of transactions.
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
    """The values of a query. Each iteration reads again, so that it can be repeated as often as a product needs.

    An address is asked only once: its rows are kept for as long as this object.
    """

    tenant_id: UUID
    query: Query

    def __iter__(self) -> Iterator[Any]:
        if self.query.literal is not None:
            return iter((plain(self.query.literal),))
        return (_value(row, self.query.fields) for row in islice(self._rows(), self.query.options.limit))

    @cached_property
    def count(self) -> int:
        """How many there are right now, without reading them where the source can tell. Asked once."""
        if self.query.literal is not None:
            return 1
        limit = self.query.options.limit
        if self.query.source is not Source.DB:
            return sum(1 for _ in islice(self._rows(), limit))
        found = relations.count(self.tenant_id, self.query)
        return found if limit is None else min(found, limit)

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
    """Raises nothing yet: what cannot be read raises `SourceUnavailable` when it is counted or gone through."""
    return Values(tenant_id, query)


def rows_of(tenant_id: UUID, query: Query) -> Iterator[Row]:
    """The whole rows as JSON values. Raises as `Values` do."""
    for row in Values(tenant_id, query)._rows():
        yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """A field's value as JSON has it: a time as text, in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def _value(row: Row, fields: tuple[str, ...]) -> Any:
    """One field's value; of several an object."""
    if len(fields) == 1:
        return plain(row.get(fields[0]))
    return {name: plain(row.get(name)) for name in fields}


# The tables of a tenant with their fields' types, by source.


def catalogue_of(tenant_id: UUID) -> Catalogue:
    """Everything that the tenant's data sources may name. A dataset hides a declared table of the same name."""
    found: dict[Source, dict[str, Table]] = {source: {} for source in Source}
    found[Source.DB].update({name: table.shape for name, table in relations.TABLES.items()})
    with tenant_scope(tenant_id):
        for dataset in Dataset.objects.for_tenant(tenant_id):
            found[Source(dataset.source)][dataset.name] = shape_of(dataset)
    return found
