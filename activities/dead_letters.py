"""Dead letters: notifies people once of work that failed permanently, and lets them replay or dismiss it, one by one or in groups.

`dead_letter_records` records the failure itself. The consequences follow here in other transactions: a crash rolls one back, and
repeating it is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.db.models import Case, CharField, Count, Max, Min, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Collate, Now

from activities import activity_tree, cancellation, dead_letter_records, outbox, states, transitions
from activities.alerts import raise_alert
from activities.decision_rules import DEFAULT_ESCALATION_ROLE
from activities.models import Activity, ApprovalLink, DeadLetter, MailboxItem
from activities.models.activity import in_status
from activities.models.alert import AlertKind, Severity
from activities.models.dead_letter import DeadLetterReason, DeadLetterState, LetterKind
from activities.models.decision import LinkState
from activities.models.mailbox import ItemState
from activities.signals import activity_reopened, replayed_work_asked
from activities.states import BANDS, LinkKind, Status
from activities.submission import NewActivity, child_of, submit
from agents.models import AgentConfig
from tenants import clock, outages, sweeps
from tenants.context import APP, system_scope, tenant_scope
from tenants.sweeps import TURN_SECONDS, Sweep
from tenants.wording import describe_count

# Selecting: the chosen dead letters that are still open, with their activities locked in order of ids.

AT_ONCE = 100  # activities that one statement moves; its cost grows with the square of their number
FAILED = states.sources_of("retry")


def activities_of_letters(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """Return the failed activities of the chosen letters that are open, oldest failure first.

    With `lock` all are locked at once: if two callers choose overlapping letters, the second waits, and then sees the letters closed.
    """
    failed = chosen.filter(state=DeadLetterState.OPEN, activity__status__in=FAILED).order_by("pk")
    ids = [pk for pk in failed.values_list("activity_id", flat=True) if pk is not None]
    if lock:
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids).order_by("pk")
        list(rows.select_for_update().values_list("pk"))
        # Read again, because the previous holder of the locks may have closed some of them.
        still_failed = failed.filter(activity_id__in=ids).values_list("activity_id", flat=True)
        ids = [pk for pk in still_failed if pk is not None]
    return ids


def items_of_letters(tenant_id: UUID, chosen: QuerySet[DeadLetter], *, lock: bool) -> list[UUID]:
    """Return the failed mailbox items of the chosen letters that are open, oldest failure first; `lock` locks them."""
    letters = chosen.filter(state=DeadLetterState.OPEN, mailbox_item_id__isnull=False).order_by("pk")
    ids = [pk for pk in letters.values_list("mailbox_item_id", flat=True) if pk is not None]
    if not ids:
        return []
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids, state=ItemState.FAILED)
    rows = failed.order_by("pk").select_for_update() if lock else failed
    failed_ids = set(rows.values_list("pk", flat=True))
    return [item_id for item_id in ids if item_id in failed_ids]


def find_retryable(tenant_id: UUID, ids: Sequence[UUID]) -> list[UUID]:
    """Return those that can be live again together: at most one for each dedup key, none whose key a live activity uses, and none whose
    pipeline run is being replayed or has a newer replay among them."""
    rows = Activity.objects.for_tenant(tenant_id)
    replayed = find_replayed(
        tenant_id,
        rows.filter(pk__in=ids, pipeline_run_id__isnull=False).only("pipeline_run_id", "step", "link_kind"),
        together=True,
    )
    ids = [activity_id for activity_id in ids if activity_id not in replayed]
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


def find_replayed(tenant_id: UUID, activities: Iterable[Activity], *, together: bool = False) -> set[UUID]:
    """Return the ids of those that cannot be retried, because a replay of their pipeline run works.

    `together`: all are to be retried at once, so the work of a run with a newer replay among them is included.
    """
    answers: list[tuple[Any, Any]] = replayed_work_asked.send(
        Activity, tenant_id=tenant_id, activities=activities, together=together
    )
    return {activity_id for _, ids in answers for activity_id in ids}


def portions(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


def groups(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Group similar dead letters. Each row has `count`, the number of `open` ones, first and last time, and the newest id as `example`.

    The rows are named tuples, and can still be filtered by the fields of dead letters.
    """
    group_by = ("fingerprint", "agent_role", "reason")
    # As text, because not every PostgreSQL can aggregate UUIDs; collation C compares them digit by digit.
    newest = Max(Collate(Cast("pk", TextField()), "C"))
    counted = rows.order_by().values(*group_by).annotate(
        count=Count("pk"),
        open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
        first_at=Min("created_at"),
        last_at=Max("created_at"),
        example=newest,
    )  # fmt: skip
    return counted.values_list(*group_by, "count", "open", "first_at", "last_at", "example", named=True)


def with_examples(groups: Sequence[Any], letters: QuerySet[DeadLetter]) -> list[tuple[Any, DeadLetter]]:
    """Return each group with its example, without groups whose example was deleted after the groups were read."""
    examples = letters.in_bulk([UUID(group.example) for group in groups])
    return [(group, examples[pk]) for group in groups if (pk := UUID(group.example)) in examples]


def open_letters() -> dict[tuple[str, str, str], int]:
    """Count open dead letters by role (empty for an external consumer), kind and reason. In the caller's scope."""
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


# Dismissing: the failed activities are cancelled, with everything that depends on them.


@dataclass(frozen=True, slots=True)
class DismissResult:
    """The result of a dismissal or of its dry run."""

    count: int
    skipped: int  # chosen, but no longer open


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
        _close_cancelled(tenant_id, [activity.id for activity in moved], actor)
        count += len(moved)
    return DismissResult(count, total - count)


def cancel_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Cancel a mailbox item that is pending or has failed; returns whether it was. In the caller's `tenant_scope`."""
    idle = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state__in=(ItemState.PENDING, ItemState.FAILED), agent_role=None
    )
    ids = list(idle.select_for_update().values_list("pk", flat=True))
    _cancel_items(tenant_id, ids, actor)
    return bool(ids)


def _cancel_items(tenant_id: UUID, ids: Sequence[UUID], actor: str) -> None:
    rows = MailboxItem.objects.for_tenant(tenant_id).filter(pk__in=ids)
    rows.update(state=ItemState.CANCELLED, done_at=Now())
    dead_letter_records.close(tenant_id, DeadLetterState.CLOSED, actor=actor, mailbox_item_id__in=ids)


def _close_cancelled(tenant_id: UUID, cancelled: Sequence[UUID], actor: str) -> None:
    """Close the letters and escalations of all in one statement each, and release the few activities that have other dependents.

    Failed activities have no run and hold no slot.
    """
    escalations = _close_letters(tenant_id, cancelled, DeadLetterState.CLOSED, actor)
    for activity_id in sorted(_with_dependents(tenant_id, [*cancelled, *escalations])):
        cancellation.release_everything(tenant_id, activity_id, actor=actor)


def _close_letters(
    tenant_id: UUID, activity_ids: Sequence[UUID], state: DeadLetterState, actor: str
) -> list[UUID]:
    """Close the letters of these activities, and cancel the escalations to people about them; returns those."""
    escalations = dead_letter_records.close(tenant_id, state, actor=actor, activity_id__in=activity_ids)
    transitions.cancel_obsolete(escalations, actor=actor)
    return escalations


def _with_dependents(tenant_id: UUID, cancelled: Sequence[UUID]) -> set[UUID]:
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


# Replaying: failed work is retried, one letter or a whole group, at the requested rate.
#
# Each activity is reopened by a guarded transition, so two replays at once, or a repeated one, start nothing twice.


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay or of its dry run."""

    count: int
    skipped: int  # chosen, but no longer open
    seconds: float  # until the last of them starts


def retry_item(tenant_id: UUID, item_id: UUID, *, actor: str) -> bool:
    """Make a failed mailbox item pending again; returns whether it had failed. In the caller's `tenant_scope`."""
    failed = MailboxItem.objects.for_tenant(tenant_id).filter(
        pk=item_id, state=ItemState.FAILED, agent_role=None
    )
    ids = list(failed.select_for_update().values_list("pk", flat=True))
    _reopen_items(tenant_id, ids, actor, before=0, per_second=None)
    return bool(ids)


def replay(
    tenant_id: UUID,
    chosen: QuerySet[DeadLetter],
    *,
    actor: str,
    per_second: float | None = None,
    dry_run: bool = False,
) -> ReplayResult:
    """Retry the activities and items of open dead letters, oldest first, at most `per_second` of them a second.

    In the caller's `tenant_scope`.
    """
    total = chosen.count()
    ids = find_retryable(tenant_id, activities_of_letters(tenant_id, chosen, lock=not dry_run))
    items = items_of_letters(tenant_id, chosen, lock=not dry_run)
    count = len(ids) if dry_run else len(reopen(tenant_id, ids, actor, per_second))
    if not dry_run:
        _reopen_items(tenant_id, items, actor, before=count, per_second=per_second)
    count += len(items)
    return ReplayResult(count, total - count, max(0, count - 1) / per_second if per_second else 0.0)


def reopen(tenant_id: UUID, ids: list[UUID], actor: str, per_second: float | None) -> list[UUID]:
    """Retry these failed activities; returns those that were reopened. The caller holds their locks."""
    reopened: list[list[Any]] = []
    for portion in portions(ids):
        moved = transitions.apply_many(
            portion, "retry", actor=actor, detail={"replay": True}, **cancellation.AGAIN
        )
        # The database returns the rows in any order; the oldest failure must start first.
        place = {activity_id: index for index, activity_id in enumerate(portion)}
        reopened.append(sorted(moved, key=lambda activity: place[activity.id]))
        _close_letters(tenant_id, [activity.id for activity in moved], DeadLetterState.REPLAYED, actor)
    activities = list(chain.from_iterable(reopened))
    _announce_reopened(activities)
    # The times begin here, because all that came before takes seconds for thousands, and what is due at the commit starts at once.
    began, before = clock.now(), 0
    for moved in reopened:
        outbox.record_again(moved, due=_start_times(began, before, len(moved), per_second))
        before += len(moved)
    return [activity.id for activity in activities]


def _reopen_items(
    tenant_id: UUID, ids: list[UUID], actor: str, *, before: int, per_second: float | None
) -> None:
    """Make mailbox items pending again, with all their attempts. The caller holds their locks."""
    rows = MailboxItem.objects.for_tenant(tenant_id)
    rows.filter(pk__in=ids).update(state=ItemState.PENDING, attempts=0, error=None, done_at=None, due_at=None)
    times = _start_times(clock.now(), before, len(ids), per_second)
    later = [MailboxItem(pk=pk, due_at=at) for pk, at in zip(ids, times, strict=False)]
    rows.bulk_update(later, ["due_at"], batch_size=AT_ONCE)
    dead_letter_records.close(tenant_id, DeadLetterState.REPLAYED, actor=actor, mailbox_item_id__in=ids)


def _start_times(began: datetime, before: int, count: int, per_second: float | None) -> list[datetime]:
    """Return the start times of the next `count`; an empty list if all may start at once."""
    if not per_second:
        return []
    return [began + timedelta(seconds=(before + index) / per_second) for index in range(count)]


def _announce_reopened(reopened: Iterable[Any]) -> None:
    """Send `activity_reopened`. Call it after all changes of activities, because receivers lock pipeline runs and executions of schedules,
    which come after activities; sorted, so that all lock them in the same order."""
    for activity in sorted(
        reopened, key=lambda one: (str(one.pipeline_run_id), str(one.schedule_id), one.id)
    ):
        activity_reopened.send(sender=Activity, activity=activity)


# Handling: the activity goes to `needs_review`, an escalation asks a person, an alert is raised, and the tenant's planner is woken if it
# has one. One transaction per letter does all of this.
#
# At most one process at a time handles letters, so that many failures at once are processed one after the other. The transaction of one
# letter holds the lock; PostgreSQL ends that transaction if the process freezes.

logger = logging.getLogger(__name__)

_UNHANDLED = Sweep[Any]()
JOB_FAILED = "job.failed"  # the event that wakes a planner
TURN_LOCK = 0x6465616C  # "deal": advisory lock of the transaction that handles a dead letter; never change it

_REASONS = {
    DeadLetterReason.EXHAUSTED: "its attempts are used up",
    DeadLetterReason.PERMANENT: "another attempt would fail in the same way",
    DeadLetterReason.STALLED: "its worker or agent was lost too often",
    DeadLetterReason.WAKE_BUDGET: "it was woken repeatedly without progress",
    DeadLetterReason.RATE_LIMITED: "its agent or provider was rate limited for too long",
}


class _UnhandledLetter(NamedTuple):
    pk: UUID
    tenant_id: UUID
    activity_id: UUID | None


def handle_waiting(*, within: float = TURN_SECONDS) -> int:
    """Handle the dead letters that were not handled yet, for at most `within` seconds; returns how many.

    One process at a time; others return at once. A letter that cannot be handled does not block the others. Raises the database's
    error during an outage.
    """
    handled = 0
    unhandled = sweeps.pages(list_unhandled(), "pk", "tenant_id", "activity_id")
    for letter in map(_UnhandledLetter._make, _UNHANDLED.turn(unhandled, within=within)):
        with outages.one_of_many(
            logger, "A dead letter cannot be handled", action="dead_letter_stuck", dead_letter=str(letter.pk)
        ):
            with tenant_scope(letter.tenant_id):
                if not _take_turn():
                    break
                is_handled = _handle(letter)
            handled += is_handled
    return handled


def list_unhandled() -> QuerySet[Any]:
    """Return the dead letters of all tenants that people were not notified of yet."""
    return DeadLetter.objects.filter(handled_at=None)


def unhandled_since(age: timedelta) -> bool:
    """Whether a dead letter older than `age` is not handled yet."""
    with system_scope():
        return list_unhandled().filter(created_at__lt=Now() - age).exists()


def _take_turn() -> bool:
    """Take the lock until the end of the transaction. Returns False if another process has it."""
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [TURN_LOCK])
        return bool(cursor.fetchone()[0])


def _handle(waiting: _UnhandledLetter) -> bool:
    """Handle one letter. That of a mailbox item only raises an alert: nobody in the inbox can do the work of an external consumer."""
    tenant_id, activity_id = waiting.tenant_id, waiting.activity_id
    activity = activity_tree.lock_with_parent(tenant_id, activity_id) if activity_id else None
    letters = DeadLetter.objects.for_tenant(tenant_id).filter(pk=waiting.pk, handled_at=None)
    letter = letters.select_for_update().first()
    if letter is None or (activity_id and activity is None):
        return False  # It was handled or deleted meanwhile.
    if letter.state == DeadLetterState.OPEN:
        if activity is not None:
            detail = {"dead_letter": str(letter.pk)}
            if activity.status == Status.FAILED:
                transitions.apply(activity.pk, "escalate", actor="engine", detail=detail)
            letter.escalation_id = _escalate(activity, letter)
            letter.planning_id = _wake_planners(activity, letter)
        _alert(activity, letter)
    letters.update(handled_at=Now(), escalation_id=letter.escalation_id, planning_id=letter.planning_id)
    return True


def _escalate(activity: Activity, letter: DeadLetter) -> UUID:
    escalation = child_of(
        activity,
        LinkKind.ESCALATION,
        name=f"Failed: {activity.name}"[:200],
        description=f"{_write_question(letter)}\n\nRetry it, reassign it, or cancel it.",
        human_role=DEFAULT_ESCALATION_ROLE,
        priority=BANDS["urgent"],
        metadata={"dead_letter": str(letter.pk), "fingerprint": letter.fingerprint, "reason": letter.reason},
    )
    return submit([escalation], actor="engine")[0].id


def _wake_planners(activity: Activity, letter: DeadLetter) -> UUID | None:
    """Submit an activity for each of the tenant's roles that hear of failures; returns the first activity's id.

    They are notified of a group of similar failures once in a while, with its fingerprint, not of each failure. A planner is not notified
    of its own failures, because it would plan for ever, nor of those of its subtasks, because it receives their outcome anyway.
    """
    chosen = AgentConfig.objects.for_tenant(letter.tenant_id).filter(
        hears_of_failures=True, enabled=True, agent__enabled=True
    )
    roles = list(chosen.order_by("agent_id").values_list("agent_id", flat=True))
    involved_roles = {activity.agent_role, _role_of_parent(activity)}
    if not roles or not involved_roles.isdisjoint(roles) or _was_planned_recently(letter):
        return None
    params = {
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
            description="Work has failed permanently; the parameters say which work and why. Plan another way to reach its goal.",
            agent_role=role,
            params=params,
            metadata={"event": JOB_FAILED, "dead_letter": str(letter.pk)},
            deliverable_id=activity.deliverable_id,
            priority=BANDS["gated"],
            dedup_key=f"{JOB_FAILED}:{role}:{letter.fingerprint}",
        )
        for role in roles
    ]
    return submit(planning, actor="engine", bounded=False)[0].id


def _role_of_parent(activity: Activity) -> str | None:
    if activity.parent_id is None:
        return None
    parents = Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.parent_id)
    return parents.values_list("agent_role", flat=True).first()


def _was_planned_recently(letter: DeadLetter) -> bool:
    similar = DeadLetter.objects.for_tenant(letter.tenant_id).filter(fingerprint=letter.fingerprint)
    since = Now() - timedelta(seconds=settings.ORCHESTRATOR_PLAN_AGAIN_SECONDS)
    return similar.filter(planning_id__isnull=False, handled_at__gte=since).exists()


def _alert(activity: Activity | None, letter: DeadLetter) -> None:
    raise_alert(
        letter.tenant_id,
        AlertKind.WAKE_BUDGET if letter.reason == DeadLetterReason.WAKE_BUDGET else AlertKind.DEAD_LETTER,
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
    who = letter.agent_role or f"The consumer of the mailbox {letter.mailbox_key}"
    stalls = f" and {describe_count(letter.stalls, 'stall')}" if letter.stalls else ""
    cost = f" Its cost so far is ${letter.cost_usd.normalize():f}." if letter.cost_usd else ""
    message = str(letter.error.get("message") or letter.error.get("code") or "").rstrip(".")
    attempts, reason = describe_count(letter.attempts, "attempt"), _REASONS[DeadLetterReason(letter.reason)]
    question = f"{who} failed permanently after {attempts}{stalls}: {reason}.{cost}"
    return f"{question} {message}." if message else question
