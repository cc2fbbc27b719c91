"""Status and outputs of work that waits for a batch."""

from __future__ import annotations

from uuid import UUID

from activities import outputs
from tenants.models import Tenant
from tests.engine import Engine

LOW, NORMAL = 20, 10


def content(tenant: Tenant, engine: Engine, activity_id: UUID) -> str | None:
    reference = engine.get(tenant, activity_id).output_ref
    output = outputs.read(tenant.pk, reference) if reference else None
    return output.content if output else None


def statuses(engine: Engine, tenant: Tenant, ids: list[UUID]) -> list[str]:
    return [engine.status(tenant, each) for each in ids]
