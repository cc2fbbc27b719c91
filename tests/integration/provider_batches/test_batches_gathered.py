"""When a batch is sent, and which items it contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from activities import provider_batches
from benchmarks.fake_provider import FakeProvider
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, simultaneously
from tests.integration.provider_batches.parked_work import LOW


def test_a_batch_is_sent_when_it_is_full(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(7)

    batching.run_background_tasks(tenant)

    assert [len(batch.requests) for batch in provider.batches.batches.values()] == [3, 3]
    assert len([item for item in batching.items(tenant) if item.state == "collected"]) == 1


def test_a_batch_is_sent_when_its_oldest_item_is_old_enough(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    submit_batched(2)
    batching.run_background_tasks(tenant)
    sent_before = len(provider.batches.batches)
    batching.let_time_pass(tenant, created_at=timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS + 1))

    batching.run_background_tasks(tenant)

    assert (sent_before, [len(batch.requests) for batch in provider.batches.batches.values()]) == (0, [2])


def test_the_bytes_of_a_batch_are_limited(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    submit_batched(3)
    settings.ORCHESTRATOR_BATCH_MAX_BYTES = max(item.bytes for item in batching.items(tenant)) * 2

    provider_batches.bind_items()
    batching.run_background_tasks(tenant)

    assert [batch.size for batch in batching.batches(tenant)] == [2]


def test_a_request_that_is_larger_than_a_batch_may_be_has_its_own(
    tenant: Tenant, submit_batched: Callable[..., list[UUID]], settings: Any
) -> None:
    submit_batched(2)
    settings.ORCHESTRATOR_BATCH_MAX_BYTES = 1

    provider_batches.bind_items()

    assert [batch.size for batch in batching.batches(tenant)] == [1], "the other one still has time"


def test_models_and_tenants_do_not_share_batches(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
) -> None:
    submit_batched(3)
    batching.serve(engine, tenant, provider, "dev", model="m-2")
    batching.serve(engine, other_tenant, provider)
    engine.submit(tenant, "dev", count=3, priority=LOW)
    engine.submit(other_tenant, count=3, priority=LOW)
    engine.drain()

    provider_batches.bind_items()

    assert [(batch.model, batch.size) for batch in batching.batches(tenant)] == [("m-1", 3), ("m-2", 3)]
    assert [(batch.model, batch.size) for batch in batching.batches(other_tenant)] == [("m-1", 3)]


def test_items_that_are_locked_do_not_keep_those_of_other_tenants(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit_batched(3)
    batching.serve(engine, other_tenant, provider)
    engine.submit(other_tenant, count=3, priority=LOW)
    engine.drain()
    bind = provider_batches._bind

    def bind_in_time(tenant_id: UUID, *lane: str) -> bool:
        if tenant_id == tenant.pk:
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return bind(tenant_id, *lane)

    monkeypatch.setattr(provider_batches, "_bind", bind_in_time)

    assert provider_batches.bind_items() == 1


def test_concurrent_gathering_binds_every_item_once(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(12)

    simultaneously(*[provider_batches.bind_items] * 3)
    provider_batches.bind_items()

    assert [batch.size for batch in batching.batches(tenant)] == [3, 3, 3, 3]
    assert Counter(item.batch_id for item in batching.items(tenant)).most_common(1)[0][1] == 3
