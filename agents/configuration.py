"""The settings in force for a role at a tenant: the platform's defaults, the registry's row, the version in production, the tenant's own.

Each process caches them until they change, and sees a change within a second, so the hot path runs no query.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import models

from agents import credentials, deployments, scheduler_settings, skills
from agents.contracts import BATCHES_OF, AdapterSettings
from agents.exceptions import AgentError, ConfigurationError, CredentialsUnreadable, RoleNotFound
from agents.models import Agent, AgentConfig, AgentVersionDeployment
from agents.scheduler_settings import SchedulerSettings
from agents.skills import Knowledge
from tenants.caches import ConfigurationCache
from tenants.context import APP, POOL, tenant_scope
from tenants.models import Tenant
from tenants.sql import Statement

DEFAULT_ATTEMPTS = 3
BATCH_ATTEMPTS = 5  # an attempt costs half, and often fails because of the batch
ROLES_CACHE_SECONDS = 1.0
_ROLE_SETTINGS = Statement.load(Path(__file__).parent / "sql", "role_settings")


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """The settings in force. `retry` holds what differs from the default policy.

    `adapter_settings`: or why they cannot be read. Only calls of agents need them, and with them the encryption keys.
    """

    adapter_settings: AdapterSettings | str
    timeout_seconds: int
    retry: Mapping[str, Any]
    rate: Mapping[str, float]  # `capacity` and `per_second` of starts; empty for no limit
    backlog: Mapping[str, Any]  # `max_waiting`, `when_full`, `expire_after_seconds`; empty for the defaults
    enabled: bool
    input_schema: Mapping[str, Any] | None
    instructions: str
    has_skills: bool
    budgeted: bool  # whether a budget may apply to its runs
    briefing: str  # digest of the agent's instructions, model and adapter, without its skills

    @property
    def adapter(self) -> AdapterSettings:
        """The settings for calls. Raises `CredentialsUnreadable`."""
        if isinstance(self.adapter_settings, str):
            raise CredentialsUnreadable(self.adapter_settings)
        return self.adapter_settings

    def with_options(self, options: Mapping[str, Any] | None) -> RoleSettings:
        """Return these settings, overridden by the options of one activity."""
        model = (options or {}).get("model")
        return replace(self, adapter_settings=replace(self.adapter, model=model)) if model else self

    def read_knowledge(self, tenant_id: UUID, role: str) -> Knowledge:
        """Return the skills and context files of the role's agent. Must run in a `tenant_scope`."""
        if not self.has_skills:
            return skills.NOTHING
        return skills.read_knowledge(tenant_id, role, with_texts=skills.is_local(self.adapter))


_cache: ConfigurationCache[RoleSettings] = ConfigurationCache()
_roles: tuple[float, frozenset[str]] = (0.0, frozenset())


def settings_for(tenant_id: UUID, role: str) -> RoleSettings:
    """Return the settings in force. Raises `RoleNotFound`. Opens its own `tenant_scope` when none is open."""
    return _cache.get(tenant_id, role, partial(_read, tenant_id, role))


def retry_of(tenant_id: UUID, role: str) -> Mapping[str, Any]:
    """Return the role's own retry settings. Empty for an unknown role, because work that has begun must be able to end."""
    try:
        return settings_for(tenant_id, role).retry
    except RoleNotFound:
        return {}


def attempts_of(tenant_id: UUID, role: str | None) -> int:
    """Return the number of attempts for work that sets none, from the settings of its role."""
    attempts = retry_of(tenant_id, role).get("max_attempts") if role else None
    return int(attempts or DEFAULT_ATTEMPTS)


def tenant_with_plan(tenant_id: UUID) -> Tenant:
    """Return the tenant for `cap_of`. Must run in a `tenant_scope`."""
    return Tenant.objects.select_related("plan").get(pk=tenant_id)


def cap_of(tenant: Tenant, agent: Agent, config: AgentConfig | None) -> int:
    """Return how many activities of a role a tenant may run at once: from its own settings, else its plan, else the registry."""
    if config is not None and config.max_concurrency is not None:
        return config.max_concurrency
    of_plan = tenant.cap_of_role(agent.role)
    return agent.tenant_concurrency if of_plan is None else of_plan


def default_timeout(platform: SchedulerSettings) -> int:
    """Return the timeout in seconds for a role that sets none: from the platform's settings, else from the environment."""
    return platform.timeout_seconds or int(settings.ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS)


def in_force(platform: SchedulerSettings) -> dict[str, int]:
    """Return, by path, the platform's settings that have another default for all work while they are unset."""
    return {
        "http_client.timeout": default_timeout(platform) * 1000,
        "http_client.retry_config.max_retries": platform.retry.get("max_attempts", DEFAULT_ATTEMPTS) - 1,
    }


def list_roles() -> frozenset[str]:
    """Return the enabled roles of the registry. They may be a second old."""
    now = time.monotonic()
    if now - _roles[0] > ROLES_CACHE_SECONDS or not _roles[1]:
        return present_roles()
    return _roles[1]


def errors_of_role(role: str, tenant_id: UUID | None = None) -> list[str]:
    """Return why a role cannot be named; empty if the registry has it and, with a tenant, that has not switched it off."""
    if role not in list_roles():
        return [f"{role[:63]!r} is not an enabled role of the registry; GET /api/v1/agents/ lists them"]
    if tenant_id is not None and not settings_for(tenant_id, role).enabled:
        return [f"{role!r} is switched off; PUT /api/v1/agent-configs/{role}/ switches it on"]
    return []


def present_roles() -> frozenset[str]:
    """Like `list_roles`, but always read from PostgreSQL."""
    global _roles
    with POOL.connection():
        roles = frozenset(Agent.objects.filter(enabled=True).values_list("role", flat=True))
    _roles = (time.monotonic(), roles)
    return _roles[1]


def adapters_of(
    tenant_id: UUID, agents: Iterable[Agent], own: Mapping[str, AgentConfig]
) -> dict[str, AdapterSettings]:
    """Return the adapter settings of these agents for the tenant, whose own settings are passed by role. For pages: two statements for
    any number of agents. Agents whose credentials cannot be decrypted are omitted. Must run in a `tenant_scope`."""
    by_role, platform = {agent.role: agent for agent in agents}, scheduler_settings.current()
    slug = _slug_for_rules(tenant_id)
    serving = deployments.serving(by_role)
    adapters = {}
    for role, agent in by_role.items():
        config = own.get(role) or _nothing_own(tenant_id, role)
        with suppress(AgentError):
            adapters[role] = _adapter(slug, agent, config, serving.get(role), platform)
    return adapters


def forget() -> None:
    """Clear the caches, so that the next call reads the current rows."""
    global _roles
    _cache.forget()
    _roles = (0.0, frozenset())


def _read(tenant_id: UUID, role: str) -> RoleSettings:
    with tenant_scope(tenant_id):
        rows = _ROLE_SETTINGS.run({"tenant": tenant_id, "role": role})
        if not rows:
            raise RoleNotFound(f"There is no agent with the role {role!r}.")
        (row,) = rows
        agent: Agent = _row_of(Agent, row.agent)
        config: AgentConfig = _row_of(AgentConfig, row.own) if row.own else _nothing_own(tenant_id, role)
        # Not `scheduler_settings.current`: that may be a second old, and would be cached here until the next change.
        platform = scheduler_settings.settings_of(json.loads(row.platform) if row.platform else None)
        production = (
            AgentVersionDeployment(agent=agent, version=row.version, endpoint=row.endpoint)
            if row.version
            else None
        )
        chosen: AdapterSettings | str
        try:
            chosen = _adapter(_slug_for_rules(tenant_id), agent, config, production, platform)
        except ConfigurationError as error:
            # The leader, which may be a beat without the keys, needs all other settings, for example to end an overdue run.
            chosen = str(error)
        adapter, instructions = config.adapter or agent.adapter, config.instructions or agent.instructions
        return RoleSettings(
            adapter_settings=chosen,
            timeout_seconds=config.timeout_seconds
            or agent.timeout_seconds
            or _usual_timeout(adapter, platform),
            retry={
                **({"max_attempts": BATCH_ATTEMPTS} if adapter in BATCHES_OF else {}),
                **platform.retry,
                **agent.retry,
                **config.retry,
            },
            rate=config.rate,
            backlog={**agent.backlog, **config.backlog},
            enabled=agent.enabled and config.enabled,
            input_schema=agent.input_schema,
            instructions=instructions,
            has_skills=row.has_skills,
            budgeted=row.budgeted,
            briefing=briefing_of(instructions, config.model or agent.model or None, adapter),
        )


def briefing_of(*parts: object) -> str:
    """Return a digest of an agent's instructions and settings, independent of the deliverable. Another digest begins another session."""
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def briefing_with(briefing: str, more: Iterable[str]) -> str:
    """Return the digest with additional parts, or the same digest if there are none."""
    added = tuple(more)
    return briefing_of(briefing, added) if added else briefing


def _row_of(model: type[models.Model], text: str) -> Any:
    """Build a row of a model from its columns as one JSON object. Does not support decimals, which would be rounded."""
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
    # The registry's addresses are only valid for its own adapter.
    endpoints = (
        [production.endpoint if production else "", agent.endpoint] if adapter == agent.adapter else []
    )
    return AdapterSettings(
        adapter=adapter,
        endpoint=config.endpoint or next(filter(None, endpoints), None),
        auth=_auth(agent, config),
        model=config.model or agent.model or None,
        signing_secrets=credentials.signing_secrets_in_force(config),
        version=production.version if production else None,
        options=agent.options,
        http=platform.http,
        platform_pays_for=("*",) if config.auth_sealed else _platform_pays_for(slug, agent, adapter),
    )


def _platform_pays_for(slug: str, agent: Agent, adapter: str) -> tuple[str, ...]:
    """Return patterns of the models that the role may call for the tenant with a key of the registry or the environment."""
    rules: Sequence[Mapping[str, Sequence[str]]] | None = settings.ORCHESTRATOR_PLATFORM_KEYS_FOR
    if rules is None:
        # Only the registry's own provider and model. A tenant that wants others needs its own key.
        is_registry_provider = _provider(adapter) == _provider(agent.adapter)
        return (agent.model or "*",) if is_registry_provider else ()
    named = {"tenants": slug, "roles": agent.role}
    return tuple(
        model
        for rule in rules
        if all(
            any(fnmatchcase(name, pattern) for pattern in rule.get(kind, ("*",)))
            for kind, name in named.items()
        )
        for model in rule.get("models", ("*",))
    )


def _provider(adapter: str) -> str:
    return BATCHES_OF.get(adapter, adapter)


def _slug_for_rules(tenant_id: UUID) -> str:
    """Return the tenant's name in the rules of `_platform_pays_for`, or "" if no rule names tenants. Must run in a `tenant_scope`."""
    rules = settings.ORCHESTRATOR_PLATFORM_KEYS_FOR or ()
    if not any("tenants" in rule for rule in rules):
        return ""
    return str(Tenant.objects.values_list("slug", flat=True).get(pk=tenant_id))


def _nothing_own(tenant_id: UUID, role: str) -> AgentConfig:
    return AgentConfig(tenant_id=tenant_id, agent_id=role)


def _usual_timeout(adapter: str, platform: SchedulerSettings) -> int:
    """Return the timeout in seconds for a role that sets none. It is longer for a role whose work waits for batches."""
    return settings.ORCHESTRATOR_BATCH_TIMEOUT_SECONDS if adapter in BATCHES_OF else default_timeout(platform)


def _auth(agent: Agent, config: AgentConfig) -> Mapping[str, str]:
    # The platform's credentials are only sent to the platform's endpoint by the platform's adapter, never to an endpoint that a tenant has
    # set. Another adapter has another default endpoint.
    if config.auth_sealed:
        return credentials.unseal(
            config.auth_sealed, context=credentials.config_context(config.tenant_id, agent.role)
        )
    if agent.auth_sealed and not config.endpoint and config.adapter in ("", agent.adapter):
        return credentials.unseal(agent.auth_sealed, context=credentials.agent_context(agent.role))
    return {}
