"""No address that may not be called comes in by any door, nor does a door stay unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.test import Client

from activities.models import NotificationChannel
from agents.models import Agent, AgentConfig, AgentVersionDeployment
from pipelines.models import Dataset
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.models.events import WebhookEndpoint
from tests.browsing import list_of
from tests.integration.outbound_addresses.schema import members_of
from tests.integration.test_api_openapi import operations
from tests.outside import GOOD_URL, HOSTILE_URLS
from tests.registry import registered
from tests.superusers import seeing_all

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("database")]


@pytest.fixture
def root(database: None) -> Client:
    browser = Client()
    browser.force_login(seeing_all())
    return browser


def test_the_list_has_more_spellings_than_anybody_needs_to_get_in() -> None:
    assert len(HOSTILE_URLS) > 100


@dataclass(frozen=True)
class Door:
    """Where an address is entered: the request that enters it, and the member that it is."""

    method: str
    address: str
    member: str
    body: Mapping[str, Any]


DOORS = {
    "config": Door("put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "http"}),
    "config, model": Door(
        "put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "openai", "model": "m"}
    ),
    "config, other model": Door(
        "put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "anthropic", "model": "m"}
    ),
    "agent": Door("post", "/api/v1/agents/", "endpoint", {"role": "scout", "name": "Scout"}),
    "agent, model": Door(
        "post", "/api/v1/agents/", "endpoint", {"role": "scout", "name": "Scout", "adapter": "openai"}
    ),
    "agent, health": Door("post", "/api/v1/agents/", "health_url", {"role": "scout", "name": "Scout"}),
    "agent, replaced": Door("put", "/api/v1/agents/scribe/", "endpoint", {"name": "Scribe"}),
    "agent, changed": Door("patch", "/api/v1/agents/scribe/", "endpoint", {}),
    "agent, health changed": Door("patch", "/api/v1/agents/scribe/", "health_url", {}),
    "deployment": Door(
        "post",
        "/api/v1/agents/scribe/deployments/",
        "endpoint",
        {"version": "1.0.0", "environment": "staging"},
    ),
    "webhook": Door("post", "/api/v1/notification-channels/", "target", {"kind": "webhook", "name": "w"}),
    "slack": Door("post", "/api/v1/notification-channels/", "target", {"kind": "slack", "name": "s"}),
    "webhook of events": Door("post", "/api/v1/webhooks/", "url", {}),
    "webhook of events, changed": Door("put", "/api/v1/webhooks/{hook}/", "url", {}),
    "data source": Door(
        "post", "/api/v1/datasets/", "location", {"name": "x", "source": "api", "fields": {"id": "string"}}
    ),
    "data source, changed": Door("patch", "/api/v1/datasets/rates/", "location", {}),
}
WHOLE = "config"


@pytest.fixture
def scribe(database: None) -> Iterator[Agent]:
    """An agent of the registry; one called `scout` may come into being beside it."""
    with registered("scribe") as agent:
        yield agent
    with system_scope():
        Agent.objects.filter(role="scout").delete()


@pytest.fixture
def rates(tenant: Tenant) -> Dataset:
    with tenant_scope(tenant.pk):
        return Dataset.objects.create(
            tenant=tenant, name="rates", source="api", fields={"id": "string"}, location=GOOD_URL
        )


@pytest.fixture
def hook(tenant: Tenant) -> WebhookEndpoint:
    with tenant_scope(tenant.pk):
        return WebhookEndpoint.objects.create(tenant=tenant, url=GOOD_URL)


def addresses_in_the_database() -> set[str]:
    with system_scope():
        return {
            value
            for model, field in ((AgentConfig, "endpoint"), (Agent, "endpoint"), (Agent, "health_url"), (Dataset, "location"),
                                 (AgentVersionDeployment, "endpoint"), (NotificationChannel, "target_shown"), (WebhookEndpoint, "url"))
            for value in model.objects.values_list(field, flat=True)  # type: ignore[attr-defined]
            if value and (":/" in value or field == "target_shown")
        }  # fmt: skip


@pytest.mark.parametrize("name", DOORS)
def test_no_door_lets_an_address_in_that_may_not_be_called(
    api: Any, scribe: Agent, rates: Dataset, hook: WebhookEndpoint, hostile: tuple[str, ...], name: str
) -> None:
    door, client = DOORS[name], api("admin", platform=True)
    before = addresses_in_the_database()

    # One door gets the whole list; the others, which ask the same function, the worst of it.
    for url in hostile if name == WHOLE else (*hostile[::40], *hostile[-4:]):
        answer = getattr(client, door.method)(
            door.address.replace("{hook}", str(hook.pk)), {**door.body, door.member: url}
        )

        assert answer.status_code == 400, (url, answer.content)
        assert door.member in [fault["path"] for fault in answer.json()["errors"]], (url, answer.content)
    assert addresses_in_the_database() == before


@pytest.mark.parametrize("name", DOORS)
def test_the_same_door_lets_a_public_address_in(
    api: Any, scribe: Agent, rates: Dataset, hook: WebhookEndpoint, name: str
) -> None:
    """So that the refusals above are about the address and nothing else."""
    door, client = DOORS[name], api("admin", platform=True)

    answer = getattr(client, door.method)(
        door.address.replace("{hook}", str(hook.pk)), {**door.body, door.member: GOOD_URL}
    )

    assert answer.status_code in (200, 201), answer.content


#: Forms of the admin: the model, the field, and what else the form needs.
FORMS: dict[str, tuple[Any, str, dict[str, str]]] = {
    "config": (AgentConfig, "endpoint", {"agent": "qa", "adapter": "http", "enabled": "on", "retry": "{}", "rate": "{}", "backlog": "{}"}),
    "agent": (Agent, "endpoint", {
        "role": "scout", "name": "Scout", "adapter": "http", "enabled": "on", "options": "{}", "retry": "{}", "backlog": "{}",
        "tenant_concurrency": "5", "input_schema": "null",
    }),
    "agent, health": (Agent, "health_url", {
        "role": "scout", "name": "Scout", "adapter": "http", "enabled": "on", "options": "{}", "retry": "{}", "backlog": "{}",
        "tenant_concurrency": "5", "input_schema": "null",
    }),
    "deployment": (AgentVersionDeployment, "endpoint", {"agent": "scribe", "version": "1.0.0", "environment": "staging"}),
    "channel": (NotificationChannel, "new_target", {"kind": "webhook", "name": "w", "enabled": "on"}),
    "data source": (Dataset, "location", {"name": "x", "source": "api", "fields": '{"id": "string"}'}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_no_form_of_the_admin_lets_such_an_address_in(
    root: Client, tenant: Tenant, scribe: Agent, hostile: tuple[str, ...], name: str
) -> None:
    model, field, filled = FORMS[name]
    before = addresses_in_the_database()

    for url in hostile[:1] + hostile[-3:]:  # the rules are the API's; here it is proved that they are asked
        answer = root.post(f"{list_of(model)}add/", {"tenant": str(tenant.pk), **filled, field: url})

        assert answer.status_code == 200, url
        assert answer.context["adminform"].form.errors.get(field), (
            url,
            answer.context["adminform"].form.errors,
        )
    assert addresses_in_the_database() == before
    kept = root.post(f"{list_of(model)}add/", {"tenant": str(tenant.pk), **filled, field: GOOD_URL})
    assert kept.status_code == 302, kept.context["adminform"].form.errors


#: A name that sounds like an address, in a column or in the body of a request.
SOUNDS = re.compile(
    r"(^|_)(url|uri|endpoint|address|location|target|webhook|href|link|host|hostname|site|domain|proxy)(_|$)",
    re.I,
)
#: Columns that hold an address which is called, all of them entered through a door above.
GUARDED_COLUMNS = {
    "agents.Agent.endpoint", "agents.Agent.health_url", "agents.AgentVersionDeployment.endpoint", "agents.AgentConfig.endpoint",
    "activities.NotificationChannel.target_sealed", "pipelines.Dataset.location", "tenants.WebhookEndpoint.url",
}  # fmt: skip
#: Columns that only sound like one, with what they hold.
NO_ADDRESSES = {
    "activities.Activity.link_kind": "how an activity belongs to its parent",
    "activities.NotificationChannel.target_shown": "host and port, to be recognised; nobody calls it",
    "activities.ActivityEvent.target": "the status that an activity came to",
    "activities.LeaderLease.host": "the name of a machine, written by the process that leads",
    "activities.WorkerProcess.host": "the name of a machine, written by its worker",
    "pipelines.Schedule.target_type": "agent or pipeline",
}
#: Members of request bodies that only sound like one.
NO_ADDRESS_MEMBERS = {
    "target_type": "agent or pipeline",
}


def _own_columns() -> Iterator[tuple[str, models.Field[Any, Any]]]:
    for model in apps.get_models():
        if model._meta.app_label in ("tenants", "agents", "activities", "pipelines", "console"):
            for column in model._meta.concrete_fields:
                yield f"{model._meta.app_label}.{model.__name__}.{column.name}", column


def test_every_column_that_may_hold_an_address_is_known() -> None:
    """A new one fails here until it has a door in `DOORS` or `FORMS`, or a reason why nobody calls it."""
    found = {
        name
        for name, column in _own_columns()
        if isinstance(column, models.URLField)
        or (isinstance(column, (models.CharField, models.TextField)) and SOUNDS.search(column.name))
    }

    assert found - NO_ADDRESSES.keys() == GUARDED_COLUMNS
    assert found >= NO_ADDRESSES.keys()


def test_every_member_of_a_body_that_may_be_an_address_has_a_door() -> None:
    entered = {
        (door.method, re.sub(r"/(qa|scribe|rates|\{hook\})/", "/{}/", door.address), door.member)
        for door in DOORS.values()
    }
    doors = {(address, member) for _, address, member in entered}
    found = set()
    for _, address, operation in operations():
        content = operation.get("requestBody", {}).get("content", {})
        for name, member in members_of(content.get("application/json", {}).get("schema", {})):
            sounds = SOUNDS.search(name) and member.get("type", "string") in ("string", ["string", "null"])
            if (sounds or member.get("format") in ("uri", "url")) and name not in NO_ADDRESS_MEMBERS:
                found.add((re.sub(r"\{\w+\}", "{}", address), name))

    # A replacement takes the same members as what made the thing, through the same serializer and check.
    twins = {
        ("/api/v1/notification-channels/{}/", "target"),
        ("/api/v1/datasets/{}/", "location"),
        ("/api/v1/agents/{}/", "health_url"),
        ("/api/v1/webhooks/{}/", "url"),
    }
    assert found <= doors | twins, f"no door in DOORS for {found - doors - twins}"
    assert {member for _, member in found} == {"endpoint", "health_url", "target", "location", "url"}
