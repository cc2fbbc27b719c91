"""The overview: one sentence on how things are, with its reasons, and the figures behind it.

For a tenant's member it shows the tenant's work; for the platform's superusers everybody's, or one tenant's that they name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Count, Q
from django.db.models.functions import TruncHour
from django.http import HttpRequest

from activities import wait_reasons
from activities.models import ActivityRun
from activities.queue_stats import PeopleStats, QueueStats, RoleStats, stats_of_queues
from activities.states import RunStatus
from activities.wait_reasons import BUDGET, PAUSED, HeldPart, Hold
from agents.governor import overview as governor
from agents.governor.overview import ProviderRow
from console import health
from console.agents import ENDED
from console.health import Check
from console.labels import HELD_BY, in_words
from console.usage import BudgetLine, budgets_of
from pipelines.models import Schedule
from tenants import admin_scope, clock, money
from tenants.admin_scope import Sight
from tenants.context import system_scope, tenant_scope
from tenants.identifiers import first_id_at

PATIENCE_SECONDS = 1.0  # a person waits for this page
SPOOL_SECONDS = 60.0  # outputs are copied within a second or two; older ones mean that MongoDB is away
NO_WORKER = "no worker"
SERVED = ("served", "")
NAMED = 5  # roles in one reason
WORDS = {
    "approval": "approvals",
    "review": "reviews",
    "resolution": "blockers to remove",
    "escalation": "escalations",
    "task": "tasks",
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One role in the table."""

    standing: RoleStats
    oldest: str
    state: str
    bands: list[tuple[str, int]]

    @property
    def idle(self) -> bool:
        """Nothing waits or runs there, and nobody has stopped it."""
        queue = self.standing
        return not (queue.depth or queue.later or queue.running or queue.paused)


@dataclass(frozen=True, slots=True)
class PeopleRow:
    """One kind of thing that people are asked for."""

    kind: str
    words: str
    waiting: int
    oldest: str
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Need:
    """Something that goes on only when a person does something. `page` is the console's page for it, `query` what it is narrowed to."""

    words: str
    page: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows. `figures` is None when PostgreSQL does not answer. `reasons` are faults of the system, `needs` what waits for
    people while the system works."""

    status: str
    sentence: str
    reasons: list[str]
    needs: list[Need]
    checks: list[Check]
    figures: QueueStats | None
    queues: list[QueueRow]
    people: list[PeopleRow]

    @property
    def busy(self) -> list[QueueRow]:
        """What needs somebody first: queues that nobody serves, those that something holds, then the longest."""
        return sorted(
            (row for row in self.queues if not row.idle),
            key=lambda row: (row.state != NO_WORKER, row.state in SERVED, -row.standing.depth),
        )

    @property
    def resting(self) -> list[QueueRow]:
        return [row for row in self.queues if row.idle]

    @property
    def waiting(self) -> int:
        return sum(row.standing.depth for row in self.queues)

    @property
    def longest_wait(self) -> str:
        """Of what waits for workers."""
        waiting = [row.standing.oldest_seconds for row in self.queues if row.standing.depth]
        return in_words(max(waiting)) if waiting else ""

    @property
    def later(self) -> int:
        return sum(row.standing.later for row in self.queues)

    @property
    def seats(self) -> int:
        """How many pieces of work the best served role could run at once."""
        return max((row.standing.seats for row in self.queues), default=0)

    @property
    def running(self) -> int:
        return sum(row.standing.running for row in self.queues)

    @property
    def asked(self) -> int:
        return sum(row.waiting for row in self.people)

    @property
    def longest_asked(self) -> str:
        """Of what waits for people."""
        waiting = [row.oldest_seconds for row in self.people if row.waiting]
        return in_words(max(waiting)) if waiting else ""


def overview(tenant_id: UUID | None) -> Overview:
    """How things are for one tenant, or with None for all. Never raises because a server is away."""
    return overview_within(tenant_scope(tenant_id) if tenant_id else system_scope())


def overview_within(scope: AbstractContextManager[None]) -> Overview:
    """How things are for what a scope sees, which is entered once. Never raises because a server is away."""
    checks = health.check_all(patience_seconds=PATIENCE_SECONDS)
    found = None if health.status_of(checks) == "unavailable" else _read(scope)
    figures = found[0] if found else None
    reasons = [check.sentence for check in checks if not check.well]
    people: list[PeopleRow] = []
    needs: list[Need] = []
    held: dict[str, str] = {}
    if found is not None:
        figures, parts = found
        held = wait_reasons.causes_by_role(parts)
        people = [_people_row(asked) for asked in figures.people]
        reasons += _reasons(figures)
        needs = [*_needs(figures, wait_reasons.by_holder(parts)), *_questions(people)]
    status = health.status_of(checks)
    if status == "ready" and (reasons or needs):
        status = "degraded" if reasons else "needed"
    return Overview(
        status=status,
        sentence=_sentence(status, figures, needs),
        reasons=reasons,
        needs=needs,
        checks=checks,
        figures=figures,
        queues=[_queue_row(role, held.get(role.role)) for role in figures.roles] if figures else [],
        people=people,
    )


def _read(scope: AbstractContextManager[None]) -> tuple[QueueStats, list[HeldPart]] | None:
    try:
        with scope:
            return stats_of_queues(refusals=False), wait_reasons.list_held_work()
    except DatabaseError:
        return None  # It answered a moment ago. The page says what is known.


def _reasons(figures: QueueStats) -> Iterator[str]:
    unserved = [role for role in figures.roles if role.depth and not role.workers and not role.paused]
    if unserved:
        yield _unserved(sorted(unserved, key=lambda role: -role.depth))
    if figures.silent:
        yield f"{_count(figures.silent, 'worker process does', 'worker processes do')} not beat any more."
    if figures.spooled_seconds > SPOOL_SECONDS:
        yield f"{_count(figures.spooled, 'output waits', 'outputs wait')} for MongoDB, the first for {in_words(figures.spooled_seconds)}."


def _unserved(roles: list[RoleStats]) -> str:
    named = ", ".join(f"{role.role} ({role.depth} waiting)" for role in roles[:NAMED])
    more = f" and {_count(len(roles) - NAMED, 'other role', 'other roles')}" if len(roles) > NAMED else ""
    return f"No worker serves {named}{more}."


def _needs(figures: QueueStats, holds: list[Hold]) -> Iterator[Need]:
    for hold in holds:
        yield Need(_held(hold), "usage" if hold.cause == BUDGET else "queues")
    if figures.needs_review:
        words = f"{_count(figures.needs_review, 'piece of work has', 'pieces of work have')} failed for good: try again or cancel."
        yield Need(words, "dead_letters")
    if figures.blocked:
        several = _count(figures.blocked, "piece of work is", "pieces of work are")
        words = f"{several} blocked until a person removes what stands in the way."
        yield Need(words, "activities", "status:blocked")


def _held(hold: Hold) -> str:
    several = _count(hold.held, "piece of work waits", "pieces of work wait")
    if hold.cause == BUDGET:
        until = f", or wait until {hold.until:%A, %-d %B}" if hold.until else ""
        return f"{several} for the budget {hold.holder}: raise it{until}."
    if hold.cause == PAUSED:
        return f"{several} because {hold.holder} is paused or switched off: resume it."
    until = f" The next try is at {hold.until:%H:%M:%S} UTC." if hold.until else ""
    return f"{several} for {hold.holder}, which takes no more for now.{until}"


def _questions(people: list[PeopleRow]) -> Iterator[Need]:
    asked = sum(row.waiting for row in people)
    if asked:
        oldest = in_words(max(row.oldest_seconds for row in people if row.waiting))
        yield Need(
            f"{_count(asked, 'question waits', 'questions wait')} for people, the oldest for {oldest}.",
            "inbox",
        )


def _sentence(status: str, figures: QueueStats | None, needs: list[Need]) -> str:
    if status == "unavailable" or figures is None:
        return "Unavailable."
    if status == "degraded":
        return "Degraded."
    if needs:
        return f"{_count(len(needs), 'thing needs', 'things need')} somebody."
    return "All is well." if figures.workers else "All is well, but no worker runs."


def _queue_row(role: RoleStats, held: str | None) -> QueueRow:
    state = (
        "paused"
        if role.paused
        else NO_WORKER
        if role.depth and not role.workers
        else HELD_BY[held]
        if held
        else "served"
        if role.workers
        else ""
    )
    bands = [(band, count) for band, count in role.waiting.items() if count]
    return QueueRow(role, in_words(role.oldest_seconds) if role.depth else "", state, bands)


def _people_row(asked: PeopleStats) -> PeopleRow:
    return PeopleRow(
        asked.kind, WORDS[asked.kind], asked.waiting, in_words(asked.oldest_seconds), asked.oldest_seconds
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# The pulse of a tenant: how many runs ended in each hour of the last day, what today has cost, and how far its budgets are used.


HOURS = 24
HOUR = timedelta(hours=1)
LONGEST_RUN = timedelta(hours=24)  # one that began before and ended within the day is counted as well
MOST_BUDGETS = 5  # those that are used most


@dataclass(frozen=True, slots=True)
class Pulse:
    """Figures by hour, oldest first; the last one is the hour that is not over. Money in dollars."""

    ended: Sequence[int]
    failed: int
    today: Decimal
    budgets: Sequence[BudgetLine]

    @property
    def total(self) -> int:
        return sum(self.ended)

    @property
    def words(self) -> str:
        return f"Runs that ended in each of the last {HOURS} hours: {', '.join(map(str, self.ended))}"


def pulse_of(tenant_id: UUID, *, now: datetime | None = None) -> Pulse | None:
    """For a tenant; None when PostgreSQL does not answer, which the page says elsewhere."""
    moment = now or clock.now()
    try:
        with tenant_scope(tenant_id):
            ended, failed = _by_hour(tenant_id, moment)
            today = money.ledger_entries(tenant_id, first=moment.date()).aggregate(**money.FIGURES)
            budgets = sorted(budgets_of(tenant_id), key=lambda line: -line.share)[:MOST_BUDGETS]
    except DatabaseError:
        return None
    return Pulse(ended, failed, money.figures_of(today)["cost_usd"], budgets)


def _by_hour(tenant_id: UUID, now: datetime) -> tuple[list[int], int]:
    last = now.replace(minute=0, second=0, microsecond=0)
    first = last - (HOURS - 1) * HOUR
    # Along the key, which grows with time: there is no index by the end of a run.
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(
        pk__gte=first_id_at(first - LONGEST_RUN), ended_at__gte=first, status__in=ENDED
    )
    counted = rows.order_by().annotate(hour=TruncHour("ended_at", tzinfo=UTC)).values("hour").annotate(
        count=Count("pk"), failed=Count("pk", filter=~Q(status=RunStatus.COMPLETED))
    )  # fmt: skip
    found = {row["hour"]: row for row in counted}
    hours: list[Mapping[str, Any]] = [found.get(first + number * HOUR, {}) for number in range(HOURS)]
    return [hour.get("count", 0) for hour in hours], sum(hour.get("failed", 0) for hour in hours)


# The start of the admin: how things stand for anyone who looks, with the way to the console's page for each figure.
#
# Figures are counts. For superusers they count every tenant's work, as the console's overview does; for members of tenants theirs. Names,
# such as those of schedules, are only of tenants that the request may see.

COMING = 6  # schedules that are named
LEFT_ALONE = ("breaker_open", "retry_after")  # states of providers that nobody asks for now


@dataclass(frozen=True, slots=True)
class Board:
    """What the page shows. `breakers` are providers that are left alone now; None when they are not the reader's to see."""

    overview: Overview
    coming: Sequence[Schedule]
    breakers: Sequence[ProviderRow] | None
    sees_all: bool


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The theme's DASHBOARD_CALLBACK."""
    return {**context, "title": "Dashboard", "board": board(admin_scope.of_request(request))}


def board(seen: Sight) -> Board:
    """For what somebody sees, within the scope of their request."""
    return Board(
        overview=overview(None) if seen.platform else overview_within(nullcontext()),
        coming=_coming(),
        breakers=[each for each in governor.of_platform() if each.state in LEFT_ALONE]
        if seen.platform
        else None,
        sees_all=seen.everything or not seen.platform,
    )


def _coming() -> list[Schedule]:
    enabled = Schedule.objects.filter(enabled=True, next_run_at__isnull=False)
    return list(enabled.select_related("tenant").order_by("next_run_at", "pk")[:COMING])
