"""How much work of a role may wait for a tenant, and what happens to a submission beyond it.

    reject        it is answered 429, with when to try again
    drop_oldest   the oldest work that nobody waits for makes room
    evict_lowest  the newest of the least urgent does, for work that is more urgent than that

Every submission passes here (`submission.submit`). A caller that cannot be refused asks `count_admitted` first, and keeps the rest: the
jobs of a schedule, the steps of a pipeline run that is under way. What was accepted before and comes back (a retry, a revision, what is
handed back) is counted and never refused.

Only background work (band 20) that was never started and that no person waits for is ever given up; sheddable.sql says exactly which.
Where there is not enough of it, the submission is refused.

A bound of up to `EXACT_BELOW` holds exactly, over all processes: those who come near it count under a lock, so two submissions at the brim
follow one another. Beyond, the count is taken at most every few seconds per process, every half minute while it is below half of the
bound, and what this process accepts in between is added.
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
from django.db import connections
from django.db.models import Count

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
from tenants.sql import Statement

from . import relay, transitions

KEPT_SECONDS = 2.0
FAR_SECONDS = 30.0  # while less than half of the bound waits: what comes costs no look then
RETRY_SECONDS = 10  # by then a tenth of a second's work of a few workers is gone, and the count is new
EXACT_BELOW = 1_000
NEAR = 500  # so far below a larger bound it is counted under the lock as well

REJECT, DROP_OLDEST, EVICT_LOWEST = ("reject", "drop_oldest", "evict_lowest")

_SHEDDABLE = (Path(__file__).parent / "sql" / "sheddable.sql").read_text(encoding="utf-8")
_OLDEST, _NEWEST = (
    Statement(name=f"sheddable_{direction}", text=_SHEDDABLE.replace("{direction}", direction))
    for direction in ("ASC", "DESC")
)


class BacklogFull(ActivityError):
    """As much work of this role is waiting as may wait."""

    code = "backlog_full"
    status = 429
    retry_after = RETRY_SECONDS


class Newcomer(NamedTuple):
    """Work that wants to wait."""

    role: str
    priority: int = BANDS["normal"]


@dataclass(frozen=True, slots=True)
class Policy:
    """For one role at one tenant."""

    max_waiting: int
    when_full: str


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """How much waits by role, including what this process has let in since; `at` is on the monotonic clock."""

    at: float
    waiting: Counter[str]


_counts: TtlCache[WaitingCounts] = TtlCache(seconds=FAR_SECONDS, entries=10_000)


def policy_of(tenant_id: UUID, role: str) -> Policy:
    """The tenant's own over the registry's, within what the platform allows at all.

    For a role whose settings cannot be read (it has gone from the registry, its credentials cannot be opened), only the platform's bound
    holds. Whether its work may run is decided elsewhere, and the work can still be reassigned.
    """
    try:
        policy = configuration.settings_for(tenant_id, role).backlog
    except AgentError:
        policy = {}
    most = policy.get("max_waiting") or settings.ORCHESTRATOR_MAX_BACKLOG
    return Policy(min(most, settings.ORCHESTRATOR_MAX_BACKLOG), policy.get("when_full", REJECT))


def make_room(tenant_id: UUID, newcomers: Iterable[Newcomer]) -> None:
    """Let all of these wait, or raise `BacklogFull`. In the transaction that submits them, within the caller's `tenant_scope`."""
    by_role = _by_role(newcomers)
    if not by_role:
        return
    waiting = _read_counts(tenant_id, by_role)
    for role in sorted(by_role):  # in one order, since each may take a lock
        _measure(tenant_id, role, len(by_role[role]), waiting)
        if not _enters(tenant_id, role, by_role[role], waiting):
            note_refused(tenant_id, [role] * len(by_role[role]))
            raise BacklogFull(explain_full(tenant_id, role))


def count_admitted(tenant_id: UUID, groups: Sequence[Sequence[Newcomer]]) -> int:
    """How many of these groups may wait, counted from the first. For callers that keep the others and try again later. Otherwise as
    `entering`.
    """
    for number, enters in enumerate(entering(tenant_id, groups)):
        if not enters:
            return number
    return len(groups)


def entering(tenant_id: UUID, groups: Sequence[Sequence[Newcomer]]) -> Iterator[bool]:
    """Say of each group, in order, whether all of it may wait; no group waits in part. Ask about all groups in one call: what this call
    lets in is not in the tables yet, so a second call would not count it.

    A group that is larger than the bound may once nothing of its role waits, since it could never otherwise. As `make_room`.
    """
    by_role = _by_role(newcomer for group in groups for newcomer in group)
    waiting: Counter[str] = _read_counts(tenant_id, by_role) if by_role else Counter()
    for role in sorted(by_role):
        _measure(tenant_id, role, len(by_role[role]), waiting)
    for group in groups:
        roles = _by_role(group)
        yield all(_enters(tenant_id, role, roles[role], waiting, is_whole=True) for role in sorted(roles))


def explain_full(tenant_id: UUID, role: str) -> str:
    """Why work of the role is refused."""
    return f"{policy_of(tenant_id, role).max_waiting} activities may wait for {role}, and there is no room for more."


def _by_role(newcomers: Iterable[Newcomer]) -> dict[str, list[int]]:
    """Their priorities."""
    priorities: dict[str, list[int]] = {}
    for newcomer in newcomers:
        priorities.setdefault(newcomer.role, []).append(newcomer.priority)
    return priorities


def _read_counts(tenant_id: UUID, by_role: Mapping[str, Sequence[int]]) -> Counter[str]:
    found, now = _counts.recall(str(tenant_id)), time.monotonic()
    if found is None or (
        now - found.at > KEPT_SECONDS
        and any(
            2 * (found.waiting[role] + len(more)) > policy_of(tenant_id, role).max_waiting
            for role, more in by_role.items()
        )
    ):
        found = _counts.keep(str(tenant_id), WaitingCounts(now, _count_waiting(tenant_id)))
    return found.waiting


def _measure(tenant_id: UUID, role: str, more: int, waiting: Counter[str]) -> None:
    """Count again, under the lock, what is so near its bound that the count must be exact."""
    policy = policy_of(tenant_id, role)
    if policy.max_waiting > EXACT_BELOW and waiting[role] + more <= policy.max_waiting - NEAR:
        return
    if (
        policy.max_waiting <= EXACT_BELOW
        or policy.when_full != REJECT
        or waiting[role] + more <= policy.max_waiting
    ):
        _lock(tenant_id, role)
        waiting[role] = _count_waiting(tenant_id, role)[role]


def _enters(
    tenant_id: UUID, role: str, priorities: list[int], waiting: Counter[str], *, is_whole: bool = False
) -> bool:
    """Let so many in, if there is or can be made room for all of them."""
    policy, more = policy_of(tenant_id, role), len(priorities)
    over = waiting[role] + more - policy.max_waiting
    if over > 0 and not (is_whole and more > policy.max_waiting and waiting[role] == 0):
        given_up = _shed(tenant_id, role, over, priorities, policy)
        waiting[role] -= given_up
        if given_up < over:
            return False
    waiting[role] += more
    return True


def _shed(tenant_id: UUID, role: str, over: int, priorities: list[int], policy: Policy) -> int:
    """Give up as many; how many that were, all or none."""
    if policy.when_full == EVICT_LOWEST:
        # What is background itself is no more urgent than what it would replace.
        urgent = sum(priority < BANDS["background"] for priority in priorities)
        if urgent < over:
            return 0
    if policy.when_full == REJECT:
        return 0
    statement = _OLDEST if policy.when_full == DROP_OLDEST else _NEWEST
    found = statement.run(
        {"tenant": tenant_id, "role": role, "background": BANDS["background"], "count": over}, using=APP
    )
    if len(found) < over:
        return 0
    detail = {"reason": "shed", "policy": policy.when_full, "max_waiting": policy.max_waiting}
    gone = transitions.apply_many(
        [row.id for row in found], "cancel", actor="backlog", detail=detail, cancel_reason="shed"
    )
    # Never started and part of nothing: all that they hold is their place in line.
    relay.after_commit(Exchange(withdrawals=[activity.id for activity in gone]))
    count_refused(tenant_id, Reason.SHED, {role: len(gone)})
    return len(gone)


def _lock(tenant_id: UUID, role: str) -> None:
    """Until the end of the transaction: who is next sees what this one submits."""
    with connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"backlog:{tenant_id}:{role}"]
        )


def _count_waiting(tenant_id: UUID, role: str | None = None) -> Counter[str]:
    ready = Activity.objects.for_tenant(tenant_id).filter(in_status(Status.CREATED), assignee_type="agent")
    if role is not None:
        ready = ready.filter(agent_role=role)
    return Counter(dict(ready.order_by().values_list("agent_role").annotate(count=Count("pk"))))


def render_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """A stored policy with its defaults, as people see it."""
    return {
        "max_waiting": policy.get("max_waiting") or settings.ORCHESTRATOR_MAX_BACKLOG,
        "when_full": policy.get("when_full", REJECT),
        "expire_after_seconds": policy.get("expire_after_seconds"),
    }


# Counts what was refused at submission, dropped to make room, or given up because its time had passed: by tenant, role and reason.


Reason = TurnedAway.Reason

REFUSALS_WRITTEN_SECONDS = 1.0

_COUNT = Statement.load(Path(__file__).parent / "sql", "count_turned_away")

_refused: dict[UUID, Counter[str]] = {}
_written: dict[UUID, float] = {}
_rejections_lock = Lock()


def count_refused(tenant_id: UUID, reason: Reason, roles: Mapping[str, int]) -> None:
    """In the caller's transaction, so that nothing is counted that did not happen."""
    _write(tenant_id, reason, roles, using=APP)


def note_refused(tenant_id: UUID, roles: Iterable[str]) -> None:
    """Count a submission that is about to be refused. As its transaction is rolled back, the count has a transaction of its own.

    Written at most once a second by each process, so that a flood of refusals costs little; those of its last second are written with the
    next refusal.
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
    found = sorted(roles.items())
    if found:
        ids = [uuid7() for _ in found]
        names, counts = [role for role, _ in found], [number for _, number in found]
        parameters = {
            "tenant": tenant_id,
            "reason": reason.value,
            "ids": ids,
            "roles": names,
            "counts": counts,
        }
        _COUNT.run(parameters, using=using)
