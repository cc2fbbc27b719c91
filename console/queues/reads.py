"""The queues of a tenant as a person sees them: what waits in each band, what runs, who serves it, what holds it up.

Figures come from PostgreSQL; what is granted and how providers stand is asked from Redis afterwards, and stays away when Redis does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities import backlog, selectors
from activities.lines import Waiter, head_of_line
from activities.models import TurnedAway
from activities.selectors import Queue
from agents.governor.overview import ShownProvider
from console.durations import in_words
from console.queues.arranged import Arranged, Caps
from tenants.context import tenant_scope

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
    provider: ShownProvider | None = None

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


def queues(tenant_id: UUID) -> Queues:
    """All queues of the tenant."""
    with tenant_scope(tenant_id):
        settings = Arranged.read(tenant_id)
        found = selectors.figures_of_queues(tenant_id, settings.agents)
    found = selectors.with_grants(tenant_id, found)
    providers = settings.providers()
    rows = [_row(queue, settings, providers.get(queue.role)) for queue in found]
    return Queues(rows, settings.tenant.paused)


def one_queue(tenant_id: UUID, role: str) -> OneQueue | None:
    """One queue of the tenant, or None when there is no such role."""
    with tenant_scope(tenant_id):
        settings = Arranged.read(tenant_id, role)
        if role not in settings.agents:
            return None
        found = selectors.figures_of_queues(tenant_id, [role])
        line = head_of_line(tenant_id, role)
        away = TurnedAway.objects.for_tenant(tenant_id).filter(agent_role=role)
        counts = dict(away.values_list("reason", "count"))
    (queue,) = selectors.with_grants(tenant_id, found)
    config = settings.own.get(role)
    return OneQueue(
        row=_row(queue, settings, settings.providers().get(role)),
        tenant_paused=settings.tenant.paused,
        line=line,
        turned_away=[(AWAY[reason], counts[reason]) for reason in AWAY if counts.get(reason)],
        backlog=backlog.shown({**settings.agents[role].backlog, **(config.backlog if config else {})}),
    )


def _row(queue: Queue, settings: Arranged, provider: ShownProvider | None) -> Row:
    oldest = "" if queue.oldest_wait_seconds is None else in_words(queue.oldest_wait_seconds)
    paused_by = settings.paused_by(queue.role)
    return Row(
        queue=queue,
        caps=settings.caps(queue.role),
        state=_state(queue, paused_by),
        paused_by=paused_by,
        may_resume=settings.is_paused(queue.role),
        oldest=oldest,
        provider=provider,
    )


def _state(queue: Queue, paused_by: str) -> str:
    if paused_by:
        return "switched off" if paused_by == "off" else "paused"
    if not queue.workers:
        return "no worker"
    return "served"
