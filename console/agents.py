"""The agents of the registry and their versions: looked at by everybody, brought into production by the platform's admins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from statistics import median, quantiles
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from activities.models import ActivityRun
from activities.states import RunStatus
from agents import configuration, deployments
from agents.governor import overview
from agents.governor.overview import ProviderRow
from agents.models import CALLED_BY_URL, Agent, AgentConfig, AgentVersionDeployment
from console import internal_api
from console.page import (
    NOT_OFFERED,
    PageContext,
    Refused,
    id_or_404,
    page,
    redirect_with_success,
    refusal_of,
    render_page,
)
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import first_id_at

CHANGED = "It has changed since you looked: see what is in production now, and decide again."
LONGEST_REVISION = 9  # digits


@page("agents")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Every role, with how its runs went lately."""
    found = agents(visit.tenant_id)
    return render_page(
        request, visit, "console/agents/every.html", {"agents": found.rows, "since": found.since}
    )


def _act(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    action, address, seen = request.POST.get("deed", ""), f"/agents/{role}", _revision(request)
    if action == "roll_back":
        # Of two who see the same version fail, the second must not roll back what the first has brought back.
        reply = internal_api.call_api(request, visit.who, "POST", f"{address}/rollback/", version=seen)
        words = "Rolled back"
    elif action == "check":
        reply = internal_api.call_api(request, visit.who, "POST", f"{address}/check/")
        words = "A worker looks at its endpoint within seconds"
    elif action.startswith("promote:"):
        deployment_id = id_or_404(action.removeprefix("promote:"))
        path = f"{address}/deployments/{deployment_id}/promote/"
        reply = internal_api.call_api(request, visit.who, "POST", path, version=seen)
        words = "In production now"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if reply.status == HTTPStatus.PRECONDITION_FAILED:
        raise Refused(CHANGED)
    if not reply.ok:
        raise refusal_of(reply)
    return redirect_with_success(request, visit, reverse("console:agent", args=[role]), words)


@page("agents", act=_act)
def one(request: HttpRequest, visit: PageContext, role: str) -> HttpResponse:
    """One role with its deployments. A POST promotes one, rolls back, or has its endpoint looked at."""
    found = agent(visit.tenant_id, role)
    if found is None:
        raise Http404
    context = {"one": found, "may_deploy": visit.who.is_platform_admin}
    return render_page(request, visit, "console/agents/one.html", context)


def _revision(request: HttpRequest) -> int:
    """Which state of the role the page showed. Raises `Refused`."""
    text = request.POST.get("revision", "")
    if not text.isdecimal():
        raise Refused(NOT_OFFERED, status=400)
    return int(text[:LONGEST_REVISION])


# The agents as a tenant sees them: which version serves, whether it can be reached, and how its own runs went in the last day.


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
        """The worst that there is to say about it, in a word."""
        if not self.agent.enabled or (self.own and not self.own.enabled):
            return "switched off"
        if self.agent.paused or (self.own and self.own.paused):
            return "paused"
        if self.provider is not None and self.provider.state == "breaker_open":
            return "breaker open"
        # Only endpoints are looked at.
        return self.agent.health if self.adapter in CALLED_BY_URL else "enabled"

    @property
    def has_breaker(self) -> bool:
        return self.provider is not None and self.provider.state == "breaker_open"


@dataclass(frozen=True, slots=True)
class Agents:
    """The list. `since` as in `Runs`."""

    rows: Sequence[Row]
    since: datetime | None


@dataclass(frozen=True, slots=True)
class OneAgent:
    """The page of a role: its history of versions, newest first, and its runs by version. `since` as in `Runs`."""

    row: Row
    cap: int  # of the tenant
    history: Sequence[AgentVersionDeployment]
    by_version: dict[str, RecentRuns] = field(default_factory=dict)
    since: datetime | None = None

    @property
    def can_roll_back(self) -> bool:
        return self.row.since is not None and self.row.since.previous_id is not None


def agents(tenant_id: UUID) -> Agents:
    """All roles of the registry by name, those that have run lately before the others."""
    with tenant_scope(tenant_id):
        found = list(Agent.objects.order_by("role"))
        own = _own(tenant_id)
        serving = {each.agent_id: each for each in deployments.serving([agent.role for agent in found])}
        runs = recent_runs(tenant_id)
        led_to = overview.leading_to(tenant_id, (agent for agent in found if agent.enabled), own)
    sealed = {role for role, config in own.items() if config.auth_sealed}
    standing = overview.state_of(led_to, own=sealed)
    providers = {role: provider for provider in standing for role in provider.roles}
    rows = [
        _row(agent, own.get(agent.role), serving.get(agent.role), runs.by_role.get(agent.role), providers.get(agent.role))
        for agent in found
    ]  # fmt: skip
    return Agents(sorted(rows, key=lambda row: not row.runs.ended), runs.since)


def agent(tenant_id: UUID, role: str) -> OneAgent | None:
    """One role, or None when the registry has no such."""
    with tenant_scope(tenant_id):
        found = Agent.objects.filter(role=role).first()
        if found is None:
            return None
        own = _own(tenant_id, role)
        history = deployments.history(role)[:MOST_DEPLOYMENTS]
        serves = deployments.in_production(role)  # which may be older than all that are listed
        runs = recent_runs(tenant_id, role)
        led_to = overview.leading_to(tenant_id, [found], own)
        config = own.get(role)
        cap = configuration.cap_of(configuration.tenant_with_plan(tenant_id), found, config)
    standing = overview.state_of(led_to, own={role} if config and config.auth_sealed else ())
    row = _row(found, config, serves, runs.by_role.get(role), next(iter(standing), None))
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


# How runs went lately: how many, how long they took, how many failed. Of one tenant, over the last day.
#
# Read backwards along the key of runs, which grows with time, so that it costs what a day holds and not what all years do.


WITHIN = timedelta(hours=24)
MOST = 500  # of the newest; with more the figures are those of the last hours
ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STALLED)


@dataclass(slots=True)
class RecentRuns:
    """Figures of some runs. `seconds` are those of runs that came to a good end."""

    seconds: list[float] = field(default_factory=list)
    completed: int = 0
    failed: int = 0  # stalled ones among them

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
        """The share of those that ended; None when none has."""
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
    """The figures by role, and by version where one role was asked for. `since` is set when there were too many
    to count them all: then only the runs that began later are counted."""

    by_role: Mapping[str, RecentRuns]
    by_version: dict[str, RecentRuns]
    since: datetime | None = None


def recent_runs(tenant_id: UUID, role: str | None = None) -> Runs:
    """The runs of the last day, of all roles or of one. In the caller's `tenant_scope`."""
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
