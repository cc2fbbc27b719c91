"""Reads tables in PostgreSQL: a tenant's own datasets, and the few tables of the platform that data sources may read.

Tables are read by pages in the order of their ids. A data source cannot read a table that is not declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
from django.db import DataError, connections
from django.db.models import Model
from psycopg import sql

from activities.models import Activity, ActivityRun
from pipelines.data_sources import FieldType, Operator, Query, Table
from pipelines.data_sources.query import Comparison
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset, Deliverable, Pipeline
from tenants.context import APP, tenant_scope
from tenants.models import Channel

PAGE = 500  # rows in memory

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A model or a subquery with `id` and `tenant_id`, and the columns of it that may be read."""

    source: type[Model] | sql.Composable
    fields: Mapping[str, FieldType]
    shape: Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", Table(self.fields))


def _table(model: type[Model]) -> sql.Identifier:
    return sql.Identifier(model._meta.db_table)


#: What agents report about their runs. `hours_ago` is a number, because filters do not know "yesterday".
_RUNS = sql.SQL(
    """(
    SELECT r.id, r.tenant_id, r.activity_id AS activity, a.agent_role AS role, r.status, r.attempt, r.error ->> 'code' AS error_code,
           r.usage ->> 'model' AS model, (r.usage ->> 'input_tokens')::bigint AS input_tokens,
           (r.usage ->> 'output_tokens')::bigint AS output_tokens, (r.usage ->> 'cost_usd')::numeric AS dollars, r.started_at, r.ended_at,
           round(extract(epoch FROM r.ended_at - r.started_at), 3) AS seconds,
           round(extract(epoch FROM now() - r.ended_at) / 3600, 3) AS hours_ago
    FROM {runs} r JOIN {activities} a ON a.id = r.activity_id
    ) AS run"""
).format(runs=_table(ActivityRun), activities=_table(Activity))

_T = FieldType
TABLES: dict[str, DeclaredTable] = {
    "deliverable": DeclaredTable(
        Deliverable,
        {
            "id": _T.STRING,
            "key": _T.STRING,
            "name": _T.STRING,
            "status": _T.STRING,
            "created_at": _T.DATETIME,
        },
    ),
    "channel": DeclaredTable(
        Channel,
        {
            "id": _T.STRING,
            "kind": _T.STRING,
            "name": _T.STRING,
            "status": _T.STRING,
            "expires_at": _T.DATETIME,
        },
    ),
    "pipeline": DeclaredTable(
        Pipeline, {"id": _T.STRING, "key": _T.STRING, "name": _T.STRING, "enabled": _T.BOOLEAN}
    ),
    "run": DeclaredTable(
        _RUNS,
        {
            "id": _T.STRING,
            "activity": _T.STRING,
            "role": _T.STRING,
            "status": _T.STRING,
            "attempt": _T.INTEGER,
            "error_code": _T.STRING,
            "model": _T.STRING,
            "input_tokens": _T.INTEGER,
            "output_tokens": _T.INTEGER,
            "dollars": _T.NUMBER,
            "started_at": _T.DATETIME,
            "ended_at": _T.DATETIME,
            "seconds": _T.NUMBER,
            "hours_ago": _T.NUMBER,
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """The SQL to read one table. The text is trusted; user input is only in the parameters."""

    table: sql.Composable
    selected: sql.Composable  # after the id
    columns: Mapping[str, Column]
    among: Piece  # restricts to the rows of the table and the tenant
    row_of: Callable[[tuple[Any, ...]], Row]


def count(tenant_id: UUID, query: Query) -> int:
    with tenant_scope(tenant_id):
        relation = relation_of(tenant_id, query)
        where, parameters = _where(relation, query)
        text = sql.SQL("SELECT count(*) FROM ") + relation.table + sql.SQL(" WHERE ") + where
        return int(_run(query, text, parameters)[0][0])


def rows(tenant_id: UUID, query: Query, *, after: UUID | None = None) -> Iterator[Row]:
    """Yield the rows of a query in the order of their ids. Each page is a transaction, so rows may be added and removed meanwhile."""
    while True:
        page = page_of(tenant_id, query, after=after, size=PAGE)
        yield from (row for _, row in page)
        if len(page) < PAGE:
            return
        after = page[-1][0]


def page_of(tenant_id: UUID, query: Query, *, after: UUID | None, size: int) -> list[tuple[UUID, Row]]:
    with tenant_scope(tenant_id):
        relation = relation_of(tenant_id, query)
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
            # A row no longer has the types that the query expects.
            raise _report_change(query) from error
        return list(cursor.fetchall())


def _report_change(query: Query) -> SourceUnavailable:
    return SourceUnavailable(
        f"{query.source}:{query.name} was changed or deleted since the data source was read."
    )


def relation_of(tenant_id: UUID, query: Query) -> Relation:
    """Return the table to read. Raises `SourceUnavailable` if a dataset has changed since the query was resolved."""
    declared = TABLES.get(query.name)
    # A dataset hides a declared table of the same name.
    if declared is not None and query.table is declared.shape:
        return Relation(
            table=declared.source if isinstance(declared.source, sql.Composable) else _table(declared.source),
            selected=sql.SQL(", ").join([sql.Identifier(name) for name in declared.fields]),
            columns={
                name: Column(kind, _COLUMNS[kind].format(sql.Identifier(name)))
                for name, kind in declared.fields.items()
            },
            among=(sql.SQL("tenant_id = %s"), [tenant_id]),
            row_of=lambda values: dict(zip(declared.fields, map(_plain, values), strict=True)),
        )
    return Relation(
        table=sql.Identifier("pipelines_datasetrow"),
        selected=sql.SQL("data"),
        columns={name: Column(kind, _FIELDS[kind], (name,)) for name, kind in query.table.fields.items()},
        among=(sql.SQL("tenant_id = %s AND dataset_id = %s"), [tenant_id, dataset_of(tenant_id, query).pk]),
        row_of=_row_of,
    )


#: A column, cast to its type. Ids are text, as in rows. Text is compared by code points, as everywhere.
_COLUMNS = {
    FieldType.STRING: sql.SQL('{}::text COLLATE "C"'),
    FieldType.INTEGER: sql.SQL("{}::numeric"),
    FieldType.NUMBER: sql.SQL("{}::numeric"),
    FieldType.BOOLEAN: sql.SQL("{}"),
    FieldType.DATETIME: sql.SQL("{}"),
}


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, UUID) else value


#: A field of a dataset's row, cast to its type. Its name is a parameter.
_FIELDS = {
    FieldType.STRING: sql.SQL('(data ->> %s) COLLATE "C"'),
    FieldType.INTEGER: sql.SQL("(data ->> %s)::numeric"),
    FieldType.NUMBER: sql.SQL("(data ->> %s)::numeric"),
    FieldType.BOOLEAN: sql.SQL("(data ->> %s)::boolean"),
    FieldType.DATETIME: sql.SQL("(data ->> %s)::timestamptz"),
}


def dataset_of(tenant_id: UUID, query: Query) -> Dataset:
    """Return the dataset. Raises `SourceUnavailable` if it has changed since the query was resolved. Call it within a `tenant_scope`."""
    dataset = Dataset.objects.for_tenant(tenant_id).filter(source=query.source, name=query.name).first()
    if dataset is None or shape_of(dataset) != query.table:
        raise _report_change(query)
    return dataset


def shape_of(dataset: Dataset) -> Table:
    return Table({name: FieldType(kind) for name, kind in dataset.fields.items()})


def _row_of(values: Any) -> Row:
    data = values[0]
    return orjson.loads(data) if isinstance(data, str | bytes) else data


# Comparisons as SQL, with the same results as `data_sources.query.matches`.
#
# Every condition is true or false, never unknown, even for rows without a value. Values are parameters; the text is
# trusted.


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
    """A field in SQL: an expression of its type, and the parameters of the expression."""

    kind: FieldType
    expression: sql.Composable
    parameters: tuple[Any, ...] = ()


def all_of(comparisons: Iterable[Comparison], columns: Mapping[str, Column]) -> list[Piece]:
    """Return a condition for each comparison. Raises KeyError for a field that is not a column."""
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
            # In a WHERE clause unknown counts as false, so a row without a value does not match.
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
    """Return a number as a decimal, so that it is compared exactly, as jsonb stores it; a float would be rounded."""
    if column.kind in NUMBERS and isinstance(value, int | float):
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        return Decimal(repr(int(value) if is_whole else value))
    return value
