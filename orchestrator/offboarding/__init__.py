"""Off-boarding of tenants: exports their data, and deletes it.

Both find the tables in PostgreSQL's catalogue, so that none can be forgotten: every table with a column `tenant_id` belongs to tenants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

from django.db import connections

from tenants.context import APP

#: Tables that off-boarding does not empty row by row, with the reason. Trails that must outlive their tenant belong here; their column
#: `tenant_id` must not be a foreign key to `tenants_tenant`.
KEPT: dict[str, str] = {
    "tenants_auditentry": "append-only; its chain is deleted as a whole at the end, which the platform's chain records"
}

#: Tables that an export leaves out, with the reason.
NOT_EXPORTED: dict[str, str] = {
    "tenants_idempotentrequest": "answers of the last day, stored for repeated requests; they repeat exported data",
    "tenants_forgottenoutput": "notes about outputs to delete",
}

#: Columns of any table that are never exported: encrypted credentials, hashes of tokens, passwords. The hash of the previous entry of the
#: audit trail is no secret: without it nobody can verify the exported trail.
SECRET = re.compile(r"_sealed$|secret|password|private_key|(?<!previous)_hash$")

_TABLES = """
    SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND a.attname = 'tenant_id' AND NOT a.attisdropped
    ORDER BY 1
"""
_COLUMNS = """
    SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY c.relname, a.attnum
"""
_KEYS = """
    SELECT child.relname, parent.relname FROM pg_constraint k
    JOIN pg_class child ON child.oid = k.conrelid JOIN pg_class parent ON parent.oid = k.confrelid
    WHERE k.contype = 'f' AND child.oid <> parent.oid
"""


def tables() -> list[str]:
    """Return the names of all tables with rows of tenants."""
    return [name for (name,) in _query(_TABLES)]


def columns() -> Mapping[str, list[str]]:
    """Return the columns of these tables, in their order."""
    by_table: dict[str, list[str]] = {}
    for table, column in _query(_COLUMNS, [tables()]):
        by_table.setdefault(table, []).append(column)
    return by_table


def exported_columns() -> Mapping[str, list[str]]:
    return {
        table: [column for column in names if not SECRET.search(column)]
        for table, names in columns().items()
        if table not in NOT_EXPORTED
    }


def children_first() -> list[str]:
    """Return the tables that off-boarding empties, with each table before those that it refers to."""
    known = set(tables())
    sorter = TopologicalSorter[str]({table: set() for table in known})
    for child, parent in _query(_KEYS):
        if child in known and parent in known:
            sorter.add(parent, child)
    return [table for table in sorter.static_order() if table not in KEPT]


def _query(statement: str, parameters: list[list[str]] | None = None) -> list[tuple[str, ...]]:
    with connections[APP].cursor() as cursor:
        cursor.execute(statement, parameters or [])
        return list(cursor.fetchall())
