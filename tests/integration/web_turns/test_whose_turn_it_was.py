"""The application tells the process whose request it was, by whichever door it came, and gives way before it opens a transaction."""

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
from tests.engine import Engine
from tests.integration.agent_runs.accepted_work import accepted


@contextmanager
def a_turn() -> Iterator[Turn[str]]:
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
    with a_turn() as turn:
        assert client.get("/api/v1/activities/", headers={"X-Tenant": tenant.slug}).status_code == 200

    assert turn.tenant == str(other_tenant.pk)


def test_a_request_with_a_wrong_token_belongs_to_nobody(
    api: Callable[..., APIClient], tenant: Tenant
) -> None:
    client = APIClient(headers={"Authorization": "Bearer orc_wrong"})
    with a_turn() as turn:
        assert client.get("/api/v1/activities/", headers={"X-Tenant": tenant.slug}).status_code == 401

    assert turn.tenant is None


def test_a_report_belongs_to_the_tenant_of_its_run(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    _, agent = accepted(engine, tenant)
    with a_turn() as turn:
        assert agent.get().status_code == 200

    assert turn.tenant == str(tenant.pk)


def test_a_page_belongs_to_the_tenant_that_it_shows(client: Client, tenant: Tenant) -> None:
    ann = User.objects.create_user("ann")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=ann, role="viewer")
    client.force_login(ann)
    with a_turn() as turn:
        assert client.get("/inbox/").status_code == 200

    assert turn.tenant == str(tenant.pk)


def test_a_request_gives_way_before_each_expression_and_before_its_transaction(
    api: Callable[..., APIClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    given: list[bool] = []
    monkeypatch.setattr(Turns, "give_way", lambda *_: given.append(connection.in_atomic_block))
    steps: list[dict[str, Any]] = [
        {"id": f"s{number}", "agent_role": "qa", "when": f"params.a{number} == 1"} for number in range(5)
    ]
    client, depth = api(), connection.in_atomic_block
    with a_turn():
        answer = client.put("/api/v1/pipelines/p/", {"name": "P", "steps": steps}, format="json")

    assert answer.status_code == 201
    assert given == [depth] * 6


def test_a_body_that_does_not_come_in_time_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        timely = _DeadlineSocket(ours, time.monotonic() + 0.05)
        theirs.send(b"x")
        assert timely.recv(10) == b"x"
        with pytest.raises(TimeoutError):
            timely.recv(10)
        with pytest.raises(TimeoutError):
            timely.recv(10)
        assert ours.gettimeout() is None
