"""Batches of a provider in tests: a role whose work waits for them, and their background tasks on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from activities import provider_batches
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import OPEN_BATCHES
from agents import configuration
from agents.models import Agent
from benchmarks.fake_provider import FakeProvider
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

ROLE = "qa"


def serve(engine: Engine, tenant: Tenant, provider: FakeProvider, role: str = ROLE, **fields: Any) -> None:
    """Let a model of the provider do the role for the tenant, in batches."""
    settings = {"adapter": "batch", "endpoint": provider.anthropic_url, "model": "m-1"}
    engine.serve(tenant, role, **(settings | fields))


@contextmanager
def with_options(role: str = ROLE, **options: Any) -> Iterator[None]:
    """Set the registry's options of a role for the duration of the block."""
    before = Agent.objects.filter(role=role).values_list("options", flat=True).get()
    Agent.objects.filter(role=role).update(options=options)
    configuration.forget()
    try:
        yield
    finally:
        Agent.objects.filter(role=role).update(options=before)
        configuration.forget()


def run_background_tasks(tenant: Tenant, turns: int = 1) -> None:
    """Run the background tasks of batches so many times, without their pauses."""
    for _ in range(turns):
        provider_batches.move_leaving()
        provider_batches.bind_items()
        make_due(tenant)
        provider_batches.advance_due()


def make_due(tenant: Tenant) -> None:
    """End every lease and every pause between two polls."""
    with tenant_scope(tenant.pk):
        ProviderBatch.objects.filter(state__in=OPEN_BATCHES).update(due_at=Now())


def let_time_pass(tenant: Tenant, **shift: Any) -> None:
    """Move the named times of open items into the past."""
    with tenant_scope(tenant.pk):
        BatchItem.objects.filter(closed_at=None).update(
            **{name: F(name) - interval for name, interval in shift.items()}
        )


def items(tenant: Tenant, activity_id: UUID | None = None) -> list[BatchItem]:
    with tenant_scope(tenant.pk):
        rows = BatchItem.objects.order_by("id")
        return list(rows if activity_id is None else rows.filter(activity_id=activity_id))


def batches(tenant: Tenant) -> list[ProviderBatch]:
    with tenant_scope(tenant.pk):
        return list(ProviderBatch.objects.order_by("id"))
