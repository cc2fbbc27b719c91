"""Schedules for tests: datasets of tickers and users as the platform's specification has them, and bodies for the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pipelines.models import Dataset, DatasetRow
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant

SCHEDULES = "/api/v1/schedules/"
TICKER = {
    "id": "string",
    "enabled": "boolean",
    "active": "boolean",
    "status": "string",
    "createdAt": "datetime",
}


def tickers(tenant: Tenant, count: int = 3, *, disabled: int = 0) -> UUID:
    """Create the dataset `ticker` with so many enabled rows, from T0 on, and so many disabled ones."""
    with tenant_scope(tenant.pk):
        dataset = Dataset.objects.create(tenant=tenant, name="ticker", fields=TICKER)
        DatasetRow.objects.bulk_create(
            DatasetRow(
                id=uuid7(), tenant=tenant, dataset=dataset, key=f"T{number}",
                data={"id": f"T{number}", "enabled": number < count, "active": True, "status": "active",
                      "createdAt": "2024-06-01T00:00:00Z"},
            )
            for number in range(count + disabled)
        )  # fmt: skip
    return dataset.pk


def body(**members: Any) -> dict[str, Any]:
    """Return the body of a schedule of the agent `qa`, daily at 08:00 in New York."""
    return {
        "name": "Daily",
        "repeat": "repeating",
        "cron": "0 8 * * *",
        "target_type": "agent",
        "agent_role": "qa",
        "enabled": True,
        **members,
    }
