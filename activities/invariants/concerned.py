"""Whose rows a violation is about, from the ids in its sample. Tables differ, so all tables of tenants are asked, each by its key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from uuid import UUID

from django.apps import apps
from django.db import connections, models
from psycopg import sql

from tenants.checks import tenant_tables
from tenants.context import SYSTEM

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWNERS = sql.SQL("SELECT tenant_id FROM {table} WHERE {key} = ANY(%(ids)s)")


def tenants_of(sample_ids: Sequence[str]) -> list[UUID]:
    """The tenants in whose rows these ids are keys. None for what belongs to no tenant."""
    ids = [UUID(found) for text in sample_ids for found in _ID.findall(text)]
    if not ids:
        return []
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_question(), {"ids": ids})
        return [tenant for (tenant,) in cursor.fetchall()]


@cache
def _question() -> str:
    fenced = set(tenant_tables())
    parts = [
        _OWNERS.format(
            table=sql.Identifier(model._meta.db_table), key=sql.Identifier(str(model._meta.pk.column))
        )
        for model in apps.get_models()
        if model._meta.db_table in fenced
        and isinstance(model._meta.pk, models.UUIDField)
        and any(field.column == "tenant_id" for field in model._meta.concrete_fields)
    ]
    return sql.SQL(" UNION ").join(parts).as_string()
