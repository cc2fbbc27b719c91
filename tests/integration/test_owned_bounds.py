"""Limits on how many objects a tenant may own, however they are created and however many at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from activities.mailboxes.producer import open_mailbox
from agents.models import Skill
from tenants import bounds, tokens
from tenants.bounds import TooManyOwned
from tenants.context import system_scope, tenant_scope
from tenants.models import SavedView, Tenant
from tests.answers import problem
from tests.engine import simultaneously

API = "/api/v1/"
STEP = {"id": "a", "agent_role": "qa"}
SCHEDULE = {
    "description": "",
    "cron": "0 9 * * *",
    "target_type": "agent",
    "agent_role": "qa",
    "params": {},
    "repeat": "repeating",
}


def set_limits(tenant: Tenant, **limits: int) -> None:
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(bounds=limits)


@pytest.mark.parametrize(
    ("kind", "address", "body"),
    [
        pytest.param("pipelines", "pipelines/", {"key": "{}", "name": "{}", "steps": [STEP]}, id="pipelines"),
        pytest.param(
            "templates", "templates/", {"key": "{}", "name": "{}", "agent_role": "qa"}, id="templates"
        ),
        pytest.param("skills", "skills/", {"key": "{}", "name": "{}", "content": "Be kind."}, id="skills"),
        pytest.param("schedules", "schedules/", {"name": "{}", **SCHEDULE}, id="schedules"),
    ],
)
def test_an_object_above_the_limit_of_the_tenant_is_refused(
    api: Any, acme: Tenant, kind: str, address: str, body: dict[str, Any]
) -> None:
    set_limits(acme, **{kind: 2})

    def make(name: str) -> Any:
        value = {key: value.format(name) if isinstance(value, str) else value for key, value in body.items()}
        return api("admin").post(API + address, value)

    first, second = make("one"), make("two")
    refused = make("three")

    assert (first.status_code, second.status_code) == (201, 201), (first.content, second.content)
    assert "There are 2" in problem(refused, 409, "too_many_owned")["detail"]
    set_limits(acme)
    assert make("three").status_code == 201, "without a limit of its own the tenant has the platform's"


def test_versions_of_pipelines_are_limited_and_existing_ones_stay(api: Any, acme: Tenant) -> None:
    set_limits(acme, pipeline_versions=1)
    address = f"{API}pipelines/flow/"
    client = api("admin")

    assert client.put(address, {"name": "Flow", "steps": [STEP]}).status_code == 201
    problem(client.put(address, {"name": "Other", "steps": [STEP]}), 409, "too_many_owned")

    assert client.get(address).json()["name"] == "Flow"


def test_revoked_tokens_do_not_count(acme: Tenant, other_tenant: Tenant) -> None:
    set_limits(acme, tokens=1)
    first, _ = tokens.create(acme, name="one", role="viewer")
    with pytest.raises(TooManyOwned):
        tokens.create(acme, name="two", role="viewer")
    tokens.create(other_tenant, name="theirs", role="viewer")

    tokens.revoke(first)

    tokens.create(acme, name="two", role="viewer")


def test_mailboxes_and_saved_views_are_limited_and_existing_ones_stay_open(acme: Tenant) -> None:
    set_limits(acme, mailboxes=1, saved_views=0)
    with tenant_scope(acme.pk):
        assert open_mailbox(acme.pk, "one").pk == open_mailbox(acme.pk, "one").pk
    with tenant_scope(acme.pk), pytest.raises(TooManyOwned):
        open_mailbox(acme.pk, "two")
    with tenant_scope(acme.pk), pytest.raises(TooManyOwned):
        SavedView.objects.create(tenant=acme, page="inbox", name="mine", query="")


def test_of_several_creations_at_once_only_those_within_the_limit_succeed(acme: Tenant) -> None:
    set_limits(acme, skills=1)

    def make(key: str) -> None:
        with tenant_scope(acme.pk):
            Skill.objects.create(tenant=acme, key=key, name=key, content="Be kind.")

    outcomes = simultaneously(*[lambda number=number: make(f"skill-{number}") for number in range(6)])

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["TooManyOwned"] * 5]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([], id="a list"),
        pytest.param({"houses": 3}, id="an unknown kind"),
        pytest.param({"skills": -1}, id="less than none"),
        pytest.param({"skills": True}, id="no number"),
    ],
)
def test_invalid_limits_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        bounds.check_bounds(value)
