"""The platform's settings of scheduling: every key, in both spellings, changed by API, command and admin, obeyed at once."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from activities.models import Activity
from agents import configuration, scheduler_settings
from agents.models import PlatformConfig
from agents.scheduler_settings import KEYS, SchedulerSettings, SettingsInvalid
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, elsewhere

PLACE = "/api/v1/platform-configs/scheduler/"
#: All keys of the specification, with its defaults.
SPECIFIED: dict[str, Any] = {
    "enabled": True,
    "timezone": "America/New_York",
    "checkInterval": 60000,
    "httpClient": {
        "timeout": 300000,
        "maxConcurrentRequests": 50,
        "retryConfig": {"maxRetries": 3, "backoff": "exponential", "delay": 5000},
        "connectionPool": {"maxSockets": 100, "keepAlive": True},
    },
    "defaultBatchProcessing": {"batchSize": 10, "staggerDelay": 1000},
    "monitoring": {"enabled": True, "notifyOnFailure": True, "notificationChannels": ["email", "slack"]},
}
OURS = {
    "enabled": True,
    "timezone": "America/New_York",
    "check_interval": 60000,
    "http_client": {
        "timeout": 300000,
        "max_concurrent_requests": 50,
        "retry_config": {"max_retries": 3, "backoff": "exponential", "delay": 5000},
        "connection_pool": {"max_sockets": 100, "keep_alive": True},
    },
    "default_batch_processing": {"batch_size": 10, "stagger_delay": 1000},
    "monitoring": {"enabled": True, "notify_on_failure": True, "notification_channels": ["email", "slack"]},
}


@pytest.fixture(autouse=True)
def _forgotten(database: None) -> Any:
    scheduler_settings.forget()
    configuration.forget()
    yield
    scheduler_settings.forget()
    configuration.forget()


def save(**members: Any) -> PlatformConfig:
    return scheduler_settings.save(members, actor="test")


def faults(given: Any) -> dict[str, str]:
    with pytest.raises(SettingsInvalid) as refusal:
        scheduler_settings.read(given)
    return dict(refusal.value.errors)


# One form


def test_the_defaults_are_those_of_the_specification_and_both_spellings_mean_them() -> None:
    assert scheduler_settings.as_tree(SchedulerSettings()) == OURS
    assert scheduler_settings.read(SPECIFIED) == scheduler_settings.read(OURS) == OURS
    assert len(KEYS) == 15
    defaults, said = SchedulerSettings(), scheduler_settings.settings_of(OURS)
    assert {key.attribute: getattr(said, key.attribute) for key in KEYS} == {
        key.attribute: getattr(defaults, key.attribute) for key in KEYS
    }


@pytest.mark.parametrize(
    ("given", "path", "told"),
    [
        ({"enabled": 1}, "enabled", "true or false"),
        ({"timezone": "Mars/Base"}, "timezone", "time zone"),
        ({"timezone": "../etc/passwd"}, "timezone", "time zone"),
        ({"checkInterval": 0}, "checkInterval", "from 1,000"),
        ({"http_client": {"timeout": "300"}}, "http_client.timeout", "whole number"),
        ({"http_client": {"timeout": float("inf")}}, "http_client.timeout", "whole number"),
        (
            {"httpClient": {"connectionPool": {"maxSockets": 0}}},
            "httpClient.connectionPool.maxSockets",
            "from 1 to 10,000",
        ),
        ({"httpClient": {"connectionPool": 5}}, "httpClient.connectionPool", "an object"),
        (
            {"httpClient": {"retryConfig": {"backoff": "random"}}},
            "httpClient.retryConfig.backoff",
            "exponential, linear",
        ),
        (
            {"monitoring": {"notification_channels": ["pager"]}},
            "monitoring.notification_channels",
            "list of email",
        ),
        (
            {"monitoring": {"notification_channels": "email"}},
            "monitoring.notification_channels",
            "list of email",
        ),
        ({"check_intervall": 1}, "check_intervall", "did you mean check_interval?"),
        ({"http_client": {"proxy": "x"}}, "http_client.proxy", "not a scheduling setting"),
        ({"schedules": []}, "schedules", "never live in this configuration"),
        ({"pipelines": {}}, "pipelines", "never live in this configuration"),
        ({"check_interval": 1000, "checkInterval": 2000}, "checkInterval", "duplicate"),
        ([], "", "must be an object"),
    ],
)
def test_what_cannot_be_accepted_is_named_by_its_path(given: Any, path: str, told: str) -> None:
    found = faults(given)

    assert found.keys() == {path}
    assert told in found[path]


def test_every_fault_is_named_and_nothing_is_saved() -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        save(enabled="yes", monitoring={"enabled": 0}, nope=1)

    assert [path for path, _ in refusal.value.errors] == ["enabled", "monitoring.enabled", "nope"]
    assert scheduler_settings.row().version == 0


def test_a_row_that_nobody_can_have_saved_does_not_stop_anything() -> None:
    PlatformConfig.objects.create(
        key="scheduler", value={"check_interval": "soon", "http_client": [], "old": 1, "enabled": False}
    )

    found = scheduler_settings.current()

    assert (found.check_interval_ms, found.enabled, found.explicit) == (60_000, False, {"enabled"})


# In force


def test_a_change_is_in_force_at_once_here_and_within_two_seconds_elsewhere(monkeypatch: Any) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(scheduler_settings.time, "monotonic", lambda: clock[0])
    assert scheduler_settings.current().batch_size == 10

    save(default_batch_processing={"batch_size": 5})
    assert scheduler_settings.current().batch_size == 5
    # As another process does it, which does not forget what this one keeps.
    PlatformConfig.objects.filter(key="scheduler").update(
        value={"default_batch_processing": {"batch_size": 7}}
    )
    assert scheduler_settings.current().batch_size == 5

    clock[0] += scheduler_settings.KEPT_SECONDS + 0.001
    assert scheduler_settings.current().batch_size == 7
    assert scheduler_settings.KEPT_SECONDS < 2


def test_two_who_save_at_once_are_both_counted(database: None) -> None:
    elsewhere(lambda: save(enabled=False))
    save(enabled=True)
    save(enabled=True)

    row = scheduler_settings.row()
    assert (row.version, row.value, row.updated_by) == (2, {"enabled": True}, "test")
    with pytest.raises(scheduler_settings.VersionConflict):
        scheduler_settings.save({}, actor="late", expected_version=1)


# What obeys


def test_the_timeout_holds_where_nobody_says_one(engine: Engine, tenant: Tenant) -> None:
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 660

    save(http_client={"timeout": 120_000})
    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 120

    engine.serve(tenant, "qa", timeout_seconds=30)
    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 30


def test_the_retries_hold_below_those_of_the_agent_and_the_tenant(engine: Engine, tenant: Tenant) -> None:
    save(httpClient={"retryConfig": {"maxRetries": 4, "backoff": "linear", "delay": 2500}})
    engine.serve(tenant, "qa", retry={"strategy": "fixed"})
    engine.serve(tenant, "dev", retry={"max_attempts": 2})
    configuration.forget()

    (first,), (second,) = engine.submit(tenant, "qa"), engine.submit(tenant, "dev")

    assert configuration.settings_for(tenant.pk, "qa").retry == {
        "max_attempts": 5, "strategy": "fixed", "base_seconds": 2.5,
    }  # fmt: skip
    with tenant_scope(tenant.pk):
        attempts = dict(Activity.objects.for_tenant(tenant.pk).values_list("id", "max_attempts"))
    assert (attempts[first], attempts[second]) == (5, 2)


def test_the_http_client_is_told_its_limits(engine: Engine, tenant: Tenant) -> None:
    save(
        http_client={"max_concurrent_requests": 3, "connection_pool": {"max_sockets": 9, "keep_alive": False}}
    )
    configuration.forget()

    http = configuration.settings_for(tenant.pk, "qa").adapter.http

    assert (http.max_concurrent, http.max_sockets, http.keep_alive) == (3, 9, False)


# Over the API


def test_a_platform_admin_reads_and_replaces_the_settings(api: Any) -> None:
    admin = api("admin", platform=True)
    before = admin.get(PLACE)

    put = admin.put(PLACE, SPECIFIED, HTTP_IF_MATCH=before["ETag"])

    unset = {"http_client.timeout": 660_000, "http_client.retry_config.max_retries": 2}
    assert before.json() == {
        **OURS, "own": [], "in_force": unset, "version": 0, "updated_at": None, "updated_by": "",
    }  # fmt: skip
    assert put.json()["in_force"] == {
        "http_client.timeout": 300_000,
        "http_client.retry_config.max_retries": 3,
    }
    assert put.status_code == 200, put.content
    assert {name: put.json()[name] for name in OURS} == OURS
    assert len(put.json()["own"]) == 15
    assert (put.json()["version"], put.json()["updated_by"]) == (1, "token:admin of acme")
    assert put["ETag"] == '"1"'
    problem(admin.put(PLACE, {}, HTTP_IF_MATCH=before["ETag"]), 412, "precondition_failed")
    again = admin.put(PLACE, {"httpClient": {"timeout": 1000}}).json()
    assert (again["own"], again["http_client"]["timeout"], again["version"]) == (
        ["http_client.timeout"],
        1000,
        2,
    )


def test_what_was_read_can_be_put_back(api: Any) -> None:
    admin = api("admin", platform=True)
    save(enabled=False)

    read = admin.get(PLACE).json()
    put = admin.put(PLACE, {**read, "enabled": True})

    assert put.status_code == 200, put.content
    assert put.json()["enabled"] is True


def test_only_a_platform_admin_changes_the_registry(api: Any) -> None:
    problem(api("admin").put(PLACE, {}), 403, "forbidden")
    problem(api("operator", platform=True).put(PLACE, {}), 403, "forbidden")
    assert api("viewer").get(PLACE).status_code == 200


def test_faults_of_a_body_are_named_by_path(api: Any) -> None:
    answer = api("admin", platform=True).put(PLACE, {"schedules": [], "httpClient": {"timeout": True}})

    found = problem(answer, 400, "invalid_settings")["errors"]
    assert {fault["path"] for fault in found} == {"schedules", "httpClient.timeout"}


# From the command line


def told(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("scheduler_settings", *arguments, stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


def test_the_command_shows_sets_and_takes_back() -> None:
    assert told() == OURS
    shown = told(
        "--set",
        "httpClient.timeout=120000",
        "--set",
        'monitoring.notification_channels=["slack"]',
        "--set",
        "timezone=UTC",
    )
    assert (shown["http_client"]["timeout"], shown["timezone"]) == (120_000, "UTC")
    assert shown["monitoring"]["notification_channels"] == ["slack"]
    assert told("--show", "--unset", "http_client.timeout")["http_client"]["timeout"] == 300_000
    assert scheduler_settings.row().value == {
        "timezone": "UTC",
        "monitoring": {"notification_channels": ["slack"]},
    }
    assert scheduler_settings.row().updated_by.startswith("command:")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("http_client.timeout=soon", "whole number"),
        ("nope=1", "not a scheduling setting"),
        ("enabled", "PATH=VALUE"),
        ("http_client=1", "not a scheduling setting"),
    ],
)
def test_the_command_refuses_with_a_reason(text: str, fault: str) -> None:
    with pytest.raises(CommandError, match=fault):
        told("--set", text)
