"""Nonsense in forms and addresses of the admin: it answers with an error at the field, or as if the row did not exist."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from django_celery_beat.models import PeriodicTask

from agents.models import Agent
from pipelines.models import Schedule
from tenants.models import Channel, Plan, RetentionPass, Tenant
from tests.browsing import list_url, messages_of
from tests.cases import in_one_test

REFUSED = {
    "deep": "[" * 5_000,
    "NUL": '{"a": "\\u0000"}',
    "half a pair": '{"a": "\\ud800"}',
    "infinity": '{"a": 1e999}',
    "NaN": '{"a": NaN}',
    "a key twice": '{"a": 1, "a": 2}',
    "huge": '{"a": 99999999999999999999}',
}


def _channel(owner: Tenant, **changed: str) -> dict[str, str]:
    return {"tenant": str(owner.pk), "kind": "mail", "name": "Mail", "details": "{}", **changed}


@in_one_test("details", REFUSED.values(), ids=REFUSED.keys())
def test_json_that_cannot_be_stored_is_an_error_at_its_field(
    root: Client, tenant: Tenant, details: str
) -> None:
    answer = root.post(reverse("admin:tenants_channel_add"), _channel(tenant, details=details))

    assert answer.status_code == 200
    form = answer.context["adminform"].form
    assert list(form.errors) == ["details"]
    assert form["details"].value() == details


@in_one_test("params", REFUSED.values(), ids=REFUSED.keys())
def test_parameters_of_a_schedule_that_cannot_be_stored_are_an_error_at_their_field(
    root: Client, tenant: Tenant, params: str
) -> None:
    answer = root.post(reverse("admin:pipelines_schedule_add"), {"tenant": str(tenant.pk), "params": params})

    assert answer.status_code == 200
    form = answer.context["adminform"].form
    assert "params" in form.errors
    assert form["params"].value() == params


@pytest.mark.parametrize("details", ['{"a": 1}', "{}", "", "null"])
def test_other_json_is_stored(root: Client, tenant: Tenant, details: str) -> None:
    answer = root.post(reverse("admin:tenants_channel_add"), _channel(tenant, details=details))

    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert root.get(list_url(Channel)).status_code == 200


@in_one_test("value", ["x", "99999999999999999999", "\x00"])
def test_an_invalid_id_of_a_tenant_is_an_error_at_its_field(root: Client, tenant: Tenant, value: str) -> None:
    answer = root.post(reverse("admin:tenants_channel_add"), _channel(tenant, tenant=value))

    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == ["tenant"]
    assert b'value="Mail"' in answer.content


@pytest.mark.parametrize("model", [Agent, Plan, RetentionPass])
@pytest.mark.parametrize("page", ["change", "history", "delete"])
def test_an_address_with_a_null_character_has_no_row(root: Client, model: Any, page: str) -> None:
    assert admin.site.is_registered(model)

    answer = root.get(f"{list_url(model)}%00/{page}/")

    assert answer.status_code in (302, 403)


def test_a_null_character_in_a_choice_is_an_error_at_its_field(root: Client, tenant: Tenant) -> None:
    answer = root.post(reverse("admin:agents_agentconfig_add"), {"tenant": str(tenant.pk), "agent": "\x00"})

    assert answer.status_code == 200
    assert "agent" in answer.context["adminform"].form.errors


@in_one_test(
    ("field", "value"), [("minute", "-1"), ("hour", "-1"), ("day_of_week", "-1"), ("minute", "x" * 1_000)]
)
def test_an_invalid_cron_expression_is_an_error_at_its_field(root: Client, field: str, value: str) -> None:
    cron = dict.fromkeys(("minute", "hour", "day_of_month", "month_of_year", "day_of_week"), "*")

    answer = root.post(
        reverse("admin:django_celery_beat_crontabschedule_add"), {**cron, "timezone": "UTC", field: value}
    )

    assert answer.status_code == 200
    assert field in answer.context["adminform"].form.errors


def test_an_invalid_name_of_a_task_is_an_error_at_its_field(root: Client) -> None:
    answer = root.post(reverse("admin:django_celery_beat_periodictask_add"), {"name": "x", "task": "x" * 201})

    assert answer.status_code == 200
    assert "at most 200 characters" in str(answer.context["adminform"].form.errors["task"])


@in_one_test("field", ["args", "kwargs"])
def test_deeply_nested_arguments_of_a_task_are_an_error_at_their_field(root: Client, field: str) -> None:
    sent = {"name": "x", "task": "activities.tick", "args": "[]", "kwargs": "{}", field: "[" * 5_000}

    answer = root.post(reverse("admin:django_celery_beat_periodictask_add"), sent)

    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors[field] == ["This JSON is nested too deeply."]


@in_one_test("key", ["no-uuid", "\x00", "", "9" * 30])
def test_an_action_with_an_id_that_no_row_can_have_does_nothing_and_says_so(root: Client, key: str) -> None:
    for model, action in (
        (Channel, "delete_selected"),
        (Schedule, "disable_selected"),
        (Group, "delete_selected"),
        (PeriodicTask, "run_tasks"),
    ):
        answer = root.post(list_url(model), {"action": action, "_selected_action": [key], "post": "yes"})

        assert (answer.status_code, answer["Location"]) == (302, list_url(model)), model
        assert messages_of(answer), model
