"""A deliverable and role have one live session; a new one replaces it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError
from django.db.models.functions import Now

from activities import sessions
from agents.contracts import Accepted
from agents.models import AgentSession
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient
from tests.engine import Engine, simultaneously
from tests.integration.sessions.conversations import REPORT, history, live, naming, run

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_new_session_replaces_the_last_one(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1", "s-2")
    run(engine, acme)
    run(engine, acme)

    assert history(acme) == [("s-1", "replaced"), ("s-2", "")]
    assert run(engine, acme).session_id == "s-2"


def test_of_many_sessions_named_at_once_one_is_live_and_all_are_recorded(
    engine: Engine, acme: Tenant
) -> None:
    def name(number: int) -> None:
        with tenant_scope(acme.pk):
            sessions.begin(acme.pk, REPORT, "qa", f"s-{number}")

    outcomes = simultaneously(*[lambda n=number: name(n) for number in range(10)])

    assert outcomes == [None] * 10
    assert len(live(acme)) == 1
    assert sorted(session for session, _ in history(acme)) == [f"s-{number}" for number in range(10)]


def test_a_session_named_concurrently_is_recorded_once(engine: Engine, acme: Tenant) -> None:
    def name() -> None:
        with tenant_scope(acme.pk):
            sessions.begin(acme.pk, REPORT, "qa", "s-1")

    assert simultaneously(*[name] * 10) == [None] * 10
    assert history(acme) == [("s-1", "")]


def test_concurrent_runs_with_different_sessions_leave_one_live(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agents = [AgentClient(run(engine, acme)) for _ in range(6)]

    answers = simultaneously(
        *[
            lambda a=agent, n=n: a.post("complete", {**RESULT, "session_id": f"s-{n}"})
            for n, agent in enumerate(agents)
        ]
    )

    assert [answer.status_code for answer in answers] == [200] * 6
    assert len(live(acme)) == 1


def test_the_database_allows_one_live_session_and_requires_end_and_reason_together(acme: Tenant) -> None:
    fields: dict[str, Any] = {
        "tenant": acme,
        "deliverable_id": REPORT,
        "agent_id": "qa",
        "external_session_id": "s",
    }
    invalid_fields: list[dict[str, Any]] = [{}, {"ended_at": Now()}, {"end_reason": "invalid"}]
    with tenant_scope(acme.pk):
        AgentSession.objects.create(**fields)

    for invalid in invalid_fields:
        with pytest.raises(IntegrityError), tenant_scope(acme.pk):
            AgentSession.objects.create(**fields, **invalid)
