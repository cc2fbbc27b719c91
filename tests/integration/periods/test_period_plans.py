"""A plan is accepted, or returned to the planner with all its errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity, Alert
from agents import configuration, samples
from agents.contracts import Completed, Output
from agents.models import Agent
from pipelines import deliverables
from pipelines.deliverables import planning
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, in_another_thread, simultaneously
from tests.integration.periods.months import (
    MAY,
    PLAN,
    activity_of_step,
    answering,
    change_without_waiting,
    count,
    counts,
    planner,
    reloaded,
    risk,
    runs,
    save,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_plan_starts_one_run_for_each_item_with_its_settings(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    save(acme, "own", {"id": "only", "agent_role": "qa"}, params={"city": "Oslo", "tone": "loud"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "own"]})
    engine.agent.behaviour = answering(
        {"items": [
            {"pipeline": "own", "params": {"city": "Bergen"}, "input": {"content": "Begin."}, "priority": 3, "name": "One"},
            {"pipeline": "flow"},
            {"pipeline": "own"},
        ]}
    )  # fmt: skip

    engine.deliver()

    first, second, third = runs(acme, may)
    assert (first.name, first.priority, first.input, first.params) == (
        "One", 3, {"content": "Begin."}, {"city": "Bergen", "tone": "calm"},
    )  # fmt: skip
    assert third.params == {"city": "Oslo", "tone": "calm"}
    assert {run.deliverable_id for run in (first, second, third)} == {blog.pk}
    assert counts(acme, may) == ("active", 3, 0, 0, 0)
    assert activity_of_step(acme, first, "only").deliverable_id == blog.pk
    engine.drain()
    assert counts(acme, may) == ("completed", 3, 3, 0, 0)
    assert reloaded(acme, may).ended_at is not None


def test_an_item_for_later_waits_while_the_others_start(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    far = datetime.now(UTC).date() + timedelta(days=400)
    (period,) = deliverables.start_new_periods(acme.pk, today=far)
    delayed = {"pipeline": "flow", "not_before": f"{far}T08:00:00Z"}
    engine.agent.behaviour = answering({"items": [delayed, {"pipeline": "flow"}]})

    engine.drain()

    later, first = runs(acme, period)
    assert (later.status, first.status) == ("running", "completed")
    waiting = activity_of_step(acme, later, "a")
    assert (waiting.status, waiting.not_before) == (
        "created",
        datetime(far.year, far.month, far.day, 8, tzinfo=UTC),
    )
    engine.make_due(acme)
    engine.drain()
    assert counts(acme, period) == ("completed", 2, 2, 0, 0)


def test_a_plan_that_is_processed_twice_starts_its_runs_once(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    settled = planner(acme, may)

    with tenant_scope(acme.pk):
        deliverables.follow_planner(settled)
    simultaneously(*[partial(_follow, acme, settled)] * 4)

    assert len(runs(acme, may)) == 2


def _follow(tenant: Tenant, activity: Activity) -> None:
    with tenant_scope(tenant.pk):
        deliverables.follow_planner(activity)


def test_an_activity_with_forged_metadata_does_not_plan_a_period(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    engine.take()  # removes the planner's message
    for forger in (acme, other_tenant):
        engine.submit(forger, "qa", metadata={"deliverable_period": str(may.pk)})
    engine.submit(acme, "qa", metadata={"deliverable_period": ["no", "id"]})
    engine.agent.behaviour = lambda request: Completed(Output(data=PLAN))

    engine.drain()

    assert count(acme, Activity, agent_role="qa", status="done") == 2
    assert (runs(acme, may), reloaded(acme, may).status) == ([], "planning")


def test_a_plan_with_errors_is_rejected_with_all_of_them(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    broken = {"items": [{"pipeline": "flop"}, {"pipeline": "flow", "priority": 99}]}
    engine.agent.behaviour = answering(broken, {"items": [{"pipeline": "flop"}]}, PLAN)

    engine.deliver()

    revision = planner(acme, may)
    assert (revision.round, revision.link_kind, revision.status) == (2, "revision_of", "created")
    assert "- items[1].priority: must be from 1 to 20" in revision.reviewer_notes
    assert reloaded(acme, may).plan_faults == [
        {"path": "items[1].priority", "message": "must be from 1 to 20"},
        {"path": "items[0].pipeline", "message": 'unknown pipeline "flop", did you mean flow?'},
    ]
    assert risk(acme, may) == (False, "")
    engine.drain()
    wakes = [call.wake_reason for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert wakes == ["scheduled", "rejection", "rejection"]
    assert (
        'items[0].pipeline: unknown pipeline "flop", did you mean flow?' in planner(acme, may).reviewer_notes
    )
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)
    assert reloaded(acme, may).plan_faults == []


@pytest.mark.parametrize("answer", [Output(content="Here is my plan."), Output(data=[1]), Output(data="x")])
def test_an_output_that_is_not_a_plan_is_rejected(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, answer: Output
) -> None:
    engine.agent.behaviour = lambda request: Completed(answer)

    engine.deliver()

    assert "- must be an object" in planner(acme, may).reviewer_notes


@pytest.mark.parametrize(
    "content",
    [
        '{"items": [{"pipeline": "flow"}]}',
        'The plan:\n\n```json\n{"items": [{"pipeline": "flow"}]}\n```\nGood luck!\n',
        '```\n{"items": [{"pipeline": "flow"}]}\n```',
    ],
    ids=["bare", "fenced as json", "fenced"],
)
def test_a_plan_in_the_text_of_a_model_is_accepted(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, content: str
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(content=content))

    engine.drain()

    assert counts(acme, may) == ("completed", 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"items": [', "is not JSON"),
        ('{"items": [], "items": []}', "is not JSON"),
        ("```json\n{}\n```\nor\n```json\n{}\n```", "must be one plan"),
        ('```json\n{"items": [{"pipeline": "flop"}]}\n```', "unknown pipeline"),
        ("[1]", "must be an object"),
    ],
    ids=["broken", "a repeated field", "two blocks", "unknown pipeline", "a list"],
)
def test_text_without_a_valid_plan_is_rejected_with_the_reason(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, content: str, fault: str
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(content=content))

    engine.deliver()

    assert fault in planner(acme, may).reviewer_notes
    assert runs(acme, may) == []


def test_data_precedes_text(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(data=PLAN, content='{"items": []}'))

    engine.drain()

    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


@pytest.mark.parametrize(("target", "planned"), [(None, 4), (3, 3), (40, 40)], ids=["none", "few", "many"])
def test_the_sample_planner_plans_as_many_runs_as_the_target_says(
    engine: Engine, acme: Tenant, blog: Deliverable, target: int | None, planned: int
) -> None:
    deliverables.change(acme.pk, blog.pk, {"target": target})
    engine.agent.behaviour = lambda request: Completed(
        samples.plan_month(request) if request.agent_role == "activity-planner" else Output(content="done")
    )
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)

    engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert counts(acme, period) == ("completed", planned, planned, 0, 0)
    assert risk(acme, period) == (False, "")


def test_activities_can_be_filtered_by_period_pipeline_and_template(
    api: Any, engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    template = {"key": "draft", "name": "Draft", "agent_role": "qa", "requires_approval": True}
    assert api("admin").post("/api/v1/templates/", template).status_code == 201
    save(acme, "flow", {"id": "a", "template": "draft"}, {"id": "b", "agent_role": "dev"})
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}]})
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)
    engine.submit(acme, "qa")
    engine.drain()

    def activities(**which: Any) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in which.items())
        return list(api().get(f"/api/v1/activities/?{query}").json()["results"])

    (run,) = runs(acme, period)
    assert sorted(one["name"] for one in activities(period=period.pk)) == [
        "Approve: Draft",
        "Draft",
        "Plan May 2026: Blog",
    ]
    assert {one["period"] for one in activities(period=period.pk)} == {str(period.pk)}
    assert {one["template"] for one in activities(pipeline_run=run.pk)} == {"draft"}
    (drafted,) = activities(template="draft", assignee_type="agent")
    assert (drafted["step"], drafted["period"]) == ("a", str(period.pk))
    pipeline = api().get("/api/v1/pipelines/flow/").json()["id"]
    assert {one["id"] for one in activities(pipeline=pipeline)} == {
        one["id"] for one in activities(pipeline_run=run.pk)
    }

    # A revision belongs to the same template and period.
    assert api("admin").post(f"{drafted['link']}reject/", {"notes": "Longer."}).status_code == 200
    assert [
        one["round"] for one in activities(template="draft", period=period.pk, assignee_type="agent")
    ] == [
        2,
        1,
    ]


def test_too_many_rounds_escalate_once_with_one_alert(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 3
    engine.agent.behaviour = answering({"items": []})

    engine.drain()

    last = planner(acme, may)
    assert (last.round, last.status) == (3, "done")
    assert risk(acme, may) == (True, "The plan was refused.")
    with tenant_scope(acme.pk):
        (escalation,) = Activity.objects.filter(link_kind="escalation")
        (alert,) = Alert.objects.all()
    assert (escalation.parent_id, escalation.assignee_type, escalation.reviewer_notes) == (
        last.pk, "human", "- items: must have at least 1 member",
    )  # fmt: skip
    assert (alert.kind, alert.activity_id) == ("plan_invalid", last.pk)
    assert alert.facts == {"period": str(may.pk), "deliverable": str(may.deliverable_id)}


def test_a_disabled_pipeline_is_an_error_of_the_plan(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    with tenant_scope(acme.pk):
        Pipeline.objects.update(enabled=False)

    engine.deliver()

    assert 'items[0].pipeline: unknown pipeline "flow"' in planner(acme, may).reviewer_notes


def test_a_pipeline_cannot_be_disabled_between_check_and_start_of_a_plan(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_runs, errors = planning._start_runs, []

    def disable(tenant_id: UUID) -> None:
        Pipeline.objects.for_tenant(tenant_id).update(enabled=False)

    def meanwhile(*args: Any) -> None:
        errors.append(in_another_thread(partial(change_without_waiting, acme, disable)))
        start_runs(*args)

    monkeypatch.setattr(planning, "_start_runs", meanwhile)

    engine.deliver()

    assert "lock timeout" in str(errors[0])
    assert counts(acme, may)[:2] == ("active", 2)


def test_a_plan_with_invalid_parameters_for_an_agent_is_rejected(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    save(acme, "strict", {"id": "only", "agent_role": "dev"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "strict"]})
    Agent.objects.filter(role="dev").update(input_schema={"properties": {"words": {"type": "integer"}}})
    configuration.forget()
    try:
        items = [{"pipeline": "flow", "priority": 0}, {"pipeline": "strict", "params": {"words": "many"}}]
        engine.agent.behaviour = answering({"items": items})

        engine.deliver()
    finally:
        Agent.objects.filter(role="dev").update(input_schema=None)
        configuration.forget()

    assert reloaded(acme, may).plan_faults == [
        {"path": "items[0].priority", "message": "must be from 1 to 20"},
        {"path": "items[1].params.words", "message": "step only: 'many' is not of type 'integer'"},
    ]
    assert runs(acme, may) == []


def test_a_plan_with_a_parameter_that_is_reserved_for_items_of_a_fan_out_is_rejected(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    save(
        acme, "wide", {"id": "only", "agent_role": "dev", "for_each": "params.topics"}, params={"topics": []}
    )
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "wide"]})
    items = [{"pipeline": "flow"}, {"pipeline": "wide", "params": {"item": 1}}]
    engine.agent.behaviour = answering({"items": items}, PLAN)

    engine.deliver()

    (fault,) = reloaded(acme, may).plan_faults
    assert fault["path"] == "items[1].params.item"
    engine.drain()
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


def test_a_plan_with_a_name_of_invisible_characters_is_rejected(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    names = ["Bees\nHoney", "Bees\u202eyenoH", " ", "Bees"]
    engine.agent.behaviour = answering(
        {"items": [{"pipeline": "flow", "name": name} for name in names]}, PLAN
    )

    engine.deliver()

    assert [fault["path"] for fault in reloaded(acme, may).plan_faults] == [
        f"items[{n}].name" for n in range(3)
    ]
