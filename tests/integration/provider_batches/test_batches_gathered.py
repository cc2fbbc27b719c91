"""When a batch goes out, and what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from activities import provider_batches
from benchmarks.fake_provider import FakeProvider
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, at_once
from tests.integration.provider_batches.parked_work import LOW


def test_a_batch_goes_out_when_it_is_full(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    batched(7)

    batching.look_after(tenant)

    assert [len(batch.requests) for batch in provider.batches.batches.values()] == [3, 3]
    assert len([item for item in batching.items(tenant) if item.state == "collected"]) == 1


def test_a_batch_that_is_not_full_goes_out_when_its_oldest_has_waited_enough(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], settings: Any
) -> None:
    batched(2)
    batching.look_after(tenant)
    early = len(provider.batches.batches)
    batching.let_time_pass(tenant, created_at=timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS + 1))

    batching.look_after(tenant)

    assert (early, [len(batch.requests) for batch in provider.batches.batches.values()]) == (0, [2])


def test_a_batch_holds_no_more_bytes_than_it_may(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], settings: Any
) -> None:
    batched(3)
    settings.ORCHESTRATOR_BATCH_MAX_BYTES = max(item.bytes for item in batching.items(tenant)) * 2

    provider_batches.bind_items()
    batching.look_after(tenant)

    assert [batch.size for batch in batching.batches(tenant)] == [2]


def test_models_and_tenants_do_not_share_batches(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    provider: FakeProvider,
    batched: Callable[..., list[UUID]],
) -> None:
    batched(3)
    batching.serve(engine, tenant, provider, "dev", model="m-2")
    batching.serve(engine, other_tenant, provider)
    engine.submit(tenant, "dev", count=3, priority=LOW)
    engine.submit(other_tenant, count=3, priority=LOW)
    engine.drain()

    provider_batches.bind_items()

    assert [(batch.model, batch.size) for batch in batching.batches(tenant)] == [("m-1", 3), ("m-2", 3)]
    assert [(batch.model, batch.size) for batch in batching.batches(other_tenant)] == [("m-1", 3)]


def test_two_who_gather_at_once_bind_every_item_once(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    batched(12)

    at_once(*[provider_batches.bind_items] * 3)
    provider_batches.bind_items()

    assert [batch.size for batch in batching.batches(tenant)] == [3, 3, 3, 3]
    assert Counter(item.batch_id for item in batching.items(tenant)).most_common(1)[0][1] == 3
