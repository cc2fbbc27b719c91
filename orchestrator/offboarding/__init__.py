"""Leaving: what a tenant takes along (export), and how everything of it is deleted (off-boarding).

Both go by PostgreSQL's catalogue, so that no table can be forgotten: whatever has a column `tenant_id` is a tenant's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

from django.db import connections

from tenants.context import APP

#: Tables that off-boarding leaves as they are, each with its reason. A trail that must outlive who it tells of belongs here; its
#: column `tenant_id` must not be a key to `tenants_tenant`.
KEPT: dict[str, str] = {
    "tenants_auditentry": "only ever added to; its chain goes at the end, as a whole, and the platform's chain says so",
}

#: Tables that an export leaves out, each with its reason.
NOT_EXPORTED: dict[str, str] = {
    "tenants_idempotentrequest": "answers of the last day, kept for repeated requests; they repeat what is exported",
    "tenants_forgottenoutput": "notes of what is being deleted",
}

#: Columns that are never exported, whatever the table: sealed credentials, hashes of tokens, passwords.
SECRET = re.compile(r"_sealed$|secret|password|private_key|_hash$")

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
    """Every table with rows of tenants, by name."""
    return [name for (name,) in _ask(_TABLES)]


def columns() -> Mapping[str, list[str]]:
    """The columns of these tables, in their order."""
    found: dict[str, list[str]] = {}
    for table, column in _ask(_COLUMNS, [tables()]):
        found.setdefault(table, []).append(column)
    return found


def exported_columns() -> Mapping[str, list[str]]:
    """The tables and columns that an export holds."""
    return {
        table: [column for column in names if not SECRET.search(column)]
        for table, names in columns().items()
        if table not in NOT_EXPORTED
    }


def children_first() -> list[str]:
    """The tables that off-boarding empties, so that nothing is deleted before what refers to it."""
    known = set(tables())
    sorter = TopologicalSorter[str]({table: set() for table in known})
    for child, parent in _ask(_KEYS):
        if child in known and parent in known:
            sorter.add(parent, child)
    return [table for table in sorter.static_order() if table not in KEPT]


def _ask(question: str, parameters: list[list[str]] | None = None) -> list[tuple[str, ...]]:
    with connections[APP].cursor() as cursor:
        cursor.execute(question, parameters or [])
        return list(cursor.fetchall())
