"""The platform's own tables that a tenant's data sources may read. What is not named here cannot be read, whatever a text says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Model
from psycopg import sql

from activities.models import Activity, ActivityRun
from pipelines.data_sources import FieldType, Query, Table
from pipelines.models import Deliverable, Pipeline
from pipelines.tables import relations
from pipelines.tables.relations import Relation, Row
from tenants.models import Channel

from .relations import Column

#: A column as its type. Ids are text, as rows show them.
_TYPED = {
    FieldType.STRING: sql.SQL('{}::text COLLATE "C"'),
    FieldType.INTEGER: sql.SQL("{}::numeric"),
    FieldType.NUMBER: sql.SQL("{}::numeric"),
    FieldType.BOOLEAN: sql.SQL("{}"),
    FieldType.DATETIME: sql.SQL("{}"),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A model, or a selection of ours with `id` and `tenant_id`, of which some columns may be read."""

    source: type[Model] | sql.Composable
    fields: Mapping[str, FieldType]
    shape: Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", Table(self.fields))


def _table(model: type[Model]) -> sql.Identifier:
    return sql.Identifier(model._meta.db_table)


#: What agents report of their runs, for one who learns from it. How long ago a run has ended is a number: no filter knows "yesterday".
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
TABLES: dict[str, Declared] = {
    "deliverable": Declared(
        Deliverable,
        {
            "id": _T.STRING,
            "key": _T.STRING,
            "name": _T.STRING,
            "status": _T.STRING,
            "created_at": _T.DATETIME,
        },
    ),
    "channel": Declared(
        Channel,
        {
            "id": _T.STRING,
            "kind": _T.STRING,
            "name": _T.STRING,
            "status": _T.STRING,
            "expires_at": _T.DATETIME,
        },
    ),
    "pipeline": Declared(
        Pipeline, {"id": _T.STRING, "key": _T.STRING, "name": _T.STRING, "enabled": _T.BOOLEAN}
    ),
    "run": Declared(
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


def holds(query: Query) -> bool:
    """Whether the query was made for a declared table, and not for a dataset of that name."""
    table = TABLES.get(query.name)
    return table is not None and query.table is table.shape


def count(tenant_id: UUID, query: Query) -> int:
    return relations.count(tenant_id, query, relation_of)


def rows(tenant_id: UUID, query: Query) -> Iterator[Row]:
    return relations.rows(tenant_id, query, relation_of)


def relation_of(tenant_id: UUID, query: Query) -> Relation:
    table = TABLES[query.name]
    columns = {
        name: Column(kind, _TYPED[kind].format(sql.Identifier(name))) for name, kind in table.fields.items()
    }
    return Relation(
        table=table.source if isinstance(table.source, sql.Composable) else _table(table.source),
        selected=sql.SQL(", ").join([sql.Identifier(name) for name in table.fields]),
        columns=columns,
        among=(sql.SQL("tenant_id = %s"), [tenant_id]),
        row_of=lambda values: dict(zip(table.fields, map(_plain, values), strict=True)),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, UUID) else value
