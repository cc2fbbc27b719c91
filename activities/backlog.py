"""Backlog: limits how much work of a role may wait for a tenant, and decides what happens to submissions beyond the limit.

    reject        the submission is answered with 429 and a time to retry after
    drop_oldest   the oldest sheddable work is cancelled to make room
    evict_lowest  the newest sheddable work is cancelled to make room, but only for work that is more urgent

Every submission is checked here (`submission.submit`). Callers that must not be refused call `count_admitted` first and keep the rest for
later: the jobs of a schedule, the steps of a running pipeline run. Work that was accepted before and returns (a retry, a revision,
requeued work) is counted and never refused.

Only background work (band 20) that never started and that nobody waits for is sheddable; sheddable.sql defines it. If there is not
enough of it, the submission is refused.

A limit of up to `EXACT_BELOW` holds exactly over all processes, because submissions near it count under a lock. For larger limits each
process counts at most every few seconds, or every half minute while less than half of the limit waits, and adds what it accepts meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count

from activities import relay, transitions
from activities.admission import Exchange
from activities.exceptions import ActivityError
from activities.models import Activity, TurnedAway
from activities.models.activity import in_status
from activities.states import BANDS, Status
from agents import configuration
from agents.exceptions import AgentError
from tenants.caches import TtlCache
from tenants.context import APP, SYSTEM
from tenants.identifiers import uuid7
from tenants.sql import Statement, lock_name
from tenants.wording import describe_count

CACHE_SECONDS = 2.0
FAR_SECONDS = 30.0  # while less than half of the limit waits, so that submissions need no query
RETRY_SECONDS = 10  # after this time workers have done some of the work, and the count is new
EXACT_BELOW = 1_000
NEAR = 500  # distance to a larger limit from which it is counted under the lock as well

REJECT, DROP_OLDEST, EVICT_LOWEST = ("reject", "drop_oldest", "evict_lowest")
SHED = "shed"  # the reason of a cancellation to make room

_SHEDDABLE = (Path(__file__).parent / "sql" / "sheddable.sql").read_text(encoding="utf-8")
_OLDEST, _NEWEST = (
    Statement(name=f"sheddable_{direction}", text=_SHEDDABLE.replace("{direction}", direction))
    for direction in ("ASC", "DESC")
)


class BacklogFull(ActivityError):
    """The backlog of this role is full."""

    code = "backlog_full"
    status = 429
    retry_after = RETRY_SECONDS


class Newcomer(NamedTuple):
    """One activity that a caller wants to add to the backlog. `schedule_id`: the schedule that it comes from."""

    role: str
    priority: int = BANDS["normal"]
    schedule_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The limit of one role of one tenant, and how long its new sheddable work may wait."""

    max_waiting: int
    when_full: str
    expire_after_seconds: float | None


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """Waiting activities by role, including what this process has accepted since the count; `at` is monotonic time."""

    at: float
    waiting: Counter[str]


_counts: TtlCache[WaitingCounts] = TtlCache(seconds=FAR_SECONDS, entries=10_000)


def policy_of(tenant_id: UUID, role: str) -> Policy:
    """Return the tenant's policy, or else the registry's, limited by the platform's maximum.

    If the settings of the role cannot be read (it was removed from the registry, its credentials cannot be decrypted), only the
    platform's maximum holds. Whether its work may run is decided elsewhere, and the work can still be reassigned.
    """
    try:
        policy = configuration.settings_for(tenant_id, role).backlog
    except AgentError:
        policy = {}
    limit = policy.get("max_waiting") or settings.ORCHESTRATOR_MAX_BACKLOG
    return Policy(
        min(limit, settings.ORCHESTRATOR_MAX_BACKLOG),
        policy.get("when_full", REJECT),
        policy.get("expire_after_seconds"),
    )


def make_room(tenant_id: UUID, newcomers: Iterable[Newcomer]) -> None:
    """Admit all of these to the backlog, or raise `BacklogFull`. In the transaction that submits them, in the caller's `tenant_scope`."""
    by_role = _by_role(newcomers)
    if not by_role:
        return
    waiting = _read_counts(tenant_id, by_role)
    for role in sorted(by_role):  # sorted, because each may take a lock
        _recount_if_near(tenant_id, role, len(by_role[role]), waiting)
        if not _admit(tenant_id, role, by_role[role], waiting):
            note_refused(tenant_id, [role] * len(by_role[role]))
            raise BacklogFull(explain_full(tenant_id, role))


def count_admitted(tenant_id: UUID, groups: Sequence[Sequence[Newcomer]]) -> int:
    """Return how many of these groups, counted from the first, may wait. For callers that keep the others and try again later.

    See `entering`.
    """
    for number, is_admitted in enumerate(entering(tenant_id, groups)):
        if not is_admitted:
            return number
    return len(groups)


def entering(tenant_id: UUID, groups: Sequence[Sequence[Newcomer]]) -> Iterator[bool]:
    """Yield for each group, in order, whether all of it may wait; a group is never admitted in part.

    Pass all groups in one call, because a second call does not count what the first one admitted. A group larger than the limit is
    admitted when nothing of its role waits, because it would otherwise wait for ever. Same transaction and scope as `make_room`.
    """
    by_role = _by_role(newcomer for group in groups for newcomer in group)
    waiting: Counter[str] = _read_counts(tenant_id, by_role) if by_role else Counter()
    for role in sorted(by_role):
        _recount_if_near(tenant_id, role, len(by_role[role]), waiting)
    for group in groups:
        yield _admit_whole(tenant_id, _by_role(group), waiting)


def explain_full(tenant_id: UUID, role: str) -> str:
    """Say why work of the role is refused."""
    most = describe_count(policy_of(tenant_id, role).max_waiting, "activity", "activities")
    return f"{most} may wait for {role}, and there is no room for more."


def _by_role(newcomers: Iterable[Newcomer]) -> dict[str, list[Newcomer]]:
    by_role: dict[str, list[Newcomer]] = {}
    for newcomer in newcomers:
        by_role.setdefault(newcomer.role, []).append(newcomer)
    return by_role


def _read_counts(tenant_id: UUID, by_role: Mapping[str, Sequence[Newcomer]]) -> Counter[str]:
    counts, now = _counts.recall(str(tenant_id)), time.monotonic()
    if counts is None or (
        now - counts.at > CACHE_SECONDS
        and any(
            2 * (counts.waiting[role] + len(more)) > policy_of(tenant_id, role).max_waiting
            for role, more in by_role.items()
        )
    ):
        counts = _counts.keep(str(tenant_id), WaitingCounts(now, _count_waiting(tenant_id)))
    return counts.waiting


def _recount_if_near(tenant_id: UUID, role: str, more: int, waiting: Counter[str]) -> None:
    """Count the role again under its lock if it is so near its limit that the count must be exact."""
    policy = policy_of(tenant_id, role)
    if policy.max_waiting > EXACT_BELOW and waiting[role] + more <= policy.max_waiting - NEAR:
        return
    if (
        policy.max_waiting <= EXACT_BELOW
        or policy.when_full != REJECT
        or waiting[role] + more <= policy.max_waiting
    ):
        # Until the end of the transaction, so that the next caller counts what this one submits.
        lock_name(f"backlog:{tenant_id}:{role}", using=APP)
        waiting[role] = _count_waiting(tenant_id, role)[role]


class _NoRoom(Exception):
    """Some role of a group has no room."""


def _admit_whole(tenant_id: UUID, roles: Mapping[str, list[Newcomer]], waiting: Counter[str]) -> bool:
    """Admit all roles of a group or none. If one has no room, nothing is cancelled to make room for the others."""
    if len(roles) < 2:
        return all(_admit(tenant_id, role, roles[role], waiting, is_whole=True) for role in roles)
    before = {role: waiting[role] for role in roles}
    try:
        with transaction.atomic(using=APP):
            for role in sorted(roles):
                if not _admit(tenant_id, role, roles[role], waiting, is_whole=True):
                    raise _NoRoom
    except _NoRoom:
        for role, count in before.items():
            waiting[role] = count
        return False
    return True


def _admit(
    tenant_id: UUID, role: str, newcomers: list[Newcomer], waiting: Counter[str], *, is_whole: bool = False
) -> bool:
    """Admit all of them, if there is room or room can be made; otherwise none."""
    policy, more = policy_of(tenant_id, role), len(newcomers)
    over = waiting[role] + more - policy.max_waiting
    if over > 0 and not (is_whole and more > policy.max_waiting and waiting[role] == 0):
        shed = _shed(tenant_id, role, over, newcomers, policy)
        waiting[role] -= shed
        if shed < over:
            return False
    waiting[role] += more
    return True


def _shed(tenant_id: UUID, role: str, over: int, newcomers: list[Newcomer], policy: Policy) -> int:
    """Cancel `over` sheddable activities. Returns how many were cancelled: all or none.

    A schedule drops none of its own work, because its jobs can wait for room.
    """
    if policy.when_full == EVICT_LOWEST:
        # Background newcomers are no more urgent than the work that they would replace.
        urgent = sum(newcomer.priority < BANDS["background"] for newcomer in newcomers)
        if urgent < over:
            return 0
    if policy.when_full == REJECT:
        return 0
    statement = _OLDEST if policy.when_full == DROP_OLDEST else _NEWEST
    parameters = {
        "tenant": tenant_id,
        "role": role,
        "background": BANDS["background"],
        "schedules": list({newcomer.schedule_id for newcomer in newcomers if newcomer.schedule_id}),
        "count": over,
    }
    rows = statement.run(parameters, using=APP)
    if len(rows) < over:
        return 0
    detail = {"reason": SHED, "policy": policy.when_full, "max_waiting": policy.max_waiting}
    cancelled = transitions.cancel_ready(
        [row.id for row in rows], actor="backlog", detail=detail, reason=SHED
    )
    # They never started and belong to nothing, so all they hold is their place in the queue.
    relay.after_commit(Exchange(withdrawals=[activity.id for activity in cancelled]))
    count_refused(tenant_id, Reason.SHED, {role: len(cancelled)})
    return len(cancelled)


def _count_waiting(tenant_id: UUID, role: str | None = None) -> Counter[str]:
    ready = Activity.objects.for_tenant(tenant_id).filter(in_status(Status.CREATED), assignee_type="agent")
    if role is not None:
        ready = ready.filter(agent_role=role)
    return Counter(dict(ready.order_by().values_list("agent_role").annotate(count=Count("pk"))))


def render_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored policy with its defaults filled in, for display."""
    return {
        "max_waiting": policy.get("max_waiting") or settings.ORCHESTRATOR_MAX_BACKLOG,
        "when_full": policy.get("when_full", REJECT),
        "expire_after_seconds": policy.get("expire_after_seconds"),
    }


# Counters of work that was refused at submission, cancelled to make room, or expired: by tenant, role and reason.

Reason = TurnedAway.Reason

REFUSALS_WRITTEN_SECONDS = 1.0

_COUNT = Statement.load(Path(__file__).parent / "sql", "count_turned_away")

_refused: dict[UUID, Counter[str]] = {}
_written: dict[UUID, float] = {}
_rejections_lock = Lock()


def count_refused(tenant_id: UUID, reason: Reason, roles: Mapping[str, int]) -> None:
    """Count in the caller's transaction, so that the count is rolled back with it."""
    _write(tenant_id, reason, roles, using=APP)


def note_refused(tenant_id: UUID, roles: Iterable[str]) -> None:
    """Count a submission that is about to be refused, in a separate transaction because its own is rolled back.

    Each process writes at most once a second, so that many refusals cost little; it writes the rest with a later refusal.
    """
    with _rejections_lock:
        counts = _refused.setdefault(tenant_id, Counter())
        counts.update(roles)
        now = time.monotonic()
        if now - _written.get(tenant_id, -1e9) < REFUSALS_WRITTEN_SECONDS:
            return
        _written[tenant_id] = now
        del _refused[tenant_id]
    _write(tenant_id, Reason.REJECTED, counts, using=SYSTEM)


def _write(tenant_id: UUID, reason: Reason, roles: Mapping[str, int], *, using: str) -> None:
    items = sorted(roles.items())
    if items:
        ids = [uuid7() for _ in items]
        names, counts = [role for role, _ in items], [number for _, number in items]
        parameters = {
            "tenant": tenant_id,
            "reason": reason.value,
            "ids": ids,
            "roles": names,
            "counts": counts,
        }
        _COUNT.run(parameters, using=using)
