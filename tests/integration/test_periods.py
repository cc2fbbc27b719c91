"""Periods: a month begins, is planned, is worked through, and goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connections

from activities import approvals, cancellation, people, reassignment, relay
from activities.models import Activity, Alert, Wake
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import deliverables, periods, tally, versions
from pipelines.cancellation import cancel_run
from pipelines.exceptions import DeliverableNotActive, PeriodEnded, PeriodNotPlanning, PlannerAtWork
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline, PipelineRun
from pipelines.periods import PlanInvalid, planning, starting
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once, elsewhere

pytestmark = pytest.mark.usefixtures("one_at_a_time")

MAY = date(2026, 5, 1)
PLAN = {"items": [{"pipeline": "flow", "name": "Bees"}, {"pipeline": "flow", "name": "Honey"}]}


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    running = Engine(["activity-planner", "qa", "dev"])
    yield running
    running.close()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    save(tenant, "flow", {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"})
    return tenant


@pytest.fixture
def blog(acme: Tenant) -> Deliverable:
    """An active deliverable whose planner answers with `PLAN`."""
    made, _ = deliverables.create(
        acme.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"], "params": {"tone": "calm"}}
    )
    return made


@pytest.fixture
def may(engine: Engine, acme: Tenant, blog: Deliverable) -> DeliverablePeriod:
    """A period whose planner has not begun."""
    engine.agent.behaviour = answering(PLAN)
    (period,) = periods.start_new_periods(acme.pk, today=MAY)
    return period


def save(tenant: Tenant, key: str, *steps: dict[str, Any], **more: Any) -> None:
    versions.save(tenant.pk, {"key": key, "name": key.title(), "steps": list(steps), **more}, actor="test")


def answering(*plans: Any, failing: str = "") -> Callable[[Any], Completed]:
    """The planner answers with one plan after the other, everybody else with a sentence. The run named `failing` fails."""
    left = list(plans)

    def behaviour(request: Any) -> Completed:
        if request.agent_role == "activity-planner":
            return Completed(Output(data=left.pop(0) if len(left) > 1 else left[0]))
        if failing and failing == request.pipeline_step:
            raise PermanentAgentError("No such page.")
        return Completed(Output(content="done"))

    return behaviour


def again(tenant: Tenant, period: DeliverablePeriod) -> DeliverablePeriod:
    with tenant_scope(tenant.pk):
        return DeliverablePeriod.objects.get(pk=period.pk)


def figures(tenant: Tenant, period: DeliverablePeriod) -> tuple[str, int, int, int, int]:
    now = again(tenant, period)
    return now.status, now.planned, now.completed, now.failed, now.cancelled


def risk(tenant: Tenant, period: DeliverablePeriod) -> tuple[bool, str]:
    now = again(tenant, period)
    return now.at_risk, now.at_risk_reason


def planner(tenant: Tenant, period: DeliverablePeriod) -> Activity:
    """The activity that the period names as its planner now."""
    with tenant_scope(tenant.pk):
        return Activity.objects.get(pk=DeliverablePeriod.objects.get(pk=period.pk).planner_activity_id)


def runs(tenant: Tenant, period: DeliverablePeriod) -> list[PipelineRun]:
    with tenant_scope(tenant.pk):
        return list(PipelineRun.objects.filter(period=period).order_by("plan_item"))


def of_step(tenant: Tenant, run: PipelineRun, step: str) -> Activity:
    with tenant_scope(tenant.pk):
        return Activity.objects.get(pipeline_run_id=run.pk, step=step, link_kind=None)


def count(tenant: Tenant, model: Any, **which: Any) -> int:
    with tenant_scope(tenant.pk):
        return model.objects.filter(**which).count()


# A month begins


def test_a_month_gives_every_active_deliverable_a_period_and_its_planner_the_work(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    deliverables.create(acme.pk, {"key": "ads", "name": "Ads", "pipelines": ["flow"]})
    deliverables.create(acme.pk, {"key": "old", "name": "Old", "pipelines": ["flow"], "status": "paused"})
    deliverables.create(acme.pk, {"key": "gone", "name": "Gone", "pipelines": ["flow"], "status": "ended"})

    started = periods.start_new_periods(acme.pk, today=date(2028, 2, 17))

    assert {(p.starts_on, p.ends_on, p.status) for p in started} == {
        (date(2028, 2, 1), date(2028, 2, 29), "planning")
    }
    with tenant_scope(acme.pk):
        assert {p.deliverable.key for p in DeliverablePeriod.objects.all()} == {"blog", "ads"}
        asked = Activity.objects.get(deliverable_id=blog.pk)
        wake = Wake.objects.get(activity=asked)
    period = next(p for p in started if p.deliverable_id == blog.pk)
    assert (asked.agent_role, asked.pk, wake.reason) == (
        "activity-planner",
        period.planner_activity_id,
        "scheduled",
    )
    assert asked.dedup_key == f"{acme.pk}:{period.pk}:scheduled"


def test_the_planner_is_told_what_it_may_plan_with_and_how_the_last_month_went(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(acme, "flow", {"id": "a", "agent_role": "qa"}, params={"city": "Oslo"}, description="Writes.")
    save(acme, "other", {"id": "a", "agent_role": "qa"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "other"], "description": "On bees."})
    with tenant_scope(acme.pk):
        Pipeline.objects.filter(key="other").update(enabled=False)
    (_april,) = periods.start_new_periods(acme.pk, today=date(2026, 4, 30))
    engine.agent.behaviour = answering(PLAN)
    engine.drain()

    periods.start_new_periods(acme.pk, today=MAY)
    engine.drain()

    told = [call.params for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert told[0]["last_period"] is None
    assert told[1]["last_period"] == {
        "starts_on": "2026-04-01", "ends_on": "2026-04-30", "status": "completed", "planned": 2, "completed": 2, "failed": 0,
        "cancelled": 0, "at_risk": False, "at_risk_reason": "",
    }  # fmt: skip
    assert told[1]["deliverable"] == {
        "key": "blog", "name": "Blog", "description": "On bees.", "params": {"tone": "calm"},
    }  # fmt: skip
    assert told[1]["pipelines"] == [
        {"key": "flow", "name": "Flow", "description": "Writes.",
         "params": {"type": "object", "properties": {"city": {"type": "string", "default": "Oslo"}}}}
    ]  # fmt: skip
    assert told[1]["plan_schema"]["required"] == ["items"]


def test_starting_a_month_again_starts_nothing(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    again_ = periods.start_new_periods(acme.pk, today=date(2026, 5, 31))
    engine.drain()
    afterwards = periods.start_new_periods(acme.pk, today=MAY)

    assert (again_, afterwards) == ([], [])
    assert count(acme, Activity, agent_role="activity-planner") == 1
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)


def test_ten_who_start_a_month_at_once_start_it_once(engine: Engine, acme: Tenant) -> None:
    for number in range(5):
        deliverables.create(acme.pk, {"key": f"d{number}", "name": f"D{number}", "pipelines": ["flow"]})

    outcomes = at_once(*[partial(periods.start_new_periods, acme.pk, today=MAY)] * 10)

    assert sorted(len(started) for started in outcomes) == [0] * 9 + [5]
    assert count(acme, DeliverablePeriod) == 5
    assert count(acme, Activity, agent_role="activity-planner") == 5


def test_starting_by_hand_and_by_the_job_at_once_starts_it_once(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    by_hand = partial(periods.start_period, acme.pk, blog.pk, today=MAY, actor="user:ann")

    outcomes = at_once(by_hand, partial(periods.start_new_periods, acme.pk, today=MAY), by_hand)

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert count(acme, DeliverablePeriod) == count(acme, Activity) == 1


def test_a_start_that_dies_half_way_leaves_nothing_and_is_repeated(
    engine: Engine, acme: Tenant, blog: Deliverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(starting, "submit", die)
        with pytest.raises(KeyboardInterrupt):
            periods.start_new_periods(acme.pk, today=MAY)

    assert count(acme, DeliverablePeriod) == 0
    assert len(periods.start_new_periods(acme.pk, today=MAY)) == 1
    assert count(acme, Activity) == 1


def test_a_start_looks_neither_at_other_tenants_nor_at_those_switched_off(
    engine: Engine, acme: Tenant, blog: Deliverable, other_tenant: Tenant, make_tenant: Any
) -> None:
    asleep = make_tenant("asleep", is_active=False)
    deliverables.create(asleep.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    deliverables.create(other_tenant.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})

    started = {each.slug: periods.start_new_periods(each.pk, today=MAY) for each in (acme, asleep)}

    assert {slug: len(found) for slug, found in started.items()} == {"acme": 1, "asleep": 0}
    assert count(other_tenant, DeliverablePeriod) == 0


def test_starting_by_hand_what_is_paused_is_refused_unless_it_has_begun(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    deliverables.change(acme.pk, blog.pk, {"status": "paused"})
    start = partial(periods.start_period, acme.pk, blog.pk, actor="user:ann")

    period, is_new = start(today=date(2026, 5, 20))

    assert (period.pk, is_new) == (may.pk, False)
    with pytest.raises(DeliverableNotActive, match="is paused"):
        start(today=date(2026, 6, 1))


def test_deleting_a_deliverable_while_its_month_starts_loses_neither(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    outcomes = at_once(
        partial(periods.start_new_periods, acme.pk, today=MAY), partial(deliverables.delete, acme.pk, blog.pk)
    )

    errors = [type(outcome).__name__ for outcome in outcomes if isinstance(outcome, Exception)]
    assert errors in ([], ["DeliverableInUse"])
    assert count(acme, DeliverablePeriod) == count(acme, Deliverable) == len(errors)


def test_what_gets_its_month_can_be_neither_paused_nor_deleted_in_between(
    engine: Engine, acme: Tenant, blog: Deliverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, tried = starting._create, []

    def meanwhile(*args: Any) -> Any:
        tried.append(elsewhere(partial(_impatiently, acme, deliverables.delete, blog.pk)))
        tried.append(
            elsewhere(partial(_impatiently, acme, deliverables.change, blog.pk, {"status": "paused"}))
        )
        return create(*args)

    monkeypatch.setattr(starting, "_create", meanwhile)

    started = periods.start_new_periods(acme.pk, today=MAY)

    assert len(started) == 1
    assert ["lock timeout" in str(error) for error in tried] == [True, True]


def _impatiently(tenant: Tenant, change: Any, *arguments: Any) -> Exception | None:
    """What comes of a change by somebody who does not wait for locks."""
    try:
        with tenant_scope(tenant.pk):
            with connections["default"].cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '50ms'")
            change(tenant.pk, *arguments)
    except OperationalError as error:
        return error
    return None


# The plan is taken up


def test_a_plan_starts_one_run_for_each_item_with_what_the_item_says(
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
    assert figures(acme, may) == ("active", 3, 0, 0, 0)
    assert of_step(acme, first, "only").deliverable_id == blog.pk
    engine.drain()
    assert figures(acme, may) == ("completed", 3, 3, 0, 0)
    assert again(acme, may).ended_at is not None


def test_a_run_that_is_not_to_start_yet_waits_while_the_others_begin(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    far = datetime.now(UTC).date() + timedelta(days=400)
    (period,) = periods.start_new_periods(acme.pk, today=far)
    begins = {"pipeline": "flow", "not_before": f"{far}T08:00:00Z"}
    engine.agent.behaviour = answering({"items": [begins, {"pipeline": "flow"}]})

    engine.drain()

    later, now = runs(acme, period)
    assert (later.status, now.status) == ("running", "completed")
    waiting = of_step(acme, later, "a")
    assert (waiting.status, waiting.not_before) == (
        "created",
        datetime(far.year, far.month, far.day, 8, tzinfo=UTC),
    )
    engine.make_due(acme)
    engine.drain()
    assert figures(acme, period) == ("completed", 2, 2, 0, 0)


def test_a_plan_that_is_announced_twice_starts_its_runs_once(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    settled = planner(acme, may)

    with tenant_scope(acme.pk):
        periods.follow_planner(settled)
    at_once(*[partial(_follow, acme, settled)] * 4)

    assert len(runs(acme, may)) == 2


def _follow(tenant: Tenant, activity: Activity) -> None:
    with tenant_scope(tenant.pk):
        periods.follow_planner(activity)


def test_an_activity_that_only_says_it_plans_a_period_changes_nothing(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    engine.take()  # the planner's message
    for forger in (acme, other_tenant):
        engine.submit(forger, "qa", metadata={"deliverable_period": str(may.pk)})
    engine.submit(acme, "qa", metadata={"deliverable_period": ["no", "id"]})
    engine.agent.behaviour = lambda request: Completed(Output(data=PLAN))

    engine.drain()

    assert count(acme, Activity, agent_role="qa", status="done") == 2
    assert (runs(acme, may), again(acme, may).status) == ([], "planning")


# A plan with faults


def test_a_plan_with_faults_goes_back_to_the_planner_with_all_of_them(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    broken = {"items": [{"pipeline": "flop"}, {"pipeline": "flow", "priority": 99}]}
    engine.agent.behaviour = answering(broken, {"items": [{"pipeline": "flop"}]}, PLAN)

    engine.deliver()

    revision = planner(acme, may)
    assert (revision.round, revision.link_kind, revision.status) == (2, "revision_of", "created")
    assert "- items[1].priority: must be from 1 to 20" in revision.reviewer_notes
    assert again(acme, may).plan_faults == [{"path": "items[1].priority", "message": "must be from 1 to 20"}]
    assert risk(acme, may) == (False, "")
    engine.drain()
    wakes = [call.wake_reason for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert wakes == ["scheduled", "rejection", "rejection"]
    assert (
        'items[0].pipeline: unknown pipeline "flop", did you mean flow?' in planner(acme, may).reviewer_notes
    )
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)
    assert again(acme, may).plan_faults == []


@pytest.mark.parametrize("answer", [Output(content="Here is my plan."), Output(data=[1]), Output(data="x")])
def test_an_answer_that_is_no_plan_goes_back_too(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, answer: Output
) -> None:
    engine.agent.behaviour = lambda request: Completed(answer)

    engine.deliver()

    assert "- must be an object" in planner(acme, may).reviewer_notes


def test_after_too_many_rounds_people_are_asked_and_told_once(
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


def test_a_pipeline_that_was_switched_off_meanwhile_is_a_fault_of_the_plan(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    with tenant_scope(acme.pk):
        Pipeline.objects.update(enabled=False)

    engine.deliver()

    assert 'items[0].pipeline: unknown pipeline "flow"' in planner(acme, may).reviewer_notes


def test_a_pipeline_cannot_be_switched_off_between_the_look_at_the_plan_and_its_start(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, tried = planning._start_runs, []

    def switch_off(tenant_id: UUID) -> None:
        Pipeline.objects.for_tenant(tenant_id).update(enabled=False)

    def meanwhile(*args: Any) -> None:
        tried.append(elsewhere(partial(_impatiently, acme, switch_off)))
        start(*args)

    monkeypatch.setattr(planning, "_start_runs", meanwhile)

    engine.deliver()

    assert "lock timeout" in str(tried[0])
    assert figures(acme, may)[:2] == ("active", 2)


# The planner comes to nothing


def test_a_planner_that_fails_puts_the_period_at_risk_until_it_is_tried_again(
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
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)


def test_the_planner_is_asked_again_only_when_it_has_come_to_nothing(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    with pytest.raises(PlannerAtWork):
        periods.ask_again(acme.pk, may.pk, actor="user:ann")
    first = planner(acme, may)
    cancellation.cancel(acme.pk, first.pk, actor="user:ann")
    assert risk(acme, may) == (True, "The planner's activity is cancelled, and there is no plan.")

    asked = periods.ask_again(acme.pk, may.pk, actor="user:ann")

    assert asked.planner_activity_id not in (None, first.pk)
    assert risk(acme, may) == (False, "")
    engine.drain()
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)
    with pytest.raises(PeriodNotPlanning):
        periods.ask_again(acme.pk, may.pk, actor="user:ann")


def test_asking_again_closes_what_is_left_of_the_planner_that_failed(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    def fail(request: Any) -> Completed:
        raise PermanentAgentError("No idea.")

    engine.agent.behaviour = fail
    engine.drain()
    failed = planner(acme, may)

    periods.ask_again(acme.pk, may.pk, actor="user:ann")

    assert engine.status(acme, failed.pk) == "cancelled"
    assert planner(acme, may).status == "created"
    assert risk(acme, may) == (False, "")


def test_of_two_who_ask_again_at_once_one_is_told_that_it_plans(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    cancellation.cancel(acme.pk, may.planner_activity_id, actor="user:ann")

    outcomes = at_once(*[partial(periods.ask_again, acme.pk, may.pk, actor="user:ann")] * 2)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DeliverablePeriod", "PlannerAtWork"]
    assert count(acme, Activity, agent_role="activity-planner") == 2


def test_a_person_gives_the_plan_and_is_no_longer_asked_for_one(
    engine: Engine, acme: Tenant, may: DeliverablePeriod, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1
    engine.agent.behaviour = answering({"items": []})
    engine.drain()

    with pytest.raises(PlanInvalid):
        periods.take_up(acme.pk, may.pk, {"items": [{}]}, actor="user:ann")
    assert count(acme, Activity, link_kind="escalation", status="created") == 1
    taken = periods.take_up(acme.pk, may.pk, PLAN, actor="user:ann")

    assert (taken.status, taken.planned, taken.at_risk) == ("active", 2, False)
    assert {run.created_by for run in runs(acme, may)} == {"user:ann"}
    assert count(acme, Activity, link_kind="escalation", status="cancelled") == 1
    with pytest.raises(PeriodNotPlanning):
        periods.take_up(acme.pk, may.pk, PLAN, actor="user:ann")


def test_a_plan_that_another_agent_was_given_to_do_is_taken_up(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.take()
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Ask Dev.", agent_role="dev"
    )
    heir = planner(acme, may)
    engine.agent.behaviour = lambda request: Completed(Output(data=PLAN))

    engine.drain()

    assert (heir.agent_role, heir.parent_id) == ("dev", may.planner_activity_id)
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)


def test_a_plan_that_a_person_was_given_to_do_is_taken_up_from_the_person(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Bob knows.", human_role="editor"
    )
    heir = planner(acme, may)
    assert heir.assignee_type == "human"

    periods.take_up(acme.pk, may.pk, PLAN, actor="user:bob")

    assert engine.status(acme, heir.pk) == "cancelled"
    assert figures(acme, may)[:2] == ("active", 2)


def test_a_person_who_approves_instead_of_planning_leaves_the_period_at_risk(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    reassignment.reassign(
        acme.pk, may.planner_activity_id, actor="user:ann", reason="Bob knows.", human_role="editor"
    )
    heir = planner(acme, may)

    if heir.is_approval_gate:
        approvals.approve(acme.pk, heir.pk, actor="user:bob")
    else:
        people.complete(acme.pk, heir.pk, actor="user:bob")

    assert risk(acme, may) == (True, "The plan was refused.")
    assert count(acme, Alert, kind="plan_invalid") == 1


# How it goes


def test_a_run_that_fails_is_counted_and_puts_the_period_at_risk(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")

    engine.drain()

    assert figures(acme, may) == ("completed", 2, 0, 2, 0)
    assert risk(acme, may) == (True, "Bees failed; Honey failed.")
    assert count(acme, Alert, kind="period_at_risk") == 1


def test_a_run_that_is_tried_again_and_recovers_takes_the_flag_away(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")
    engine.drain()
    engine.agent.behaviour = answering(PLAN)
    bees, honey = runs(acme, may)

    cancellation.retry(acme.pk, of_step(acme, bees, "b").pk, actor="user:ann")

    assert figures(acme, may) == ("active", 2, 0, 1, 0)
    assert again(acme, may).ended_at is None
    engine.drain()
    assert figures(acme, may) == ("completed", 2, 1, 1, 0)
    assert risk(acme, may) == (True, "Honey failed.")
    cancellation.retry(acme.pk, of_step(acme, honey, "b").pk, actor="user:ann")
    assert risk(acme, may) == (False, "")
    engine.drain()
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)


def test_a_dead_letter_on_the_critical_path_flags_the_period_while_its_run_goes_on(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(
        acme, "flow", {"id": "bad", "agent_role": "qa"},
        {"id": "beside", "human_role": "editor", "depends_on": []},
    )  # fmt: skip
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}]}, failing="bad")
    (period,) = periods.start_new_periods(acme.pk, today=MAY)

    engine.drain()

    assert figures(acme, period) == ("active", 1, 0, 0, 0)
    assert risk(acme, period) == (True, "flow failed at bad.")
    (run,) = runs(acme, period)
    cancellation.retry(acme.pk, of_step(acme, run, "bad").pk, actor="user:ann")
    assert risk(acme, period) == (False, "")


@pytest.mark.parametrize("policy", ["continue", "skip"])
def test_a_dead_letter_that_its_run_can_do_without_flags_nothing(
    engine: Engine, acme: Tenant, blog: Deliverable, policy: str
) -> None:
    save(
        acme, "flow", {"id": "bad", "agent_role": "qa"},
        {"id": "after", "agent_role": "dev", "depends_on": ["bad"], "on_upstream_failure": policy},
    )  # fmt: skip
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}]}, failing="bad")
    (period,) = periods.start_new_periods(acme.pk, today=MAY)

    engine.drain()

    assert figures(acme, period) == ("completed", 1, 1, 0, 0)
    assert risk(acme, period) == (False, "")
    assert count(acme, Alert, kind="period_at_risk") == 0


def test_the_last_runs_of_a_period_that_end_at_once_complete_it(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(acme, "flow", {"id": "only", "human_role": "editor"})
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}] * 6})
    for attempt in range(3):
        (period,) = periods.start_new_periods(acme.pk, today=date(2026, 5 + attempt, 1))
        engine.drain()
        tasks = [of_step(acme, run, "only").pk for run in runs(acme, period)]
        finish = [partial(people.complete, acme.pk, task, actor="user:ann") for task in tasks[:4]]
        cancel = [partial(cancel_run, acme.pk, run.pk, actor="user:ann") for run in runs(acme, period)[4:]]

        outcomes = at_once(*finish, *cancel)

        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert figures(acme, period) == ("completed", 6, 4, 0, 2)


def test_a_run_that_is_cancelled_is_counted_and_the_last_one_completes_the_period(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    bees, honey = runs(acme, may)

    cancel_run(acme.pk, bees.pk, actor="user:ann")
    assert figures(acme, may) == ("active", 2, 0, 0, 1)
    cancel_run(acme.pk, honey.pk, actor="user:ann")

    assert figures(acme, may) == ("completed", 2, 0, 0, 2)


def test_counting_again_changes_nothing(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")
    engine.drain()
    before = again(acme, may)

    with tenant_scope(acme.pk):
        tally.recount(acme.pk, may.pk)
        tally.recount(acme.pk, may.pk)

    after = again(acme, may)
    assert {f.name: getattr(after, f.attname) for f in after._meta.fields} == {
        f.name: getattr(before, f.attname) for f in before._meta.fields
    }
    assert count(acme, Alert, kind="period_at_risk") == 1


def test_a_reason_names_three_troubles_and_counts_the_rest(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    items = [{"pipeline": "flow", "name": f"Run {number}"} for number in range(5)]
    engine.agent.behaviour = answering({"items": items}, failing="a")

    engine.drain()

    assert risk(acme, may) == (True, "Run 0 failed; Run 1 failed; Run 2 failed; and 2 more.")


# It is called off


def test_cancelling_a_period_ends_its_planner(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    periods.cancel_period(acme.pk, may.pk, actor="user:ann", reason="No budget.")

    engine.drain()

    assert planner(acme, may).status == "cancelled"
    assert figures(acme, may) == ("cancelled", 0, 0, 0, 0)
    assert risk(acme, may) == (False, "")
    assert again(acme, may).ended_at is not None
    with pytest.raises(PeriodNotPlanning):
        periods.ask_again(acme.pk, may.pk, actor="user:ann")


def test_cancelling_a_period_cancels_its_runs_and_keeps_what_they_did(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    bees, honey = runs(acme, may)
    cancel_run(acme.pk, bees.pk, actor="user:ann")

    periods.cancel_period(acme.pk, may.pk, actor="user:ann")
    periods.cancel_period(acme.pk, may.pk, actor="user:ann")

    assert figures(acme, may) == ("cancelled", 2, 0, 0, 2)
    assert of_step(acme, honey, "a").status == "cancelled"


def test_cancelling_a_period_while_its_plan_arrives_leaves_nothing_running(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    for attempt in range(3):
        period = (
            may if not attempt else periods.start_new_periods(acme.pk, today=date(2026, 5 + attempt, 1))[0]
        )

        outcomes = at_once(
            engine.deliver, partial(periods.cancel_period, acme.pk, period.pk, actor="user:ann")
        )

        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert again(acme, period).status == "cancelled"
        assert not [run for run in runs(acme, period) if run.status == "running"]
        engine.drain()


def test_a_completed_period_is_not_cancelled(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.drain()

    with pytest.raises(PeriodEnded, match="completed"):
        periods.cancel_period(acme.pk, may.pk, actor="user:ann")


def test_a_run_without_a_period_asks_nothing_of_periods(engine: Engine, acme: Tenant) -> None:
    asked: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked.append(sql)
        return execute(sql, params, many, context)

    start_run(acme.pk, "flow", NewRun(), actor="test")
    with connections["default"].execute_wrapper(note):
        engine.drain()

    assert asked
    assert not [sql for sql in asked if "deliverableperiod" in sql]
    relay.flush()


def test_a_unique_index_keeps_an_item_of_a_plan_from_running_twice(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    first: UUID = runs(acme, may)[0].pk

    with pytest.raises(IntegrityError), tenant_scope(acme.pk):
        PipelineRun.objects.filter(period=may).exclude(pk=first).update(plan_item=0)
