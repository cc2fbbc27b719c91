"""Schedules in the admin: the list, the form with its preview, and the actions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from pipelines import versions
from pipelines.models import Firing, Pipeline, Schedule, ScheduleExecution
from pipelines.schedules import editing, system_jobs
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, Tenant
from tests.browsing import BRIEF, list_url, messages_of, no_inlines, page_url, run_action, visible_text
from tests.engine import Engine
from tests.superusers import browser_of
from tests.tickers import body, tickers

PREVIEW = "/admin/pipelines/schedule/preview/"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    tickers(tenant, 12)
    return tenant


@pytest.fixture
def daily(acme: Tenant) -> Schedule:
    return editing.create(acme.pk, body(params={"tickerId": "db:ticker:all:id?batchSize=5"}), actor="test")


def form(**fields: Any) -> dict[str, Any]:
    return {
        "name": "Daily", "enabled": "on", "target_type": "agent", "agent_role": "qa", "repeat": "repeating", "cron": "0 8 * * *",
        "timezone": "America/New_York", "dst_gap": "shift", "dst_fold": "first", "params": "{}", "priority": "10",
        "overlap": "skip", "after_once": "disable", "catch_up_policy": "latest", **fields,
    }  # fmt: skip


def save(browser: Client, schedule: Schedule | None, **fields: Any) -> HttpResponse:
    address = page_url(schedule) if schedule else f"{list_url(Schedule)}add/"
    return browser.post(address, form(**fields) | no_inlines("executions", "firings"))


def reloaded(schedule: Schedule) -> Schedule:
    with tenant_scope(schedule.tenant_id):
        return Schedule.objects.get(pk=schedule.pk)


def test_a_schedule_can_be_added(acme: Tenant, root: Client) -> None:
    answer = save(
        root,
        None,
        tenant=str(acme.pk),
        params='{"topic": "bees"}',
        retry_max_attempts="5",
        timeout_seconds="60",
    )

    assert answer.status_code == 302, visible_text(answer)
    with tenant_scope(acme.pk):
        schedule = Schedule.objects.get()
    assert (schedule.name, schedule.cron, schedule.params, schedule.retry, schedule.timeout_seconds, schedule.created_by) == (
        "Daily", "0 8 * * *", {"topic": "bees"}, {"max_attempts": 5}, 60, "user:root",
    )  # fmt: skip
    assert schedule.next_run_at is not None


def test_a_new_schedule_begins_with_the_only_tenant_of_a_person_and_its_time_zone(
    acme: Tenant, other_tenant: Tenant
) -> None:
    with system_scope():
        Tenant.objects.filter(pk__in=(acme.pk, other_tenant.pk)).update(timezone="Asia/Tokyo")

    def begins_with(*tenants: Tenant, query: str = "") -> tuple[object, object]:
        name = f"admin of {len(tenants)}"
        user, _ = User.objects.get_or_create(username=name)
        for each in tenants:
            with tenant_scope(each.pk):
                Membership.objects.get_or_create(tenant=each, user=user, role="admin")
        page = browser_of(user).get(f"{list_url(Schedule)}add/{query}")
        fields = page.context["adminform"].form
        return str(fields["tenant"].value()), fields["timezone"].value()

    assert begins_with(acme) == (str(acme.pk), "Asia/Tokyo")
    both = (acme, other_tenant)
    assert begins_with(*both) == ("None", "America/New_York")
    assert begins_with(*both, query=f"?tenant={other_tenant.pk}") == (str(other_tenant.pk), "Asia/Tokyo")
    assert begins_with(*both, query="?tenant=nonsense") == ("nonsense", "America/New_York")


def test_saving_an_unchanged_form_makes_no_new_version(daily: Schedule, root: Client) -> None:
    page = root.get(page_url(daily))
    answer = save(root, daily, params='{"tickerId": "db:ticker:all:id?batchSize=5"}', expected="1")

    assert page.status_code == 200
    assert answer.status_code == 302, visible_text(answer)
    assert reloaded(daily).version == 1


def test_times_are_entered_in_the_zone_of_the_schedule(acme: Tenant, root: Client) -> None:
    save(root, None, tenant=str(acme.pk), repeat="once", cron="", start_at="2027-05-01T09:30:00")
    with tenant_scope(acme.pk):
        schedule = Schedule.objects.get()
    assert schedule.start_at == schedule.next_run_at == datetime(2027, 5, 1, 13, 30, tzinfo=UTC)
    assert root.get(page_url(schedule)).context["adminform"].form.initial["start_at"] == "2027-05-01T09:30:00"

    save(
        root,
        schedule,
        repeat="once",
        cron="",
        start_at="2027-05-01T09:30:00",
        timezone="Europe/Berlin",
        expected="1",
    )

    assert reloaded(schedule).start_at == datetime(2027, 5, 1, 7, 30, tzinfo=UTC), (
        "the time is read in the zone of the form"
    )


@pytest.mark.parametrize(
    ("moment", "zone"), [("0001-01-01T00:00:00", "Asia/Tokyo"), ("9999-12-31T23:00:00", "America/New_York")]
)
def test_a_time_that_does_not_exist_in_utc_is_refused_at_its_field(
    daily: Schedule, root: Client, moment: str, zone: str
) -> None:
    answer = save(root, daily, start_at=moment, timezone=zone, expected="1")

    assert answer.context["adminform"].form.errors.keys() == {"start_at"}


def test_an_unchanged_time_keeps_its_microseconds(acme: Tenant, root: Client) -> None:
    exact = "2027-05-01T13:30:00.123456+00:00"
    schedule = editing.create(acme.pk, body(start_at=exact, params={}), actor="test")

    save(root, schedule, start_at="2027-05-01T09:30:00", priority="3", expected="1")

    assert (reloaded(schedule).priority, reloaded(schedule).start_at) == (3, datetime.fromisoformat(exact))


def test_every_field_of_a_schedule_survives_the_form(acme: Tenant, root: Client) -> None:
    members = body(
        cron=None, interval_ms=90_000, timezone="Europe/Berlin", end_at="2030-01-01T00:00:00Z", dst_gap="skip", dst_fold="both",
        jitter_seconds=5, retry={"max_attempts": 4, "strategy": "fixed", "base_seconds": 1.5, "multiplier": 3, "max_seconds": 9,
        "jitter": 0.5}, timeout_seconds=70, priority=7, catch_up={"up_to": 5}, overlap="queue_one", after_once="delete",
        description="On bees.", params={"a": [1, {"b": "é"}]},
    )  # fmt: skip
    schedule = editing.create(acme.pk, members, actor="test")
    filled = _sent(root.get(page_url(schedule)).context["adminform"].form)

    answer = root.post(page_url(schedule), filled | no_inlines("executions", "firings"))

    assert answer.status_code == 302, visible_text(answer)
    assert reloaded(schedule).version == 1, "nothing has changed"


def test_errors_of_a_schedule_are_shown_at_their_fields_and_nothing_is_saved(
    daily: Schedule, root: Client
) -> None:
    answer = save(
        root, daily, cron="61 * * * *", params='{"a": "db:none:all:id"}', retry_base_seconds="9", retry_max_seconds="1",
        catch_up_policy="up_to", agent_role="qa", name="Daily",
    )  # fmt: skip

    errors = answer.context["adminform"].form.errors
    assert answer.status_code == 200
    assert errors.keys() == {"cron", "params", "retry_max_seconds", "catch_up_most"}
    assert errors["params"] == ['params.a: character 4: unknown table "none"']
    assert reloaded(daily).version == 1


def test_a_taken_name_is_refused_at_its_field(acme: Tenant, daily: Schedule, root: Client) -> None:
    answer = save(root, None, tenant=str(acme.pk))

    assert answer.context["adminform"].form.errors["name"] == ["There is a schedule 'Daily' already."]


def test_a_pipeline_of_another_tenant_is_unknown(
    acme: Tenant, other_tenant: Tenant, daily: Schedule, root: Client
) -> None:
    versions.save(
        other_tenant.pk, {"key": "theirs", "name": "T", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="t"
    )
    with tenant_scope(other_tenant.pk):
        theirs = Pipeline.objects.get()

    answer = save(root, daily, target_type="pipeline", pipeline=str(theirs.pk), expected="1")

    assert list(answer.context["adminform"].form.errors) == ["pipeline"]


def test_the_second_of_two_concurrent_edits_is_refused(daily: Schedule, root: Client) -> None:
    editing.change(daily.tenant_id, daily.pk, {"priority": 3}, actor="user:mia")

    answer = save(root, daily, priority="5", expected="1")

    assert answer.status_code == 200
    form = answer.context["adminform"].form
    assert "This was changed since you opened it." in form.non_field_errors()[0]
    assert form["priority"].value() == "5", "the input is kept"
    assert reloaded(daily).priority == 3


def _sent(form: Any) -> dict[str, Any]:
    """What a browser sends when nobody changes the form."""
    values = {name: form[name].value() for name in form.fields}
    return {
        name: "on" if value is True else str(value)
        for name, value in values.items()
        if value not in (None, False)
    }


def test_the_preview_shows_times_and_jobs(daily: Schedule, root: Client) -> None:
    filled = form(schedule=str(daily.pk), params='{"tickerId": "db:ticker:all:id?batchSize=5"}')

    answer = root.post(PREVIEW, filled)

    text = visible_text(answer)
    assert "Every day at 08:00 (America/New_York)" in text
    assert "12 jobs in 3 batches; the last batch starts 2 s after the first" in text
    assert '"tickerId": &quot;T0&quot;' in text or "&quot;T0&quot;" in text


def test_the_preview_shows_errors(daily: Schedule, root: Client) -> None:
    filled = form(schedule=str(daily.pk), params='{"tickerId": "db:tickr:all:id"}')

    text = visible_text(root.post(PREVIEW, filled))

    assert "params.tickerId : character 4: unknown table &quot;tickr&quot;, did you mean ticker?" in text


def test_the_preview_needs_a_tenant_a_post_and_a_superuser(acme: Tenant, root: Client) -> None:
    User.objects.create_user("staff", password="a long password", is_staff=True)
    stranger = Client()
    stranger.login(username="staff", password="a long password")

    assert "Choose a tenant first." in visible_text(root.post(PREVIEW, form()))
    assert "Choose a tenant first." in visible_text(root.post(PREVIEW, form(schedule="no id")))
    assert root.get(PREVIEW).status_code == 405
    assert stranger.post(PREVIEW, form()).status_code in (302, 403)


def test_text_of_tenants_is_escaped_in_the_preview(daily: Schedule, root: Client) -> None:
    filled = form(schedule=str(daily.pk), params='{"x": "<script>alert(1)</script>", "y": "db:<b>:all:id"}')

    page = root.post(PREVIEW, filled).content.decode()

    assert "<script>" not in page
    assert "<b>:all" not in page
    assert "&lt;script&gt;" in page or "params.y" in page


def test_the_list_shows_the_next_times_and_the_last_result(daily: Schedule, root: Client) -> None:
    with tenant_scope(daily.tenant_id):
        ScheduleExecution.objects.create(
            tenant_id=daily.tenant_id, schedule=daily, schedule_name="Daily", definition={}, status="partial"
        )

    text = visible_text(root.get(list_url(Schedule)))

    assert "every day at 08:00 (America/New_York)" in text
    assert text.count(" 08:00") >= 5, "five times in the zone of the schedule"
    assert "partial" in text


def test_a_schedule_can_be_disabled_enabled_and_run_from_the_list(daily: Schedule, root: Client) -> None:
    run_action(root, Schedule, "disable_selected", daily)
    assert (reloaded(daily).enabled, reloaded(daily).next_run_at) == (False, None)

    asked = run_action(root, Schedule, "run_selected", daily)
    assert "Its times do not change" in visible_text(asked)
    run_action(root, Schedule, "run_selected", daily, confirmed="1")
    run_action(root, Schedule, "enable_selected", daily)

    with tenant_scope(daily.tenant_id):
        execution = ScheduleExecution.objects.get()
    assert (execution.created_by, execution.jobs_created) == ("user:root", 12)
    assert reloaded(daily).enabled
    refused = run_action(root, Schedule, "run_selected", daily, confirmed="1")
    assert "has not ended" in messages_of(refused)[-1]


def test_executions_and_skipped_times_are_shown_and_executions_can_be_cancelled(
    daily: Schedule, root: Client
) -> None:
    execution = system_jobs.run_now(daily.tenant_id, daily.pk, actor="test")
    with tenant_scope(daily.tenant_id):
        Firing.objects.create(
            tenant_id=daily.tenant_id,
            schedule=daily,
            nominal_at=datetime(2026, 5, 1, tzinfo=UTC),
            state="skipped",
            reason="Late.",
        )

    page, own = root.get(page_url(daily)), root.get(page_url(execution))

    assert "12 created, 12 enqueued" in visible_text(page)
    assert "Late." in visible_text(page)
    assert "/admin/activities/activity/" in own.content.decode(), "jobs lead to their activities"
    run_action(root, ScheduleExecution, "cancel_selected", execution, confirmed="1", notes="enough")
    with tenant_scope(daily.tenant_id):
        assert ScheduleExecution.objects.get().status == "cancelled"


def test_deleting_a_schedule_keeps_its_executions(daily: Schedule, root: Client) -> None:
    system_jobs.run_now(daily.tenant_id, daily.pk, actor="test")

    assert root.get(f"{page_url(daily).removesuffix('change/')}delete/").status_code == 200
    root.post(f"{page_url(daily).removesuffix('change/')}delete/", {"post": "yes"})

    with tenant_scope(daily.tenant_id):
        assert not Schedule.objects.exists()
        assert ScheduleExecution.objects.get().schedule_name == "Daily"


def test_a_member_who_only_reads_a_tenant_changes_none_of_its_schedules_and_pipelines(
    acme: Tenant, daily: Schedule, other_tenant: Tenant
) -> None:
    user = User.objects.create_user("mia", is_staff=True)
    for tenant, role in ((other_tenant, "admin"), (acme, "viewer")):
        with tenant_scope(tenant.pk):
            Membership.objects.create(tenant=tenant, user=user, role=role)
    pipeline = versions.save(daily.tenant_id, BRIEF, actor="test").pipeline
    browser = browser_of(user)

    for row in (daily, pipeline):
        answer = run_action(browser, type(row), "disable_selected", row)
        assert messages_of(answer)[-1] == f"Skipped {row}: only admins of its tenant may do this."
    assert run_action(browser, Schedule, "delete_selected", daily, post="yes").status_code == 403

    assert reloaded(daily).enabled


def test_a_schedule_that_somebody_else_deletes_meanwhile_counts_as_deleted(
    daily: Schedule, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = editing.delete

    def delete_twice(*about: Any, actor: str) -> None:
        delete(*about, actor="somebody else")
        delete(*about, actor=actor)

    monkeypatch.setattr(editing, "delete", delete_twice)

    assert run_action(root, Schedule, "delete_selected", daily, post="yes").status_code == 302
