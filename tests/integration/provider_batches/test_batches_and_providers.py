"""Faults and limits of providers, and what operators see of batches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation, provider_batches
from agents import configuration, credentials
from agents.governor import Call, Governor, providers
from agents.governor.limits import Profile
from agents.models import AgentConfig
from benchmarks.fake_provider import FakeProvider, Fault
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine
from tests.integration.provider_batches.parked_work import LOW, statuses

ROLES = ["qa", "seo"]


def test_a_batch_whose_response_was_lost_is_found_and_not_sent_twice(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.lost = 1
    ids = submit_batched(3)

    batching.run_background_tasks(tenant, turns=3)

    assert len(provider.batches.batches) == 1
    assert statuses(engine, tenant, ids) == ["done"] * 3
    assert [batch.sendings for batch in batching.batches(tenant)] == [1]


def test_a_batch_that_the_provider_does_not_have_is_sent_again_and_counted(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=529))
    ids = submit_batched(3)

    batching.run_background_tasks(tenant, turns=4)

    assert len(provider.batches.batches) == 1
    assert [batch.sendings for batch in batching.batches(tenant)] == [2]
    assert statuses(engine, tenant, ids) == ["done"] * 3


def test_a_batch_of_another_client_is_not_used(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=529))
    ids = submit_batched(3)
    provider.batches.create({"requests": [{"custom_id": f"theirs-{number}"} for number in range(3)]})

    batching.run_background_tasks(tenant, turns=6)

    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.not_ours) == ("ended", ["msgbatch_1"])
    assert statuses(engine, tenant, ids) == ["done"] * 3


def test_a_batch_that_another_one_has_found_by_mistake_is_not_sent_twice(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, provider: FakeProvider
) -> None:
    owners = (tenant, other_tenant)  # they share a credential
    for owner in owners:
        batching.serve(engine, owner, provider)
    ids = {owner: engine.submit(owner, count=3, priority=LOW) for owner in owners}
    engine.drain()
    provider.batches.refusals.append(Fault(status=529))  # the first batch does not arrive
    provider.batches.lost = 1  # the second one does, but nobody learns its id

    for _ in range(6):
        provider_batches.bind_items()
        for owner in owners:
            batching.make_due(owner)
        provider_batches.advance_due()

    assert [statuses(engine, owner, ids[owner]) for owner in owners] == [["done"] * 3] * 2
    assert len(provider.batches.batches) == 2


def test_a_rate_limited_batch_is_sent_later(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=429, retry_after="40"))
    submit_batched(3)

    provider_batches.bind_items()
    provider_batches.advance_due()

    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.error["code"]) == ("bound", "rate_limited")
    assert timedelta(seconds=10) < batch.due_at - datetime.now(UTC) <= timedelta(seconds=40)


def test_a_rate_limit_of_batches_does_not_limit_calls(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=429, retry_after="40"))
    submit_batched(3)
    provider_batches.bind_items()
    provider_batches.advance_due()

    with tenant_scope(tenant.pk):
        provider_of_role = providers.provider_of(configuration.settings_for(tenant.pk, batching.ROLE).adapter)
    batches = Governor(f"{provider_of_role.key}|batches", Profile())
    assert 30 < batches.status().retry_seconds <= 40
    assert provider_of_role.governor.status().retry_seconds == 0
    assert provider_of_role.governor.acquire(Call(id="now", deadline_seconds=5)).granted


def test_a_batch_is_not_lost_because_its_provider_may_not_be_called_for_a_while(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]], settings: Any
) -> None:  # fmt: skip
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    allowed, settings.ORCHESTRATOR_EGRESS_ALLOW = settings.ORCHESTRATOR_EGRESS_ALLOW, ()
    batching.run_background_tasks(tenant, turns=2)
    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.error["code"]) == ("sent", "outbound_refused")

    settings.ORCHESTRATOR_EGRESS_ALLOW = allowed
    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, ids) == ["done"] * 3
    assert len(provider.batches.batches) == 1


def test_a_worker_without_the_encryption_key_leaves_a_batch_to_the_others(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]], settings: Any
) -> None:  # fmt: skip
    """While a new key is rolled out, workers that were not restarted yet cannot decrypt what it has encrypted."""
    auth = {"type": "bearer", "token": "secret-of-the-tenant"}
    context = credentials.config_context(tenant.pk, batching.ROLE)
    with tenant_scope(tenant.pk):
        AgentConfig.objects.filter(agent_id=batching.ROLE).update(
            auth_sealed=credentials.seal(auth, context=context)
        )
    configuration.forget()
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    keys, settings.FIELD_ENCRYPTION_KEYS = settings.FIELD_ENCRYPTION_KEYS, ["another:0123456789abcdef"]
    configuration.forget()
    batching.run_background_tasks(tenant)
    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.error["code"]) == ("sent", "agent_misconfigured")

    settings.FIELD_ENCRYPTION_KEYS = keys
    configuration.forget()
    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, ids) == ["done"] * 3
    assert len(provider.batches.batches) == 1


def test_a_refused_batch_fails_its_items_permanently(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=400))
    ids = submit_batched(3)

    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, ids) == ["failed"] * 3
    assert [batch.state for batch in batching.batches(tenant)] == ["refused"]


def test_work_of_a_role_with_a_new_adapter_leaves_its_batch(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    engine.serve(tenant, batching.ROLE)

    batching.run_background_tasks(tenant)
    engine.make_due(tenant)
    engine.drain()

    assert statuses(engine, tenant, ids) == ["done"] * 3
    assert len(engine.agent.calls) == 3


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("turns_before", [0, 1], ids=["collected", "sent"])
def test_work_of_roles_that_keep_their_provider_stays_in_a_shared_batch(
    engine: Engine, tenant: Tenant, provider: FakeProvider, changed: int, turns_before: int
) -> None:
    for role in ROLES:
        batching.serve(engine, tenant, provider, role)
    ids = [engine.submit(tenant, role, priority=LOW)[0] for role in ROLES]
    engine.drain()
    batching.let_time_pass(tenant, created_at=timedelta(hours=1))
    batching.run_background_tasks(tenant, turns=turns_before)
    engine.serve(tenant, ROLES[changed])

    batching.run_background_tasks(tenant, turns=3)
    engine.make_due(tenant)
    engine.drain()

    assert statuses(engine, tenant, ids) == ["done"] * 2
    assert [request.agent_role for request in engine.agent.calls] == [ROLES[changed]]
    states = {item.agent_role: item.state for item in batching.items(tenant)}
    assert states == {ROLES[changed]: "moved", ROLES[1 - changed]: "answered"}
    (sent,) = provider.batches.batches.values()
    assert len(sent.requests) == 1 + turns_before, "nothing more goes to a provider that the role has left"


def test_a_batch_that_may_be_of_another_client_is_not_cancelled(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.polls_until_done = 99
    provider.batches.refusals.append(Fault(status=529))
    ids = submit_batched(3)
    provider.batches.create({"requests": [{"custom_id": f"theirs-{number}"} for number in range(3)]})
    batching.run_background_tasks(tenant, turns=2)
    for each in ids:
        cancellation.cancel(tenant.pk, each, actor="test")

    batching.run_background_tasks(tenant)

    (theirs,) = provider.batches.batches.values()
    assert not theirs.cancelled


def test_operators_see_batches_and_items_of_their_tenant_only(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    submit_batched: Callable[..., list[UUID]],
    api: Callable[..., Any],
) -> None:
    ids = submit_batched(4)
    batching.run_background_tasks(tenant)

    (batch,) = api("operator").get("/api/v1/batches/").json()["results"]
    one = api("operator").get(f"/api/v1/batches/{batch['id']}/").json()
    waiting = api("operator").get("/api/v1/batch-items/?state=collected").json()["results"]
    bound = api("operator").get(f"/api/v1/batch-items/?batch={batch['id']}").json()["results"]

    assert (one["state"], one["size"], one["items"]["bound"], one["external_id"]) == (
        "sent",
        3,
        3,
        "msgbatch_1",
    )
    assert one["provider"].startswith("anthropic at 127.0.0.1:")
    assert {item["activity"] for item in waiting + bound} == set(map(str, ids))
    stranger = api("operator", other_tenant)
    assert stranger.get("/api/v1/batches/").json()["results"] == []
    assert stranger.get("/api/v1/batch-items/").json()["results"] == []
    assert stranger.get(f"/api/v1/batches/{batch['id']}/").status_code == 404
    assert api("viewer").get("/api/v1/batches/").status_code == 403
    assert api("admin").post("/api/v1/batches/", {}, format="json").status_code == 405
