"""Revisions and wakes continue the session of their deliverable and role."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from activities import outbox
from activities.human_tasks import decisions
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine, in_another_thread
from tests.integration.sessions.conversations import REPORT, history, naming, run

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_revision_continues_the_session_of_the_rejected_work(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT, requires_approval=True)
    engine.drain()

    decisions.reject(acme.pk, activity_id, actor="test", notes="Shorter.")
    engine.drain()

    assert [(call.wake_reason, call.session_id) for call in engine.agent.calls] == [
        ("new_task", None),
        ("rejection", "s-1"),
    ]


def test_a_wake_continues_the_session(engine: Engine, acme: Tenant) -> None:
    def wake_during_first_call(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 1:
            in_another_thread(lambda: wake(request))
        return Completed(Output("done"), session_id="s-1")

    def wake(request: AgentRequest) -> None:
        with tenant_scope(acme.pk):
            outbox.record(
                engine.get(acme, request.activity_id), "unblocked", payload={"blocker_resolution": "x"}
            )

    engine.agent.behaviour = wake_during_first_call

    assert run(engine, acme).session_id == "s-1"


def test_a_session_belongs_to_its_deliverable_role_and_tenant(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    same = run(engine, acme)
    strangers = [
        run(engine, acme, role="dev"),
        run(engine, acme, deliverable_id=uuid4()),
        run(engine, acme, deliverable_id=None),
        run(engine, other_tenant),
    ]

    assert same.session_id == "s-1"
    assert [request.session_id for request in strangers] == [None] * 4


def test_an_agent_without_sessions_records_none(engine: Engine, acme: Tenant) -> None:
    run(engine, acme)

    assert run(engine, acme).session_id is None
    assert history(acme) == []


def test_every_run_records_its_session(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    first = run(engine, acme)
    unrelated = run(engine, acme, deliverable_id=None)

    def fail(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("no")

    engine.agent.behaviour = fail
    failed = run(engine, acme)

    for request in (first, unrelated, failed):
        (row,) = api().get(f"/api/v1/activities/{request.activity_id}/runs/").json()["results"]
        assert row["session_id"] == "s-1"


def test_the_job_names_the_session_that_the_run_started_with(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()

    agent = AgentClient(run(engine, acme))
    agent.post("heartbeat", {"session_id": "s-2"})

    assert agent.get_job().json()["session_id"] == "s-1"
