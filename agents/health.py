"""Checks whether the endpoints of HTTP agents can be reached. This is information for people; dispatch does not use it.

Workers do the checks, never a web request: a background task finds the agents that are due and calls a few at a time, each within a
deadline, under the outbound policy and without credentials. An agent is unhealthy after two failures in a row, and healthy
after one success. If a process dies, the next task checks its agents. Results are reset when the address changes.

It also probes providers that failed too often and that nobody calls. After a breaker's cooldown the next call of real work
decides. Without such a call the provider would be reported as failing for ever, so after a grace period a probe decides: one request
without credentials, under the same breaker as all calls. Any answer except a server error closes the breaker; otherwise it stays open
for another cooldown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from agents import deployments, outbound
from agents.exceptions import AgentError
from agents.governor import Call, Governor, Outcome, overview
from agents.governor.providers import KnownProvider
from agents.models import CALLED_BY_URL, Agent, Health
from agents.signals import health_changed
from tenants import clock, outages
from tenants.context import SYSTEM, system_scope
from tenants.exceptions import LimiterUnavailable
from tenants.identifiers import uuid7

GRACE_SECONDS = 5.0  # after a cooldown, in which a call of delayed work may decide instead
PROBING_SECONDS = 5.0  # then no further probe begins: providers may hang, and the worker has other tasks


def probe_failing() -> int:
    """Probe the providers whose cooldown is over and that nobody has called since. Return how many. Safe to run concurrently.

    The one that waits for longest comes first; the next task probes those for which there was no time. No transaction may be open. While
    Redis does not answer, nothing is probed.
    """
    ends, probed = time.monotonic() + PROBING_SECONDS, 0
    try:
        for provider in sorted(
            overview.failing(),
            key=lambda each: Governor(each.key, each.profile).status().idle_seconds,
            reverse=True,
        ):
            probed += _probe_provider(provider)
            if time.monotonic() >= ends:
                break
        return probed
    except (redis.RedisError, LimiterUnavailable) as error:
        logger.info("Probes skipped", extra={"action": "probes_left_out", "reason": type(error).__name__})
        return probed


def _probe_provider(provider: KnownProvider) -> bool:
    governor = Governor(provider.key, provider.profile)
    status = governor.status()
    if not provider.base_url or status.breaker != "half_open" or status.idle_seconds < GRACE_SECONDS:
        return False
    call = Call(id=f"probe:{uuid7()}", deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS)
    if not governor.acquire(call).granted:
        return False  # real work or another process probes it
    if governor.status().breaker != "half_open":
        governor.report(call, Outcome.OTHER, input_tokens=0, output_tokens=0)
        return False  # another probe has closed the breaker since the status was read
    outcome = Outcome.FAULT
    try:
        outcome = _try_provider(provider.base_url)
    finally:
        governor.report(call, outcome, input_tokens=0, output_tokens=0)
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
            max_bytes=MOST_BYTES, only_status=True,
        )  # fmt: skip
    except AgentError:
        return Outcome.FAULT
    return Outcome.FAULT if answer.status >= 500 else Outcome.OK


logger = logging.getLogger(__name__)

AT_ONCE = 4  # concurrent calls in one process
TURN = 20  # agents that one task checks; the next task checks the others
FAILURES_NEEDED = 2  # a single failure may be a restart
MOST_BYTES = 64 * 1024  # of an answer, whose content is not used


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `detail` is for people."""

    reachable: bool
    detail: str


def waiting() -> QuerySet[Agent]:
    """Return the agents that are due for a check. Agents without an address are never checked."""
    has_address_in_production = Exists(deployments.of_row_in_production().exclude(endpoint=""))
    return Agent.objects.filter(
        Q(health_due_at__isnull=True) | Q(health_due_at__lte=Now()),
        ~Q(endpoint="") | ~Q(health_url="") | has_address_in_production,
        adapter__in=CALLED_BY_URL,
        enabled=True,
    )


def request_check(role: str) -> None:
    """Have a worker check the agent soon. For web requests, which must not wait for an agent."""
    Agent.objects.filter(role=role).update(health_due_at=None)


def check_waiting() -> int:
    """Check agents that are due, a few at a time. Return how many. Safe to run concurrently."""
    with system_scope():
        return _check(_claim_due(waiting()))


def check(roles: Sequence[str] | None = None) -> list[Agent]:
    """Check these agents now, or all that have an address, due or not, and return them with the results. For commands."""
    with system_scope():
        agents = Agent.objects.filter(adapter__in=CALLED_BY_URL, enabled=True)
        if roles is not None:
            agents = agents.filter(role__in=roles)
        agents.update(health_due_at=None)
        names = list(agents.values_list("role", flat=True))
        while _check(_claim_due(waiting().filter(role__in=names))):
            pass
        return list(Agent.objects.filter(role__in=names))


def call_agent(agent: Agent, endpoint: str) -> Finding:
    """Call one agent, within the deadline of the settings. No transaction may be open.

    An agent needs no health route: without a `health_url`, any answer to OPTIONS is enough.
    """
    method, url = ("GET", agent.health_url) if agent.health_url else ("OPTIONS", endpoint)
    try:
        answer = outbound.send(
            method,
            url,
            headers={"Accept": "*/*"},
            deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
            only_status=True,
        )
    except AgentError as error:
        return Finding(False, str(error)[:500])
    if agent.health_url and not 200 <= answer.status < 300:
        return Finding(False, f"{url} answered with status {answer.status}; 2xx was expected."[:500])
    return Finding(True, f"Answered with status {answer.status}.")


@dataclass(frozen=True, slots=True)
class _Claim:
    """An agent that this process checks. `until` identifies the claim, which a change of the agent's address ends."""

    agent: Agent
    endpoint: str
    until: datetime


def _claim_due(due: QuerySet[Agent]) -> list[_Claim]:
    until = clock.now() + timedelta(seconds=settings.ORCHESTRATOR_HEALTH_INTERVAL_SECONDS)
    with transaction.atomic(using=SYSTEM):
        # Agents that cannot be reached are due again soon, and must not keep the others from their turn.
        longest_due = due.order_by(F("health_due_at").asc(nulls_first=True), "role")
        agents = list(longest_due.select_for_update(skip_locked=True, of=("self",))[:TURN])
        Agent.objects.filter(role__in=[agent.role for agent in agents]).update(health_due_at=until)
    serving = deployments.serving([agent.role for agent in agents])
    return [
        _Claim(agent, (agent.role in serving and serving[agent.role].endpoint) or agent.endpoint, until)
        for agent in agents
    ]


def _check(claims: Sequence[_Claim]) -> int:
    # The threads only call; this thread does all the database work.
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="health") as pool:
        checks = [(claim, pool.submit(call_agent, claim.agent, claim.endpoint)) for claim in claims]
        for claim, finding in checks:
            with outages.one_of_many(
                logger, "Agent could not be checked", action="agent_not_checked", role=claim.agent.role
            ):
                _record(claim, finding.result())
    return len(claims)


def _record(claim: _Claim, finding: Finding) -> None:
    with transaction.atomic(using=SYSTEM):
        # Lock first, so that of two findings the later sees the earlier.
        rows = Agent.objects.select_for_update().filter(role=claim.agent.role, health_due_at=claim.until)
        agent = rows.first()
        if agent is None:
            return  # Its address has changed, or another check was requested: this finding is out of date.
        failures = 0 if finding.reachable else agent.health_failures + 1
        before, now = agent.health, _health_of(agent, finding, failures)
        changes = {"health": now, "health_failures": failures, "health_detail": finding.detail}
        if failures:
            seconds = (
                settings.ORCHESTRATOR_HEALTH_PROBE_SECONDS
                if now == Health.UNHEALTHY
                else settings.ORCHESTRATOR_HEALTH_RETRY_SECONDS
            )
            changes["health_due_at"] = clock.now() + timedelta(seconds=seconds)
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
