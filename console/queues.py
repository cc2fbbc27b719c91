"""The queues of a tenant, and one of them: looked at by everybody, stopped and let go on by those who may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from activities import backlog, selectors, wait_reasons
from activities.models import TurnedAway
from activities.queue_stats import Waiter, head_of_line
from activities.selectors import Queue
from agents import configuration
from agents.governor import overview
from agents.governor.overview import ProviderRow
from agents.governor.providers import PROVIDERS, Provider, name_of
from agents.models import Agent, AgentConfig
from console import internal_api
from console.labels import HELD_BY, in_words
from console.page import (
    NOT_OFFERED,
    PageContext,
    Refused,
    page,
    redirect_with_success,
    refusal_of,
    render_page,
)
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Role, Tenant

DEEDS = {"pause": "Paused", "resume": "Goes on"}


def _switch_tenant(request: HttpRequest, visit: PageContext) -> HttpResponse:
    action = request.POST.get("deed", "")
    if action not in DEEDS:
        raise Refused(NOT_OFFERED, status=400)
    try:
        pausing.switch(visit.who, paused=action == "pause")
    except pausing.PausingRefused as refusal:
        raise Refused(str(refusal), status=refusal.status) from refusal
    return redirect_with_success(
        request, visit, reverse("console:queues"), f"{DEEDS[action]}: all work of {visit.who.tenant}"
    )


@page("queues", act=_switch_tenant)
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Every role, the longest queue first. A POST stops everything of the tenant, or lets it go on."""
    context = {
        "queues": queues(visit.tenant_id),
        "may_switch": visit.who.role.includes(Role.ADMIN),
    }
    return render_page(request, visit, "console/queues/every.html", context)


def _switch_role(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    action, _, provider = request.POST.get("deed", "").partition(":")
    if action not in DEEDS or (provider and provider not in PROVIDERS):
        raise Refused(NOT_OFFERED, status=400)
    path = f"/providers/{provider}/{action}/" if provider else f"/queues/{role}/{action}/"
    reply = internal_api.call_api(request, visit.who, "POST", path)
    if not reply.ok:
        raise refusal_of(reply)
    words = f"{DEEDS[action]}: {provider or role}. In force within two seconds"
    return redirect_with_success(request, visit, reverse("console:queue", args=[role]), words)


@page("queues", act=_switch_role)
def one(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    """One role with the head of its line. A POST stops it for the tenant, or lets it go on."""
    found = one_queue(visit.tenant_id, role)
    if found is None:
        raise Http404
    context = {"queue": found, "may_switch": visit.who.role.includes(Role.OPERATOR)}
    return render_page(request, visit, "console/queues/one.html", context)


# The queues of a tenant as a person sees them: what waits in each band, what runs, who serves it, what holds it up.
#
# Figures come from PostgreSQL; what is granted and how providers stand is asked from Redis afterwards, and stays away when Redis does.


BREAKERS = {
    "ready": "",
    "retry_after": "asks to be left alone",
    "breaker_open": "breaker open",
    "unknown": "state unknown",
}
AWAY = {"rejected": "refused", "shed": "dropped to make room", "expired": "given up, their time had passed"}


@dataclass(frozen=True, slots=True)
class Row:
    """One role. `state` is why nothing starts, in a word or two, or how it is served."""

    queue: Queue
    caps: Caps
    state: str
    paused_by: str  # tenant, platform, off, role; empty when it is not paused
    may_resume: bool  # the tenant has paused this role by itself
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
        """How long the provider is left alone from now on; empty when it is not, or nobody knows."""
        if self.provider is None:
            return ""
        seconds = max(self.provider.retry_seconds, self.provider.breaker_seconds)
        return in_words(seconds) if seconds else ""


@dataclass(frozen=True, slots=True)
class Queues:
    """Every enabled role of the registry: those with something to do first, the longest of them first."""

    rows: Sequence[Row]
    tenant_paused: bool

    @property
    def busy(self) -> list[Row]:
        return sorted((row for row in self.rows if not row.is_idle), key=lambda row: (-row.depth, row.role))

    @property
    def resting(self) -> list[Row]:
        return [row for row in self.rows if row.is_idle]

    @property
    def waiting(self) -> int:
        return sum(row.depth for row in self.rows)

    @property
    def running(self) -> int:
        return sum(row.queue.running for row in self.rows)

    @property
    def delayed(self) -> int:
        return sum(row.queue.delayed for row in self.rows)


@dataclass(frozen=True, slots=True)
class OneQueue:
    """One role's queue, with the head of the line."""

    row: Row
    tenant_paused: bool
    line: Sequence[Waiter]
    turned_away: Sequence[tuple[str, int]]
    backlog: Mapping[str, Any]
    provider: str = ""  # whom the role's work is sent to, if the tenant can pause that
    provider_paused: bool = False


def queues(tenant_id: UUID) -> Queues:
    """All queues of the tenant."""
    with tenant_scope(tenant_id):
        settings = QueueSettings.read(tenant_id)
        found = selectors.figures_of_queues(tenant_id, settings.agents)
        causes = wait_reasons.causes_by_role(wait_reasons.list_held_work())
    found = selectors.with_grants(tenant_id, found)
    providers = settings.providers()
    rows = [_row(queue, settings, providers.get(queue.role), causes.get(queue.role)) for queue in found]
    return Queues(rows, settings.tenant.paused)


def one_queue(tenant_id: UUID, role: str) -> OneQueue | None:
    """One queue of the tenant, or None when there is no such role."""
    with tenant_scope(tenant_id):
        settings = QueueSettings.read(tenant_id, role)
        if role not in settings.agents:
            return None
        found = selectors.figures_of_queues(tenant_id, [role])
        cause = wait_reasons.causes_by_role(wait_reasons.list_held_work()).get(role)
        line = head_of_line(tenant_id, role)
        away = TurnedAway.objects.for_tenant(tenant_id).filter(agent_role=role)
        counts = dict(away.values_list("reason", "count"))
        paused = {name for _, name in pausing.parts_of(tenant_id, PauseKind.PROVIDER)}
    (queue,) = selectors.with_grants(tenant_id, found)
    config = settings.own.get(role)
    provider = name_of((config and config.adapter) or settings.agents[role].adapter)
    return OneQueue(
        row=_row(queue, settings, settings.providers().get(role), cause),
        tenant_paused=settings.tenant.paused,
        line=line,
        turned_away=[(AWAY[reason], counts[reason]) for reason in AWAY if counts.get(reason)],
        backlog=backlog.render_policy(
            {**settings.agents[role].backlog, **(config.backlog if config else {})}
        ),
        provider=provider or "",
        provider_paused=provider in paused,
    )


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
        return "switched off" if paused_by == "off" else "paused"
    if not queue.workers:
        return "no worker"
    return HELD_BY[cause] if cause else "served"


# What the registry, the platform and a tenant have set for queues: who has paused them, and how much may run at once.


@dataclass(frozen=True, slots=True)
class Caps:
    """How many may run at once, from the narrowest bound to the widest. None: no bound."""

    tenant_and_role: int
    said_by: str  # tenant, plan or registry
    group: int
    tenant: int | None
    role: int | None


@dataclass(slots=True)
class QueueSettings:
    """What the registry and the tenant have set, by role."""

    tenant: Tenant
    agents: dict[str, Agent]
    own: dict[str, AgentConfig]
    led_to: Mapping[str, Provider] = field(default_factory=dict)

    @classmethod
    def read(cls, tenant_id: UUID, role: str | None = None) -> QueueSettings:
        agents = Agent.objects.filter(enabled=True).order_by("role")
        own = AgentConfig.objects.for_tenant(tenant_id)
        if role is not None:
            agents, own = agents.filter(role=role), own.filter(agent_id=role)
        found = cls(
            configuration.tenant_with_plan(tenant_id),
            {agent.role: agent for agent in agents},
            {config.agent_id: config for config in own},
        )
        found.led_to = overview.leading_to(tenant_id, found.agents.values(), found.own)
        return found

    def paused_by(self, role: str) -> str:
        """The first of tenant, platform, off (the tenant does without the role) and role that keeps it from starting anything."""
        config = self.own.get(role)
        if self.tenant.paused:
            return "tenant"
        if self.agents[role].paused:
            return "platform"
        if config is not None and not config.enabled:
            return "off"
        return "role" if self.is_paused(role) else ""

    def is_paused(self, role: str) -> bool:
        """Whether the tenant has paused the role by itself, whatever else holds it up."""
        config = self.own.get(role)
        return config is not None and config.paused

    def caps(self, role: str) -> Caps:
        agent, config = self.agents[role], self.own.get(role)
        own, planned = config.max_concurrency if config else None, self.tenant.cap_of_role(role)
        group = config.max_concurrency_per_group if config else None
        return Caps(
            tenant_and_role=configuration.cap_of(self.tenant, agent, config),
            said_by="tenant" if own is not None else "plan" if planned is not None else "registry",
            group=group or 1,
            tenant=self.tenant.cap,
            role=agent.max_concurrency,
        )

    def providers(self) -> dict[str, ProviderRow]:
        """By role. Asks Redis."""
        own = {role for role, config in self.own.items() if config.auth_sealed}
        standing = overview.state_of(self.led_to, own=own)
        return {role: provider for provider in standing for role in provider.roles}
