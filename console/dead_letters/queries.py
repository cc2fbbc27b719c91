"""Work that failed for good, as a person sees it: what failed alike stands together, with an example and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet

from activities.dead_letters import operations
from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState
from activities.states import LIVE, Status
from tenants import clock
from tenants.context import tenant_scope

MOST_GROUPS = 100
LETTERS = 50  # on one page
HISTORY = 20
HISTORY_OF = timedelta(days=30)
SUCCEEDED = (Status.DONE, Status.APPROVED)
REASONS = {
    BurialReason.EXHAUSTED: "attempts used up",
    BurialReason.PERMANENT: "would fail again",
    BurialReason.STALLED: "worker lost too often",
    BurialReason.WAKE_BUDGET: "woken without progress",
    BurialReason.RATE_LIMITED: "refused (429) for too long",
}


@dataclass(frozen=True, slots=True)
class Group:
    """What failed alike. `code` and `message` are the newest one's."""

    fingerprint: str
    role: str
    why: str
    count: int
    open: int
    first_at: datetime
    last_at: datetime
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Dealing:
    """What somebody did at once: so many were tried again or closed. `well`, `again` and `live` are what became of the work."""

    at: datetime
    by: str
    state: str
    count: int
    well: int
    live: int
    failed: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Letters:
    """The list of groups, and what was dealt with lately."""

    groups: Sequence[Group]
    history: Sequence[Dealing]
    roles: Sequence[str]
    has_more: bool
    only_open: bool
    role: str

    @property
    def open(self) -> int:
        return sum(group.open for group in self.groups)


@dataclass(frozen=True, slots=True)
class Alike:
    """The page of one fingerprint. `letters` are the newest of the page that was asked for."""

    group: Group
    letters: Sequence[DeadLetter]
    history: Sequence[Dealing]
    page: int
    has_more: bool
    cost: Any = field(default=None)


def letters(tenant_id: UUID, *, only_open: bool = True, role: str = "") -> Letters:
    """What failed, by fingerprint: what most failures are still open of first."""
    with tenant_scope(tenant_id):
        rows = DeadLetter.objects.for_tenant(tenant_id)
        narrowed = rows.filter(agent_role=role) if role else rows
        found = operations.groups(narrowed)
        if only_open:
            found = found.filter(open__gt=0)
        page = list(found.order_by("-open", "-count", "fingerprint", "reason")[: MOST_GROUPS + 1])
        examples = rows.in_bulk([group.example for group in page[:MOST_GROUPS]])
        history = _history(narrowed)
        roles = list(rows.order_by("agent_role").values_list("agent_role", flat=True).distinct())
    groups = [_group(group, examples[UUID(group.example)]) for group in page[:MOST_GROUPS]]
    return Letters(groups, history, roles, len(page) > MOST_GROUPS, only_open, role)


def alike(tenant_id: UUID, fingerprint: str, *, page: int = 1) -> Alike | None:
    """What failed like this, newest first; None when nothing did."""
    with tenant_scope(tenant_id):
        rows = DeadLetter.objects.for_tenant(tenant_id).filter(fingerprint=fingerprint)
        figures = rows.aggregate(
            count=Count("pk"),
            open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
            first_at=Min("created_at"),
            last_at=Max("created_at"),
        )
        if not figures["count"]:
            return None
        start = (page - 1) * LETTERS
        found = list(
            rows.select_related("activity").order_by("-created_at", "-pk")[start : start + LETTERS + 1]
        )
        newest = found[0] if page == 1 and found else rows.latest("created_at", "pk")
        history = _history(rows)
    return Alike(_made(newest, **figures), found[:LETTERS], history, page, len(found) > LETTERS)


def _history(rows: QuerySet[Any]) -> list[Dealing]:
    """Everything that one person closed in one go has the same time: that of the transaction."""
    status = "activity__status__in"
    lately = rows.filter(created_at__gte=clock.now() - HISTORY_OF, closed_at__isnull=False)
    dealt = lately.order_by().values("closed_at", "closed_by", "state").annotate(
        count=Count("pk"),
        well=Count("pk", filter=Q(**{status: SUCCEEDED})),
        live=Count("pk", filter=Q(**{status: LIVE})),
        failed=Count("pk", filter=Q(**{status: (Status.FAILED, Status.NEEDS_REVIEW)})),
        fingerprint=Max("fingerprint"),
    )  # fmt: skip
    return [
        Dealing(
            row["closed_at"], row["closed_by"], row["state"], row["count"], row["well"], row["live"], row["failed"],
            row["fingerprint"],
        )
        for row in dealt.order_by("-closed_at", "state")[:HISTORY]
    ]  # fmt: skip


def _group(group: Any, example: DeadLetter) -> Group:
    return _made(example, count=group.count, open=group.open, first_at=group.first_at, last_at=group.last_at)


def _made(example: DeadLetter, **figures: Any) -> Group:
    return Group(
        fingerprint=example.fingerprint,
        role=example.agent_role,
        why=REASONS[BurialReason(example.reason)],
        code=str(example.error.get("code") or ""),
        message=str(example.error.get("message") or ""),
        **figures,
    )
