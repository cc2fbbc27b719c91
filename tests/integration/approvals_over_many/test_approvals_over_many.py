"""One approval over many activities: every waiting one receives the decision."""

from __future__ import annotations

from uuid import UUID

import pytest

from activities import cancellation, reassignment, tasks
from activities.exceptions import (
    TransitionRefused,
)
from activities.human_tasks import decisions
from activities.models import Activity
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import wakes_per_call
from tests.engine import Engine
from tests.integration.test_alerts import statements
from tests.open_questions import links_of, open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_one_decision_wakes_fifty_activities_of_five_pipelines_each_with_the_option(
    engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": f"s{number}", "agent_role": "qa", "depends_on": []} for number in range(10)]
    versions.save(acme.pk, {"key": "wide", "name": "Wide", "steps": steps}, actor="test")
    runs = [start_run(acme.pk, "wide", NewRun(), actor="test") for _ in range(5)]
    with tenant_scope(acme.pk):
        waiting = list(Activity.objects.filter(step__isnull=False).values_list("pk", flat=True))
    (ended,) = engine.submit(acme, "dev")
    approval = open_approval(acme, [*waiting, ended], options=("Honey", "Hives"))
    engine.drain()
    cancellation.cancel(acme.pk, ended, actor="Ann")
    assert engine.agent.calls == [], "held work must not start"

    decisions.approve(acme.pk, approval, actor="Ann", chosen_option="Honey")
    engine.drain()

    assert len(waiting) == 50
    assert {call.activity_id for call in engine.agent.calls} == set(waiting)
    assert len(engine.agent.calls) == 50
    assert {call.wakes[-1]["chosen_option"] for call in engine.agent.calls} == {"Honey"}
    links = links_of(acme, approval)
    assert [links.pop(ended)] == [("skipped", "It was cancelled or reassigned.")]
    assert set(links.values()) == {("woken", "")}
    with tenant_scope(acme.pk):
        assert {PipelineRun.objects.get(pk=run.pk).status for run in runs} == {"completed"}


def test_granted_work_that_an_approval_then_holds_does_not_start(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    approval = open_approval(acme, [activity_id])

    tasks.run(**message)

    assert engine.agent.calls == []
    assert engine.status(acme, activity_id) == "awaiting_review"
    decisions.approve(acme.pk, approval, actor="Ann")
    engine.drain()
    assert [wake["reason"] for wake in wakes_per_call(engine, activity_id)[0]] == [
        "new_task",
        "review_approved",
    ]


def test_an_approval_without_waiting_work_is_closed(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=2)
    approval = open_approval(acme, ids)

    cancellation.cancel(acme.pk, ids[0], actor="Ann")
    status_before = engine.status(acme, approval)
    cancellation.cancel(acme.pk, ids[1], actor="Ann")

    assert (status_before, engine.status(acme, approval)) == ("created", "cancelled")
    with pytest.raises(TransitionRefused, match=r"cancelled, because .+ any more \(Ann, 20.+Z\); it waits"):
        decisions.approve(acme.pk, approval, actor="Ann")


def test_a_successor_waits_for_approvals_about_the_reassigned_work(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id])

    successor = reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")
    engine.drain()
    assert (engine.status(acme, successor.pk), engine.agent.calls) == ("awaiting_review", [])
    decisions.approve(acme.pk, approval, actor="Ann")
    engine.drain()

    assert engine.status(acme, successor.pk) == "done"
    assert links_of(acme, approval) == {
        activity_id: ("skipped", "It was cancelled or reassigned."),
        successor.pk: ("woken", ""),
    }


def test_requesting_and_deciding_take_equally_many_statements_for_fifty_activities_as_for_five(
    engine: Engine, acme: Tenant
) -> None:
    def costs(count: int) -> tuple[int, int]:
        created: list[UUID] = []
        ids = engine.submit(acme, count=count)
        return (
            statements(lambda: created.append(open_approval(acme, ids))),
            statements(lambda: decisions.approve(acme.pk, created[0], actor="Ann")),
        )

    assert costs(5) == costs(50)
