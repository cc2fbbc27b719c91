"""Retention of pipeline runs, executions of schedules and alerts, each deleted with all that belongs to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import cancellation, states
from activities.alerts import raise_alert
from activities.maintenance.invariants import check
from activities.models import Activity, Alert, DeadLetter
from pipelines import retention as pipeline_retention
from pipelines import selectors
from pipelines.cancellation import cancel_run
from pipelines.models import Firing, PipelineRun, ScheduleExecution, ScheduleJob, StepRun
from pipelines.replay import replay
from tenants import clock, money
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tests import scheduling
from tests.engine import Engine, in_another_thread
from tests.flows import BROKEN, Flow, answer_by_step, step
from tests.integration.test_retention import LONG, age, purge, remaining
from tests.open_questions import open_approval


def age_run(run_id: UUID, by: timedelta = LONG) -> None:
    age("pipelines_pipelinerun", [run_id], "started_at", "finished_at", by=by)


def age_work_of(run_id: UUID, by: timedelta = LONG) -> None:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "UPDATE activities_activity SET created_at = created_at - %s, finished_at = finished_at - %s"
            " WHERE pipeline_run_id = %s",
            [by, by, run_id],
        )


def test_a_pipeline_run_is_deleted_with_all_its_activities(engine: Engine, acme: Tenant) -> None:
    old, new = (Flow(engine, acme, step("one"), step("two", "one")) for _ in range(2))
    engine.drain()
    age_run(old.id)
    assert purge(acme, "pipeline_runs") == 0, "its activities are not old enough"

    age_work_of(old.id)
    assert purge(acme, "activities") == 0, "activities of pipelines are deleted with their run"
    assert purge(acme, "pipeline_runs") == 1

    with tenant_scope(acme.pk):
        usage = selectors.with_pipeline(money.ledger_entries(acme.pk)).values_list("pipeline", flat=True)
        assert set(usage) == {"flow"}, "the usage of deleted runs still counts for their pipeline"
    with system_scope():
        assert list(PipelineRun.objects.values_list("pk", flat=True)) == [new.id]
        assert not StepRun.objects.filter(run_id=old.id).exists()
        assert set(Activity.objects.values_list("pipeline_run_id", flat=True)) == {new.id}
    assert check() == []


def test_an_active_run_is_kept_however_old_it_is(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("one"), step("two", "one", human_role="editor"))
    engine.drain()
    age_run(flow.id)
    age_work_of(flow.id)

    assert purge(acme, "pipeline_runs") == 0
    assert len(remaining(acme)) == 2


@pytest.mark.parametrize("what", ["the input of live work", "the input of failed work", "an open question"])
def test_a_run_is_kept_while_other_work_refers_to_it(engine: Engine, acme: Tenant, what: str) -> None:
    flow = Flow(engine, acme, step("one"))
    engine.drain()
    activity = flow.activity(step="one")
    if what == "an open question":
        other = open_approval(acme, [activity.pk])
    else:
        engine.agent.behaviour = answer_by_step({"": BROKEN})
        tomorrow = clock.now() + timedelta(days=1) if what == "the input of live work" else None
        (other,) = engine.submit(acme, input_ref=activity.output_ref, not_before=tomorrow)
        engine.drain()
    age_run(flow.id)
    age_work_of(flow.id)
    assert purge(acme, "pipeline_runs") == 0

    cancellation.cancel(acme.pk, other, actor="ann")

    assert purge(acme, "pipeline_runs") == 1


def test_a_run_is_kept_as_long_as_its_replays_which_refer_to_its_outputs(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(engine, acme, step("one"), step("two", "one", human_role="editor"))
    engine.drain()
    cancel_run(acme.pk, flow.id, actor="ann")
    first = replay(acme.pk, flow.id, from_step="two", actor="ann").pk
    cancel_run(acme.pk, first, actor="ann")
    second = replay(acme.pk, first, from_step="two", actor="ann").pk
    for run_id in (flow.id, first):
        age_run(run_id)
        age_work_of(run_id)
    while_active = purge(acme, "pipeline_runs")
    cancel_run(acme.pk, second, actor="ann")
    while_kept = purge(acme, "pipeline_runs")

    age_run(second)
    age_work_of(second)

    assert (while_active, while_kept) == (0, 0)
    assert purge(acme, "pipeline_runs") == 3
    assert remaining(acme) == set()


def test_a_replay_that_begins_between_selection_and_lock_keeps_its_run(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(engine, acme, step("one"), step("two", "one"))
    engine.drain()
    age_run(flow.id)
    age_work_of(flow.id)
    find = pipeline_retention._runs

    def find_then_replay(*arguments: Any) -> Any:
        rows = find(*arguments)
        in_another_thread(lambda: replay(acme.pk, flow.id, from_step="two", actor="ann"))
        return rows

    monkeypatch.setattr(pipeline_retention, "_runs", find_then_replay)
    with tenant_scope(acme.pk):
        assert pipeline_retention._forget_runs(acme.pk, clock.now() - timedelta(days=90), 10) == 0

    with tenant_scope(acme.pk):
        assert PipelineRun.objects.filter(pk=flow.id).exists()
    assert len(remaining(acme)) == 3


def test_an_open_dead_letter_keeps_its_run_until_it_is_deleted_itself(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = answer_by_step({"one": BROKEN})
    flow = Flow(engine, acme, step("one"))
    engine.drain()
    age_run(flow.id)
    age_work_of(flow.id)
    with tenant_scope(acme.pk):
        letter = DeadLetter.objects.get()
        DeadLetter.objects.update(handled_at=letter.created_at)

    assert states.Status.FAILED in {engine.status(acme, each) for each in remaining(acme)}
    assert purge(acme, "pipeline_runs") == 0
    assert purge(acme, "dead_letters") == 0

    age("activities_deadletter", [letter.pk], "created_at", "handled_at")
    assert purge(acme, "dead_letters") == 1
    assert purge(acme, "pipeline_runs") == 1


def test_no_invariant_misses_an_old_dead_letter_whose_work_is_kept_longer(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = answer_by_step({"one": BROKEN})
    flow = Flow(engine, acme, step("one"))
    engine.drain()
    (activity,) = flow.activities()
    with tenant_scope(acme.pk):
        (letter,) = DeadLetter.objects.all()
    with connections[OWNER].cursor() as cursor:  # only the owner may change histories
        cursor.execute("UPDATE activities_activityevent SET at = at - %s", [LONG])
    age("activities_deadletter", [letter.pk], "created_at")
    cancellation.retry(acme.pk, activity.pk, actor="ann")
    engine.drain()
    assert flow.activity().status == states.Status.FAILED
    assert check() == []

    with tenant_scope(acme.pk):
        DeadLetter.objects.filter(pk=letter.pk).delete()
    assert check() == []

    with tenant_scope(acme.pk):
        DeadLetter.objects.all().delete()
    assert [each.invariant for each in check()] == ["I14"], "the second failure is of today"


def test_an_execution_is_deleted_with_its_jobs_and_its_firing(engine: Engine, acme: Tenant) -> None:
    start = datetime(2026, 5, 1, 9, tzinfo=UTC)
    schedule = scheduling.make_schedule(acme)
    scheduling.fire(schedule, start + timedelta(days=1))
    with tenant_scope(acme.pk):
        fired, executed = Firing.objects.count(), ScheduleExecution.objects.count()
        ScheduleExecution.objects.update(finished_at=None)
    assert executed >= 1, scheduling.firings(schedule)
    assert purge(acme, "schedule_executions") == 0, "it has not ended"

    with tenant_scope(acme.pk):
        ScheduleJob.objects.update(state="done")
        ScheduleExecution.objects.update(status="success", finished_at=start)
    assert purge(acme, "schedule_executions") == executed
    with tenant_scope(acme.pk):
        assert ScheduleJob.objects.count() == 0
        assert Firing.objects.filter(state="fired").count() == 0
        assert Firing.objects.count() == fired - executed


def test_old_alerts_are_deleted(acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        raise_alert(acme.pk, "test", "old")
        raise_alert(acme.pk, "test", "new")
        old = Alert.objects.get(title="old")
    age("activities_alert", [old.pk], "created_at")

    assert purge(acme, "alerts") == 1
    with tenant_scope(acme.pk):
        assert [alert.title for alert in Alert.objects.all()] == ["new"]
