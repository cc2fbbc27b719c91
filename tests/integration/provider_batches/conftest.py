"""A model provider, and work of a role that waits for its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from agents import outbound
from agents.governor import providers
from benchmarks.fake_provider import FakeProvider
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine
from tests.integration.provider_batches.parked_work import LOW


@pytest.fixture
def provider(settings: Any) -> Iterator[FakeProvider]:
    pytest.importorskip("anthropic", reason="pip install orchestrator[llm] for the adapter batch")
    with FakeProvider() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        settings.ORCHESTRATOR_BATCH_SIZE = 3
        providers._noted.clear()
        yield running
    outbound.close_connections()


@pytest.fixture
def submit_batched(engine: Engine, tenant: Tenant, provider: FakeProvider) -> Callable[..., list[UUID]]:
    """`submit_batched(3)` submits so many activities of low priority, which start and wait for a batch."""
    batching.serve(engine, tenant, provider)

    def submit(count: int = 1, **fields: Any) -> list[UUID]:
        ids = engine.submit(tenant, count=count, **{"priority": LOW, **fields})
        engine.drain()
        return ids

    return submit
