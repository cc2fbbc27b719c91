"""Posts items to mailboxes, delivers them to agents, and reads the state of mailboxes.

Posting is idempotent for one `client_message_id` of a mailbox.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Now

from activities import activity_tree, backlog, outbox, relay
from activities.admission import Exchange
from activities.exceptions import ActivityError, MailboxError, MailboxFull
from activities.models import Activity, ActivityRun, ApprovalLink, Mailbox, MailboxBatch, MailboxItem, Wake
from activities.models.activity import in_status
from activities.models.mailbox import BatchState, ItemKind, ItemSource, ItemState
from activities.models.run import is_carried
from activities.states import BANDS, LIVE, LinkKind, RunStatus, Status, WakeReason, WakeState
from activities.submission import NewActivity, submit
from tenants import clock
from tenants.models import BudgetWait
from tenants.wording import describe_count

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """A message. `priority` is from 0 to 9, lower first. `backoff` may contain `multiplier` and `max_seconds`.

    With `is_coalescable` it is delivered together with others of its `scope_key`; None means True, except for a task notification.
    """

    kind: str = ItemKind.MESSAGE
    content: Any = None
    text: str = ""
    source: str = ItemSource.USER
    priority: int = 5
    run_after: datetime | None = None
    max_attempts: int = 3
    backoff: Mapping[str, Any] = field(default_factory=dict)
    is_coalescable: bool | None = None
    scope_key: str = ""
    client_message_id: str | None = None
    agent_role: str | None = None


@dataclass(frozen=True, slots=True)
class PostedItem:
    """The item, and whether it is new."""

    item: MailboxItem
    created: bool


def open_mailbox(tenant_id: UUID, key: str, agent_role: str | None = None) -> Mailbox:
    """Return the mailbox of this key, created if needed. Raises `MailboxError` if another role or external consumers consume it."""
    mailbox, _ = Mailbox.objects.for_tenant(tenant_id).get_or_create(
        tenant_id=tenant_id, key=key, defaults={"agent_role": agent_role}
    )
    if agent_role and mailbox.agent_role is None:
        mailbox = _let_agent_consume(mailbox, agent_role)
    if agent_role and mailbox.agent_role != agent_role:
        consumer = f"the agent {mailbox.agent_role}" if mailbox.agent_role else "external consumers"
        raise MailboxError(
            f"The mailbox {key} is consumed by {consumer}, not by the agent {agent_role}.",
            code="other_consumer",
        )
    return mailbox


def _let_agent_consume(mailbox: Mailbox, agent_role: str) -> Mailbox:
    """Return the mailbox, which the agent consumes from now on if it has had no item: work or a subagent has only named it."""
    # The lock waits for the items that are being posted.
    locked: Mailbox = Mailbox.objects.for_tenant(mailbox.tenant_id).select_for_update().get(pk=mailbox.pk)
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(mailbox_id=mailbox.pk)
    if locked.agent_role is None and not locked.fence and not items.exists():
        locked.agent_role = agent_role
        locked.save(update_fields=["agent_role"])
    return locked


def post(tenant_id: UUID, key: str, new: NewItem, *, actor: str, bounded: bool = True) -> PostedItem:
    """Post an item, in the caller's `tenant_scope`. If an agent consumes the mailbox, delivers it in the same transaction.

    Raises `MailboxError` and, if `bounded`, `MailboxFull` and `BacklogFull`.
    """
    mailbox = open_mailbox(tenant_id, key, new.agent_role)
    if (earlier := _find_duplicate(mailbox, new)) is not None:
        return PostedItem(earlier, created=False)
    if bounded:
        limit = settings.ORCHESTRATOR_MAILBOX_ITEMS
        waiting = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
            mailbox_id=mailbox.pk, state__in=(ItemState.PENDING, ItemState.CLAIMED)
        )
        if waiting.count() >= limit and not _end_answered(mailbox):
            raise MailboxFull(
                f"The mailbox {mailbox.key} is full: it has {describe_count(limit, 'waiting item')} already."
            )
    item = _item(mailbox, new)
    MailboxItem.objects.for_tenant(tenant_id).bulk_create([item], ignore_conflicts=True)
    if mailbox.agent_role is None and not mailbox.fence:
        # From here on the item keeps others from changing the consumer, but they may have done so since the mailbox was read.
        mailbox = Mailbox.objects.for_tenant(tenant_id).get(pk=mailbox.pk)
        if mailbox.agent_role:
            MailboxItem.objects.for_tenant(tenant_id).filter(pk=item.pk).update(agent_role=mailbox.agent_role)
    stored = MailboxItem.objects.for_tenant(tenant_id).filter(pk=item.pk).first()
    if stored is None:
        # The same item was posted at the same time, and the other transaction has committed.
        return PostedItem(_find_duplicate(mailbox, new) or item, created=False)
    if mailbox.agent_role:
        deliver(mailbox, stored, actor=actor, bounded=bounded)
    return PostedItem(stored, created=True)


def _end_answered(mailbox: Mailbox) -> int:
    """End the items that results have answered; returns how many. In a session that is always busy, no end of its activity does so."""
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state=ItemState.PENDING
    )
    ended = 0
    for activity_id in set(items.values_list("activity_id", flat=True)):
        if activity_id is not None:
            answered = _answered(mailbox.tenant_id, activity_id)
            ended += items.filter(pk__in=answered.values("pk")).update(state=ItemState.DONE, done_at=Now())
    return ended


def _find_duplicate(mailbox: Mailbox, new: NewItem) -> MailboxItem | None:
    if new.client_message_id is None:
        return None
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(mailbox_id=mailbox.pk)
    return items.filter(client_message_id=new.client_message_id).first()


def _item(mailbox: Mailbox, new: NewItem) -> MailboxItem:
    alone = new.kind == ItemKind.TASK_NOTIFICATION
    return MailboxItem(
        tenant_id=mailbox.tenant_id, mailbox_id=mailbox.pk, agent_role=mailbox.agent_role, kind=new.kind, content=new.content,
        text=new.text, source=new.source, priority=new.priority, run_after=new.run_after, due_at=new.run_after,
        max_attempts=new.max_attempts, backoff=dict(new.backoff), client_message_id=new.client_message_id, scope_key=new.scope_key,
        is_coalescable=not alone if new.is_coalescable is None else new.is_coalescable and not alone,
    )  # fmt: skip


MOST = 9  # the lowest priority in a mailbox


def convert_priority(priority: int) -> int:
    """Convert a mailbox priority (0 urgent, 5 normal, 9 background) to the scale of activities."""
    low, middle, high = BANDS["urgent"], BANDS["normal"], BANDS["background"]
    if priority <= 5:
        return low + (middle - low) * priority // 5
    return middle + (high - middle) * (priority - 5) // (MOST - 5)


# Delivery: items become wakes of an activity of the mailbox's agent, which continues the mailbox's conversation.
#
# Coalescable items of a scope wake one activity, the only live one of that scope. Items that arrive within the window, while it waits or
# while it runs are delivered in order by one run. Every other item has an activity of its own; the group key lets one run at a time.
# The wakes are authoritative: a run takes them, returns them if it fails or is lost, and consumes them with its result.

# The activity may end between the query and its lock, or begin between the query and the submission.
TRIES = 5

#: The state of the delivered items after the activity has ended with this status.
_ENDS = {
    Status.DONE: ItemState.DONE,
    Status.APPROVED: ItemState.DONE,
    Status.REJECTED: ItemState.DONE,  # its revision continues with them
    Status.REASSIGNED: ItemState.DONE,  # they were answered before; its successor has the others
    Status.FAILED: ItemState.FAILED,
    Status.NEEDS_REVIEW: ItemState.FAILED,
    Status.CANCELLED: ItemState.CANCELLED,
}


def deliver(mailbox: Mailbox, item: MailboxItem, *, actor: str, bounded: bool = False) -> None:
    """Deliver an item to the mailbox's agent. In the caller's `tenant_scope`; locks the live activity, if there is one.

    Raises `BacklogFull` if it is `bounded`, needs a new activity, and the backlog is full.
    """
    for _ in range(TRIES):
        activity_id = _join_live_activity(mailbox, item) if item.is_coalescable else None
        activity_id = activity_id or _submit_activity(mailbox, item, actor, bounded)
        if activity_id is not None:
            item.activity_id = activity_id
            MailboxItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk).update(activity_id=activity_id)
            return
    raise ActivityError(
        "The activity of the mailbox's agent began and ended repeatedly at the same time. Try again.",
        code="submission_raced",
    )


def end_items_of(ended: Any) -> None:
    """End the items that an ended activity has received, and deliver those that it has not received to another activity.

    In the transaction of the end. `ended` is a `transitions.Moved`.
    """
    if ended.mailbox_id is None:
        return
    items = MailboxItem.objects.for_tenant(ended.tenant_id).filter(activity_id=ended.id).order_by("pk")
    open_ones = list(items.filter(state__in=(ItemState.PENDING, ItemState.FAILED)))
    if not open_ones:
        return
    end = _ENDS[Status(ended.status)]
    if end != ItemState.DONE:
        answered = set(_answered(ended.tenant_id, ended.id).values_list("pk", flat=True))
        _end(ended, [item for item in open_ones if item.pk in answered], ItemState.DONE)
        open_ones = [item for item in open_ones if item.pk not in answered]
    undelivered = (
        set() if end == ItemState.CANCELLED else _undelivered(ended, [item.pk for item in open_ones])
    )
    _end(ended, [item for item in open_ones if item.pk not in undelivered and item.state != end], end)
    if undelivered:
        _deliver_again(ended, [item for item in open_ones if item.pk in undelivered])


def move_items(activity: Activity, successor_id: UUID) -> dict[str, Any] | None:
    """Let the items of an activity that is being reassigned end with its successor; returns the input with which that one receives them.

    Items that an accepted result has answered stay, and those for later than the work itself are delivered again at their time. Returns
    None if there are no others. In the transaction that creates the successor.
    """
    if activity.mailbox_id is None:
        return None
    answered = _answered(activity.tenant_id, activity.pk)
    rows = MailboxItem.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, state__in=(ItemState.PENDING, ItemState.FAILED)
    )
    now = clock.now()
    begin = max(now, activity.not_before or now)
    rows = rows.exclude(pk__in=answered.values("pk")).exclude(run_after__gt=begin, state=ItemState.PENDING)
    items = list(rows.select_related("mailbox").order_by("pk"))
    if not items:
        return None
    moved = MailboxItem.objects.for_tenant(activity.tenant_id).filter(pk__in=[item.pk for item in items])
    moved.update(activity_id=successor_id, state=ItemState.PENDING, done_at=None, error=None)
    text = "\n\n".join(item.text for item in items if item.text)
    return {"content": text or None, "data": [_payload(item.mailbox, item) for item in items]}


def _answered(tenant_id: UUID, activity_id: UUID) -> QuerySet[Any]:
    """Return the wakes of an activity that accepted results have answered. A wake has the id of its item."""
    answering = ActivityRun.objects.for_tenant(tenant_id).filter(
        activity_id=activity_id, status=RunStatus.COMPLETED, ended_by_tool=""
    )
    answered: QuerySet[Any] = Wake.objects.for_tenant(tenant_id).filter(run_id__in=answering.values("pk"))
    return answered


def _join_live_activity(mailbox: Mailbox, item: MailboxItem) -> UUID | None:
    """Add the item to the live activity of its scope, if there is one. Locks it, so that it cannot end meanwhile."""
    # Anyone may submit other work with this key.
    live = Activity.objects.for_tenant(item.tenant_id).filter(
        in_status(*LIVE),
        dedup_key=_scope_dedup_key(mailbox, item),
        mailbox_id=mailbox.pk,
        assignee_type="agent",
    )
    activity_id = live.values_list("pk", flat=True).first()
    activity = activity_tree.lock(item.tenant_id, [activity_id]).get(activity_id) if activity_id else None
    if activity is None or activity.status not in LIVE:
        return None
    _stop_waiting_for_later_items(activity)
    if item.run_after is None:
        _raise_priority(activity, convert_priority(item.priority))
    _extend_expiry(activity, item)
    outbox.add(activity, item.pk, WakeReason.MESSAGE, payload=_payload(mailbox, item), due_at=item.run_after)
    return activity.pk


def _raise_priority(activity: Activity, priority: int) -> None:
    """Make a locked activity as urgent as the new item, never less urgent.

    If it waits in admission, withdraw it, because the offer for the new item adds it at its new place.
    """
    if priority >= activity.priority:
        return
    activity.priority = priority
    Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk).update(priority=priority)
    BudgetWait.objects.for_tenant(activity.tenant_id).filter(activity_id=activity.pk).update(
        priority=priority
    )
    if activity.status == Status.CREATED:
        relay.after_commit(Exchange(withdrawals=[activity.pk]))


def _extend_expiry(activity: Activity, item: MailboxItem) -> None:
    """Let a locked activity wait as long as one for the new item alone would, so that the item is not cancelled with older ones."""
    if activity.expires_at is None:
        return
    seconds = None
    if convert_priority(item.priority) >= BANDS["background"]:
        seconds = backlog.policy_of(activity.tenant_id, activity.agent_role or "").expire_after_seconds
    expires_at = None
    if seconds is not None:
        now = clock.now()
        expires_at = max(activity.expires_at, max(now, item.run_after or now) + timedelta(seconds=seconds))
    Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk).update(expires_at=expires_at)


def _stop_waiting_for_later_items(activity: Activity) -> None:
    """Let items with a later `run_after` no longer delay the activity. The window and retry delays still delay all its items."""
    later_items = MailboxItem.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, run_after__gt=Now()
    )
    delaying = Wake.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, state=WakeState.PENDING, pk__in=later_items.values("pk"), cause="wake"
    )
    if delaying.update(cause=outbox.LATER):
        # A date that came from the later item, and not from people.
        dated = Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk)
        dated.filter(not_before__in=later_items.values("run_after")).update(not_before=None)


def _submit_activity(mailbox: Mailbox, item: MailboxItem, actor: str, bounded: bool) -> UUID | None:
    window = timedelta(milliseconds=settings.ORCHESTRATOR_MAILBOX_WINDOW_MS)
    not_before = item.run_after or (clock.now() + window if item.is_coalescable and window else None)
    (submitted,) = submit(
        [
            NewActivity(
                name=f"{_NAMES[item.kind]} in {mailbox.key}"[:200],
                agent_role=mailbox.agent_role,
                priority=convert_priority(item.priority),
                mailbox_id=mailbox.pk,
                dedup_key=_scope_dedup_key(mailbox, item) if item.is_coalescable else None,
                group_key=f"mailbox:{mailbox.pk}",
                not_before=not_before,
                max_attempts=item.max_attempts,
                retry={
                    "base_seconds": settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS,
                    "max_attempts": item.max_attempts,
                    **item.backoff,
                },
                wake_reason=WakeReason.MESSAGE,
                wake_payload=_payload(mailbox, item),
                wake_id=item.pk,
            )
        ],
        actor=actor,
        bounded=bounded,
    )
    return submitted.id if submitted.created else None


_NAMES = {
    "message": "Messages",
    "task_notification": "A task has ended",
    "approval_result": "A decision",
    "overlay_action": "An action",
}


def _scope_dedup_key(mailbox: Mailbox, item: MailboxItem) -> str:
    """Return the dedup key of the activity that receives all items of a scope. Hashed, because a scope key may be too long."""
    if not item.scope_key:
        return f"mailbox:{mailbox.pk}"
    return f"mailbox:{mailbox.pk}:{hashlib.blake2b(item.scope_key.encode(), digest_size=16).hexdigest()}"


def _payload(mailbox: Mailbox, item: MailboxItem) -> dict[str, Any]:
    return {
        "item": str(item.pk), "mailbox": mailbox.key, "kind": item.kind, "source": item.source, "text": item.text,
        "content": item.content,
    }  # fmt: skip


def _undelivered(ended: Any, item_ids: Iterable[UUID]) -> set[UUID]:
    pending = Wake.objects.for_tenant(ended.tenant_id).filter(
        activity_id=ended.id, pk__in=list(item_ids), state=WakeState.PENDING
    )
    return set(pending.values_list("pk", flat=True))


def _end(ended: Any, items: list[MailboxItem], state: ItemState) -> None:
    if not items:
        return
    error = getattr(ended, "error", None) if state == ItemState.FAILED else None
    MailboxItem.objects.for_tenant(ended.tenant_id).filter(pk__in=[item.pk for item in items]).update(
        state=state, done_at=Now(), error=error
    )
    if state == ItemState.FAILED:
        facts = {"action": "mailbox_items_failed", "activity": str(ended.id), "count": len(items)}
        logger.warning("Mailbox items have failed permanently", extra=facts)


def _deliver_again(ended: Any, items: list[MailboxItem]) -> None:
    """Deliver the items to another activity. Deletes their wakes, so that a retry of the ended activity does not deliver them too."""
    mailbox = Mailbox.objects.for_tenant(ended.tenant_id).get(pk=ended.mailbox_id)
    Wake.objects.for_tenant(ended.tenant_id).filter(pk__in=[item.pk for item in items]).delete()
    for item in items:
        deliver(mailbox, item, actor="engine")


# Reading mailboxes. Until its activity has ended, the state of an agent's item is that of its wake.

EMPTY = {"pending": 0, "claimed": 0, "failed": 0, "oldest_pending_at": None}


def items_of(tenant_id: UUID, mailbox: Mailbox) -> QuerySet[Any]:
    """Return the items with their `current_state`; items of an agent also have `run_id`, the run that receives or received them."""
    return _with_state(tenant_id).filter(mailbox_id=mailbox.pk)


def item_with_id(tenant_id: UUID, item_id: UUID) -> Any:
    return _with_state(tenant_id).get(pk=item_id)


def counts_of(tenant_id: UUID, mailboxes: Iterable[Mailbox]) -> dict[UUID, dict[str, Any]]:
    """Count the pending, claimed and failed items of each mailbox; also returns the time of the oldest pending one."""
    ids = [mailbox.pk for mailbox in mailboxes]
    rows = (
        _with_state(tenant_id)
        .filter(mailbox_id__in=ids, state__in=(ItemState.PENDING, ItemState.CLAIMED, ItemState.FAILED))
        .order_by()
        .values("mailbox_id")
        .annotate(
            pending=Count("pk", filter=Q(current_state=ItemState.PENDING)),
            claimed=Count("pk", filter=Q(current_state=ItemState.CLAIMED)),
            failed=Count("pk", filter=Q(current_state=ItemState.FAILED)),
            oldest_pending_at=Min("created_at", filter=Q(current_state=ItemState.PENDING)),
        )
    )
    counts = {row.pop("mailbox_id"): row for row in rows}
    return {mailbox_id: counts.get(mailbox_id, EMPTY) for mailbox_id in ids}


def consumers_of(tenant_id: UUID, mailbox: Mailbox) -> list[dict[str, Any]]:
    """Return the consumers that hold items now: how many items, since when, and until when at least. Longest first."""
    batches = MailboxBatch.objects.for_tenant(tenant_id).filter(mailbox_id=mailbox.pk, state=BatchState.OPEN)
    rows: Iterable[Any] = (
        batches.order_by()
        .values("consumer")
        .annotate(claimed=Sum("size"), since=Min("created_at"), until=Min("leased_until"))
    )
    return sorted(rows, key=lambda row: (row["since"], row["consumer"]))


def seconds_since(since: datetime | None, now: datetime) -> float | None:
    """Return the seconds since a time, rounded to milliseconds; None if there is no such time."""
    return None if since is None else round(max(0.0, (now - since).total_seconds()), 3)


def _with_state(tenant_id: UUID) -> QuerySet[Any]:
    # A successor receives its items as its input, so the wakes of the activity before it say nothing about them.
    wakes = Wake.objects.for_tenant(tenant_id).filter(pk=OuterRef("pk"), activity_id=OuterRef("activity_id"))
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(tenant_id)
    activity = Activity.objects.for_tenant(tenant_id).filter(pk=OuterRef("activity_id"))
    return rows.annotate(
        tries=Coalesce(Subquery(activity.values("attempts")[:1]), F("attempts")),
        run_id=Subquery(wakes.values("run_id")[:1]),
        current_state=Case(
            When(~Q(state=ItemState.PENDING) | Q(agent_role=None), then=F("state")),
            When(Exists(wakes.filter(is_carried(tenant_id))), then=Value(ItemState.CLAIMED.value)),
            When(Exists(wakes.exclude(state=WakeState.PENDING)), then=Value(ItemState.DONE.value)),
            default=F("state"),
            output_field=CharField(),
        ),
    )


# Decisions: a decision about work of a session is posted to the session's mailbox, in the transaction of the decision.
#
# External consumers receive every decision. For an agent's mailbox only the approval of its result is posted, because an agent that waits
# for an answer, or whose result is rejected, starts again with that answer anyway.

_QUESTIONS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_ANSWERS = (Status.APPROVED, Status.REJECTED, Status.DONE)


def post_decision(ended: Any) -> None:
    """Post a decision to the mailboxes that it concerns, if the ended activity was a question. `ended` is a `transitions.Moved`."""
    if ended.link_kind not in _QUESTIONS or ended.status not in _ANSWERS:
        return
    pairs = _activities_with_mailbox(ended)
    mailboxes = Mailbox.objects.for_tenant(ended.tenant_id).filter(pk__in={box for _, box in pairs})
    for mailbox in mailboxes.order_by("pk"):
        if mailbox.agent_role and (ended.link_kind != LinkKind.GATE or ended.status != Status.APPROVED):
            continue
        about = [activity for activity, box in pairs if box == mailbox.pk and activity is not None]
        post(ended.tenant_id, mailbox.key, _result(ended, about), actor="engine", bounded=False)


def _activities_with_mailbox(ended: Any) -> list[tuple[UUID | None, UUID]]:
    """Return the activities that the decision is about, each with its mailbox."""
    own = [(ended.parent_id, ended.mailbox_id)] if ended.mailbox_id else []
    if ended.link_kind != LinkKind.APPROVAL:
        return own
    linked = ApprovalLink.objects.for_tenant(ended.tenant_id).filter(approval_id=ended.id)
    rows = Activity.objects.for_tenant(ended.tenant_id).filter(
        pk__in=linked.values("activity_id"), mailbox_id__isnull=False
    )
    pairs = [*own, *rows.order_by("pk").values_list("pk", "mailbox_id")]
    return list(dict.fromkeys(pairs))


def _result(ended: Any, about: Iterable[UUID]) -> NewItem:
    result = {
        "decision": ended.status, "question": ended.name, "kind": ended.link_kind, "id": str(ended.id),
        "activities": sorted({str(activity) for activity in about}), "notes": ended.reviewer_notes,
        "chosen_option": ended.chosen_option, "decided_by": ended.decided_by,
    }  # fmt: skip
    notes = f" {ended.reviewer_notes}" if ended.reviewer_notes else ""
    return NewItem(
        kind=ItemKind.APPROVAL_RESULT,
        source=ItemSource.ENGINE,
        content=result,
        text=f"{ended.name}: {ended.status}.{notes}",
        client_message_id=f"decision:{ended.id}",
    )
