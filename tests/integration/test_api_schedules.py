"""Schedules over the API: created, read, changed and deleted, and every refusal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django_celery_beat.models import PeriodicTask

from agents import configuration, scheduler_settings
from agents.models import Agent, AgentConfig, PlatformConfig
from pipelines import versions
from pipelines.models import Pipeline, Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.engine import simultaneously
from tests.tickers import SCHEDULES, body, tickers


def flow(tenant: Tenant, key: str = "flow") -> Pipeline:
    versions.save(
        tenant.pk, {"key": key, "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    with tenant_scope(tenant.pk):
        return Pipeline.objects.get(key=key)


def make(client: Any, **members: Any) -> dict[str, Any]:
    answer = client.post(SCHEDULES, body(**members))
    assert answer.status_code == 201, answer.content
    schedule_body: dict[str, Any] = answer.json()
    return schedule_body


def errors_of(answer: Any) -> dict[str, str]:
    return {error["path"]: error["message"] for error in problem(answer, 400, "invalid_schedule")["errors"]}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_new_schedule_is_returned_with_all_defaults(api: Any, acme: Tenant) -> None:
    answer = api().post(SCHEDULES, body(params={"topic": "bees"}))

    schedule = answer.json()
    assert answer.status_code == 201, answer.content
    expected = {
        name: value
        for name, value in schedule.items()
        if name not in ("id", "link", "created_at", "updated_at", "next_run_at", "created_by")
    }
    assert expected == {
        "name": "Daily", "description": "", "repeat": "repeating", "cron": "0 8 * * *", "interval_ms": None,
        "timezone": "America/New_York", "start_at": None, "end_at": None, "dst_gap": "shift", "dst_fold": "first",
        "jitter_seconds": 0, "target_type": "agent", "agent_role": "qa", "pipeline": None, "params": {"topic": "bees"},
        "retry": {}, "timeout_seconds": None, "priority": 10, "enabled": True,
        "paused": False, "catch_up": "latest", "overlap": "skip",
        "after_once": "disable", "last_run_at": None, "version": 1,
    }  # fmt: skip
    assert (answer["Location"], version_of(answer)) == (f"{SCHEDULES}{schedule['id']}/", "1")
    assert moment(schedule["next_run_at"]) > datetime.now(UTC)
    assert api("viewer").get(answer["Location"]).json() == schedule


def test_a_schedule_of_a_pipeline_names_it_by_its_key(api: Any, acme: Tenant) -> None:
    flow(acme)

    schedule = make(api(), target_type="pipeline", agent_role=None, pipeline="flow")

    assert (schedule["target_type"], schedule["pipeline"], schedule["agent_role"]) == (
        "pipeline",
        "flow",
        None,
    )


def test_policies_are_returned_as_they_were_sent(api: Any, acme: Tenant) -> None:
    members = {
        "interval_ms": 60_000, "cron": None, "timezone": "Europe/Berlin", "start_at": "2027-01-01T00:00:00Z",
        "end_at": "2028-01-01T00:00:00Z", "dst_gap": "skip", "dst_fold": "both", "jitter_seconds": 30,
        "retry": {"max_attempts": 4, "strategy": "fixed", "base_seconds": 2}, "timeout_seconds": 90, "enabled": False,
        "catch_up": {"up_to": 3}, "overlap": "queue_one", "after_once": "delete", "description": "On bees.",
    }  # fmt: skip

    assert make(api(), name="Whole numbers", priority=5.0, catch_up={"up_to": 2.0})["priority"] == 5

    results = make(api(), **members, priority="urgent")

    assert {name: results[name] for name in members} == members
    assert (results["priority"], results["next_run_at"]) == (1, None)


def test_catch_up_has_three_forms(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = make(client)

    results = [
        client.patch(schedule["link"], {"catch_up": catch_up}).json()["catch_up"]
        for catch_up in ("none", "latest", {"up_to": 9}, {"up_to": 1}, None)
    ]

    assert results == ["none", "latest", {"up_to": 9}, "latest", "latest"]


def test_the_default_zone_is_that_of_the_platform(api: Any, acme: Tenant) -> None:
    PlatformConfig.objects.update_or_create(key="scheduler", defaults={"value": {"timezone": "Asia/Tokyo"}})
    scheduler_settings.forget()

    schedule = make(api())

    scheduler_settings.forget()
    assert schedule["timezone"] == "Asia/Tokyo"
    assert moment(schedule["next_run_at"]).hour == 23, "08:00 in Tokyo"


BROKEN: list[tuple[dict[str, Any], str]] = [
        ({"name": None}, "name"), ({"name": " "}, "name"), ({"name": "x" * 201}, "name"), ({"repeat": "often"}, "repeat"),
        ({"cron": "61 * * * *"}, "cron"), ({"cron": None}, "cron"), ({"cron": None, "interval_ms": 5}, "interval_ms"),
        ({"interval_ms": 60000}, "interval_ms"), ({"interval_ms": "60000", "cron": None}, "interval_ms"),
        ({"timezone": "Mars/Olympus"}, "timezone"), ({"start_at": "tomorrow"}, "start_at"),
        ({"start_at": "2027-01-01T00:00:00"}, "start_at"), ({"end_at": "1969-01-01T00:00:00Z"}, "end_at"),
        ({"repeat": "once", "cron": None}, "start_at"), ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z"}, "cron"),
        ({"dst_gap": "jump"}, "dst_gap"), ({"dst_fold": 1}, "dst_fold"), ({"jitter_seconds": 1.5}, "jitter_seconds"),
        ({"target_type": "person"}, "target_type"), ({"target_type": None}, "target_type"), ({"agent_role": None}, "agent_role"),
        ({"repeat": None}, "repeat"),
        ({"agent_role": "nobody"}, "agent_role"), ({"pipeline": "flow"}, "pipeline"),
        ({"target_type": "pipeline", "agent_role": None, "pipeline": "none"}, "pipeline"),
        ({"params": []}, "params"), ({"params": {"a": "db:none:all:id"}}, "params.a"),
        ({"params": {"a": "db:ticker:all:none"}}, "params.a"), ({"params": {"a": "db:ticker:all:id?colour=red"}}, "params.a"),
        ({"params": {"a": "db:ticker:all:id?batchSize=0"}}, "params.a"),
        ({"params": {"a": "db:ticker:all:id?batchSize=1", "b": "db:ticker:all:id?batchSize=2"}}, "params"),
        ({"params": {"a": "db:auth_user:all:password"}}, "params.a"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"), ({"retry": {"tries": 1}}, "retry.tries"),
        ({"retry": {"base_seconds": 9, "max_seconds": 1}}, "retry.max_seconds"), ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"priority": -1}, "priority"), ({"priority": "soon"}, "priority"), ({"priority": True}, "priority"),
        ({"enabled": "yes"}, "enabled"), ({"catch_up": "all"}, "catch_up"), ({"catch_up": {"up_to": 0}}, "catch_up"),
        ({"overlap": "queue"}, "overlap"), ({"after_once": "keep"}, "after_once"), ({"colour": 1}, "colour"), ({"id": "x"}, "id"),
]  # fmt: skip


def test_every_error_names_its_path(api: Any, acme: Tenant) -> None:
    tickers(acme)
    client = api()

    errors = [(broken, list(errors_of(client.post(SCHEDULES, body(**broken))))) for broken, _ in BROKEN]

    assert [
        (broken, paths)
        for (broken, paths), (_, path) in zip(errors, BROKEN, strict=True)
        if path not in paths
    ] == []


def test_all_faults_are_told_at_once_and_nothing_is_stored(api: Any, acme: Tenant) -> None:
    broken = body(
        cron="x",
        timezone="y",
        agent_role="z",
        priority=99,
        params={"a": "db:none:all:id", "b": "db:none:all"},
        retry={"jitter": 2},
        overlap=1,
    )

    errors = errors_of(api().post(SCHEDULES, broken))

    assert errors.keys() == {
        "cron",
        "timezone",
        "agent_role",
        "priority",
        "params.a",
        "params.b",
        "retry.jitter",
        "overlap",
    }
    with tenant_scope(acme.pk):
        assert not Schedule.objects.exists()
    assert not PeriodicTask.objects.filter(task="schedules.fire").exists()


def test_fixed_values_must_suit_the_agent_while_data_sources_are_checked_later(
    api: Any, acme: Tenant
) -> None:
    tickers(acme)
    schema = {
        "type": "object",
        "required": ["tickerId", "depth"],
        "properties": {"tickerId": {"type": "string", "minLength": 1}, "depth": {"type": "integer"}},
    }
    Agent.objects.filter(role="qa").update(input_schema=schema)
    configuration.forget()
    client = api()
    try:
        missing = errors_of(client.post(SCHEDULES, body(params={"tickerId": "db:ticker:all:id"})))
        wrong = errors_of(client.post(SCHEDULES, body(params={"tickerId": "db:ticker:all:id", "depth": "2"})))
        unreadable = errors_of(
            client.post(SCHEDULES, body(params={"tickerId": "db:ticker:all", "depth": "2"}))
        )
        right = client.post(SCHEDULES, body(params={"tickerId": "db:ticker:all:id", "depth": 2}))
    finally:
        Agent.objects.filter(role="qa").update(input_schema=None)
        configuration.forget()

    assert (list(missing), list(wrong), right.status_code) == (["params.depth"], ["params.depth"], 201)
    assert list(unreadable) == ["params.tickerId", "params.depth"]


def test_a_disabled_agent_or_pipeline_cannot_be_a_target(api: Any, acme: Tenant) -> None:
    off = flow(acme, "off")
    with tenant_scope(acme.pk):
        Pipeline.objects.filter(pk=off.pk).update(enabled=False)
        AgentConfig.objects.filter(agent_id="dev").update(enabled=False)
    Agent.objects.filter(role="qa").update(enabled=False)
    configuration.forget()
    client = api()

    try:
        for role in ("dev", "qa"):  # switched off for the tenant, and for all
            errors = errors_of(client.post(SCHEDULES, body(agent_role=role)))
            assert errors == {"agent_role": f'the agent "{role}" is switched off'}
    finally:
        Agent.objects.filter(role="qa").update(enabled=True)
        configuration.forget()
    pipeline = body(target_type="pipeline", agent_role=None, pipeline="off")
    assert list(errors_of(client.post(SCHEDULES, pipeline))) == ["pipeline"]


def test_a_name_is_unique_per_tenant(api: Any, acme: Tenant, other_tenant: Tenant) -> None:
    client = api()
    make(client)
    other = make(client, name="Other")

    problem(client.post(SCHEDULES, body()), 409, "already_exists")
    problem(client.patch(other["link"], {"name": "Daily"}), 409, "already_exists")
    assert api("admin", tenant=other_tenant).post(SCHEDULES, body()).status_code == 201


def test_one_of_several_simultaneous_equal_schedules_is_created(api: Any, acme: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(3)]

    answers = simultaneously(*[lambda c=client: c.post(SCHEDULES, body()) for client in clients])

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
    assert PeriodicTask.objects.filter(task="schedules.fire").count() == 1


def test_a_post_repeated_with_its_key_creates_one_schedule(api: Any, acme: Tenant) -> None:
    client, key = api(), {"Idempotency-Key": "k1"}

    first, second = (client.post(SCHEDULES, body(), headers=key) for _ in range(2))

    assert (first.status_code, second.status_code, first.json()) == (201, 201, second.json())


def test_the_list_can_be_filtered(api: Any, acme: Tenant) -> None:
    flow(acme)
    client = api()
    make(client, name="A", repeat="once", cron=None, start_at="2027-01-01T00:00:00Z", description="On bees.")
    make(client, name="B", target_type="pipeline", agent_role=None, pipeline="flow")
    make(client, name="C", agent_role="dev", enabled=False)
    expected = {
        "name=B": "B", "enabled=false": "C", "target_type=pipeline": "B", "agent_role=dev": "C", "pipeline=flow": "B",
        "repeat=once": "A", "search=bee": "A", "ordering=-name": "CBA", "enabled=true": "AB",
    }  # fmt: skip

    problem(client.get(f"{SCHEDULES}?enabled=maybe"), 400, "validation_failed")
    names = {
        query: "".join(shown["name"] for shown in client.get(f"{SCHEDULES}?{query}").json()["results"])
        for query in expected
    }

    assert names == expected


@pytest.mark.parametrize("role", ["operator", "reviewer", "viewer"])
def test_only_admins_change_schedules(api: Any, acme: Tenant, role: str) -> None:
    schedule = make(api())
    client = api(role)

    for answer in (
        client.post(SCHEDULES, body(name="B")),
        client.put(schedule["link"], body()),
        client.patch(schedule["link"], {"enabled": False}),
        client.delete(schedule["link"]),
    ):
        assert problem(answer, 403, "forbidden")["required_role"] == "admin"
    assert client.get(schedule["link"]).status_code == 200
