"""Work that waits for a batch, and what became of it."""

from __future__ import annotations

from uuid import UUID

from activities import outputs
from tenants.models import Tenant
from tests.engine import Engine

LOW, NORMAL = 20, 10


def content(tenant: Tenant, engine: Engine, activity_id: UUID) -> str | None:
    reference = engine.get(tenant, activity_id).output_ref
    found = outputs.read(tenant.pk, reference) if reference else None
    return found.content if found else None


def statuses(engine: Engine, tenant: Tenant, found: list[UUID]) -> list[str]:
    return [engine.status(tenant, each) for each in found]
