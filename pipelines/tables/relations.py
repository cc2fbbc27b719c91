"""Reading from a table of PostgreSQL by pages in the order of its ids: what datasets and declared tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import DataError, connections
from psycopg import sql

from pipelines.data_sources import FieldType, Operator, Query
from pipelines.data_sources.query import Comparison
from pipelines.exceptions import SourceUnavailable
from tenants.context import APP, tenant_scope

PAGE = 500  # rows; what a reading keeps in memory

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Relation:
    """What to read of which table. All of it is text of ours; what others said is in the parameters."""

    table: sql.Composable
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


# Comparisons as SQL that says exactly what `data_sources.matching` says.
#
# Every condition is true or false, never unknown, also for rows without a value. Values travel as parameters; the text
# consists of our own pieces alone.


Piece = tuple[sql.Composable, list[Any]]

NUMBERS = (FieldType.INTEGER, FieldType.NUMBER)
_ORDERED = {
    Operator.GT: sql.SQL(" > %s"),
    Operator.GTE: sql.SQL(" >= %s"),
    Operator.LT: sql.SQL(" < %s"),
    Operator.LTE: sql.SQL(" <= %s"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A field in SQL: an expression of its type, with the parameters that stand in it."""

    kind: FieldType
    expression: sql.Composable
    parameters: tuple[Any, ...] = ()


def all_of(comparisons: Iterable[Comparison], columns: Mapping[str, Column]) -> list[Piece]:
    """A condition for each comparison. A field that is none of the columns is a KeyError, and no SQL."""
    return [_condition(comparison, columns[comparison.field]) for comparison in comparisons]


def _condition(comparison: Comparison, column: Column) -> Piece:
    expression, before = column.expression, list(column.parameters)
    match comparison.operator:
        case Operator.EXISTS:
            return expression + sql.SQL(" IS NOT NULL" if comparison.value else " IS NULL"), before
        case Operator.EQ:
            return expression + sql.SQL(" IS NOT DISTINCT FROM %s"), [
                *before,
                _parameter(comparison.value, column),
            ]
        case Operator.NE:
            return expression + sql.SQL(" IS DISTINCT FROM %s"), [
                *before,
                _parameter(comparison.value, column),
            ]
        case Operator.IN | Operator.NIN:
            return _among(comparison, column)
        case ordered:
            # In a list of conditions unknown counts as false, and a null is less than nothing.
            return expression + _ORDERED[ordered], [*before, _parameter(comparison.value, column)]


def _among(comparison: Comparison, column: Column) -> Piece:
    members = comparison.value if isinstance(comparison.value, tuple) else ()
    known = [_parameter(member, column) for member in members if member is not None]
    among: sql.Composable = sql.SQL("coalesce(") + column.expression + sql.SQL(" = ANY(%s), false)")
    parameters: list[Any] = [*column.parameters, known]
    if len(known) < len(members):
        among = sql.SQL("(") + among + sql.SQL(" OR ") + column.expression + sql.SQL(" IS NULL)")
        parameters += column.parameters
    return among if comparison.operator is Operator.IN else sql.SQL("NOT ") + among, parameters


def _parameter(value: Any, column: Column) -> Any:
    """As a decimal a number is compared by its digits, as jsonb keeps it; as a float it would be rounded."""
    if column.kind in NUMBERS and isinstance(value, int | float):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        return Decimal(repr(int(value) if whole else value))
    return value
