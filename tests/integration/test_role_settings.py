"""The statement that reads the settings of a role returns the same as the ORM, whatever the columns hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from django.db import models

from agents import configuration, credentials, deployments, scheduler_settings, skills
from agents.exceptions import ConfigurationError
from agents.models import Agent, AgentConfig, PlatformConfig, Skill
from tenants.context import OWNER, tenant_scope
from tenants.models import Budget, Tenant
from tests.registry import temporary_agent

pytestmark = pytest.mark.usefixtures("database")

ROLE = "scribe"
#: JSON that is easily changed by conversions: numbers beyond 64 bits, exact, with an exponent, and false values.
HARD: dict[str, Any] = {
    "wide": 2**70 + 1,
    "exact": 0.1,
    "small": 1.5e-7,
    "large": 6e23,
    "whole": 3.0,
    "negative": -(2**63),
    "text": "é \u2028 \\ \" ' %(x)s 2026-01-01T00:00:00Z",
    "nothing": None,
    "": [0, "", False, {}, [[]], {"a": {"b": 1}}],
}
TEXT = "line\none\ttwo é 🎉 \\ \" ' %s %(role)s"
MOMENT = datetime(2026, 3, 29, 1, 30, 0, 120, tzinfo=UTC)
LARGEST = 2**31 - 1


@pytest.fixture(autouse=True)
def scribe(database: None) -> Iterator[Agent]:
    with temporary_agent(ROLE) as agent:
        yield agent


def fill(row: Agent | AgentConfig) -> None:
    """Set every column to a value that differs from its default and is easily changed by conversions."""
    for field in row._meta.concrete_fields:
        if field.primary_key or isinstance(field, models.ForeignKey):
            continue
        setattr(row, field.attname, _hard_value(field))
    row.save(using=OWNER if isinstance(row, Agent) else None)


def _hard_value(field: models.Field[Any, Any]) -> Any:
    if field.choices:
        return [value for value, _ in field.flatchoices if value != field.get_default()][-1]
    if isinstance(field, models.JSONField):
        return HARD
    if isinstance(field, models.DateTimeField):
        return MOMENT
    if isinstance(field, models.BooleanField):
        return not field.get_default()
    if isinstance(field, models.PositiveIntegerField):
        return LARGEST
    assert isinstance(field, models.CharField | models.TextField), (
        f"{field}: choose a difficult value for this type here"
    )
    return TEXT[: field.max_length]


def differences(model: type[models.Model], text: str, by_orm: models.Model) -> list[tuple[Any, ...]]:
    """The columns for which the two ways differ in value or type."""
    by_statement = configuration._row_of(model, text)
    assert (by_statement.pk, by_statement._state.adding) == (by_orm.pk, False)
    both = [
        (name, getattr(by_statement, name), getattr(by_orm, name))
        for name in (field.attname for field in model._meta.concrete_fields)
    ]
    return [(name, one, other) for name, one, other in both if _plain(one) != _plain(other)]


def _plain(value: Any) -> tuple[Any, ...]:
    # The text is compared as well, because 3 and 3.0, 1 and True, and objects with another order of members are equal.
    offset = value.utcoffset() if isinstance(value, datetime) else None
    return type(value), value, offset, json.dumps(value, default=str)


def test_the_statement_returns_each_column_as_the_orm_does(scribe: Agent, tenant: Tenant) -> None:
    fill(scribe)
    with tenant_scope(tenant.pk):
        fill(AgentConfig(tenant=tenant, agent_id=ROLE))

        (row,) = configuration._ROLE_SETTINGS.run({"tenant": tenant.pk, "role": ROLE})
        agent, own = Agent.objects.get(role=ROLE), AgentConfig.objects.get(agent_id=ROLE)

        assert differences(Agent, row.agent, agent) == []
        assert differences(AgentConfig, row.own, own) == []


def test_empty_columns_stay_empty(scribe: Agent, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id=ROLE)

        (row,) = configuration._ROLE_SETTINGS.run({"tenant": tenant.pk, "role": ROLE})

        assert differences(Agent, row.agent, Agent.objects.get(role=ROLE)) == []
        assert differences(AgentConfig, row.own, AgentConfig.objects.get(agent_id=ROLE)) == []


def test_the_statement_returns_the_platform_settings_as_stored(tenant: Tenant) -> None:
    value = {"http_client": {"timeout": 90_000.0, "unknown": HARD}, "unknown": HARD}
    PlatformConfig.objects.using(OWNER).create(key=scheduler_settings.KEY, value=value)
    with tenant_scope(tenant.pk):
        (row,) = configuration._ROLE_SETTINGS.run({"tenant": tenant.pk, "role": ROLE})

    stored = PlatformConfig.objects.get(key=scheduler_settings.KEY).value
    assert _plain(json.loads(row.platform)) == _plain(stored)


def test_encrypted_credentials_are_decrypted_to_the_original(scribe: Agent, tenant: Tenant) -> None:
    auth = {"type": "bearer", "token": f"secret {TEXT}"}
    with tenant_scope(tenant.pk):
        context = credentials.config_context(tenant.pk, ROLE)
        AgentConfig.objects.create(
            tenant=tenant, agent_id=ROLE, auth_sealed=credentials.seal(auth, context=context)
        )

    assert dict(configuration._read(tenant.pk, ROLE).adapter.auth) == auth


def test_a_process_without_the_encryption_keys_reads_all_settings_but_those_for_calls(
    scribe: Agent, tenant: Tenant, settings: Any
) -> None:
    with tenant_scope(tenant.pk):
        context = credentials.config_context(tenant.pk, ROLE)
        AgentConfig.objects.create(
            tenant=tenant, agent_id=ROLE, retry={"max_attempts": 7}, auth_sealed=credentials.seal({}, context=context)
        )  # fmt: skip
    with_keys = configuration._read(tenant.pk, ROLE)
    settings.FIELD_ENCRYPTION_KEYS = []

    without = configuration._read(tenant.pk, ROLE)

    assert replace(without, adapter_settings=with_keys.adapter) == with_keys
    with pytest.raises(ConfigurationError, match="not in FIELD_ENCRYPTION_KEYS"):
        _ = without.adapter


@pytest.mark.parametrize("environment", ["production", "staging"])
def test_only_a_version_in_production_is_used(tenant: Tenant, environment: str) -> None:
    for version in ("1.0.0", "1.1.0"):
        deployments.deploy(ROLE, version, environment, actor="test", endpoint=f"https://{version}.example/")

    deployed = deployments.in_production(ROLE)
    assert configuration._read(tenant.pk, ROLE).adapter.version == (deployed.version if deployed else None)
    assert (deployed is not None) == (environment == "production")


@pytest.mark.parametrize(
    ("fields", "has_skills"),
    [({}, True), ({"roles": [ROLE]}, True), ({"roles": ["qa"]}, False), ({"enabled": False}, False)],
)
def test_a_role_has_skills_if_an_enabled_skill_of_the_tenant_applies_to_it(
    tenant: Tenant, other_tenant: Tenant, fields: dict[str, Any], has_skills: bool
) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.create(tenant=tenant, key="house", name="House", content="x", **fields)
        knowledge = skills.read_knowledge(tenant.pk, ROLE, with_texts=False)

    assert configuration._read(tenant.pk, ROLE).has_skills == bool(knowledge) == has_skills
    assert not configuration._read(other_tenant.pk, ROLE).has_skills


@pytest.mark.parametrize(
    ("fields", "is_budgeted"),
    [
        ({}, True),
        ({"agent_role": ROLE}, True),
        ({"agent_role": "qa"}, False),
        ({"deleted_at": MOMENT}, False),
    ],
)
def test_a_role_is_budgeted_if_a_budget_applies_to_it_or_to_all_roles(
    tenant: Tenant, other_tenant: Tenant, fields: dict[str, Any], is_budgeted: bool
) -> None:
    month: dict[str, Any] = {"unit": "usd", "period": "month", "period_start": date(2026, 1, 1)}
    with tenant_scope(tenant.pk):
        Budget.objects.create(tenant=tenant, name="All", cap=1, **month, **fields)

    assert configuration._read(tenant.pk, ROLE).budgeted == is_budgeted
    assert not configuration._read(other_tenant.pk, ROLE).budgeted
