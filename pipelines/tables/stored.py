"""Rows of a tenant's datasets in PostgreSQL, in the order in which they were added. A field's name is a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson
from psycopg import sql

from pipelines.data_sources import FieldType, Query, Table
from pipelines.models import Dataset
from pipelines.tables import relations
from pipelines.tables.relations import Relation, Row

from .relations import Column

#: A field as its type. Text is compared by code points, as everywhere else.
_TYPED = {
    FieldType.STRING: sql.SQL('(data ->> %s) COLLATE "C"'),
    FieldType.INTEGER: sql.SQL("(data ->> %s)::numeric"),
    FieldType.NUMBER: sql.SQL("(data ->> %s)::numeric"),
    FieldType.BOOLEAN: sql.SQL("(data ->> %s)::boolean"),
    FieldType.DATETIME: sql.SQL("(data ->> %s)::timestamptz"),
}


def shape_of(dataset: Dataset) -> Table:
    return Table({name: FieldType(kind) for name, kind in dataset.fields.items()})


def count(tenant_id: UUID, query: Query) -> int:
    return relations.count(tenant_id, query, relation_of)


def rows(tenant_id: UUID, query: Query) -> Iterator[Row]:
    return relations.rows(tenant_id, query, relation_of)


def relation_of(tenant_id: UUID, query: Query) -> Relation:
    """Raises `SourceUnavailable` when the dataset is no longer what the query was made for."""
    dataset = Dataset.objects.for_tenant(tenant_id).filter(source=query.source, name=query.name).first()
    if dataset is None or shape_of(dataset) != query.table:
        raise relations.changed(query)
    return Relation(
        table=sql.Identifier("pipelines_datasetrow"),
        selected=sql.SQL("data"),
        columns={name: Column(kind, _TYPED[kind], (name,)) for name, kind in query.table.fields.items()},
        among=(sql.SQL("tenant_id = %s AND dataset_id = %s"), [tenant_id, dataset.pk]),
        row_of=_row_of,
    )


def _row_of(values: Any) -> Row:
    data = values[0]
    row: Row = orjson.loads(data) if isinstance(data, str | bytes) else data
    return row
