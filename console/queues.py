"""Pages of a tenant's queues. Everybody sees them; operators pause roles, admins the whole tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse

from activities import backlog, selectors, wait_reasons
from activities.models import TurnedAway
from activities.queue_stats import head_of_line
from activities.selectors import Queue
from agents import configuration
from agents.governor import overview
from agents.governor.overview import ProviderRow
from agents.governor.providers import PROVIDERS, Provider, name_of
from agents.models import Agent, AgentConfig
from console.labels import HELD_BY, in_words
from console.page import NOT_OFFERED, PageContext, Refused, page
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Tenant

ACTIONS = {"pause": "Paused", "resume": "Resumed"}


def _switch_tenant(request: HttpRequest, visit: PageContext) -> HttpResponse:
    action = request.POST.get("action", "")
    if action not in ACTIONS:
        raise Refused(NOT_OFFERED, status=400)
    pausing.switch(visit.who, paused=action == "pause")
    return visit.redirect(f"{ACTIONS[action]}: all work of {visit.who.tenant}", "queues")


@page("queues", act=_switch_tenant)
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """All roles, the longest queue first. A POST pauses or resumes all work of the tenant."""
    rows, is_paused = queues(visit.tenant_id)
    context = {
        "busy": sorted((row for row in rows if not row.is_idle), key=lambda row: (-row.depth, row.role)),
        "resting": [row for row in rows if row.is_idle],
        "waiting": sum(row.depth for row in rows),
        "running": sum(row.queue.running for row in rows),
        "delayed": sum(row.queue.delayed for row in rows),
        "tenant_paused": is_paused,
    }
    return visit.render("console/queues/every.html", context)


def _switch_role(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    action, _, provider = request.POST.get("action", "").partition(":")
    if action not in ACTIONS or (provider and provider not in PROVIDERS):
        raise Refused(NOT_OFFERED, status=400)
    path = f"/providers/{provider}/{action}/" if provider else f"/queues/{role}/{action}/"
    visit.act("POST", path)
    words = f"{ACTIONS[action]}: {provider or role}. This takes effect within two seconds"
    return visit.redirect(words, "queue", role)


@page("queues", act=_switch_role)
def one(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    """One role with the head of its queue. A POST pauses or resumes it for the tenant."""
    return visit.render("console/queues/one.html", one_queue(visit.tenant_id, role))


# The queues of a tenant: waiting work by band, running work, workers, and what blocks it.
#
# Figures come from PostgreSQL. Grants and the states of providers are read from Redis afterwards, and are missing if Redis is unavailable.


BREAKERS = {
    "ready": "",
    "retry_after": "asked to retry later",
    "breaker_open": "breaker open",
    "unknown": "state unknown",
}
#: Labels of all-time counts.
TURNED_AWAY = {
    "rejected": "Rejected so far",
    "shed": "Dropped to make room so far",
    "expired": "Expired so far",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One role. `state` is the reason why nothing starts, or `served`."""

    queue: Queue
    caps: Caps
    state: str
    paused_by: str  # tenant, platform, off, role; empty if it is not paused
    may_resume: bool  # the tenant has paused this role individually
    oldest: str
    provider: ProviderRow | None = None

    @property
    def role(self) -> str:
        return self.queue.role

    @property
    def depth(self) -> int:
        return sum(self.queue.waiting.values())

    @property
    def bands(self) -> list[tuple[str, int]]:
        return [(band, count) for band, count in self.queue.waiting.items() if count]

    @property
    def is_idle(self) -> bool:
        queue = self.queue
        return not (self.depth or queue.granted or queue.running or queue.delayed or self.paused_by)

    @property
    def breaker(self) -> str:
        return BREAKERS[self.provider.state] if self.provider else ""

    @property
    def breaker_for(self) -> str:
        """How long the provider receives no requests; empty if it does, or if that is unknown."""
        if self.provider is None:
            return ""
        seconds = max(self.provider.retry_seconds, self.provider.breaker_seconds)
        return in_words(seconds) if seconds else ""


def queues(tenant_id: UUID) -> tuple[list[Row], bool]:
    """Return all queues of the tenant, one for each enabled role of the registry, and whether all its work is paused."""
    with tenant_scope(tenant_id):
        settings = QueueSettings.read(tenant_id)
        figures = selectors.count_queues(tenant_id, settings.agents)
        causes = wait_reasons.causes_by_role(wait_reasons.list_held_work())
    figures = selectors.with_grants(tenant_id, figures)
    providers = settings.providers()
    rows = [_row(queue, settings, providers.get(queue.role), causes.get(queue.role)) for queue in figures]
    return rows, settings.tenant.paused


def one_queue(tenant_id: UUID, role: str) -> dict[str, Any]:
    """Return one queue of the tenant, with its first waiting activities, and the provider of its work. Raises `Http404` if the role does
    not exist."""
    with tenant_scope(tenant_id):
        settings = QueueSettings.read(tenant_id, role)
        if role not in settings.agents:
            raise Http404
        figures = selectors.count_queues(tenant_id, [role])
        cause = wait_reasons.causes_by_role(wait_reasons.list_held_work()).get(role)
        line = head_of_line(tenant_id, role)
        rows = TurnedAway.objects.for_tenant(tenant_id).filter(agent_role=role)
        counts = dict(rows.values_list("reason", "count"))
        paused = {name for _, name in pausing.parts_of(tenant_id, PauseKind.PROVIDER)}
    (queue,) = selectors.with_grants(tenant_id, figures)
    config = settings.own.get(role)
    provider = name_of((config and config.adapter) or settings.agents[role].adapter)
    own = config.backlog if config else {}
    return {
        "row": _row(queue, settings, settings.providers().get(role), cause),
        "line": line,
        "turned_away": [
            (TURNED_AWAY[reason], counts[reason]) for reason in TURNED_AWAY if counts.get(reason)
        ],
        "backlog": backlog.render_policy({**settings.agents[role].backlog, **own}),
        "provider": provider or "",  # if the tenant can pause it
        "provider_paused": provider in paused,
    }


def _row(queue: Queue, settings: QueueSettings, provider: ProviderRow | None, cause: str | None) -> Row:
    oldest = "" if queue.oldest_wait_seconds is None else in_words(queue.oldest_wait_seconds)
    paused_by = settings.paused_by(queue.role)
    return Row(
        queue=queue,
        caps=settings.caps(queue.role),
        state=_state(queue, paused_by, cause),
        paused_by=paused_by,
        may_resume=settings.is_paused(queue.role),
        oldest=oldest,
        provider=provider,
    )


def _state(queue: Queue, paused_by: str, cause: str | None) -> str:
    if paused_by:
        return "disabled" if paused_by == "off" else "paused"
    if not queue.workers:
        return "no worker"
    return HELD_BY[cause] if cause else "served"


# The settings of queues by the registry, the platform and the tenant: pauses and concurrency limits.


@dataclass(frozen=True, slots=True)
class Caps:
    """Concurrency limits, from the narrowest scope to the widest. None means no limit."""

    tenant_and_role: int
    source: str  # of `tenant_and_role`: tenant, plan or registry
    group: int
    tenant: int | None
    role: int | None


@dataclass(slots=True)
class QueueSettings:
    """The settings of the registry and the tenant, by role."""

    tenant: Tenant
    agents: dict[str, Agent]
    own: dict[str, AgentConfig]
    provider_of_role: Mapping[str, Provider] = field(default_factory=dict)

    @classmethod
    def read(cls, tenant_id: UUID, role: str | None = None) -> QueueSettings:
        agents = Agent.objects.filter(enabled=True).order_by("role")
        own = AgentConfig.objects.for_tenant(tenant_id)
        if role is not None:
            agents, own = agents.filter(role=role), own.filter(agent_id=role)
        settings = cls(
            configuration.tenant_with_plan(tenant_id),
            {agent.role: agent for agent in agents},
            {config.agent_id: config for config in own},
        )
        settings.provider_of_role = overview.providers_of_roles(
            tenant_id, settings.agents.values(), settings.own
        )
        return settings

    def paused_by(self, role: str) -> str:
        """Return what pauses the role: tenant, platform, off (the tenant has disabled it) or role; else an empty string."""
        config = self.own.get(role)
        if self.tenant.paused:
            return "tenant"
        if self.agents[role].paused:
            return "platform"
        if config is not None and not config.enabled:
            return "off"
        return "role" if self.is_paused(role) else ""

    def is_paused(self, role: str) -> bool:
        config = self.own.get(role)
        return config is not None and config.paused

    def caps(self, role: str) -> Caps:
        agent, config = self.agents[role], self.own.get(role)
        own, planned = config.max_concurrency if config else None, self.tenant.cap_of_role(role)
        group = config.max_concurrency_per_group if config else None
        return Caps(
            tenant_and_role=configuration.cap_of(self.tenant, agent, config),
            source="tenant" if own is not None else "plan" if planned is not None else "registry",
            group=group or 1,
            tenant=self.tenant.cap,
            role=agent.max_concurrency,
        )

    def providers(self) -> dict[str, ProviderRow]:
        """Return the providers by role. Queries Redis."""
        own = {role for role, config in self.own.items() if config.auth_sealed}
        providers = overview.rows_of(self.provider_of_role, own=own)
        return {role: provider for provider in providers for role in provider.roles}
