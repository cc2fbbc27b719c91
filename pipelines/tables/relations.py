"""Reading from a table of PostgreSQL by pages in the order of its ids: what datasets and declared tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import DataError, connections
from psycopg import sql

from pipelines.data_sources import Query
from pipelines.exceptions import SourceUnavailable
from pipelines.tables.conditions import Column, Piece, all_of
from tenants.context import APP, tenant_scope

PAGE = 500  # rows; what a reading keeps in memory

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Relation:
    """What to read of which table. All of it is text of ours; what others said is in the parameters."""

    table: sql.Identifier
    selected: sql.Composable  # behind the id
    columns: Mapping[str, Column]
    among: Piece  # the rows that belong to the table and the tenant
    row_of: Callable[[tuple[Any, ...]], Row]


Found = Callable[[UUID, Query], Relation]


def count(tenant_id: UUID, query: Query, found: Found) -> int:
    with tenant_scope(tenant_id):
        relation = found(tenant_id, query)
        where, parameters = _where(relation, query)
        text = sql.SQL("SELECT count(*) FROM ") + relation.table + sql.SQL(" WHERE ") + where
        return int(_run(query, text, parameters)[0][0])


def rows(tenant_id: UUID, query: Query, found: Found, *, after: UUID | None = None) -> Iterator[Row]:
    """The rows of a query in the order of their ids, a page per transaction: rows may come and go meanwhile."""
    while True:
        page = page_of(tenant_id, query, found, after=after, size=PAGE)
        yield from (row for _, row in page)
        if len(page) < PAGE:
            return
        after = page[-1][0]


def page_of(
    tenant_id: UUID, query: Query, found: Found, *, after: UUID | None, size: int
) -> list[tuple[UUID, Row]]:
    with tenant_scope(tenant_id):
        relation = found(tenant_id, query)
        where, parameters = _where(relation, query)
        if after is not None:
            where, parameters = where + sql.SQL(" AND id > %s"), [*parameters, after]
        text = sql.SQL("SELECT id, ") + relation.selected + sql.SQL(" FROM ") + relation.table
        text += sql.SQL(" WHERE ") + where + sql.SQL(" ORDER BY id LIMIT %s")
        page = _run(query, text, [*parameters, size])
    return [(id_, relation.row_of(values)) for id_, *values in page]


def _where(relation: Relation, query: Query) -> tuple[sql.Composable, list[Any]]:
    pieces = [relation.among, *all_of(query.comparisons, relation.columns)]
    where = sql.SQL(" AND ").join([text for text, _ in pieces])
    return where, [parameter for _, parameters in pieces for parameter in parameters]


def _run(query: Query, text: sql.Composed, parameters: list[Any]) -> list[Any]:
    with connections[APP].cursor() as cursor:
        try:
            cursor.execute(text.as_string(), parameters)
        except DataError as error:
            # A row that is no longer of the type that the query was made for.
            raise changed(query) from error
        return list(cursor.fetchall())


def changed(query: Query) -> SourceUnavailable:
    return SourceUnavailable(
        f"{query.source}:{query.name} was changed or deleted since the data source was read."
    )
