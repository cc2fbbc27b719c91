"""`manage.py check --database default` fails for a tenant-owned table that row-level security does not protect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError

from tenants import row_security
from tenants.context import APP


def tenant_tables() -> list[str]:
    """Tables that belong to tenants: every concrete model with a field `tenant`, and the tenants themselves."""
    models = [m for m in apps.get_models() if any(f.name == "tenant" for f in m._meta.concrete_fields)]
    return sorted({m._meta.db_table for m in models} | {"tenants_tenant"})


@register(Tags.database)
def row_security_is_forced(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    if APP not in (databases or ()):
        return []
    try:
        found = row_security.faults(tenant_tables())
    except DatabaseError as error:
        return [Error(f"The database cannot be asked: {error}", id="tenants.E002")]
    return [
        Error(text, hint="Add IsolateTenant to the table's migration.", id="tenants.E001") for text in found
    ]
