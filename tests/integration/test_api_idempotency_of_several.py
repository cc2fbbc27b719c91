"""Idempotency-Key for requests of several transactions: the key is marked first, and the mark of a dead process expires soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from pipelines.api import runs
from tenants.api import idempotency
from tenants.context import tenant_scope
from tenants.models import IdempotentRequest, Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.flows import Flow, step

KEY = {"Idempotency-Key": "k"}


@pytest.fixture
def address(engine: Engine, tenant: Tenant) -> str:
    engine.serve(tenant)
    return f"/api/v1/pipeline-runs/{Flow(engine, tenant, step('a'), step('b', 'a')).id}/cancel/"


def marks(tenant: Tenant) -> list[int]:
    with tenant_scope(tenant.pk):
        return list(IdempotentRequest.objects.values_list("status_code", flat=True))


def test_a_repeated_request_gets_the_first_answer_and_another_body_is_refused(
    api: Any, tenant: Tenant, address: str
) -> None:
    client = api()

    first = client.post(address, {"reason": "x"}, headers=KEY)
    again = client.post(address, {"reason": "x"}, headers=KEY)

    assert again["Idempotency-Replayed"] == "true"
    assert (again.status_code, again.content) == (200, first.content)
    problem(client.post(address, {"reason": "y"}, headers=KEY), 422, "idempotency_key_reused")
    assert marks(tenant) == [200]


def test_a_refused_request_leaves_no_mark(api: Any, tenant: Tenant, address: str) -> None:
    problem(api().post(address, {"because": "x"}, headers=KEY), 400, "validation_failed")

    assert marks(tenant) == []


def test_a_repeated_request_is_409_while_the_first_is_in_progress(
    api: Any, tenant: Tenant, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, real, answers = api(), runs.cancel_run, []

    def send_two_more(*arguments: Any, **more: Any) -> Any:
        if not answers:
            answers.append(client.post(address, {}, headers=KEY))
            answers.append(client.post(address, {"reason": "other"}, headers=KEY))
        return real(*arguments, **more)

    monkeypatch.setattr(runs, "cancel_run", send_two_more)
    answer = client.post(address, {}, headers=KEY)

    assert answer.status_code == 200
    assert problem(answers[0], 409, "idempotency_in_progress")
    assert problem(answers[1], 422, "idempotency_key_reused")


def test_the_mark_of_a_process_that_died_expires_soon(
    api: Any, tenant: Tenant, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api()
    client.raise_request_exception = False
    with monkeypatch.context() as dying:
        dying.setattr(idempotency, "_settle", lambda *arguments: None)
        client.post(address, {}, headers=KEY)
    assert marks(tenant) == [idempotency.IN_PROGRESS]
    problem(client.post(address, {}, headers=KEY), 409, "idempotency_in_progress")

    with tenant_scope(tenant.pk):
        IdempotentRequest.objects.update(
            created_at=timezone.now() - idempotency.MARK_KEPT - timedelta(seconds=1)
        )
    answer = client.post(address, {}, headers=KEY)

    assert answer.status_code == 200
    assert "Idempotency-Replayed" not in answer
    assert marks(tenant) == [200]
