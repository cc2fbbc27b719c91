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
from django.urls import reverse

from activities.models import ActivityRun
from activities.states import RunStatus
from agents import configuration, deployments
from agents.governor import overview
from agents.governor.overview import ProviderRow
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
    listed = agents(visit.tenant_id)
    context = {"agents": listed.rows, "since": listed.since}
    return visit.render("console/agents/every.html", context)


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
    return visit.redirect(reverse("console:agent", args=[role]), words)


@page("agents", act=_act)
def one(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    """One role with its deployments. A POST promotes one, rolls back, or checks the endpoint."""
    context = {"one": agent(visit.tenant_id, role), "may_deploy": visit.who.is_platform_admin}
    return visit.render("console/agents/one.html", context)


# The agents from a tenant's view: version in production, health, and the tenant's runs of the last day.


MOST_DEPLOYMENTS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One role. `version` is the one in production."""

    agent: Agent
    own: AgentConfig | None
    version: str
    since: AgentVersionDeployment | None
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


@dataclass(frozen=True, slots=True)
class Agents:
    """The list. For `since` see `Runs`."""

    rows: Sequence[Row]
    since: datetime | None


@dataclass(frozen=True, slots=True)
class OneAgent:
    """The page of a role: its deployments, newest first, and its runs by version. For `since` see `Runs`."""

    row: Row
    cap: int  # of the tenant
    history: Sequence[AgentVersionDeployment]
    by_version: dict[str, RecentRuns] = field(default_factory=dict)
    since: datetime | None = None

    @property
    def can_roll_back(self) -> bool:
        return self.row.since is not None and self.row.since.previous_id is not None


def agents(tenant_id: UUID) -> Agents:
    """Return all roles of the registry; those with recent runs come first, then by name."""
    with tenant_scope(tenant_id):
        registered = list(Agent.objects.order_by("role"))
        own = _own(tenant_id)
        serving = {each.agent_id: each for each in deployments.serving([agent.role for agent in registered])}
        runs = recent_runs(tenant_id)
        provider_of_role = overview.providers_of_roles(
            tenant_id, (agent for agent in registered if agent.enabled), own
        )
    sealed = {role for role, config in own.items() if config.auth_sealed}
    states = overview.rows_of(provider_of_role, own=sealed)
    providers = {role: provider for provider in states for role in provider.roles}
    rows = [
        _row(agent, own.get(agent.role), serving.get(agent.role), runs.by_role.get(agent.role), providers.get(agent.role))
        for agent in registered
    ]  # fmt: skip
    return Agents(sorted(rows, key=lambda row: not row.runs.ended), runs.since)


def agent(tenant_id: UUID, role: str) -> OneAgent:
    """Return one role. Raises `Http404` if it is not in the registry."""
    with tenant_scope(tenant_id):
        registered = get_object_or_404(Agent, role=role)
        own = _own(tenant_id, role)
        history = deployments.history(role)[:MOST_DEPLOYMENTS]
        serves = deployments.in_production(role)  # it may be older than the listed ones
        runs = recent_runs(tenant_id, role)
        provider_of_role = overview.providers_of_roles(tenant_id, [registered], own)
        config = own.get(role)
        cap = configuration.cap_of(configuration.tenant_with_plan(tenant_id), registered, config)
    states = overview.rows_of(provider_of_role, own={role} if config and config.auth_sealed else ())
    row = _row(registered, config, serves, runs.by_role.get(role), next(iter(states), None))
    return OneAgent(row, cap, history, runs.by_version, runs.since)


def _own(tenant_id: UUID, role: str | None = None) -> dict[str, AgentConfig]:
    rows = AgentConfig.objects.for_tenant(tenant_id)
    return {config.agent_id: config for config in (rows if role is None else rows.filter(agent_id=role))}


def _row(
    agent: Agent,
    own: AgentConfig | None,
    serves: AgentVersionDeployment | None,
    runs: RecentRuns | None,
    provider: ProviderRow | None,
) -> Row:
    return Row(agent, own, serves.version if serves else "", serves, runs or RecentRuns(), provider)


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
