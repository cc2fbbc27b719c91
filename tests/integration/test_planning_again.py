"""Permanently failed work starts the planner role that a tenant has configured for failures."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from activities import dead_letters
from activities.models import Activity, DeadLetter
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.failed_work import create_dead_letters, letters_of, submit_failing

pytestmark = pytest.mark.usefixtures("one_at_a_time")

PLANNER = "seo"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, "qa", "dev")
    engine.serve(tenant, PLANNER, hears_of_failures=True)
    return tenant


def plannings(tenant: Tenant) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.filter(metadata__event="job.failed").order_by("pk"))


def test_a_permanent_failure_starts_the_configured_planner_once(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)
    requests: list[AgentRequest] = []

    def record_request(request: AgentRequest) -> AgentResult:
        requests.append(request)
        return Completed(Output(content="Ask somebody else."))

    engine.agent.behaviour = record_request
    dead_letters.handle_waiting()
    dead_letters.handle_waiting()
    engine.drain()

    (planning,), (request,) = plannings(acme), requests
    (letter,) = letters_of(acme, activity_id)
    assert (planning.agent_role, planning.status, letter.planning_id) == (PLANNER, "done", planning.pk)
    assert (request.agent_role, request.params["event"], request.params["activity"]) == (
        PLANNER, "job.failed", str(activity_id),
    )  # fmt: skip
    assert (request.params["agent_role"], request.params["error"]["message"]) == ("qa", "It broke.")
    assert request.params["fingerprint"] == letter.fingerprint


def test_without_a_configured_planner_nothing_is_started(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(tenant)
    engine.serve(other_tenant, PLANNER, hears_of_failures=True)
    (activity_id,) = submit_failing(engine, tenant)

    dead_letters.handle_waiting()

    assert plannings(tenant) == plannings(other_tenant) == []
    assert [letter.planning_id for letter in letters_of(tenant, activity_id)] == [None]


def test_a_disabled_planner_is_not_started(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.serve(tenant, PLANNER, hears_of_failures=True, enabled=False)
    submit_failing(engine, tenant)

    dead_letters.handle_waiting()

    assert plannings(tenant) == []


def test_failures_of_one_kind_start_the_planner_once_in_ten_minutes(engine: Engine, acme: Tenant) -> None:
    first, *others = create_dead_letters(acme, 5)

    dead_letters.handle_waiting()
    engine.drain()

    (planning,) = plannings(acme)
    assert planning.status == "done", "so not only because the first is still active"
    assert [bool(letter.planning_id) for letter in letters_of(acme, first, *others)] == [True, *[False] * 4]
    create_dead_letters(acme, 1)
    dead_letters.handle_waiting()
    assert len(plannings(acme)) == 1
    with tenant_scope(acme.pk):
        DeadLetter.objects.exclude(planning_id=None).update(
            handled_at=F("handled_at") - timedelta(minutes=11)
        )
    create_dead_letters(acme, 1)
    dead_letters.handle_waiting()
    assert len(plannings(acme)) == 2


def test_a_failed_planner_starts_no_other(engine: Engine, acme: Tenant) -> None:
    submit_failing(engine, acme)
    dead_letters.handle_waiting()

    def fail(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("No plan.", code="no_plan")

    engine.agent.behaviour = fail
    engine.drain()
    assert [planning.status for planning in plannings(acme)] == ["failed"]
    dead_letters.handle_waiting()

    assert [planning.status for planning in plannings(acme)] == ["needs_review"]


def test_a_failed_subtask_of_the_planner_does_not_start_it_again(engine: Engine, acme: Tenant) -> None:
    (parent,) = engine.submit(acme, PLANNER)
    engine.drain()

    (child,) = submit_failing(engine, acme, "dev", parent_id=parent, link_kind="subtask")
    dead_letters.handle_waiting()

    assert engine.status(acme, child) == "needs_review"
    assert plannings(acme) == []
