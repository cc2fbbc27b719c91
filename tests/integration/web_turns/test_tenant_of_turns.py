"""The application reports the tenant of each request to its process, and yields its thread before a transaction."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from agents.contracts import Accepted
from orchestrator.web_worker import _DeadlineSocket
from tenants import turns
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant
from tenants.turns import Turn, Turns
from tests.accepted_work import accept_work
from tests.engine import Engine


@contextmanager
def begin_turn() -> Iterator[Turn[str]]:
    process: Turns[str] = Turns(8, 2)
    process.wait(b"GET / HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n", "request")
    turn = process.take()
    assert turn is not None
    with turns.hold_turn(process, turn):
        yield turn


def test_a_request_to_the_api_belongs_to_the_tenant_of_its_token(
    api: Callable[..., APIClient], tenant: Tenant, other_tenant: Tenant
) -> None:
    client = api(tenant=other_tenant)
    with begin_turn() as turn:
        assert client.get("/api/v1/activities/", headers={"X-Tenant": tenant.slug}).status_code == 200

    assert turn.tenant == str(other_tenant.pk)


def test_a_request_with_a_wrong_token_belongs_to_no_tenant(
    api: Callable[..., APIClient], tenant: Tenant
) -> None:
    client = APIClient(headers={"Authorization": "Bearer orc_wrong"})
    with begin_turn() as turn:
        assert client.get("/api/v1/activities/", headers={"X-Tenant": tenant.slug}).status_code == 401

    assert turn.tenant is None


def test_a_report_belongs_to_the_tenant_of_its_run(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    _, agent = accept_work(engine, tenant)
    with begin_turn() as turn:
        assert agent.get_job().status_code == 200

    assert turn.tenant == str(tenant.pk)


def test_a_page_belongs_to_the_tenant_that_it_displays(client: Client, tenant: Tenant) -> None:
    ann = User.objects.create_user("ann")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=ann, role="viewer")
    client.force_login(ann)
    with begin_turn() as turn:
        assert client.get("/inbox/").status_code == 200

    assert turn.tenant == str(tenant.pk)


def test_a_request_yields_before_each_expression_and_its_transaction(
    api: Callable[..., APIClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    yielded_in_transaction: list[bool] = []
    monkeypatch.setattr(
        Turns, "give_way", lambda *_: yielded_in_transaction.append(connection.in_atomic_block)
    )
    steps: list[dict[str, Any]] = [
        {"id": f"s{number}", "agent_role": "qa", "when": f"params.a{number} == 1"} for number in range(5)
    ]
    client, depth = api(), connection.in_atomic_block
    with begin_turn():
        answer = client.put("/api/v1/pipelines/p/", {"name": "P", "steps": steps}, format="json")

    assert answer.status_code == 201
    assert yielded_in_transaction == [depth] * 6


def test_a_late_body_raises_a_timeout() -> None:
    own_end, other_end = socket.socketpair()
    with own_end, other_end:
        deadline_socket = _DeadlineSocket(own_end, time.monotonic() + 0.05)
        other_end.send(b"x")
        assert deadline_socket.recv(10) == b"x"
        with pytest.raises(TimeoutError):
            deadline_socket.recv(10)
        with pytest.raises(TimeoutError):
            deadline_socket.recv(10)
        assert own_end.gettimeout() is None
