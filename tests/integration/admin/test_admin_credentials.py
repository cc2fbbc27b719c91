"""Credentials, tokens, members and periodic tasks in the admin. Secrets are stored sealed or displayed once."""

from __future__ import annotations

import html
import re
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from kombu.exceptions import OperationalError

from agents import credentials
from agents.models import Agent, AgentConfig
from orchestrator.beat import PatientScheduler
from orchestrator.celery import app
from pipelines.schedules import beat
from tenants import tokens
from tenants.context import system_scope
from tenants.models import ApiToken, Membership, Tenant
from tests.browsing import list_url, messages_of, no_inlines, page_url, run_action, visible_text
from tests.cases import in_one_test

SECRET = "sk-very-secret"


@pytest.fixture
def qa_agent() -> Any:
    """Restore the registered agent of the role qa after the test."""
    with system_scope():
        before = Agent.objects.get(role="qa")
    yield
    with system_scope():
        before.save()


def test_credentials_are_stored_sealed_and_never_displayed(root: Client, qa_agent: None) -> None:
    answer = _agent_form(root, auth=f'{{"type": "bearer", "token": "{SECRET}"}}')

    assert answer.status_code == 302
    with system_scope():
        agent = Agent.objects.get(role="qa")
        log = LogEntry.objects.get(object_id="qa")
    assert SECRET not in agent.auth_sealed
    assert credentials.unseal(agent.auth_sealed, context=credentials.agent_context("qa"))["token"] == SECRET
    assert SECRET not in log.change_message
    page = root.get(page_url(agent)).content.decode()
    assert "Yes, sealed with the key" in page
    assert SECRET not in page
    assert agent.auth_sealed not in page


def test_credentials_stay_unless_the_form_removes_them(root: Client, qa_agent: None) -> None:
    _agent_form(root, auth='{"type": "bearer", "token": "x"}')
    _agent_form(root, name="Another name")
    with system_scope():
        assert Agent.objects.get(role="qa").auth_sealed != ""

    _agent_form(root, forget_auth="on")

    with system_scope():
        assert Agent.objects.get(role="qa").auth_sealed == ""


@in_one_test("entered", ["no json", '["a"]', '{"token": 5}', '{"token": {"a": "b"}}', SECRET])
def test_invalid_credentials_are_refused_without_repeating_them(
    entered: str, root: Client, qa_agent: None
) -> None:
    page = _agent_form(root, auth=entered).content.decode()

    assert "Please correct the error" in page
    assert SECRET not in page


@in_one_test(
    ("field", "entered", "error"),
    [
        ("may_hold", '{"pipelines": ["none"]}', "pipelines[0]: "),
        ("may_hold", '{"everyone": true}', "everyone: "),
        ("may_hold", '{"roles": "writer"}', "roles: "),
        ("retry", '{"max_attempts": 0}', "max_attempts: "),
        ("rate", '{"capacity": "much"}', "capacity: "),
        ("backlog", '{"when_full": "wait"}', "when_full: "),
        ("retry", "[]", "must be an object"),
        ("may_hold", "false", "must be an object"),
    ],
)
def test_settings_of_a_role_are_validated_as_in_the_api(
    field: str, entered: str, error: str, tenant: Tenant, root: Client
) -> None:
    refused = root.post(f"{list_url(AgentConfig)}add/", _config_form(tenant, **{field: entered}))

    assert refused.status_code == 200
    assert error in html.unescape(refused.content.decode())
    with system_scope():
        assert not AgentConfig.objects.filter(tenant=tenant, agent="qa").exists()


def test_may_hold_is_stored_as_in_the_api(tenant: Tenant, root: Client) -> None:
    entered = '{"everything": false, "roles": ["writer"], "groups": []}'

    assert (
        root.post(f"{list_url(AgentConfig)}add/", _config_form(tenant, may_hold=entered)).status_code == 302
    )

    with system_scope():
        assert AgentConfig.objects.get().may_hold == {"roles": ["writer"]}


def test_a_tenants_own_credentials_are_sealed_for_that_tenant_and_role(tenant: Tenant, root: Client) -> None:
    without_type = _config_form(tenant, auth='{"token": "t"}')
    page = root.post(f"{list_url(AgentConfig)}add/", without_type)
    assert page.context["adminform"].form.errors == {"auth": ["type: is required"]}

    form = _config_form(tenant, auth='{"type": "bearer", "token": "t"}')
    assert root.post(f"{list_url(AgentConfig)}add/", form).status_code == 302

    with system_scope():
        config = AgentConfig.objects.get()
    context = credentials.config_context(tenant.pk, "qa")
    assert credentials.unseal(config.auth_sealed, context=context) == {"type": "bearer", "token": "t"}
    assert (
        root.post(
            page_url(config), {"enabled": "on", "retry": "{}", "rate": "{}", "max_concurrency": "3"}
        ).status_code
        == 302
    )
    with system_scope():
        changed = AgentConfig.objects.get()
    assert (changed.max_concurrency, changed.version, changed.auth_sealed) == (3, 2, config.auth_sealed)


def test_a_token_is_shown_once_and_works(tenant: Tenant, root: Client) -> None:
    address = f"/admin/tenants/tenant/{tenant.pk}/create-token/"
    assert root.get(address).status_code == 200

    answer = root.post(address, {"name": "ci", "role": "operator", "days": "30", "scopes": "activities:read"})

    secret = re.search(r"orc_[A-Za-z0-9_-]{43}", answer.content.decode())
    assert secret
    assert "no-store" in answer["Cache-Control"]
    assert tokens.principal_of(secret[0]).scopes == ("activities:read",)
    with system_scope():
        token = ApiToken.objects.get()
        assert token.user_id is None, "root is not a member"
        assert secret[0] not in "".join(LogEntry.objects.values_list("change_message", flat=True))
    for page in (page_url(token), list_url(ApiToken), page_url(tenant)):
        shown = root.get(page).content.decode()
        assert secret[0] not in shown
        assert token.secret_hash not in shown


@in_one_test(
    "fields",
    [
        {"role": "operator"},
        {"name": "x", "role": "king"},
        {"name": "x", "role": "viewer", "scopes": "everything"},
    ],
)
def test_an_invalid_token_is_not_created(fields: dict[str, str], tenant: Tenant, root: Client) -> None:
    assert root.post(f"/admin/tenants/tenant/{tenant.pk}/create-token/", fields).status_code == 200

    with system_scope():
        assert not ApiToken.objects.exists()


def test_a_revoked_token_is_refused(tenant: Tenant, root: Client) -> None:
    token, secret = tokens.create(tenant, "viewer", "reader")
    assert "reader" in root.get(f"/admin/tenants/apitoken/{token.pk}/revoke/").content.decode()

    run_action(root, ApiToken, "revoke_selected", token, confirmed="1")

    with pytest.raises(tokens.TokenRefused):
        tokens.principal_of(secret)


def test_a_member_can_be_added_with_human_roles(tenant: Tenant, root: Client) -> None:
    mia = User.objects.create_user("mia")

    answer = root.post(
        f"{list_url(Membership)}add/",
        {"tenant": str(tenant.pk), "user": str(mia.pk), "role": "reviewer", "human_roles": "editor, legal ,"},
    )

    assert answer.status_code == 302
    with system_scope():
        assert Membership.objects.get().human_roles == ["editor", "legal"]


def test_a_user_can_be_added_and_sign_in(tenant: Tenant, root: Client) -> None:
    password = "a long enough password"
    person = {"username": "mia", "usable_password": "true", "password1": password, "password2": password}

    assert root.post("/admin/auth/user/add/", person).status_code == 302

    assert Client().login(username="mia", password=password)


def test_a_periodic_task_can_be_added(root: Client) -> None:
    with system_scope():
        every = IntervalSchedule.objects.create(every=1, period="hours")
    task = _task_form(every)
    assert root.post("/admin/django_celery_beat/periodictask/add/", task).status_code == 302

    with system_scope():
        assert PeriodicTask.objects.get(name="hourly").interval == every
        assert [row.name for row in PatientScheduler(app=app, lazy=True).enabled_models_qs()] == ["hourly"]


@in_one_test(
    "foreign",
    [{"task": "activities.run"}, {"task": "os.system"}, {"kwargs": '{"tenant": "x"}'}, {"args": "[1]"}],
    ids=["another task of the project", "an unknown task", "keyword arguments", "arguments"],
)
def test_a_periodic_task_that_would_never_be_sent_cannot_be_saved(
    root: Client, foreign: dict[str, str]
) -> None:
    with system_scope():
        every = IntervalSchedule.objects.create(every=1, period="hours")
    answer = root.post("/admin/django_celery_beat/periodictask/add/", _task_form(every, **foreign))

    assert answer.status_code == 200
    assert b"Beat sends only the system" in answer.content
    with system_scope():
        assert not PeriodicTask.objects.exists()


@in_one_test(
    "fields",
    [
        {"interval": "", "solar": "sun"},
        {"headers": "[1]"},
        {"headers": "no JSON"},
        {"expires_0": "2030-01-01", "expires_1": "10:00", "expire_seconds": "5"},
        {"start_time_0": "9999-12-31", "start_time_1": "10:00", "interval": "", "crontab": "monthly"},
        {"interval": ""},
    ],
    ids=["the sun without its library", "headers that are a list", "no JSON", "two expiries", "a start that is too late", "no time"],
)  # fmt: skip
def test_a_periodic_task_that_beat_cannot_compute_is_an_error_in_the_form(
    root: Client, fields: dict[str, str]
) -> None:
    with system_scope():
        every = IntervalSchedule.objects.create(every=1, period="hours")
        keys = {
            "sun": SolarSchedule.objects.get_or_create(event="sunrise", latitude=52, longitude=13)[0].pk,
            "monthly": CrontabSchedule.objects.create(hour="0", day_of_month="1").pk,
        }
    fields = {name: str(keys.get(value, value)) for name, value in fields.items()}
    answer = root.post("/admin/django_celery_beat/periodictask/add/", _task_form(every, **fields))

    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors


def test_the_slug_of_a_tenant_cannot_be_changed(tenant: Tenant, root: Client) -> None:
    root.post(
        page_url(tenant),
        {"slug": "other", "name": "Acme Inc.", "is_active": "on", "weight": "2", "timezone": "UTC"},
    )

    with system_scope():
        row = Tenant.objects.get()
    assert (row.slug, row.name, row.weight) == ("acme", "Acme Inc.", 2)


def _task_form(every: IntervalSchedule, **fields: str) -> dict[str, str]:
    form = {"name": "hourly", "task": beat.CHECK_TASK, "enabled": "on", "interval": str(every.pk)}
    return {**form, "args": "[]", "kwargs": "{}", "headers": "{}", **fields}


def _config_form(tenant: Tenant, **fields: str) -> dict[str, str]:
    form = {"tenant": str(tenant.pk), "agent": "qa", "enabled": "on"}
    return {**form, "retry": "{}", "rate": "{}", "backlog": "{}", **fields}


def _agent_form(browser: Client, **fields: str) -> HttpResponse:
    page = reverse("admin:agents_agent_change", args=["qa"])
    form = browser.get(page).context["adminform"].form
    sent = {name: value for name, value in form.initial.items() if value is not None and value is not False}
    sent |= {"options": "{}", "retry": "{}", "input_schema": "null"} | no_inlines("deployments")
    return browser.post(page, sent | fields)


def test_an_interval_is_at_least_a_second_because_a_shorter_one_would_keep_beat_busy(root: Client) -> None:
    page = reverse("admin:django_celery_beat_intervalschedule_add")

    form = {"period": "microseconds"} | no_inlines("periodictask_set")

    refused = root.post(page, form | {"every": "1"})

    assert "The interval must be at least one second." in visible_text(refused)
    assert root.post(page, form | {"every": "1000000"}).status_code == 302


def test_the_button_for_periodic_tasks_sends_only_allowed_tasks(root: Client) -> None:
    with system_scope():
        every = IntervalSchedule.objects.create(every=1, period="hours")
        row = PeriodicTask.objects.create(name="backdoor", task="activities.run", interval=every)

    answer = run_action(root, PeriodicTask, "run_tasks", row)

    assert any("Not sent: backdoor" in message for message in messages_of(answer))


def test_the_button_for_periodic_tasks_reports_that_the_broker_does_not_answer(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with system_scope():
        every = IntervalSchedule.objects.create(every=1, period="hours")
        row = PeriodicTask.objects.create(name="hourly", task=beat.CHECK_TASK, interval=every)
    monkeypatch.setattr("celery.app.task.Task.apply_async", Mock(side_effect=OperationalError("refused")))

    answer = run_action(root, PeriodicTask, "run_tasks", row)

    assert messages_of(answer) == ["Not sent: the broker does not answer. Please retry."]
