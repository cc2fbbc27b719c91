"""What holds for a role at a tenant: the platform's defaults, the registry's row, the version in production, the tenant's own on top.

Kept by each process until it changes, which a process sees within a second: the hot path asks nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import models

from agents import credentials, deployments, scheduler_settings, sessions
from agents.contracts import BATCHES_OF, AdapterSettings
from agents.exceptions import AgentError, RoleNotFound
from agents.models import Agent, AgentConfig, AgentVersionDeployment
from agents.scheduler_settings import SchedulerSettings
from tenants.caches import KeptConfiguration
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tenants.sql import Statement

DEFAULT_ATTEMPTS = 3
BATCH_ATTEMPTS = 5  # a try costs half, and its failure is often that of the batch
ROLES_KEPT_SECONDS = 1.0
_ROLE_SETTINGS = Statement.load(Path(__file__).parent / "sql", "role_settings")


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """The settings in force. `retry` holds what differs from the default policy."""

    adapter: AdapterSettings
    timeout_seconds: int
    retry: Mapping[str, Any]
    rate: Mapping[str, float]  # `capacity` and `per_second` of starts; empty for no limit
    backlog: Mapping[str, Any]  # `max_waiting`, `when_full`, `expire_after_seconds`; empty for the defaults
    enabled: bool
    input_schema: Mapping[str, Any] | None
    instructions: str
    has_skills: bool
    budgeted: bool  # whether its runs may fall under a budget
    briefing: str  # digest of what the agent is told it is, but for its skills


_kept: KeptConfiguration[RoleSettings] = KeptConfiguration()
_roles: tuple[float, frozenset[str]] = (0.0, frozenset())


def settings_for(tenant_id: UUID, role: str) -> RoleSettings:
    """Raises `RoleNotFound`. Opens its own `tenant_scope` when none is open."""
    return _kept.get(tenant_id, role, partial(_read, tenant_id, role))


def attempts_of(tenant_id: UUID, role: str | None) -> int:
    """The number of attempts for work that names none: from the settings of its role. Never raises for a role."""
    try:
        found = settings_for(tenant_id, role).retry.get("max_attempts") if role else None
    except RoleNotFound:
        found = None
    return int(found or DEFAULT_ATTEMPTS)


def tenant_with_plan(tenant_id: UUID) -> Tenant:
    """For `cap_of`. In the caller's `tenant_scope`."""
    found: Tenant = Tenant.objects.select_related("plan").get(pk=tenant_id)
    return found


def cap_of(tenant: Tenant, agent: Agent, config: AgentConfig | None) -> int:
    """How many activities of a role a tenant may run at once: by its own settings, else by its plan, else by the registry."""
    if config is not None and config.max_concurrency is not None:
        return config.max_concurrency
    of_plan = tenant.cap_of_role(agent.role)
    return agent.tenant_concurrency if of_plan is None else of_plan


def default_timeout(platform: SchedulerSettings) -> int:
    """The timeout in seconds for a role that names none: from the platform's settings, else from the environment."""
    return platform.timeout_seconds or int(settings.ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS)


def in_force(platform: SchedulerSettings) -> dict[str, int]:
    """By path of the setting, what holds for a role that says nothing, of those that the defaults of all work go before while unset."""
    return {
        "http_client.timeout": default_timeout(platform) * 1000,
        "http_client.retry_config.max_retries": platform.retry.get("max_attempts", DEFAULT_ATTEMPTS) - 1,
    }


def list_roles() -> frozenset[str]:
    """All roles of the registry that are not switched off."""
    now = time.monotonic()
    if now - _roles[0] > ROLES_KEPT_SECONDS or not _roles[1]:
        return present_roles()
    return _roles[1]


def present_roles() -> frozenset[str]:
    """As `list_roles`, asked of PostgreSQL."""
    global _roles
    _roles = (
        time.monotonic(),
        frozenset(Agent.objects.filter(enabled=True).values_list("role", flat=True)),
    )
    return _roles[1]


def adapters_of(
    tenant_id: UUID, agents: Iterable[Agent], own: Mapping[str, AgentConfig]
) -> dict[str, AdapterSettings]:
    """How each of these is reached for the tenant, whose own settings are given by role: for pages, in two statements however many there
    are. One whose credentials nobody can open is left out. In the caller's `tenant_scope`."""
    chosen, platform = {agent.role: agent for agent in agents}, scheduler_settings.current()
    slug = _slug_for_rules(tenant_id)
    serving = {found.agent_id: found for found in deployments.serving(chosen)}
    reached = {}
    for role, agent in chosen.items():
        config = own.get(role) or _nothing_own(tenant_id, role)
        with suppress(AgentError):
            reached[role] = _adapter(slug, agent, config, serving.get(role), platform)
    return reached


def forget() -> None:
    """Drop what is kept, so that the next question sees the present rows."""
    global _roles
    _kept.forget()
    _roles = (0.0, frozenset())


def _read(tenant_id: UUID, role: str) -> RoleSettings:
    with tenant_scope(tenant_id):
        rows = _ROLE_SETTINGS.run({"tenant": tenant_id, "role": role})
        if not rows:
            raise RoleNotFound(f"There is no agent with the role {role!r}.")
        (row,) = rows
        agent: Agent = _row_of(Agent, row.agent)
        config: AgentConfig = _row_of(AgentConfig, row.own) if row.own else _nothing_own(tenant_id, role)
        # Not `scheduler_settings.current`: that may be a second old, and would be kept here until the next change.
        platform = scheduler_settings.settings_of(json.loads(row.platform) if row.platform else None)
        production = (
            AgentVersionDeployment(agent=agent, version=row.version, endpoint=row.endpoint)
            if row.version
            else None
        )
        chosen = _adapter(_slug_for_rules(tenant_id), agent, config, production, platform)
        adapter, instructions = chosen.adapter, config.instructions or agent.instructions
        return RoleSettings(
            adapter=chosen,
            timeout_seconds=config.timeout_seconds
            or agent.timeout_seconds
            or _usual_timeout(adapter, platform),
            retry={**_usual_retry(adapter), **platform.retry, **agent.retry, **config.retry},
            rate=config.rate,
            backlog={**agent.backlog, **config.backlog},
            enabled=agent.enabled and config.enabled,
            input_schema=agent.input_schema,
            instructions=instructions,
            has_skills=row.has_skills,
            budgeted=row.budgeted,
            briefing=sessions.briefing_of(instructions, chosen.model, adapter),
        )


def _row_of(model: type[models.Model], text: str) -> Any:
    """The row of a model whose columns came as one JSON object: of any kind but decimals, which would be rounded."""
    columns, fields = json.loads(text), model._meta.concrete_fields
    values = [field.to_python(columns[field.column]) for field in fields]
    return model.from_db(APP, [field.attname for field in fields], values)


def _adapter(
    slug: str,
    agent: Agent,
    config: AgentConfig,
    production: AgentVersionDeployment | None,
    platform: SchedulerSettings,
) -> AdapterSettings:
    adapter = config.adapter or agent.adapter
    # What the registry says about the address is said for its own adapter.
    places = [production.endpoint if production else "", agent.endpoint] if adapter == agent.adapter else []
    return AdapterSettings(
        adapter=adapter,
        endpoint=config.endpoint or next(filter(None, places), None),
        auth=_auth(agent, config),
        model=config.model or agent.model or None,
        signing_secrets=credentials.signing_secrets_in_force(config),
        version=production.version if production else None,
        options=agent.options,
        http=platform.http,
        platform_pays_for=("*",) if config.auth_sealed else _platform_pays_for(slug, agent, adapter),
    )


def _platform_pays_for(slug: str, agent: Agent, adapter: str) -> tuple[str, ...]:
    """Patterns of the models that the role may call for the tenant with a key of the registry or the environment."""
    rules: Sequence[Mapping[str, Sequence[str]]] | None = settings.ORCHESTRATOR_PLATFORM_KEYS_FOR
    if rules is None:
        # What the registry itself says. A tenant that wants the role to be another provider's, or another model, brings a key.
        is_the_registrys = _provider(adapter) == _provider(agent.adapter)
        return (agent.model or "*",) if is_the_registrys else ()
    named = {"tenants": slug, "roles": agent.role}
    return tuple(
        model
        for rule in rules
        if all(_matches(name, rule.get(kind, ("*",))) for kind, name in named.items())
        for model in rule.get("models", ("*",))
    )


def _provider(adapter: str) -> str:
    return BATCHES_OF.get(adapter, adapter)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _slug_for_rules(tenant_id: UUID) -> str:
    """How the rules of `_platform_pays_for` name the tenant; empty where none names tenants. In the caller's `tenant_scope`."""
    rules = settings.ORCHESTRATOR_PLATFORM_KEYS_FOR or ()
    if not any("tenants" in rule for rule in rules):
        return ""
    return str(Tenant.objects.values_list("slug", flat=True).get(pk=tenant_id))


def _nothing_own(tenant_id: UUID, role: str) -> AgentConfig:
    return AgentConfig(tenant_id=tenant_id, agent_id=role)


def _usual_timeout(adapter: str, platform: SchedulerSettings) -> int:
    """Seconds for a role that says nothing; one whose work waits for batches needs more than any other."""
    return settings.ORCHESTRATOR_BATCH_TIMEOUT_SECONDS if adapter in BATCHES_OF else default_timeout(platform)


def _usual_retry(adapter: str) -> Mapping[str, Any]:
    return {"max_attempts": BATCH_ATTEMPTS} if adapter in BATCHES_OF else {}


def _auth(agent: Agent, config: AgentConfig) -> Mapping[str, str]:
    # The platform's own credentials go only to the platform's own endpoint, by the platform's own adapter, never to one that a tenant has
    # set: another adapter has another default endpoint.
    if config.auth_sealed:
        return credentials.unseal(
            config.auth_sealed, context=credentials.config_context(config.tenant_id, agent.role)
        )
    if agent.auth_sealed and not config.endpoint and config.adapter in ("", agent.adapter):
        return credentials.unseal(agent.auth_sealed, context=credentials.agent_context(agent.role))
    return {}
