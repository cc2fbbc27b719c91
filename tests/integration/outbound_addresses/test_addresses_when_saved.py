"""Forbidden addresses are refused by every endpoint and form that stores addresses, and every such place is known here."""

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
from tests.browsing import list_url
from tests.hostile_addresses import GOOD_URL, HOSTILE_URLS
from tests.integration.outbound_addresses.schema import members_of
from tests.integration.test_api_openapi import operations
from tests.registry import temporary_agent
from tests.superusers import create_superuser

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("database")]


@pytest.fixture
def root(database: None) -> Client:
    browser = Client()
    browser.force_login(create_superuser())
    return browser


def test_the_list_of_hostile_addresses_is_long() -> None:
    assert len(HOSTILE_URLS) > 100


@dataclass(frozen=True)
class AddressField:
    """A field of a request that stores an address."""

    method: str
    address: str
    member: str
    body: Mapping[str, Any]


ADDRESS_FIELDS = {
    "config": AddressField("put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "http"}),
    "config, model": AddressField(
        "put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "openai", "model": "m"}
    ),
    "config, other model": AddressField(
        "put", "/api/v1/agent-configs/qa/", "endpoint", {"adapter": "anthropic", "model": "m"}
    ),
    "agent": AddressField("post", "/api/v1/agents/", "endpoint", {"role": "scout", "name": "Scout"}),
    "agent, model": AddressField(
        "post", "/api/v1/agents/", "endpoint", {"role": "scout", "name": "Scout", "adapter": "openai"}
    ),
    "agent, health": AddressField(
        "post", "/api/v1/agents/", "health_url", {"role": "scout", "name": "Scout"}
    ),
    "agent, replaced": AddressField("put", "/api/v1/agents/scribe/", "endpoint", {"name": "Scribe"}),
    "agent, changed": AddressField("patch", "/api/v1/agents/scribe/", "endpoint", {}),
    "agent, health changed": AddressField("patch", "/api/v1/agents/scribe/", "health_url", {}),
    "deployment": AddressField(
        "post",
        "/api/v1/agents/scribe/deployments/",
        "endpoint",
        {"version": "1.0.0", "environment": "staging"},
    ),
    "webhook": AddressField(
        "post", "/api/v1/notification-channels/", "target", {"kind": "webhook", "name": "w"}
    ),
    "slack": AddressField("post", "/api/v1/notification-channels/", "target", {"kind": "slack", "name": "s"}),
    "webhook of events": AddressField("post", "/api/v1/webhooks/", "url", {}),
    "webhook of events, changed": AddressField("put", "/api/v1/webhooks/{hook}/", "url", {}),
    "data source": AddressField(
        "post", "/api/v1/datasets/", "location", {"name": "x", "source": "api", "fields": {"id": "string"}}
    ),
    "data source, changed": AddressField("patch", "/api/v1/datasets/rates/", "location", {}),
}


@pytest.fixture
def scribe(database: None) -> Iterator[Agent]:
    """A registered agent. A test may create another one named `scout`."""
    with temporary_agent("scribe") as agent:
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


@pytest.mark.parametrize("name", ADDRESS_FIELDS)
def test_no_endpoint_accepts_a_forbidden_address(
    api: Any, scribe: Agent, rates: Dataset, hook: WebhookEndpoint, hostile: tuple[str, ...], name: str
) -> None:
    field, client = ADDRESS_FIELDS[name], api("admin", platform=True)
    before = addresses_in_the_database()

    # A part of the list, because all fields use the function that `tests/unit/test_outbound_addresses.py` tests with all of it.
    for url in (*hostile[::40], *hostile[-4:]):
        answer = getattr(client, field.method)(
            field.address.replace("{hook}", str(hook.pk)), {**field.body, field.member: url}
        )

        assert answer.status_code == 400, (url, answer.content)
        assert field.member in [fault["path"] for fault in answer.json()["errors"]], (url, answer.content)
    assert addresses_in_the_database() == before


@pytest.mark.parametrize("name", ADDRESS_FIELDS)
def test_every_endpoint_accepts_a_public_address(
    api: Any, scribe: Agent, rates: Dataset, hook: WebhookEndpoint, name: str
) -> None:
    """This proves that the refusals above are about the address."""
    field, client = ADDRESS_FIELDS[name], api("admin", platform=True)

    answer = getattr(client, field.method)(
        field.address.replace("{hook}", str(hook.pk)), {**field.body, field.member: GOOD_URL}
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
def test_no_form_of_the_admin_accepts_a_forbidden_address(
    root: Client, tenant: Tenant, scribe: Agent, hostile: tuple[str, ...], name: str
) -> None:
    model, field, other_fields = FORMS[name]
    before = addresses_in_the_database()

    for url in (
        hostile[:1] + hostile[-3:]
    ):  # because the rules are those of the API, a few addresses prove that they apply
        answer = root.post(f"{list_url(model)}add/", {"tenant": str(tenant.pk), **other_fields, field: url})

        assert answer.status_code == 200, url
        assert answer.context["adminform"].form.errors.get(field), (
            url,
            answer.context["adminform"].form.errors,
        )
    assert addresses_in_the_database() == before
    accepted = root.post(
        f"{list_url(model)}add/", {"tenant": str(tenant.pk), **other_fields, field: GOOD_URL}
    )
    assert accepted.status_code == 302, accepted.context["adminform"].form.errors


#: Names of columns and fields that suggest an address.
SUGGESTS_ADDRESS = re.compile(
    r"(^|_)(url|uri|endpoint|address|location|target|webhook|href|link|host|hostname|site|domain|proxy)(_|$)",
    re.I,
)
#: Columns with an address that is called. All of them are set through a field above.
GUARDED_COLUMNS = {
    "agents.Agent.endpoint", "agents.Agent.health_url", "agents.AgentVersionDeployment.endpoint", "agents.AgentConfig.endpoint",
    "activities.NotificationChannel.target_sealed", "pipelines.Dataset.location", "tenants.WebhookEndpoint.url",
}  # fmt: skip
#: Columns whose name only suggests an address, with what they hold.
OTHER_COLUMNS = {
    "activities.Activity.link_kind": "how an activity belongs to its parent",
    "activities.NotificationChannel.target_shown": "host and port for display; never called",
    "activities.ActivityEvent.target": "the status after an event",
    "activities.LeaderLease.host": "the name of a machine, written by the process that leads",
    "activities.WorkerProcess.host": "the name of a machine, written by its worker",
    "pipelines.Schedule.target_type": "agent or pipeline",
}
#: Fields of request bodies whose name only suggests an address.
OTHER_FIELDS = {
    "target_type": "agent or pipeline",
}


def _own_columns() -> Iterator[tuple[str, models.Field[Any, Any]]]:
    for model in apps.get_models():
        if model._meta.app_label in ("tenants", "agents", "activities", "pipelines", "console"):
            for column in model._meta.concrete_fields:
                yield f"{model._meta.app_label}.{model.__name__}.{column.name}", column


def test_every_column_that_may_hold_an_address_is_known() -> None:
    """A new column fails here until it is in `ADDRESS_FIELDS` or `FORMS`, or has a reason why it is never called."""
    found = {
        name
        for name, column in _own_columns()
        if isinstance(column, models.URLField)
        or (isinstance(column, (models.CharField, models.TextField)) and SUGGESTS_ADDRESS.search(column.name))
    }

    assert found - OTHER_COLUMNS.keys() == GUARDED_COLUMNS
    assert found >= OTHER_COLUMNS.keys()


def test_every_field_of_a_body_that_may_be_an_address_is_tested() -> None:
    entered = {
        (field.method, re.sub(r"/(qa|scribe|rates|\{hook\})/", "/{}/", field.address), field.member)
        for field in ADDRESS_FIELDS.values()
    }
    known = {(address, member) for _, address, member in entered}
    found = set()
    for _, address, operation in operations():
        content = operation.get("requestBody", {}).get("content", {})
        for name, member in members_of(content.get("application/json", {}).get("schema", {})):
            is_similar = SUGGESTS_ADDRESS.search(name) and member.get("type", "string") in (
                "string",
                ["string", "null"],
            )
            if (is_similar or member.get("format") in ("uri", "url")) and name not in OTHER_FIELDS:
                found.add((re.sub(r"\{\w+\}", "{}", address), name))

    # A replacement uses the same serializer and check as the creation.
    replacements = {
        ("/api/v1/notification-channels/{}/", "target"),
        ("/api/v1/datasets/{}/", "location"),
        ("/api/v1/agents/{}/", "health_url"),
        ("/api/v1/webhooks/{}/", "url"),
    }
    assert found <= known | replacements, f"not in ADDRESS_FIELDS: {found - known - replacements}"
    assert {member for _, member in found} == {"endpoint", "health_url", "target", "location", "url"}
