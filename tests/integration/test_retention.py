"""Retention deletes ended work after its time, whole trees together, per tenant, and never what live work needs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any, NoReturn
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connections
from django.db.models.functions import Now
from django.utils import timezone
from psycopg.errors import QueryCanceled

from activities import cancellation, outputs, run_logs
from activities.human_tasks import decisions
from activities.maintenance import retention
from activities.maintenance.invariants import check
from activities.models import Activity, ActivityEvent, DeadLetter, OutputSpool
from activities.run_tokens import RunToken
from agents.contracts import Completed, LogLine, Output
from tenants import money
from tenants import retention as tenant_retention
from tenants.api import retention as retention_api
from tenants.context import APP, SYSTEM, system_scope, tenant_scope
from tenants.models import Budget, Tenant, UsageEntry
from tenants.models.retention import (
    ForgottenOutput,
    RetentionPass,
    RetentionPolicy,
    RetentionTally,
    UsageTotal,
)
from tenants.retention import all_kinds
from tests.engine import Engine, in_another_thread
from tests.failed_work import submit_failing
from tests.integration.periods.months import change_without_waiting
from tests.open_questions import open_approval

PLACE = "/api/v1/retention/"
LONG = timedelta(days=100)


def purge(tenant: Tenant, kind: str) -> int:
    return tenant_retention.purge(tenant.pk, all_kinds()[kind])


def age(table: str, ids: list[UUID], *columns: str, by: timedelta = LONG) -> None:
    changes = ", ".join(f"{column} = {column} - %(by)s" for column in columns)
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {changes} WHERE id = ANY(%(ids)s)", {"by": by, "ids": ids})


def age_work(ids: list[UUID], by: timedelta = LONG) -> None:
    age("activities_activity", ids, "created_at", "finished_at", by=by)


def done(engine: Engine, tenant: Tenant, count: int = 1, **fields: Any) -> list[UUID]:
    ids = engine.submit(tenant, count=count, **fields)
    engine.drain()
    return ids


def remaining(tenant: Tenant) -> set[UUID]:
    with tenant_scope(tenant.pk):
        return set(Activity.objects.values_list("pk", flat=True))


def test_old_work_is_deleted_with_its_history_and_new_and_open_work_is_kept(
    engine: Engine, acme: Tenant
) -> None:
    old, new = done(engine, acme, 3), done(engine, acme)
    (waiting,) = engine.submit(acme, not_before=timezone.now() + timedelta(days=1))
    age_work([*old, waiting])

    assert purge(acme, "activities") == 3
    assert remaining(acme) == {*new, waiting}
    with system_scope():
        assert not ActivityEvent.objects.filter(activity_id__in=old).exists()
        assert not OutputSpool.objects.filter(activity_id__in=old).exists()
    assert check() == []


def test_a_tree_of_activities_is_deleted_together_or_not_at_all(engine: Engine, acme: Tenant) -> None:
    (root,) = done(engine, acme)
    (old,) = done(engine, acme, parent_id=root, link_kind="subtask")
    (young,) = done(engine, acme, parent_id=old, link_kind="subtask")
    age_work([root, old])

    assert purge(acme, "activities") == 0

    age_work([young])
    assert purge(acme, "activities") == 3
    assert remaining(acme) == set()


def test_the_input_of_live_work_is_kept(engine: Engine, acme: Tenant) -> None:
    (source,) = done(engine, acme)
    (reader,) = engine.submit(
        acme, input_ref=engine.get(acme, source).output_ref, not_before=timezone.now() + timedelta(days=1)
    )
    age_work([source])

    assert purge(acme, "activities") == 0
    assert remaining(acme) == {source, reader}


def test_the_input_of_failed_work_is_kept_until_its_dead_letter_is_closed(
    engine: Engine, acme: Tenant
) -> None:
    (source,) = done(engine, acme)
    (reader,) = submit_failing(engine, acme, input_ref=engine.get(acme, source).output_ref)
    age_work([source])
    assert purge(acme, "activities") == 0
    age_work([reader])
    assert purge(acme, "activities") == 0, "it may be retried"

    cancellation.cancel(acme.pk, reader, actor="ann")

    assert purge(acme, "activities") == 1
    assert remaining(acme) == {reader}


def test_a_question_and_its_work_are_kept_while_one_of_them_is_open(engine: Engine, acme: Tenant) -> None:
    (ended,) = done(engine, acme)
    (live,) = engine.submit(acme, not_before=timezone.now() + timedelta(days=1))
    question = open_approval(acme, [ended, live])
    age_work([ended])
    assert purge(acme, "activities") == 0

    decisions.approve(acme.pk, question, actor="Ann")
    age_work([question])

    assert purge(acme, "activities") == 1
    assert remaining(acme) == {question, live}


def test_a_locked_tree_is_left_for_the_next_pass(engine: Engine, acme: Tenant) -> None:
    held, free = done(engine, acme, 2)
    age_work([held, free])
    with tenant_scope(acme.pk):
        Activity.objects.select_for_update().get(pk=held)
        assert in_another_thread(lambda: purge(acme, "activities")) == 1

    assert remaining(acme) == {held}
    assert purge(acme, "activities") == 1


def test_a_child_created_between_selection_and_lock_keeps_its_tree(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root,) = done(engine, acme)
    age_work([root])
    find = retention._find_trees

    def find_then_add_child(*arguments: Any) -> Any:
        trees = find(*arguments)
        in_another_thread(lambda: engine.submit(acme, parent_id=root, link_kind="subtask"))
        return trees

    monkeypatch.setattr(retention, "_find_trees", find_then_add_child)
    with tenant_scope(acme.pk):
        assert retention._forget_trees(acme.pk, timezone.now() - timedelta(days=90), 10) == 0

    assert root in remaining(acme)


def test_work_that_is_retried_between_selection_and_lock_is_kept(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failed,) = submit_failing(engine, acme)
    with tenant_scope(acme.pk):
        DeadLetter.objects.update(state="closed", closed_at=Now())
    age_work([failed])
    find = retention._find_trees

    def find_then_retry(*arguments: Any) -> Any:
        trees = find(*arguments)
        in_another_thread(lambda: cancellation.retry(acme.pk, failed, actor="ann"))
        return trees

    monkeypatch.setattr(retention, "_find_trees", find_then_retry)
    with tenant_scope(acme.pk):
        assert retention._forget_trees(acme.pk, timezone.now() - timedelta(days=90), 10) == 0

    assert engine.status(acme, failed) == "created"


def test_the_outputs_of_deleted_work_are_recorded_and_later_removed_from_mongodb(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output("a text of theirs"))
    old, new = (done(engine, acme)[0] for _ in range(2))
    references = {each: engine.get(acme, each).output_ref for each in (old, new)}
    for each, run_id in references.items():
        log = RunToken(acme.pk, each, run_id, 1)
        run_logs.record(log, [LogLine("text", "a word of theirs")])
    outputs.copy_waiting()
    age_work([old])
    purge(acme, "activities")

    with system_scope():
        assert {row.pk for row in ForgottenOutput.objects.all()} == {references[old]}
    assert outputs.read(acme.pk, references[old]) is not None, "removed before the record was old enough"
    assert retention.forget_outputs() == 0

    assert retention.forget_outputs(waited=timedelta(0)) == 1
    assert outputs.read(acme.pk, references[old]) is None
    assert outputs.read(acme.pk, references[new]) is not None
    assert [len(run_logs.read(acme.pk, references[each]).lines) for each in (old, new)] == [0, 1]
    assert retention.forget_outputs(waited=timedelta(0)) == 0


def test_the_removal_of_very_many_outputs_does_not_occupy_a_worker(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have few threads for background tasks, among them those that send alerts. While records wait, another hint follows."""
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    age_work(done(engine, acme, 2))
    outputs.copy_waiting()
    purge(acme, "activities")

    turns = [retention.forget_outputs(waited=timedelta(0), within=0.0) for _ in range(3)]

    assert turns == [1, 1, 0]


def test_edited_outputs_are_removed_from_mongodb_however_many_records_are_handled_at_once(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.submit(acme, count=8, requires_approval=True)
    engine.drain()
    for activity_id in ids:
        decisions.approve(acme.pk, activity_id, actor="ann", output={"content": "a text of theirs"})
    edited = [engine.get(acme, activity_id).output_ref for activity_id in ids]
    outputs.copy_waiting()
    age_work(sorted(remaining(acme)))
    with connections[APP].cursor() as cursor:
        cursor.execute("SET enable_sort = off")  # the plan for many rows
        purge(acme, "activities")
        cursor.execute("RESET enable_sort")
    monkeypatch.setattr(retention, "AT_ONCE", 1)

    retention.forget_outputs(waited=timedelta(0))

    assert [outputs.read(acme.pk, output_id) for output_id in edited] == [None] * 8


def test_a_crash_after_the_removal_from_mongodb_repeats_it(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = done(engine, acme)
    outputs.copy_waiting()
    age_work([old])
    purge(acme, "activities")
    with monkeypatch.context() as broken:
        broken.setattr("django.db.models.query.QuerySet.delete", _fail)
        with pytest.raises(DatabaseError):
            retention.forget_outputs(waited=timedelta(0))

    assert retention.forget_outputs(waited=timedelta(0)) == 1


def _fail(*arguments: Any) -> NoReturn:
    raise DatabaseError("the connection is lost")


def test_each_tenant_has_its_own_policy(
    engine: Engine, acme: Tenant, other_tenant: Tenant, make_tenant: Any
) -> None:
    third = make_tenant("initech")
    work = {}
    for each, days in ((acme, None), (other_tenant, 200), (third, "never")):
        engine.serve(each)
        work[each.pk] = done(engine, each)
        age_work(work[each.pk])
        if days:
            tenant_retention.replace_policies(each.pk, {"activities": days}, actor="test")
    tenant_retention.arrange(due=True)

    assert tenant_retention.purge_in_turns() == 1
    assert [len(remaining(each)) for each in (acme, other_tenant, third)] == [0, 1, 1]
    with system_scope():
        assert RetentionPass.objects.get(pk="activities").rows == 1
        assert [(row.tenant_id, row.deleted) for row in RetentionTally.objects.all()] == [(acme.pk, 1)]
    assert not tenant_retention.list_due_passes().using(SYSTEM).exists(), (
        "everything is done until the next interval"
    )


def _take_too_long() -> NoReturn:
    raise OperationalError("statement timeout") from QueryCanceled("statement timeout")


def test_a_tenant_that_takes_a_whole_turn_and_fails_is_passed_in_the_next_one(
    engine: Engine, acme: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(other_tenant)
    first, second = sorted((acme, other_tenant), key=lambda tenant: tenant.pk)
    age_work(done(engine, second))
    tenant_retention.arrange()
    with system_scope():
        RetentionPass.objects.exclude(pk="activities").update(due_at=timezone.now() + timedelta(days=1))
    purge_tenant, now = tenant_retention.purge, [1000.0]

    def purge_others(tenant_id: UUID, *arguments: Any, **named: Any) -> int:
        if tenant_id != first.pk:
            return purge_tenant(tenant_id, *arguments, **named)
        now[0] += 30.0
        _take_too_long()

    monkeypatch.setattr(tenant_retention, "purge", purge_others)
    monkeypatch.setattr(tenant_retention.time, "monotonic", lambda: now[0])
    deleted = []
    for _ in range(2):
        with system_scope():
            RetentionPass.objects.filter(pk="activities").update(due_at=timezone.now())
        deleted.append(tenant_retention.purge_in_turns())

    assert deleted == [0, 1]
    assert remaining(second) == set()


@pytest.mark.parametrize("error", [_fail, _take_too_long])
def test_a_tenant_whose_rows_cannot_be_deleted_keeps_those_of_no_other(
    engine: Engine,
    acme: Tenant,
    other_tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], NoReturn],
) -> None:
    engine.serve(other_tenant)
    first, second = sorted((acme, other_tenant), key=lambda tenant: tenant.pk)
    work = {tenant.pk: done(engine, tenant) for tenant in (first, second)}
    age_work([activity_id for ids in work.values() for activity_id in ids])
    tenant_retention.arrange(due=True)
    purge_tenant = tenant_retention.purge

    def purge_others(tenant_id: UUID, *arguments: Any, **named: Any) -> int:
        return error() if tenant_id == first.pk else purge_tenant(tenant_id, *arguments, **named)

    monkeypatch.setattr(tenant_retention, "purge", purge_others)

    assert tenant_retention.purge_in_turns() == 1
    assert [len(remaining(tenant)) for tenant in (first, second)] == [1, 0]


def test_a_pass_that_runs_out_of_time_continues_later(engine: Engine, acme: Tenant) -> None:
    ids = done(engine, acme, 3)
    age_work(ids)
    tenant_retention.arrange(due=True)

    assert tenant_retention.purge_in_turns(within=0) == 0
    assert remaining(acme) == set(ids)
    assert tenant_retention.purge_in_turns() == 3


def test_the_ledger_keeps_totals_and_every_entry_that_a_budget_counts(engine: Engine, acme: Tenant) -> None:
    ids = done(engine, acme, 2)
    age_work(ids)
    purge(acme, "activities")
    before = _figures(acme)
    with connections["owner"].cursor() as cursor:
        cursor.execute("UPDATE tenants_usageentry SET day = day - 500")
    with tenant_scope(acme.pk):
        budget = Budget.objects.create(
            tenant=acme, name="all", cap=10, period_start=timezone.now().date() - timedelta(days=600)
        )
    assert purge(acme, "usage") == 0, "a budget counts them"

    with tenant_scope(acme.pk):
        Budget.objects.filter(pk=budget.pk).update(deleted_at=timezone.now())
    assert tenant_retention.count(acme.pk, all_kinds()["usage"]) == 2
    assert purge(acme, "usage") == 2
    with tenant_scope(acme.pk):
        assert UsageEntry.objects.count() == 0
        assert sum(total.runs for total in UsageTotal.objects.all()) == before["runs"] == 2


def _figures(tenant: Tenant) -> dict[str, Any]:
    with tenant_scope(tenant.pk):
        return money.figures_of(money.ledger_entries(tenant.pk).aggregate(**money.FIGURES))


def test_entries_of_the_ledger_of_another_tenant_cannot_be_deleted(
    acme: Tenant, other_tenant: Tenant
) -> None:
    with (
        pytest.raises(DatabaseError, match="another tenant"),
        tenant_scope(acme.pk),
        connections[APP].cursor() as cursor,
    ):
        cursor.execute("SELECT tenants_forget_usage(%s, current_date, 10)", [other_tenant.pk])
    row = UsageTotal(tenant=acme, month="2026-01-01", agent_role="qa")
    with pytest.raises(DatabaseError, match="denied"), tenant_scope(acme.pk):
        row.save()


def test_admins_set_policies_and_see_the_effective_ones(api: Any, acme: Tenant) -> None:
    client = api()

    answer = client.put(PLACE, {"kinds": {"activities": 7, "alerts": "never"}}, format="json")

    rows = {row["kind"]: row for row in answer.json()["kinds"]}
    with tenant_scope(acme.pk):
        policy_set_at = RetentionPolicy.objects.get(kind="activities").updated_at
    assert answer.status_code == 200
    assert set(rows) == set(all_kinds())
    assert (rows["activities"]["days"], rows["activities"]["own"]) == (7, True)
    assert rows["alerts"]["days"] == "never"
    assert (rows["dead_letters"]["days"], rows["dead_letters"]["own"]) == (90, False)
    assert client.get(PLACE).json() == answer.json()
    client.put(PLACE, {"kinds": {"activities": 8}}, format="json")
    with tenant_scope(acme.pk):
        policy = RetentionPolicy.objects.get()
        assert policy.version == 2
        assert policy.updated_at > policy_set_at
    cleared = client.put(PLACE, {"kinds": {}}, format="json").json()["kinds"]
    assert not any(row["own"] for row in cleared)


def test_invalid_policies_are_refused_with_their_paths_and_only_admins_have_access(
    api: Any, acme: Tenant
) -> None:
    body = {"kinds": {"activities": 0, "alerts": True, "ghosts": 3, "usage": "soon", "tool_calls": 9}}
    answer = api().put(PLACE, body, format="json")

    assert answer.status_code == 400
    assert {each["path"] for each in answer.json()["errors"]} == {
        "kinds.activities",
        "kinds.alerts",
        "kinds.ghosts",
        "kinds.usage",
    }
    assert tenant_retention.own_days_of(acme.pk) == {}
    assert api("operator").get(PLACE).status_code == 403


def test_changing_policies_requires_their_current_version(engine: Engine, api: Any, acme: Tenant) -> None:
    client, etag = api(), api().get(PLACE)["ETag"]
    age_work(done(engine, acme))
    purge(acme, "activities")

    first, late = (
        client.put(PLACE, {"kinds": {"alerts": days}}, format="json", headers={"If-Match": etag})
        for days in (7, 8)
    )

    assert (first.status_code, late.status_code, late.json()["code"]) == (200, 412, "precondition_failed")
    assert tenant_retention.own_days_of(acme.pk) == {"alerts": 7}
    assert first["ETag"] == client.get(PLACE)["ETag"] != etag
    assert client.get(PLACE, headers={"If-None-Match": first["ETag"]}).status_code == 304


def test_policies_cannot_be_replaced_between_the_check_of_their_version_and_the_change(
    api: Any, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, errors = retention_api._render_policies, []
    replace = partial(tenant_retention.replace_policies, policies={"usage": 9}, actor="ann")

    def render_then_replace(tenant_id: UUID) -> Any:
        shown = render(tenant_id)
        if not errors:
            errors.append(in_another_thread(partial(change_without_waiting, acme, replace)))
        return shown

    etag = api().get(PLACE)["ETag"]
    monkeypatch.setattr(retention_api, "_render_policies", render_then_replace)

    answer = api().put(PLACE, {"kinds": {"alerts": 7}}, format="json", headers={"If-Match": etag})

    assert (answer.status_code, tenant_retention.own_days_of(acme.pk)) == (200, {"alerts": 7})
    assert "lock timeout" in str(errors[0])


def test_the_command_purge_counts_in_a_dry_run_and_otherwise_deletes(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    for each in (acme, other_tenant):
        age_work(done(engine, each, 2))

    assert "4  would be deleted" in _run_purge("--dry-run")
    assert len(remaining(acme)) == 2
    assert "2  deleted" in _run_purge("--tenant", "acme")
    assert (len(remaining(acme)), len(remaining(other_tenant))) == (0, 2)
    with pytest.raises(CommandError, match="There is no tenant"):
        _run_purge("--tenant", "nobody")


def _run_purge(*arguments: str) -> str:
    output = StringIO()
    call_command("purge", *arguments, stdout=output)
    return output.getvalue()
