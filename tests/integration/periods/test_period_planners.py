"""Planners that fail: they are asked again, or people provide the plan."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from activities import cancellation, reassignment
from activities.human_tasks import decisions, human_work
from activities.models import Activity, Alert
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import deliverables
from pipelines.deliverables import PlanInvalid
from pipelines.exceptions import PeriodNotPlanning, PipelineError
from pipelines.models import DeliverablePeriod
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.integration.periods.months import PLAN, answering, count, counts, planner, risk, runs

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_failed_planner_puts_the_period_at_risk_until_it_is_retried(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    def fail(request: Any) -> Completed:
        raise PermanentAgentError("No idea.")

    engine.agent.behaviour = fail
    engine.drain()
    failed = planner(acme, may)
    assert risk(acme, may) == (
        True,
        f"The planner's activity is {failed.status.replace('_', ' ')}, and there is no plan.",
    )

    cancellation.retry(acme.pk, failed.pk, actor="user:ann")

    assert risk(acme, may) == (False, "")
    engine.agent.behaviour = answering(PLAN)
    engine.drain()
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


def test_only_a_planner_that_ended_without_a_plan_can_be_asked_again(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    with pytest.raises(PipelineError, match=r"still planning|just started"):
        deliverables.ask_again(acme.pk, may.pk, actor="user:ann")
    first = planner(acme, may)
    cancellation.cancel(acme.pk, first.pk, actor="user:ann")
    assert risk(acme, may) == (True, "The planner's activity is cancelled, and there is no plan.")

    period = deliverables.ask_again(acme.pk, may.pk, actor="user:ann")

    assert period.planner_activity_id not in (None, first.pk)
    assert risk(acme, may) == (False, "")
    engine.drain()
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)
    with pytest.raises(PeriodNotPlanning):
        deliverables.ask_again(acme.pk, may.pk, actor="user:ann")


def test_asking_again_cancels_the_failed_planner(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    def fail(request: Any) -> Completed:
        raise PermanentAgentError("No idea.")

    engine.agent.behaviour = fail
    engine.drain()
    failed = planner(acme, may)

    deliverables.ask_again(acme.pk, may.pk, actor="user:ann")

    assert engine.status(acme, failed.pk) == "cancelled"
    assert planner(acme, may).status == "created"
    assert risk(acme, may) == (False, "")


def test_one_of_two_concurrent_requests_asks_the_planner_again(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    cancellation.cancel(acme.pk, may.planner_activity_id, actor="user:ann")

    outcomes = simultaneously(*[partial(deliverables.ask_again, acme.pk, may.pk, actor="user:ann")] * 2)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeliverablePeriod", "PipelineError"]
    assert count(acme, Activity, agent_role="activity-planner") == 2


def test_a_plan_by_a_person_closes_the_escalation(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1
    engine.agent.behaviour = answering({"items": []})
    engine.drain()

    with pytest.raises(PlanInvalid):
        deliverables.accept_plan(acme.pk, may.pk, {"items": [{}]}, actor="user:ann")
    assert count(acme, Activity, link_kind="escalation", status="created") == 1
    period = deliverables.accept_plan(acme.pk, may.pk, PLAN, actor="user:ann")

    assert (period.status, period.planned, period.at_risk) == ("active", 2, False)
    assert {run.created_by for run in runs(acme, may)} == {"user:ann"}
    assert count(acme, Activity, link_kind="escalation", status="cancelled") == 1
    with pytest.raises(PeriodNotPlanning):
        deliverables.accept_plan(acme.pk, may.pk, PLAN, actor="user:ann")


def test_the_plan_of_a_successor_is_accepted(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.take()
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Ask Dev.", agent_role="dev"
    )
    successor = planner(acme, may)
    engine.agent.behaviour = lambda request: Completed(Output(data=PLAN))

    engine.drain()

    assert (successor.agent_role, successor.parent_id) == ("dev", may.planner_activity_id)
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


def test_the_plan_of_a_person_with_the_reassigned_work_is_accepted(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Bob knows.", human_role="editor"
    )
    successor = planner(acme, may)
    assert successor.assignee_type == "human"

    deliverables.accept_plan(acme.pk, may.pk, PLAN, actor="user:bob")

    assert engine.status(acme, successor.pk) == "cancelled"
    assert counts(acme, may)[:2] == ("active", 2)


def test_completing_reassigned_planning_without_a_plan_puts_the_period_at_risk(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Bob knows.", human_role="editor"
    )
    successor = planner(acme, may)

    if successor.is_approval_gate:
        decisions.approve(acme.pk, successor.pk, actor="user:bob")
    else:
        human_work.complete(acme.pk, successor.pk, actor="user:bob")

    assert risk(acme, may) == (True, "The plan was refused.")
    assert count(acme, Alert, kind="plan_invalid") == 1
