"""Work that fails for good wakes the roles that plan again, where a tenant has set such."""

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
from tests.failed_work import failed, failed_many, letters_of

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


def test_a_failure_for_good_wakes_the_planner_that_the_tenant_has_set(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = failed(engine, acme)
    seen: list[AgentRequest] = []

    def plans(request: AgentRequest) -> AgentResult:
        seen.append(request)
        return Completed(Output(content="Ask somebody else."))

    engine.agent.behaviour = plans
    dead_letters.handle_waiting()
    dead_letters.handle_waiting()
    engine.drain()

    (planning,), (request,) = plannings(acme), seen
    (letter,) = letters_of(acme, activity_id)
    assert (planning.agent_role, planning.status, letter.planning_id) == (PLANNER, "done", planning.pk)
    assert (request.agent_role, request.params["event"], request.params["activity"]) == (
        PLANNER, "job.failed", str(activity_id),
    )  # fmt: skip
    assert (request.params["agent_role"], request.params["error"]["message"]) == ("qa", "It broke.")
    assert request.params["fingerprint"] == letter.fingerprint


def test_where_nobody_is_set_nobody_is_woken(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.serve(other_tenant, PLANNER, hears_of_failures=True)
    (activity_id,) = failed(engine, tenant)

    dead_letters.handle_waiting()

    assert plannings(tenant) == plannings(other_tenant) == []
    assert [letter.planning_id for letter in letters_of(tenant, activity_id)] == [None]


def test_a_role_that_is_switched_off_is_not_woken(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.serve(tenant, PLANNER, hears_of_failures=True, enabled=False)
    failed(engine, tenant)

    dead_letters.handle_waiting()

    assert plannings(tenant) == []


def test_of_one_kind_of_failure_it_hears_once_in_a_while(engine: Engine, acme: Tenant) -> None:
    first, *others = failed_many(acme, 5)

    dead_letters.handle_waiting()
    engine.drain()

    (planning,) = plannings(acme)
    assert planning.status == "done", "and not for want of the first having ended"
    assert [bool(letter.planning_id) for letter in letters_of(acme, first, *others)] == [True, *[False] * 4]
    failed_many(acme, 1)
    dead_letters.handle_waiting()
    assert len(plannings(acme)) == 1
    with tenant_scope(acme.pk):
        DeadLetter.objects.exclude(planning_id=None).update(
            handled_at=F("handled_at") - timedelta(minutes=11)
        )
    failed_many(acme, 1)
    dead_letters.handle_waiting()
    assert len(plannings(acme)) == 2


def test_a_planner_that_fails_wakes_nobody(engine: Engine, acme: Tenant) -> None:
    failed(engine, acme)
    dead_letters.handle_waiting()

    def breaks(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("No plan.", code="no_plan")

    engine.agent.behaviour = breaks
    engine.drain()
    assert [planning.status for planning in plannings(acme)] == ["failed"]
    dead_letters.handle_waiting()

    assert [planning.status for planning in plannings(acme)] == ["needs_review"]


def test_what_a_planner_has_asked_for_it_hears_of_as_its_subtask_alone(engine: Engine, acme: Tenant) -> None:
    (parent,) = engine.submit(acme, PLANNER)
    engine.drain()

    (child,) = failed(engine, acme, "dev", parent_id=parent, link_kind="subtask")
    dead_letters.handle_waiting()

    assert engine.status(acme, child) == "needs_review"
    assert plannings(acme) == []
