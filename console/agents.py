"""Pages of the registry's agents and their versions. Everybody sees them; platform admins deploy them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median, quantiles
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from activities.models import ActivityRun
from activities.states import RunStatus
from agents import configuration, deployments
from agents.governor import overview
from agents.governor.overview import ProviderRow
from agents.governor.providers import Provider
from agents.models import CALLED_BY_URL, Agent, AgentConfig, AgentVersionDeployment
from console.page import NOT_OFFERED, PageContext, Refused, id_or_404, number_in, page
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import first_id_at

CHANGED = "The agent has changed since you loaded the page. Check which version is in production now, and decide again."
#: By action: the end of its address in the API, and the message.
ACTIONS = {
    "roll_back": ("rollback", "Rolled back"),
    "check": ("check", "A worker checks the endpoint within seconds"),
    "promote": ("promote", "Promoted to production"),
}


@page("agents")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """All roles, with the figures of their recent runs."""
    with tenant_scope(visit.tenant_id):
        registered = list(Agent.objects.order_by("role"))
        runs = recent_runs(visit.tenant_id)
        serving = deployments.serving([agent.role for agent in registered])
        settings = _read_settings(visit.tenant_id, registered)
    rows = _rows_of(registered, settings, serving, runs)
    rows.sort(key=lambda row: not row.runs.ended)  # those with recent runs come first
    return visit.render("console/agents/every.html", {"agents": rows, "since": runs.since})


def _act(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    seen = number_in(request.POST.get("revision", ""))
    action, _, deployment = request.POST.get("action", "").partition(":")
    if seen is None or action not in ACTIONS:
        raise Refused(NOT_OFFERED, status=400)
    place, words = ACTIONS[action]
    if action == "promote":
        place = f"deployments/{id_or_404(deployment)}/{place}"
    # If two people see the same version fail, the second must not roll back the version that the first one restored.
    version = None if action == "check" else seen
    path = f"/agents/{role}/{place}/"
    visit.act("POST", path, version=version, changed=CHANGED)
    return visit.redirect(words, "agent", role)


@page("agents", act=_act)
def one(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    """One role with its deployments. A POST promotes one, rolls back, or checks the endpoint."""
    tenant_id = visit.tenant_id
    with tenant_scope(tenant_id):
        agent = get_object_or_404(Agent, role=role)
        runs = recent_runs(tenant_id, role)
        serves = deployments.in_production(role)  # it may be older than the listed ones
        settings = _read_settings(tenant_id, [agent])
        history = deployments.history(role)[:MOST_DEPLOYMENTS]
        tenant = configuration.tenant_with_plan(tenant_id)
    (row,) = _rows_of([agent], settings, {role: serves} if serves else {}, runs)
    context = {
        "row": row,
        "agent": agent,
        "cap": configuration.cap_of(tenant, agent, row.own),
        "history": history,
        "by_version": runs.by_version,
        "since": runs.since,
        "can_roll_back": serves is not None and serves.previous_id is not None,
        "may_deploy": visit.who.is_platform_admin,
    }
    return visit.render("console/agents/one.html", context)


# The agents from a tenant's view: version in production, health, and the tenant's runs of the last day.


MOST_DEPLOYMENTS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One role. `serves` is the version in production."""

    agent: Agent
    own: AgentConfig | None
    serves: AgentVersionDeployment | None
    runs: RecentRuns
    provider: ProviderRow | None

    @property
    def adapter(self) -> str:
        return (self.own and self.own.adapter) or self.agent.adapter

    @property
    def model(self) -> str:
        return (self.own and self.own.model) or self.agent.model

    @property
    def state(self) -> str:
        """The most serious state that applies."""
        if not self.agent.enabled or (self.own and not self.own.enabled):
            return "disabled"
        if self.agent.paused or (self.own and self.own.paused):
            return "paused"
        if self.provider is not None and self.provider.state == "breaker_open":
            return "breaker open"
        # Only agents with an endpoint have health checks.
        return self.agent.health if self.adapter in CALLED_BY_URL else "enabled"

    @property
    def has_breaker(self) -> bool:
        return self.provider is not None and self.provider.state == "breaker_open"


#: The tenant's own settings, and the providers, by role.
Settings = tuple[Mapping[str, AgentConfig], Mapping[str, Provider]]


def _read_settings(tenant_id: UUID, registered: Sequence[Agent]) -> Settings:
    configs = AgentConfig.objects.for_tenant(tenant_id).filter(
        agent_id__in=[each.role for each in registered]
    )
    own = {config.agent_id: config for config in configs}
    return own, overview.providers_of_roles(tenant_id, registered, own)


def _rows_of(
    registered: Sequence[Agent], settings: Settings, serving: Mapping[str, AgentVersionDeployment], runs: Runs
) -> list[Row]:
    """Return the rows. Not inside a transaction, because it queries Redis."""
    own, provider_of_role = settings
    sealed = {role for role, config in own.items() if config.auth_sealed}
    states = overview.rows_of(provider_of_role, own=sealed)
    providers = {role: provider for provider in states for role in provider.roles}
    return [
        Row(
            agent,
            own.get(agent.role),
            serving.get(agent.role),
            runs.by_role.get(agent.role, RecentRuns()),
            providers.get(agent.role),
        )
        for agent in registered
    ]


# Figures of a tenant's runs in the last day: count, duration, failures.
#
# Selected by primary key, which grows with time, so that the cost depends on one day of runs and not on all of them.


WITHIN = timedelta(hours=24)
MOST = 500  # newest runs; if there are more, the figures cover less than a day
ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STALLED)


@dataclass(slots=True)
class RecentRuns:
    """Figures of some runs. `seconds` are the durations of completed runs."""

    seconds: list[float] = field(default_factory=list)
    completed: int = 0
    failed: int = 0  # including stalled runs

    @property
    def ended(self) -> int:
        return self.completed + self.failed

    @property
    def p50(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    @property
    def p95(self) -> float | None:
        if len(self.seconds) < 2:
            return self.p50
        return quantiles(self.seconds, n=20, method="inclusive")[-1]

    @property
    def failure_rate(self) -> float | None:
        """The share of failed runs; None if no run has ended."""
        return self.failed / self.ended if self.ended else None

    @property
    def failure_percent(self) -> str:
        return "\u2013" if self.failure_rate is None else f"{self.failure_rate:.0%}"

    def count(self, status: str, seconds: float) -> None:
        if status == RunStatus.COMPLETED:
            self.completed += 1
            self.seconds.append(seconds)
        else:
            self.failed += 1


@dataclass(frozen=True, slots=True)
class Runs:
    """The figures by role and by version. `since` is set if there were too many runs: then only runs after it are counted."""

    by_role: Mapping[str, RecentRuns]
    by_version: dict[str, RecentRuns]
    since: datetime | None = None


def recent_runs(tenant_id: UUID, role: str | None = None) -> Runs:
    """Return the figures of the last day, of all roles or of one. In the caller's `tenant_scope`."""
    first_id = first_id_at(clock.now() - WITHIN)
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(pk__gte=first_id, status__in=ENDED)
    if role is not None:
        rows = rows.filter(activity__agent_role=role)
    facts = ("activity__agent_role", "agent_version", "status", "started_at", "ended_at")
    return _count_runs(list(rows.order_by("-pk").values_list(*facts)[: MOST + 1]))


def _count_runs(rows: Sequence[tuple[str, str, str, datetime, datetime]]) -> Runs:
    by_role: dict[str, RecentRuns] = defaultdict(RecentRuns)
    by_version: dict[str, RecentRuns] = defaultdict(RecentRuns)
    for role, version, status, started_at, ended_at in rows[:MOST]:
        seconds = (ended_at - started_at).total_seconds()
        by_role[role].count(status, seconds)
        by_version[version].count(status, seconds)
    since = rows[MOST - 1][3] if len(rows) > MOST else None
    return Runs(by_role, dict(by_version), since)
