"""Dead letters: people are told of work that failed for good, once, and set it going again or give it up, one by one or all alike.

The failure itself is recorded by `dead_letter_records`. What follows from it is done here, apart from the failure: anyone who dies
half-way has done nothing, and everything may be done twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.db.models import Case, CharField, Count, Max, Min, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Collate, Now

from activities import activity_tree, cancellation, outbox, states, transitions
from activities.alerts import raise_alert
from activities.decision_rules import DEFAULT_ESCALATION_ROLE
from activities.models import Activity, ApprovalLink, DeadLetter, MailboxItem
from activities.models.activity import in_status
from activities.models.alert import AlertKind, Severity
from activities.models.dead_letter import BurialReason, DeadLetterState, LetterKind
from activities.models.decision import LinkState
from activities.models.mailbox import ItemState
from activities.signals import activity_reopened
from activities.states import BANDS, LinkKind, Status
from activities.submission import NewActivity, child_of, submit
from agents.models import AgentConfig
from tenants import clock, outages
from tenants.context import APP, system_scope, tenant_scope

# Choosing: which of the dead letters that somebody names can still be acted on, with their activities locked in the order that all use.


AT_ONCE = 100  # activities that one statement moves; its cost grows with the square of their number
FAILED = states.sources_of("retry")


def activities_of_letters(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """The failed activities of open letters, oldest failure first. The others were dealt with before.

    All are locked at once: of two callers that choose overlapping letters at the same time, the second waits for the first and then
    finds them closed.
    """
    failed = chosen.filter(state=DeadLetterState.OPEN, activity__status__in=FAILED).order_by("pk")
    ids = [found for found in failed.values_list("activity_id", flat=True) if found is not None]
    if lock:
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids).order_by("pk")
        list(rows.select_for_update().values_list("pk"))
        # Asked again: anyone who held the locks before may have dealt with some of them.
        again = failed.filter(activity_id__in=ids).values_list("activity_id", flat=True)
        ids = [found for found in again if found is not None]
    return ids


def items_of_letters(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """The failed items of mailboxes of open letters, oldest failure first; locked as `activities_of`."""
    letters = chosen.filter(state=DeadLetterState.OPEN, mailbox_item_id__isnull=False).order_by("pk")
    ids = [found for found in letters.values_list("mailbox_item_id", flat=True) if found is not None]
    if not ids:
        return []
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids, state=ItemState.FAILED)
    rows = failed.order_by("pk").select_for_update() if lock else failed
    found = set(rows.values_list("pk", flat=True))
    return [item_id for item_id in ids if item_id in found]


def without_twins(tenant_id: UUID, ids: Sequence[UUID]) -> list[UUID]:
    """Those that can be live again. Of activities with one dedup key at most one is, and the same work may have been submitted again or
    have failed twice."""
    rows = Activity.objects.for_tenant(tenant_id)
    keys = dict(rows.filter(pk__in=ids, dedup_key__isnull=False).values_list("pk", "dedup_key"))
    live = rows.filter(in_status(*states.LIVE), dedup_key__in=set(keys.values()))
    taken_keys = set(live.values_list("dedup_key", flat=True)) if keys else set()
    unique = []
    for activity_id in ids:
        key = keys.get(activity_id)
        if key is None or key not in taken_keys:
            unique.append(activity_id)
            taken_keys.add(key)
    return unique


def escalations_of(letters: QuerySet[DeadLetter]) -> list[UUID]:
    """The activities that ask people about these letters."""
    return [found for found in letters.values_list("escalation_id", flat=True) if found is not None]


def portions(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


# Sorting: failures that look alike, together, and how many wait for people.


def groups(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Dead letters that look alike: `count`, how many of them are `open`, when they came, and the id of the newest as `example`.

    The rows are named tuples; they can still be filtered by what a dead letter has.
    """
    alike = ("fingerprint", "agent_role", "reason")
    # As text, since not every PostgreSQL compares UUIDs in an aggregate; in the order of their digits.
    newest = Max(Collate(Cast("pk", TextField()), "C"))
    counted = rows.order_by().values(*alike).annotate(
        count=Count("pk"),
        open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
        first_at=Min("created_at"),
        last_at=Max("created_at"),
        example=newest,
    )  # fmt: skip
    return counted.values_list(*alike, "count", "open", "first_at", "last_at", "example", named=True)


def open_letters() -> dict[tuple[str, str, str], int]:
    """How many people have not dealt with, by role (empty for a consumer outside), kind and reason. In the scope that is open."""
    kind = Case(
        When(mailbox_item_id=None, then=Value(LetterKind.ACTIVITY.value)),
        default=Value(LetterKind.MAILBOX_ITEM.value),
        output_field=CharField(),
    )
    counted = (
        DeadLetter.objects.filter(state=DeadLetterState.OPEN)
        .annotate(what=kind)
        .values_list("agent_role", "what", "reason")
        .annotate(count=Count("pk"))
        .order_by()
    )
    return {(role, what, reason): count for role, what, reason, count in counted}


# Dismissing: nobody wants this work any more. Its activities are cancelled, with everything that still hangs on them.


@dataclass(frozen=True, slots=True)
class DismissResult:
    """What a dismissal has done, or would do."""

    count: int
    skipped: int  # chosen, but dealt with before


def dismiss(
    tenant_id: UUID, chosen: QuerySet[DeadLetter], *, actor: str, reason: str, dry_run: bool = False
) -> DismissResult:
    """Cancel the activities and items of open dead letters. In the caller's `tenant_scope`."""
    total = chosen.count()
    ids = activities_of_letters(tenant_id, chosen, lock=not dry_run)
    items = items_of_letters(tenant_id, chosen, lock=not dry_run)
    if dry_run:
        return DismissResult(len(ids) + len(items), total - len(ids) - len(items))
    count = len(items)
    _cancel_items(tenant_id, items, actor)
    for portion in portions(ids):
        moved = transitions.apply_many(
            portion, "cancel", actor=actor, detail={"reason": reason, "dismissed": True}, cancel_reason=reason or None
        )  # fmt: skip
        _let_go(tenant_id, [activity.id for activity in moved], actor)
        count += len(moved)
    return DismissResult(count, total - count)


def cancel_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Cancel an item of a mailbox, so that no consumer takes it; whether it waited or had failed. In the caller's `tenant_scope`."""
    idle = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state__in=(ItemState.PENDING, ItemState.FAILED), agent_role=None
    )
    found = list(idle.select_for_update().values_list("pk", flat=True))
    _cancel_items(tenant_id, found, actor)
    return bool(found)


def _cancel_items(tenant_id: UUID, ids: Sequence[UUID], actor: str) -> None:
    rows = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids)
    rows.update(state=ItemState.CANCELLED, done_at=Now())
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        mailbox_item_id__in=ids, state=DeadLetterState.OPEN
    )
    letters.update(state=DeadLetterState.CLOSED, closed_at=Now(), closed_by=actor)


def _let_go(tenant_id: UUID, cancelled: Sequence[UUID], actor: str) -> None:
    """What has failed runs no more and holds no slot. Most have nothing left but the question to a person, which all share a statement."""
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        activity_id__in=cancelled, state=DeadLetterState.OPEN
    )
    escalations = escalations_of(letters)
    letters.update(state=DeadLetterState.CLOSED, closed_at=Now(), closed_by=actor)
    transitions.apply_many(
        escalations,
        "cancel",
        actor=actor,
        detail={"reason": cancellation.OBSOLETE},
        cancel_reason=cancellation.OBSOLETE,
    )
    for activity_id in sorted(_with_more(tenant_id, cancelled)):
        cancellation.release_everything(tenant_id, activity_id, actor=actor)


def _with_more(tenant_id: UUID, cancelled: Sequence[UUID]) -> set[UUID]:
    children = (
        Activity.objects.for_tenant(tenant_id)
        .filter(
            parent_id__in=cancelled, link_kind__in=[LinkKind.SUBTASK, LinkKind.REVIEW, LinkKind.RESOLUTION]
        )
        .exclude(status__in=activity_tree.ENDED)
    )
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=cancelled, state=LinkState.WAITING
    )
    return set(children.values_list("parent_id", flat=True)) | set(
        links.values_list("activity_id", flat=True)
    )


# Replaying: failed work is set going again, one letter or all that failed alike, as fast as is wanted.
#
# Each activity is opened again by a guarded move, so of two replays at once one gets it, and repeating a replay starts nothing twice.


OBSOLETE = "obsolete"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay has done, or would do."""

    count: int
    skipped: int  # chosen, but dealt with before
    seconds: float  # until the last of them starts


def retry_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Let a failed item of a mailbox be taken again; whether it was one. In the caller's `tenant_scope`."""
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state=ItemState.FAILED, agent_role=None
    )
    found = list(failed.select_for_update().values_list("pk", flat=True))
    _reopen_items(tenant_id, found, actor, before=0, per_second=None)
    return bool(found)


def replay(
    tenant_id: UUID,
    chosen: QuerySet[DeadLetter],
    *,
    actor: str,
    per_second: float | None = None,
    dry_run: bool = False,
) -> ReplayResult:
    """Set the activities and items of open dead letters going again, oldest first, at most `per_second` of them a second.

    In the caller's `tenant_scope`.
    """
    total = chosen.count()
    ids = without_twins(tenant_id, activities_of_letters(tenant_id, chosen, lock=not dry_run))
    items = items_of_letters(tenant_id, chosen, lock=not dry_run)
    count = len(ids) if dry_run else len(reopen(tenant_id, ids, actor, per_second))
    if not dry_run:
        _reopen_items(tenant_id, items, actor, before=count, per_second=per_second)
    count += len(items)
    return ReplayResult(count, total - count, max(0, count - 1) / per_second if per_second else 0.0)


def reopen(tenant_id: UUID, ids: list[UUID], actor: str, per_second: float | None) -> list[UUID]:
    """Set these failed activities going again; those that were. The caller holds their locks."""
    began = clock.now()
    reopened: list[Any] = []
    for portion in portions(ids):
        moved = transitions.apply_many(
            portion, "retry", actor=actor, detail={"replay": True}, attempts=0, stalls=0, error=None
        )
        # The database answers in an order of its own; the oldest failure starts first.
        place = {activity_id: index for index, activity_id in enumerate(portion)}
        moved.sort(key=lambda activity: place[activity.id])
        outbox.record_again(
            moved, cause="replay", due=_start_times(began, len(reopened), len(moved), per_second)
        )
        _close_letters(tenant_id, [activity.id for activity in moved], actor)
        reopened += moved
    _tell_pipelines(reopened)
    return [activity.id for activity in reopened]


def _reopen_items(
    tenant_id: UUID, ids: list[UUID], actor: str, *, before: int, per_second: float | None
) -> None:
    """Items of mailboxes can be taken again, with all their attempts. The caller holds their locks."""
    rows = MailboxItem.objects.for_tenant(tenant_id)
    rows.filter(pk__in=ids).update(state=ItemState.PENDING, attempts=0, error=None, done_at=None, due_at=None)
    times = _start_times(clock.now(), before, len(ids), per_second)
    later = [MailboxItem(pk=pk, due_at=at) for pk, at in zip(ids, times, strict=False)]
    rows.bulk_update(later, ["due_at"], batch_size=AT_ONCE)
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        mailbox_item_id__in=ids, state=DeadLetterState.OPEN
    )
    letters.update(state=DeadLetterState.REPLAYED, closed_at=Now(), closed_by=actor)


def _start_times(began: datetime, before: int, count: int, per_second: float | None) -> list[datetime]:
    """When each of the next `count` starts; nothing when they may all start at once."""
    if not per_second:
        return []
    return [began + timedelta(seconds=(before + index) / per_second) for index in range(count)]


def _close_letters(tenant_id: UUID, activities: list[UUID], actor: str) -> None:
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(
        activity_id__in=activities, state=DeadLetterState.OPEN
    )
    escalations = escalations_of(letters)
    letters.update(state=DeadLetterState.REPLAYED, closed_at=Now(), closed_by=actor)
    if escalations:
        transitions.apply_many(
            escalations, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
        )


def _tell_pipelines(reopened: Iterable[Any]) -> None:
    """Last, and in the order of the runs, since each is locked: activities come before runs."""
    for activity in sorted(reopened, key=lambda one: str(one.pipeline_run_id)):
        if activity.pipeline_run_id is not None:
            activity_reopened.send(sender=Activity, activity=activity)


# Handling: the activity goes to `needs_review`, an escalation asks a person, an alert goes out, a planner is woken where the tenant has
# one. All of it or nothing, once per letter.
#
# At most one process does it at a time, so that a thousand failures at once are told of one after the other. The turn is held for one
# letter, by its transaction, which PostgreSQL ends when the process is frozen in it.

logger = logging.getLogger(__name__)

PAGE = 200
JOB_FAILED = "job.failed"  # what a planner is woken with
TURN_LOCK = 0x6465616C  # "deal": the transaction that holds it handles a dead letter; never change it
TURN_SECONDS = 20.0  # Then the queue gets its worker back. While letters wait, the next hint is on its way.

_SAID = {
    BurialReason.EXHAUSTED: "its attempts are used up",
    BurialReason.PERMANENT: "another attempt would fail alike",
    BurialReason.STALLED: "its worker was lost once too often",
    BurialReason.WAKE_BUDGET: "it was woken again and again without getting anywhere",
    BurialReason.RATE_LIMITED: "its agent or provider asked to come back later for too long",
}


class _NotOurTurn(Exception):
    """Another process is handling a letter."""


class _UnhandledLetter(NamedTuple):
    pk: UUID
    tenant_id: UUID
    activity_id: UUID | None


def handle_waiting(*, within: float = TURN_SECONDS) -> int:
    """Tell people of every dead letter that they were not told of yet, for at most `within` seconds; how many.

    One process at a time, others return at once. A letter that cannot be handled holds up no other. Raises what says so when
    PostgreSQL does not answer.
    """
    handled, until = 0, time.monotonic() + within
    for letter in _waiting():
        try:
            handled += _try_handle(letter)
        except _NotOurTurn:
            break
        if time.monotonic() > until:
            break
    return handled


def list_unhandled() -> QuerySet[Any]:
    """What people were not told of yet, of all tenants."""
    rows: QuerySet[Any] = DeadLetter.objects.filter(handled_at=None)
    return rows


def unhandled_since(age: timedelta) -> bool:
    """Whether somebody should have been told of something that long ago."""
    with system_scope():
        return list_unhandled().filter(created_at__lt=Now() - age).exists()


def _waiting() -> Iterator[_UnhandledLetter]:
    """Oldest first, each once in a turn."""
    last: UUID | None = None
    while True:
        with system_scope():
            rows = list_unhandled() if last is None else list_unhandled().filter(pk__gt=last)
            found = rows.order_by("pk").values_list("pk", "tenant_id", "activity_id")[:PAGE]
            page = [_UnhandledLetter(*row) for row in found]
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].pk


def _try_handle(letter: _UnhandledLetter) -> bool:
    try:
        with tenant_scope(letter.tenant_id):
            _take_turn()
            return _handle_item(letter) if letter.activity_id is None else _handle(letter, letter.activity_id)
    except _NotOurTurn:
        raise
    except Exception as error:
        if outages.may_pass(error):
            raise
        # A mistake of ours about one failure must not keep people from learning of all others.
        logger.exception(
            "A dead letter cannot be handled",
            extra={"action": "dead_letter_stuck", "dead_letter": str(letter.pk)},
        )
        return False


def _take_turn() -> None:
    """Until the end of the transaction. Raises `_NotOurTurn`."""
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [TURN_LOCK])
        if not cursor.fetchone()[0]:
            raise _NotOurTurn


def _handle(waiting: _UnhandledLetter, activity_id: UUID) -> bool:
    activity = activity_tree.lock_with_parent(waiting.tenant_id, activity_id)
    letters = DeadLetter.objects.for_tenant(waiting.tenant_id).filter(pk=waiting.pk, handled_at=None)
    letter = letters.select_for_update().first()
    if activity is None or letter is None:
        return False  # It was handled or deleted in this moment.
    if letter.state == DeadLetterState.OPEN:
        if activity.status == Status.FAILED:
            transitions.apply(activity_id, "escalate", actor="engine", detail={"dead_letter": str(letter.pk)})
        letter.escalation_id = _escalate(activity, letter)
        letter.planning_id = _wake_planners(activity, letter)
        _alert(activity, letter)
    letters.update(handled_at=Now(), escalation_id=letter.escalation_id, planning_id=letter.planning_id)
    return True


def _handle_item(waiting: _UnhandledLetter) -> bool:
    """Nobody in the inbox can do the work of a consumer outside, so there is an alert and no escalation."""
    letters = DeadLetter.objects.for_tenant(waiting.tenant_id).filter(pk=waiting.pk, handled_at=None)
    letter = letters.select_for_update().first()
    if letter is None:
        return False
    if letter.state == DeadLetterState.OPEN:
        _alert(None, letter)
    letters.update(handled_at=Now())
    return True


def _escalate(activity: Activity, letter: DeadLetter) -> UUID:
    escalation = child_of(
        activity,
        LinkKind.ESCALATION,
        name=f"Failed: {activity.name}"[:200],
        description=f"{_write_question(letter)}\n\nTry it again, hand it to somebody else, or cancel it.",
        human_role=DEFAULT_ESCALATION_ROLE,
        priority=BANDS["urgent"],
        metadata={"dead_letter": str(letter.pk), "fingerprint": letter.fingerprint, "reason": letter.reason},
    )
    return submit([escalation], actor="engine")[0].id


def _wake_planners(activity: Activity, letter: DeadLetter) -> UUID | None:
    """Have the roles of the tenant that hear of failures plan again; the activity of the first of them.

    They hear of a kind of failure once in a while, not of each of a thousand: their activity tells the fingerprint, by which all are
    listed. A planner does not hear of its own failures, nor of its subtasks', whose end it is told anyway: it would plan for ever.
    """
    chosen = AgentConfig.objects.for_tenant(letter.tenant_id).filter(
        hears_of_failures=True, enabled=True, agent__enabled=True
    )
    roles = list(chosen.order_by("agent_id").values_list("agent_id", flat=True))
    concerned = {activity.agent_role, _find_asking_role(activity)}
    if not roles or not concerned.isdisjoint(roles) or _planned_lately(letter):
        return None
    failed = {
        "event": JOB_FAILED,
        "activity": str(activity.pk),
        "name": activity.name,
        "agent_role": letter.agent_role,
        "reason": letter.reason,
        "error": letter.error,
        "attempts": letter.attempts,
        "stalls": letter.stalls,
        "dead_letter": str(letter.pk),
        "fingerprint": letter.fingerprint,
        "pipeline_run": activity.pipeline_run_id and str(activity.pipeline_run_id),
        "step": activity.step,
    }
    planning = [
        NewActivity(
            name="Plan again after a failure",
            description="Work has failed for good; the parameters say what and why. Plan how its goal is reached all the same.",
            agent_role=role,
            params=failed,
            metadata={"event": JOB_FAILED, "dead_letter": str(letter.pk)},
            deliverable_id=activity.deliverable_id,
            priority=BANDS["gated"],
            dedup_key=f"{JOB_FAILED}:{role}:{letter.fingerprint}",
        )
        for role in roles
    ]
    return submit(planning, actor="engine", bounded=False)[0].id


def _find_asking_role(activity: Activity) -> str | None:
    """The role of the agent whose subtask this was."""
    if activity.parent_id is None:
        return None
    parents = Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.parent_id)
    role: str | None = parents.values_list("agent_role", flat=True).first()
    return role


def _planned_lately(letter: DeadLetter) -> bool:
    alike = DeadLetter.objects.for_tenant(letter.tenant_id).filter(fingerprint=letter.fingerprint)
    since = Now() - timedelta(seconds=settings.ORCHESTRATOR_PLAN_AGAIN_SECONDS)
    return alike.filter(planning_id__isnull=False, handled_at__gte=since).exists()


def _alert(activity: Activity | None, letter: DeadLetter) -> None:
    raise_alert(
        letter.tenant_id,
        AlertKind.WAKE_BUDGET if letter.reason == BurialReason.WAKE_BUDGET else AlertKind.DEAD_LETTER,
        f"Failed: {letter.name if activity is None else activity.name}",
        body=_write_question(letter),
        severity=Severity.CRITICAL,
        activity_id=activity.pk if activity else None,
        facts={
            **({} if activity else {"mailbox": letter.mailbox_key, "mailbox_item": letter.mailbox_item_id}),
            "agent_role": letter.agent_role,
            "reason": letter.reason,
            "error": letter.error.get("code"),
            "attempts": letter.attempts,
            "stalls": letter.stalls,
            "cost_usd": letter.cost_usd,
            "fingerprint": letter.fingerprint,
        },
        dedup_key=f"dead-letter:{letter.pk}",
    )


def _write_question(letter: DeadLetter) -> str:
    reason = _SAID[BurialReason(letter.reason)]
    message = str(letter.error.get("message") or letter.error.get("code") or "")
    stalls = f", stalls {letter.stalls}" if letter.stalls else ""
    cost = f", cost so far ${letter.cost_usd.normalize():f}" if letter.cost_usd else ""
    who = letter.agent_role or f"The consumer of the mailbox {letter.mailbox_key}"
    return f"{who} has given up: {reason}. Attempts {letter.attempts}{stalls}{cost}. {message}"
