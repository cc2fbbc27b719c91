"""Existing schedules over the API: changed, switched on and off, run by hand, deleted; and their executions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django_celery_beat.models import PeriodicTask

from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.schedules import editing, lifecycle
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.engine import Engine, simultaneously
from tests.tickers import SCHEDULES, body, tickers

NOON = datetime(2027, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    tickers(tenant, 12)
    return tenant


def make(client: Any, **members: Any) -> dict[str, Any]:
    answer = client.post(SCHEDULES, body(**members))
    assert answer.status_code == 201, answer.content
    schedule: dict[str, Any] = answer.json()
    return schedule


def beats(schedule_id: str) -> list[tuple[bool, str]]:
    rows = PeriodicTask.objects.filter(kwargs__contains=schedule_id)
    return [(row.enabled, row.name) for row in rows]


# Changes


def test_a_put_replaces_everything_but_the_enabled_flag(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client, enabled=False, params={"a": 1}, priority=3, overlap="allow", description="Old.")

    changed = client.put(schedule["link"], {**body(name="New"), "enabled": None})

    result = changed.json()
    assert (changed.status_code, version_of(changed)) == (200, "2"), result
    assert (result["name"], result["params"], result["priority"], result["overlap"], result["description"], result["enabled"]) == (
        "New", {}, 10, "skip", "", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"priority": 3}, {"priority": 3, "cron": "0 8 * * *", "params": {"a": 1}}),
        ({"interval_ms": 60000}, {"interval_ms": 60000, "cron": None}),
        ({"target_type": "pipeline", "pipeline": "flow"}, {"pipeline": "flow", "agent_role": None}),
        ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z"}, {"cron": None, "next_run_at": "2027-01-01T00:00:00Z"}),
        ({"timezone": None, "params": None}, {"timezone": "America/New_York", "params": {}}),
    ],
)  # fmt: skip
def test_a_patch_keeps_omitted_members_that_it_does_not_replace(
    api: Any, acme: Tenant, change: dict[str, Any], expected: dict[str, Any]
) -> None:
    client = api()
    client.post(
        "/api/v1/pipelines/", {"key": "flow", "name": "F", "steps": [{"id": "a", "agent_role": "qa"}]}
    )
    schedule = make(client, params={"a": 1}, timezone="Europe/Berlin")

    answer = client.patch(schedule["link"], change)

    assert answer.status_code == 200, answer.content
    assert {name: answer.json()[name] for name in expected} == expected


def test_a_change_that_changes_nothing_keeps_the_version(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client)

    assert client.patch(schedule["link"], {"priority": "normal"}).json() == schedule


def test_one_of_several_simultaneous_changes_of_the_same_version_wins(api: Any, acme: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]
    schedule = make(clients[0])

    answers = simultaneously(
        *[
            lambda c=client, n=number: c.patch(
                schedule["link"], {"priority": n + 1}, headers={"If-Match": '"1"'}
            )
            for number, client in enumerate(clients)
        ]
    )

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


def test_a_refused_change_changes_nothing(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client)

    problem(client.patch(schedule["link"], {"cron": "never", "priority": 3}), 400, "invalid_schedule")

    assert client.get(schedule["link"]).json() == schedule


# Times


def test_new_times_start_from_now(acme: Tenant) -> None:
    schedule = editing.create(acme.pk, body(cron="0 * * * *"), actor="test", now=NOON)
    later = NOON + timedelta(hours=3, minutes=30)

    changed = editing.change(acme.pk, schedule.pk, {"cron": "15 * * * *"}, actor="test", now=later)
    renamed = editing.change(
        acme.pk, schedule.pk, {"name": "Other"}, actor="test", now=later + timedelta(hours=5)
    )

    assert schedule.next_run_at == NOON + timedelta(hours=1)
    assert changed.next_run_at == renamed.next_run_at == NOON + timedelta(hours=4, minutes=15)
    assert changed.looked_until == renamed.looked_until == later


def test_times_that_pass_while_a_schedule_is_disabled_are_not_caught_up(acme: Tenant) -> None:
    schedule = editing.create(acme.pk, body(cron="0 * * * *"), actor="test", now=NOON)
    later = NOON + timedelta(hours=9, minutes=30)

    off = editing.set_enabled(acme.pk, schedule.pk, False, actor="test", now=NOON)
    on = editing.set_enabled(acme.pk, schedule.pk, True, actor="test", now=later)

    assert (off.next_run_at, off.enabled) == (None, False)
    assert (on.next_run_at, on.looked_until) == (NOON + timedelta(hours=10), later)


def test_a_one_time_schedule_whose_time_has_passed_is_due_at_once(acme: Tenant) -> None:
    past = NOON - timedelta(days=1)

    schedule = editing.create(
        acme.pk, body(repeat="once", cron=None, start_at=past.isoformat()), actor="test", now=NOON
    )

    assert schedule.next_run_at == past
    assert schedule.looked_until is not None
    assert schedule.looked_until < past


def test_a_schedule_whose_target_no_longer_exists_can_still_be_disabled(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client, params={"a": "db:ticker:all:id"})
    with tenant_scope(acme.pk):
        Schedule.objects.update(agent_role="gone")

    assert client.patch(schedule["link"], {"enabled": False}).json()["enabled"] is False
    problem(client.patch(schedule["link"], {"priority": 3}), 400, "invalid_schedule")


def test_the_row_of_beat_follows_the_schedule(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client)
    assert beats(schedule["id"]) == [(True, "schedule: acme/Daily")]

    client.patch(schedule["link"], {"name": "Nightly", "enabled": False})
    assert beats(schedule["id"]) == [(False, "schedule: acme/Nightly")]

    client.delete(schedule["link"])
    assert beats(schedule["id"]) == []


# Runs by hand, and executions


def test_a_schedule_can_be_run_by_hand_and_its_jobs_are_listed(
    api: Any, acme: Tenant, engine: Engine
) -> None:
    link = make(api(), enabled=False, params={"tickerId": "db:ticker:all:id?batchSize=5", "x": 1})["link"]

    answer = api("operator").post(f"{link}run/")

    started = answer.json()
    assert answer.status_code == 201, answer.content
    assert (started["nominal_at"], started["created_by"].partition(":")[0]) == (None, "token")
    lifecycle.expand(acme.pk, UUID(started["id"]))
    viewer = api("viewer")
    execution = viewer.get(started["link"]).json()
    assert (execution["jobs_created"], execution["jobs_enqueued"], execution["jobs_failed"]) == (12, 12, 0)
    assert viewer.get(f"{link}executions/").json()["results"] == [execution]
    page = viewer.get(f"{execution['jobs']}?batch=1&limit=2").json()
    assert [job["params"] for job in page["results"]] == [
        {"tickerId": "T5", "x": 1},
        {"tickerId": "T6", "x": 1},
    ]
    activity = viewer.get(page["results"][0]["link"]).json()
    schedule_id = link.split("/")[-2]
    assert (activity["schedule"], activity["params"]) == (schedule_id, {"tickerId": "T5", "x": 1})
    assert len(viewer.get(f"/api/v1/activities/?schedule={schedule_id}").json()["results"]) == 12


def test_runs_of_a_pipeline_name_their_schedule(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(
        "/api/v1/pipelines/", {"key": "flow", "name": "F", "steps": [{"id": "a", "agent_role": "qa"}]}
    )
    schedule = make(
        client, target_type="pipeline", agent_role=None, pipeline="flow", params={"t": "db:ticker:all:id"}
    )

    started = client.post(f"{schedule['link']}run/").json()

    lifecycle.expand(acme.pk, UUID(started["id"]))
    runs = client.get(f"/api/v1/pipeline-runs/?schedule={schedule['id']}").json()["results"]
    assert {run["schedule"] for run in runs} == {schedule["id"]}
    assert sorted(run["params"]["t"] for run in runs) == sorted(f"T{number}" for number in range(12))
    assert client.get(f"/api/v1/pipeline-runs/?schedule={uuid4()}").json()["results"] == []


def test_a_second_manual_run_is_refused_while_one_is_in_progress(api: Any, acme: Tenant) -> None:
    client = api()
    link = make(client)["link"]
    first = client.post(f"{link}run/", headers={"Idempotency-Key": "a"})

    assert client.post(f"{link}run/", headers={"Idempotency-Key": "a"}).json() == first.json()
    problem(client.post(f"{link}run/"), 409, "execution_under_way")

    with tenant_scope(acme.pk):
        assert ScheduleExecution.objects.count() == 1


def test_an_execution_is_cancelled_with_its_jobs(api: Any, acme: Tenant) -> None:
    client = api("operator")
    link = make(api(), params={"t": "db:ticker:all:id"})["link"]
    started = client.post(f"{link}run/").json()
    lifecycle.expand(acme.pk, UUID(started["id"]))

    cancelled = client.post(f"{started['link']}cancel/", {"reason": "enough"})

    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert {job["state"] for job in client.get(started["jobs"]).json()["results"]} == {"cancelled"}
    problem(api("viewer").post(f"{started['link']}cancel/"), 403, "forbidden")


def test_executions_and_times_can_be_filtered(api: Any, acme: Tenant) -> None:
    schedule = make(api())
    with tenant_scope(acme.pk):
        for hour, state in enumerate(("fired", "skipped", "skipped")):
            Firing.objects.create(
                tenant=acme,
                schedule_id=schedule["id"],
                nominal_at=NOON + timedelta(hours=hour),
                state=state,
                reason="Late.",
            )
        for status in ("success", "failed"):
            ScheduleExecution.objects.create(
                tenant=acme, schedule_id=schedule["id"], schedule_name="Daily", definition={}, status=status
            )
    client = api("viewer")

    times = client.get(f"{schedule['link']}firings/?state=skipped").json()["results"]
    failed = client.get(f"{schedule['link']}executions/?status=failed").json()["results"]

    assert [(each["nominal_at"], each["reason"], each["count"]) for each in times] == [
        ("2027-05-01T14:00:00Z", "Late.", 1),
        ("2027-05-01T13:00:00Z", "Late.", 1),
    ]
    assert [each["status"] for each in failed] == ["failed"]


def test_deleting_a_schedule_keeps_its_executions_and_running_work(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client)
    started = client.post(f"{schedule['link']}run/").json()

    problem(client.delete(schedule["link"], headers={"If-Match": '"7"'}), 412, "precondition_failed")
    assert client.delete(schedule["link"]).status_code == 204

    problem(client.get(schedule["link"]), 404, "not_found")
    with tenant_scope(acme.pk):
        execution_kept = ScheduleExecution.objects.get(pk=started["id"])
    assert (execution_kept.schedule_id, execution_kept.schedule_name) == (None, "Daily")


def test_executions_of_a_deleted_schedule_are_read_and_cancelled_below_its_address(
    api: Any, acme: Tenant, other_tenant: Tenant
) -> None:
    client, stranger = api(), api(tenant=other_tenant)
    schedule = make(client, params={"t": "db:ticker:all:id"}, overlap="allow")
    started = [client.post(f"{schedule['link']}run/").json() for _ in range(2)]
    lifecycle.expand(acme.pk, UUID(started[1]["id"]))
    activity = client.get(f"{started[1]['link']}jobs/?limit=1").json()["results"][0]["activity"]
    client.delete(schedule["link"])

    page = client.get(f"{schedule['link']}executions/?limit=1").json()
    cancelled = client.post(f"{started[1]['link']}cancel/")

    newest, rest = page["results"], client.get(page["next"]).json()["results"]
    assert [each["id"] for each in newest + rest] == [started[1]["id"], started[0]["id"]]
    assert {each["schedule"] for each in newest + rest} == {schedule["id"]}
    assert client.get(f"/api/v1/activities/{activity}/").json()["schedule"] == schedule["id"]
    assert [each["link"] for each in newest] == [started[1]["link"]]
    assert cancelled.json()["status"] == "cancelled"
    assert client.get(newest[0]["link"]).json() == cancelled.json()
    assert len(client.get(newest[0]["jobs"]).json()["results"]) == 12
    problem(client.get(f"{schedule['link']}firings/"), 404, "not_found")
    problem(client.get(f"{SCHEDULES}{uuid4()}/executions/{started[0]['id']}/"), 404, "not_found")
    problem(client.get(f"{SCHEDULES}{uuid4()}/executions/"), 404, "not_found")
    for address in (f"{schedule['link']}executions/", newest[0]["link"], newest[0]["jobs"]):
        problem(stranger.get(address), 404, "not_found")
