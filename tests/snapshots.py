"""Snapshots of a tenant's rows, to prove that nothing has changed."""

from __future__ import annotations

from typing import Any

from django.apps import apps

from tenants.context import system_scope
from tenants.models import Tenant, TenantOwned


def snapshot(tenant: Tenant) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the tenant by table, as text because some values cannot be ordered."""
    with system_scope():
        return {
            model._meta.db_table: sorted(
                map(repr, model._default_manager.filter(tenant_id=tenant.pk).values_list())
            )
            for model in apps.get_models()
            if issubclass(model, TenantOwned)
        }


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the tables that differ."""
    return {table for table in before.keys() | after.keys() if before.get(table) != after.get(table)}
