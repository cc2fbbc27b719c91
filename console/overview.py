"""The overview: one sentence about the state of the system, its reasons, and the figures behind it.

Members see their tenant's work; superusers see everybody's, or that of one tenant. Another page compares all tenants of a person, and the
admin's dashboard displays the same figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Count, Min, Q, QuerySet, Sum
from django.db.models.functions import TruncHour
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from activities import wait_reasons
from activities.models import Activity, ActivityRun
from activities.models.activity import in_status
from activities.queue_stats import PeopleStats, QueueStats, RoleStats, stats_of_queues
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import RunStatus, Status
from activities.wait_reasons import BUDGET, PAUSED, HeldPart, Hold
from agents.governor import overview as governor
from console import health
from console.agents import ENDED
from console.health import Check
from console.inbox.listing import ALIKE
from console.labels import HELD_BY, in_words
from console.page import LOOKING, acting, choose, framed, remember_tenant
from console.usage import BudgetLine, budgets_of
from pipelines.models import Schedule
from tenants import clock, money
from tenants.admin_scope import of_request as sight_of_request
from tenants.context import admin_scope, system_scope, tenant_scope
from tenants.identifiers import first_id_at
from tenants.models import BudgetWait, Tenant, UsageEntry
from tenants.wording import describe_count

if TYPE_CHECKING:
    from django.contrib.auth.models import User

PATIENCE_SECONDS = 1.0  # a person waits for this page
SPOOL_SECONDS = 60.0  # outputs are copied within a second or two; older ones mean that MongoDB is unavailable
NO_WORKER = "no worker"
SERVED = ("served", "")
NAMED = 5  # roles listed in one reason
REFRESH_SECONDS = 20  # for browsers without scripts


@framed(LOOKING)
def home(request: HttpRequest) -> HttpResponse:
    """The overview of the tenant chosen with ?tenant=, of the person's own tenant, or for superusers of all tenants."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    # By default superusers see all tenants, others the first of theirs.
    who, own = acting(request, first=not user.is_superuser)
    may_look = who is not None or user.is_superuser
    context = {
        "page": overview(who.tenant_id if who else None) if may_look else None,
        "acting": who,
        "tenants": own,
        "refresh_seconds": REFRESH_SECONDS,
        "here": "home",
        "pulse": pulse_of(who.tenant_id) if who else None,
    }
    answer = render(request, "console/overview.html", context)
    remember_tenant(request, answer, who, own)
    return answer


@framed(LOOKING)
def tenants(request: HttpRequest) -> HttpResponse:
    """All tenants of a person. A superuser without any, or with ?others=yes, chooses a tenant."""
    _, own = acting(request, first=False)
    if request.user.is_superuser and (not own or request.GET.get("others")):
        return choose(request, "")
    if len(own) < 2 and not request.user.is_superuser:
        return redirect("console:home")
    rows = tenants_overview(own)
    in_need = sum(1 for row in rows if row.needs)
    figures = ("asked", "failed", "blocked", "held", "running", "spent")
    context = {
        "rows": rows,
        "total": {name: sum(getattr(row, name) for row in rows) for name in figures},
        "sentence": f"{in_need} of {len(rows)} {'needs' if in_need == 1 else 'need'} attention."
        if in_need
        else "All is well in all tenants.",
        "tenants": own,
        "here": "tenants",
    }
    return render(request, "console/tenants.html", context)


@dataclass(frozen=True, slots=True)
class QueueRow:
    standing: RoleStats
    oldest: str
    state: str
    bands: list[tuple[str, int]]

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs there, and it is not paused."""
        queue = self.standing
        return not (queue.depth or queue.later or queue.running or queue.paused)


@dataclass(frozen=True, slots=True)
class Need:
    """A problem that only a person can solve. `page` is the console's page for it, `query` the filter of that page."""

    words: str
    page: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview as its page displays it. `figures` is None if PostgreSQL does not answer. `reasons` are faults of the system;
    `needs` wait for people while the system works."""

    status: str
    sentence: str
    reasons: list[str]
    needs: list[Need]
    checks: list[Check]
    figures: QueueStats | None
    queues: list[QueueRow]
    people: Sequence[PeopleStats]

    @property
    def busy(self) -> list[QueueRow]:
        """Queues with work: first those without workers, then those on hold, then the longest."""
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
        waiting = [row.standing.oldest_seconds for row in self.queues if row.standing.depth]
        return in_words(max(waiting)) if waiting else ""

    @property
    def later(self) -> int:
        return sum(row.standing.later for row in self.queues)

    @property
    def seats(self) -> int:
        """The largest number of seats of any role."""
        return max((row.standing.seats for row in self.queues), default=0)

    @property
    def running(self) -> int:
        return sum(row.standing.running for row in self.queues)

    @property
    def asked(self) -> int:
        return sum(row.items for row in self.people)

    @property
    def longest_asked(self) -> str:
        waiting = [row.oldest_seconds for row in self.people if row.items]
        return in_words(max(waiting)) if waiting else ""


def overview(tenant_id: UUID | None) -> Overview:
    """Return the overview of one tenant, or with None of all. Never raises because a server is unavailable."""
    return overview_within(tenant_scope(tenant_id) if tenant_id else system_scope())


def overview_within(scope: AbstractContextManager[None]) -> Overview:
    """Return the overview of a scope, which is entered once. Never raises because a server is unavailable."""
    checks = health.check_all(patience_seconds=PATIENCE_SECONDS)
    work = None if health.status_of(checks) == "unavailable" else _read(scope)
    figures = work[0] if work else None
    reasons = [check.sentence for check in checks if not check.is_healthy]
    needs: list[Need] = []
    causes: dict[str, str] = {}
    if work is not None:
        figures, parts = work
        causes = wait_reasons.causes_by_role(parts)
        reasons += _reasons(figures)
        needs = [*_needs(figures, wait_reasons.by_holder(parts)), *_questions(figures.people)]
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
        queues=[_queue_row(role, causes.get(role.role)) for role in figures.roles] if figures else [],
        people=figures.people if figures else (),
    )


def _read(scope: AbstractContextManager[None]) -> tuple[QueueStats, list[HeldPart]] | None:
    try:
        with scope:
            return stats_of_queues(refusals=False), wait_reasons.list_held_work()
    except DatabaseError:
        return None  # It answered the health check a moment ago.


def _reasons(figures: QueueStats) -> Iterator[str]:
    unserved = [role for role in figures.roles if role.depth and not role.workers and not role.paused]
    if unserved:
        yield _explain_unserved(sorted(unserved, key=lambda role: -role.depth))
    if figures.silent:
        yield f"{describe_count(figures.silent, 'worker process has', 'worker processes have')} stopped sending heartbeats."
    if figures.spooled_seconds > SPOOL_SECONDS:
        waiting = describe_count(figures.spooled, "output waits", "outputs wait")
        yield f"{waiting} for MongoDB, the oldest for {in_words(figures.spooled_seconds)}."


def _explain_unserved(roles: list[RoleStats]) -> str:
    named = ", ".join(f"{role.role} ({role.depth} waiting)" for role in roles[:NAMED])
    more = (
        f" and {describe_count(len(roles) - NAMED, 'other role', 'other roles')}"
        if len(roles) > NAMED
        else ""
    )
    return f"No worker serves {named}{more}."


def _needs(figures: QueueStats, holds: list[Hold]) -> Iterator[Need]:
    for hold in holds:
        yield Need(_explain_hold(hold), "usage" if hold.cause == BUDGET else "queues")
    if figures.needs_review:
        words = f"{describe_count(figures.needs_review, 'activity', 'activities')} failed permanently. Retry or cancel."
        yield Need(words, "dead_letters")
    if figures.blocked:
        several = describe_count(figures.blocked, "activity is", "activities are")
        words = f"{several} blocked until a person resolves the blocker."
        yield Need(words, "activities", "status:blocked")


def _explain_hold(hold: Hold) -> str:
    several = describe_count(hold.held, "activity waits", "activities wait")
    if hold.cause == BUDGET:
        until = f", or wait until {hold.until:%A, %-d %B}" if hold.until else ""
        return f"{several} for the budget {hold.holder}. Raise it{until}."
    if hold.cause == PAUSED:
        return f"{several} because {hold.holder} is paused or disabled. Resume it."
    until = f" The next attempt is at {hold.until:%H:%M:%S} UTC." if hold.until else ""
    return f"{several} for {hold.holder}, which accepts no requests for now.{until}"


def _questions(people: Sequence[PeopleStats]) -> Iterator[Need]:
    count = sum(row.items for row in people)
    if count:
        oldest = in_words(max(row.oldest_seconds for row in people if row.items))
        yield Need(
            f"{describe_count(count, 'item waits', 'items wait')} for people, the oldest for {oldest}.",
            "inbox",
        )


def _sentence(status: str, figures: QueueStats | None, needs: list[Need]) -> str:
    if status == "unavailable" or figures is None:
        return "Unavailable."
    if status == "degraded":
        return "Degraded."
    if needs:
        return f"{describe_count(len(needs), 'thing needs', 'things need')} attention."
    return "All is well." if figures.workers else "All is well, but no worker runs."


def _queue_row(role: RoleStats, cause: str | None) -> QueueRow:
    state = (
        "paused"
        if role.paused
        else NO_WORKER
        if role.depth and not role.workers
        else HELD_BY[cause]
        if cause
        else "served"
        if role.workers
        else ""
    )
    bands = [(band, count) for band, count in role.waiting.items() if count]
    return QueueRow(role, in_words(role.oldest_seconds) if role.depth else "", state, bands)


# The pulse of a tenant: runs per hour of the last day, the cost of today, and the use of its budgets.


HOURS = 24
HOUR = timedelta(hours=1)
LONGEST_RUN = timedelta(hours=24)  # so long a run may have started before the first hour to be counted
MOST_BUDGETS = 5  # the most used ones


@dataclass(frozen=True, slots=True)
class Pulse:
    """Figures by hour, oldest first; the last one is the current hour. Money in dollars."""

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


def pulse_of(tenant_id: UUID) -> Pulse | None:
    """Return a tenant's pulse; None if PostgreSQL does not answer."""
    now = clock.now()
    try:
        with tenant_scope(tenant_id):
            ended, failed = _by_hour(tenant_id, now)
            today = money.ledger_entries(tenant_id, first=now.date()).aggregate(**money.FIGURES)
            budgets = sorted(budgets_of(tenant_id), key=lambda line: -line.share)[:MOST_BUDGETS]
    except DatabaseError:
        return None
    return Pulse(ended, failed, money.figures_of(today)["cost_usd"], budgets)


def _by_hour(tenant_id: UUID, now: datetime) -> tuple[list[int], int]:
    last = now.replace(minute=0, second=0, microsecond=0)
    first = last - (HOURS - 1) * HOUR
    # Select by primary key, which grows with time, because no index covers the end of a run.
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(
        pk__gte=first_id_at(first - LONGEST_RUN), ended_at__gte=first, status__in=ENDED
    )
    counted = rows.order_by().annotate(hour=TruncHour("ended_at", tzinfo=UTC)).values("hour").annotate(
        count=Count("pk"), failed=Count("pk", filter=~Q(status=RunStatus.COMPLETED))
    )  # fmt: skip
    by_hour = {row["hour"]: row for row in counted}
    hours: list[Mapping[str, Any]] = [by_hour.get(first + number * HOUR, {}) for number in range(HOURS)]
    return [hour.get("count", 0) for hour in hours], sum(hour.get("failed", 0) for hour in hours)


# The admin's dashboard: the overview, with links to the console's pages.
#
# Superusers see counts of every tenant's work, members of tenants those of theirs. Names, such as those of schedules, are limited to
# tenants that the request may see.

COMING = 6  # listed schedules
UNAVAILABLE = ("breaker_open", "retry_after")  # states of providers that receive no requests for now


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The theme's DASHBOARD_CALLBACK, for what the person may see, within the scope of their request."""
    seen = sight_of_request(request)
    enabled = Schedule.objects.filter(enabled=True, next_run_at__isnull=False)
    board = {
        "overview": overview(None) if seen.platform else overview_within(nullcontext()),
        "coming": list(enabled.select_related("tenant").order_by("next_run_at", "pk")[:COMING]),
        # Providers that receive no requests now; None if the person may not see them.
        "breakers": [each for each in governor.of_platform() if each.state in UNAVAILABLE]
        if seen.platform
        else None,
        "sees_all": seen.everything or not seen.platform,
    }
    return {**context, "title": "Dashboard", "board": board}


# All tenants of a person: what waits for people, failed work, running work, and this month's cost.
#
# Read with the database role of the admin, which sees only the rows of the given tenants: one statement per figure for all tenants.


@dataclass(frozen=True, slots=True)
class TenantRow:
    tenant: Tenant
    asked: int
    oldest: str
    failed: int
    blocked: int
    held: int  # activities that wait for a budget
    running: int
    spent: Decimal  # dollars in this month, of UTC
    share: float  # relative to the tenant that spent most

    @property
    def needs(self) -> int:
        """The number of problems that only a person can solve."""
        return self.asked + self.failed + self.blocked + self.held

    @property
    def state(self) -> str:
        if self.tenant.paused:
            return "paused"
        return "failures" if self.failed else "needs attention" if self.needs else "all is well"


def tenants_overview(own: Sequence[Tenant]) -> list[TenantRow]:
    """Return a row for each of a person's tenants; those that need attention come first. Not inside a tenant's transaction."""
    ids = frozenset(tenant.pk for tenant in own)
    if not ids:
        return []
    now = clock.now()
    with admin_scope(reads=ids, writes=(), platform=False):
        works = Activity.objects.filter(tenant_id__in=ids)
        questions = _by_tenant(
            works.filter(OPEN_FOR_PEOPLE), count=Count(ALIKE, distinct=True), oldest=Min("created_at")
        )
        counts = _count_by_status(works)
        entries = UsageEntry.objects.filter(tenant_id__in=ids, day__gte=now.date().replace(day=1))
        spent = {
            key: row["dollars"] or Decimal(0)
            for key, row in _by_tenant(entries, dollars=Sum("dollars")).items()
        }
        waits = _by_tenant(BudgetWait.objects.filter(tenant_id__in=ids), count=Count("pk"))
    most = max((*spent.values(), Decimal(0)))
    rows = [
        TenantRow(
            tenant=tenant,
            asked=questions.get(tenant.pk, {}).get("count", 0),
            oldest=_describe_age(questions.get(tenant.pk, {}).get("oldest"), now),
            failed=counts.get((tenant.pk, Status.NEEDS_REVIEW), 0),
            blocked=counts.get((tenant.pk, Status.BLOCKED), 0),
            held=waits.get(tenant.pk, {}).get("count", 0),
            running=counts.get((tenant.pk, Status.IN_PROGRESS), 0),
            spent=spent.get(tenant.pk, Decimal(0)),
            share=float(spent.get(tenant.pk, Decimal(0)) / most) if most else 0.0,
        )
        for tenant in own
    ]
    return sorted(rows, key=lambda row: (-row.failed, -row.needs, row.tenant.slug))


def _by_tenant(rows: QuerySet[Any], **figures: Any) -> Mapping[UUID, Mapping[str, Any]]:
    return {row["tenant_id"]: row for row in rows.order_by().values("tenant_id").annotate(**figures)}


def _count_by_status(works: QuerySet[Any]) -> dict[tuple[UUID, str], int]:
    """Count the agents' activities by tenant and status."""
    states = (Status.NEEDS_REVIEW, Status.BLOCKED, Status.IN_PROGRESS)
    rows = works.filter(in_status(*states), assignee_type="agent").order_by().values("tenant_id", "status")
    return {(row["tenant_id"], row["status"]): row["count"] for row in rows.annotate(count=Count("pk"))}


def _describe_age(since: datetime | None, now: datetime) -> str:
    return in_words((now - since).total_seconds()) if since else ""
