"""Health: whether the endpoints of HTTP agents can be reached. Information for people; dispatch does not ask.

Looked at by workers, never in a request: a background task finds the agents that are due and calls a few at a time, each within a
deadline, through the guard of all outbound calls and without credentials. An agent is unhealthy after two failures in a row, and healthy
after one success. A process that dies in between leaves its agents to the next turn. What is known is forgotten when the address changes.

Providers are probed as well, those that failed too often and that nobody calls. After a breaker's cooldown the next call of real work
decides; where there is none, the provider would be said to fail for ever, so after a moment somebody asks without work: one request
without credentials, under the same breaker as all calls. Any answer but a fault of the server closes the breaker; otherwise it stays open
for another cooldown.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from agents import deployments, outbound
from agents.exceptions import AgentError
from agents.governor import Call, Governor, Outcome, overview
from agents.governor.providers import KnownProvider
from agents.models import CALLED_BY_URL, Agent, AgentVersionDeployment, Health
from agents.signals import health_changed
from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.exceptions import LimiterUnavailable
from tenants.identifiers import uuid7

GRACE_SECONDS = 5.0  # after a cooldown, in which work that was held back comes and decides itself


def probe_failing() -> int:
    """Ask each provider whose cooldown is over and that nobody has called since; how many. Any number of processes may do it at once.

    No transaction may be open. While Redis does not answer nobody is asked.
    """
    try:
        return sum(map(_probe_provider, overview.failing()))
    except (redis.RedisError, LimiterUnavailable) as error:
        logger.info("No probes", extra={"action": "probes_left_out", "reason": type(error).__name__})
        return 0


def _probe_provider(provider: KnownProvider) -> bool:
    governor = Governor(provider.key, provider.profile)
    standing = governor.look()
    if not provider.base_url or standing.breaker != "half_open" or standing.idle_seconds < GRACE_SECONDS:
        return False
    call = Call(id=f"probe:{uuid7()}", deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS)
    if not governor.ask(call).granted:
        return False  # work, or another process, is at it
    outcome = Outcome.FAULT
    try:
        outcome = _try_provider(provider.base_url)
    finally:
        governor.tell(call, outcome, input_tokens=0, output_tokens=0)
    facts = {
        "action": "provider_probed",
        "provider": f"{provider.adapter} at {provider.place}",
        "outcome": outcome.value,
    }
    logger.info("Provider probed", extra=facts)
    return True


def _try_provider(url: str) -> Outcome:
    try:
        answer = outbound.send(
            "GET", url, headers={"Accept": "*/*"}, deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
        )  # fmt: skip
    except AgentError as error:
        # One that says more than anybody wants to read is there.
        return Outcome.OK if error.error_code in ("answer_too_large", "answer_encoded") else Outcome.FAULT
    return Outcome.FAULT if answer.status >= 500 else Outcome.OK


logger = logging.getLogger(__name__)

AT_ONCE = 4  # calls under way in one process
TURN = 20  # agents that one task looks at; the rest is left to the next hint
FAILURES_NEEDED = 2  # one may be a restart
MOST_BYTES = 64 * 1024  # of an answer, which nobody reads


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one look. `detail` is for people."""

    reachable: bool
    detail: str


def waiting() -> QuerySet[Agent]:
    """Agents that are due. Those without an address are not looked at."""
    production = AgentVersionDeployment.objects.filter(
        agent=OuterRef("role"), environment="production", replaced_at__isnull=True
    )
    return Agent.objects.filter(
        Q(health_due_at__isnull=True) | Q(health_due_at__lte=Now()),
        ~Q(endpoint="") | ~Q(health_url="") | Exists(production.exclude(endpoint="")),
        adapter__in=CALLED_BY_URL,
        enabled=True,
    )


def ask(role: str) -> None:
    """Have the agent looked at as soon as a worker finds the time. For requests, which must not wait for an agent."""
    Agent.objects.filter(role=role).update(health_due_at=None)


def check_waiting() -> int:
    """Look at agents that are due, a few at a time; returns how many. Any number of processes may do it at once."""
    with system_scope():
        return _check(_claim_due(waiting()))


def check(roles: Sequence[str] | None = None) -> list[Agent]:
    """Look at these agents now, or at all that have an address, due or not. For commands. Returns them as they are afterwards."""
    with system_scope():
        agents = Agent.objects.filter(adapter__in=CALLED_BY_URL, enabled=True)
        found = agents if roles is None else agents.filter(role__in=roles)
        found.update(health_due_at=None)
        names = list(found.values_list("role", flat=True))
        while _check(_claim_due(waiting().filter(role__in=names))):
            pass
        return list(Agent.objects.filter(role__in=names))


def look(agent: Agent, endpoint: str) -> Finding:
    """Ask one agent, within the deadline of the settings. No transaction may be open.

    An agent needs no route of its own for this: without a `health_url`, any answer to OPTIONS shows that somebody is there.
    """
    method, url = ("GET", agent.health_url) if agent.health_url else ("OPTIONS", endpoint)
    try:
        answer = outbound.send(
            method,
            url,
            headers={"Accept": "*/*"},
            deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
        )
    except AgentError as error:
        return Finding(error.error_code in _SPOKE, str(error)[:500])
    if agent.health_url and not 200 <= answer.status < 300:
        return Finding(False, f"{url} answered with status {answer.status}; 2xx was expected."[:500])
    return Finding(True, f"Answered with status {answer.status}.")


#: Errors of a call that was answered, if not as an agent's answer should be.
_SPOKE = frozenset({"answer_too_large", "answer_encoded"})


@dataclass(frozen=True, slots=True)
class _Claim:
    """An agent that this process looks at. `until` marks the claim, which a change of the agent ends."""

    agent: Agent
    endpoint: str
    until: datetime


def _claim_due(due: QuerySet[Agent]) -> list[_Claim]:
    until = clock.now() + timedelta(seconds=settings.ORCHESTRATOR_HEALTH_INTERVAL_SECONDS)
    with transaction.atomic(using=SYSTEM):
        agents = list(due.order_by("role").select_for_update(skip_locked=True, of=("self",))[:TURN])
        Agent.objects.filter(role__in=[agent.role for agent in agents]).update(health_due_at=until)
    claims = []
    for agent in agents:
        production = deployments.in_production(agent.role)
        claims.append(_Claim(agent, (production and production.endpoint) or agent.endpoint, until))
    return claims


def _check(claims: Sequence[_Claim]) -> int:
    # The threads only call; all that concerns the database happens in this one.
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="health") as pool:
        findings = pool.map(lambda claim: look(claim.agent, claim.endpoint), claims)
        for claim, finding in zip(claims, findings, strict=True):
            _record(claim, finding)
    return len(claims)


def _record(claim: _Claim, finding: Finding) -> None:
    with transaction.atomic(using=SYSTEM):
        # Locked first, so that of two findings the later sees the earlier.
        mine = Agent.objects.select_for_update().filter(role=claim.agent.role, health_due_at=claim.until)
        agent = mine.first()
        if agent is None:
            return  # It has another address by now, or is to be looked at again: this finding is out of date.
        failures = 0 if finding.reachable else agent.health_failures + 1
        before, now = agent.health, _health_of(agent, finding, failures)
        changes = {"health": now, "health_failures": failures, "health_detail": finding.detail}
        if failures:
            away = now == Health.UNHEALTHY
            soon = (
                settings.ORCHESTRATOR_HEALTH_PROBE_SECONDS
                if away
                else settings.ORCHESTRATOR_HEALTH_RETRY_SECONDS
            )
            changes["health_due_at"] = clock.now() + timedelta(seconds=soon)
        Agent.objects.filter(role=agent.role).update(health_checked_at=Now(), **changes)
        if now != before and Health.UNHEALTHY in (now, before):
            agent.refresh_from_db()
            logger.warning(
                "Health of an agent changed",
                extra={"action": "agent_health_changed", "role": agent.role, "health": now},
            )
            health_changed.send(sender=Agent, agent=agent)


def _health_of(agent: Agent, finding: Finding, failures: int) -> str:
    if finding.reachable:
        return Health.HEALTHY
    return Health.UNHEALTHY if failures >= FAILURES_NEEDED else agent.health
