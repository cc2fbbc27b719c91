"""The platform's scheduling settings: every key in both spellings, changed by API and command, and applied at once."""

from __future__ import annotations

import getpass
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
from tenants.exceptions import PreconditionFailed
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.engine import Engine, in_another_thread

PLACE = "/api/v1/platform-configs/scheduler/"
#: All keys with their defaults, in the camelCase spelling.
CAMEL_CASE: dict[str, Any] = {
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
SNAKE_CASE = {
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
def _no_cached_settings(database: None) -> Any:
    scheduler_settings.forget()
    configuration.forget()
    yield
    scheduler_settings.forget()
    configuration.forget()


def save(**members: Any) -> PlatformConfig:
    return scheduler_settings.save(members, actor="test")


def messages_by_path(value: Any) -> dict[str, str]:
    with pytest.raises(SettingsInvalid) as refusal:
        scheduler_settings.read(value)
    return dict(refusal.value.errors)


# One form


def test_both_spellings_of_the_defaults_are_equal_to_the_defaults_in_code() -> None:
    assert scheduler_settings.as_tree(SchedulerSettings()) == SNAKE_CASE
    assert scheduler_settings.read(CAMEL_CASE) == scheduler_settings.read(SNAKE_CASE) == SNAKE_CASE
    assert len(KEYS) == 15
    defaults, parsed = SchedulerSettings(), scheduler_settings.settings_of(SNAKE_CASE)
    assert {key.attribute: getattr(parsed, key.attribute) for key in KEYS} == {
        key.attribute: getattr(defaults, key.attribute) for key in KEYS
    }


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"enabled": 1}, "enabled", "true or false"),
        ({"timezone": "Mars/Base"}, "timezone", "time zone"),
        ({"timezone": "../etc/passwd"}, "timezone", "time zone"),
        ({"timezone": "localtime"}, "timezone", 'unknown time zone "localtime"'),
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
def test_an_invalid_setting_is_refused_with_its_path(value: Any, path: str, message: str) -> None:
    settings = messages_by_path(value)

    assert settings.keys() == {path}
    assert message in settings[path]


def test_invalid_settings_are_all_named_and_nothing_is_saved() -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        save(enabled="yes", monitoring={"enabled": 0}, nope=1)

    assert [path for path, _ in refusal.value.errors] == ["enabled", "monitoring.enabled", "nope"]
    assert scheduler_settings.row().version == 0


def test_invalid_members_of_a_stored_row_are_ignored() -> None:
    PlatformConfig.objects.create(
        key="scheduler", value={"check_interval": "soon", "http_client": [], "old": 1, "enabled": False}
    )

    settings = scheduler_settings.current()

    assert (settings.check_interval_ms, settings.enabled, settings.explicit) == (60_000, False, {"enabled"})


# When they apply


def test_a_change_applies_at_once_in_this_process_and_within_two_seconds_in_others(monkeypatch: Any) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(scheduler_settings.time, "monotonic", lambda: clock[0])
    assert scheduler_settings.current().batch_size == 10

    save(default_batch_processing={"batch_size": 5})
    assert scheduler_settings.current().batch_size == 5
    # Written as by another process, which cannot empty the cache of this one.
    PlatformConfig.objects.filter(key="scheduler").update(
        value={"default_batch_processing": {"batch_size": 7}}
    )
    assert scheduler_settings.current().batch_size == 5

    clock[0] += scheduler_settings.CACHE_SECONDS + 0.001
    assert scheduler_settings.current().batch_size == 7
    assert scheduler_settings.CACHE_SECONDS < 2


def test_the_version_counts_real_changes_and_a_stale_version_is_refused(database: None) -> None:
    in_another_thread(lambda: save(enabled=False))
    save(enabled=True)
    save(enabled=True)

    row = scheduler_settings.row()
    assert (row.version, row.value, row.updated_by) == (2, {"enabled": True}, "test")
    with pytest.raises(PreconditionFailed):
        scheduler_settings.save({}, actor="late", expected_version=1)


# What they affect


def test_the_timeout_applies_to_roles_without_their_own(engine: Engine, tenant: Tenant) -> None:
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 660

    save(http_client={"timeout": 120_000})
    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 120

    engine.serve(tenant, "qa", timeout_seconds=30)
    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").timeout_seconds == 30


def test_the_retry_settings_apply_where_agent_and_tenant_have_none(engine: Engine, tenant: Tenant) -> None:
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


def test_the_limits_of_the_http_client_are_passed_to_the_adapter(engine: Engine, tenant: Tenant) -> None:
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

    put = admin.put(PLACE, CAMEL_CASE, HTTP_IF_MATCH=before["ETag"])

    unset = {"http_client.timeout": 660_000, "http_client.retry_config.max_retries": 2}
    assert before.json() == {
        **SNAKE_CASE, "own": [], "in_force": unset, "version": 0, "updated_at": None, "updated_by": "",
    }  # fmt: skip
    assert put.json()["in_force"] == {
        "http_client.timeout": 300_000,
        "http_client.retry_config.max_retries": 3,
    }
    assert put.status_code == 200, put.content
    assert {name: put.json()[name] for name in SNAKE_CASE} == SNAKE_CASE
    assert len(put.json()["own"]) == 15
    assert (put.json()["version"], put.json()["updated_by"]) == (1, "token:admin of acme")
    assert version_of(put) == "1"
    problem(admin.put(PLACE, {}, HTTP_IF_MATCH=before["ETag"]), 412, "precondition_failed")
    again = admin.put(PLACE, {"httpClient": {"timeout": 1000}}).json()
    assert (again["own"], again["http_client"]["timeout"], again["version"]) == (
        ["http_client.timeout"],
        1000,
        2,
    )


def test_the_answer_of_a_get_can_be_sent_in_a_put(api: Any) -> None:
    admin = api("admin", platform=True)
    save(enabled=False)

    read = admin.get(PLACE).json()
    put = admin.put(PLACE, {**read, "enabled": True})

    assert put.status_code == 200, put.content
    assert put.json()["enabled"] is True


def test_only_a_platform_admin_can_change_the_settings(api: Any) -> None:
    problem(api("admin").put(PLACE, {}), 403, "forbidden")
    problem(api("operator", platform=True).put(PLACE, {}), 403, "forbidden")
    assert api("viewer").get(PLACE).status_code == 200


def test_faults_of_a_request_have_their_paths(api: Any) -> None:
    answer = api("admin", platform=True).put(PLACE, {"schedules": [], "httpClient": {"timeout": True}})

    settings = problem(answer, 400, "invalid_settings")["errors"]
    assert {fault["path"] for fault in settings} == {"schedules", "httpClient.timeout"}


# From the command line


def run_command(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("scheduler_settings", *arguments, stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


def test_the_command_shows_sets_and_unsets_settings() -> None:
    assert run_command() == SNAKE_CASE
    settings = run_command(
        "--set",
        "httpClient.timeout=120000",
        "--set",
        'monitoring.notification_channels=["slack"]',
        "--set",
        "timezone=UTC",
    )
    assert (settings["http_client"]["timeout"], settings["timezone"]) == (120_000, "UTC")
    assert settings["monitoring"]["notification_channels"] == ["slack"]
    assert run_command("--show", "--unset", "http_client.timeout")["http_client"]["timeout"] == 300_000
    assert scheduler_settings.row().value == {
        "timezone": "UTC",
        "monitoring": {"notification_channels": ["slack"]},
    }
    assert scheduler_settings.row().updated_by.startswith("command:")


def test_the_command_works_for_an_account_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", fail)

    assert run_command("--set", "timezone=UTC")["timezone"] == "UTC"
    assert scheduler_settings.row().updated_by == "command:unknown"


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
        run_command("--set", text)
