"""Something is said to a session. Said twice under one `client_message_id` it is one item, however it comes."""

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

from activities import activity_tree, outbox, relay
from activities.admission import Exchange
from activities.exceptions import MailboxFull, OtherConsumer, SubmissionRaced
from activities.models import Activity, ApprovalLink, Mailbox, MailboxBatch, MailboxItem, Wake
from activities.models.activity import in_status
from activities.models.mailbox import BatchState, ItemKind, ItemSource, ItemState
from activities.models.run import is_carried
from activities.states import BANDS, LIVE, LinkKind, Status, WakeReason, WakeState
from activities.submission import NewActivity, submit
from tenants import clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """A message. `priority` is from 0 to 9, lower first. With `is_coalescable` it is delivered together with others of its `scope_key`;
    None means True, but for a task notification.

    `backoff` may have `multiplier` and `max_seconds`.
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
    """The mailbox of this key, created if it does not exist. Raises `OtherConsumer` when another role, or any client, consumes it."""
    mailbox, _ = Mailbox.objects.for_tenant(tenant_id).get_or_create(
        tenant_id=tenant_id, key=key, defaults={"agent_role": agent_role}
    )
    if agent_role and mailbox.agent_role != agent_role:
        consumer = f"the agent {mailbox.agent_role}" if mailbox.agent_role else "anyone who takes from it"
        raise OtherConsumer(f"The mailbox {key} is consumed by {consumer}, not by the agent {agent_role}.")
    return mailbox


def post(tenant_id: UUID, key: str, new: NewItem, *, actor: str, bounded: bool = True) -> PostedItem:
    """Put it into the mailbox, in the caller's `tenant_scope`. Raises `OtherConsumer` and, if `bounded`, `MailboxFull` and `BacklogFull`.

    An agent's activity is told of it in the same transaction.
    """
    mailbox = open_mailbox(tenant_id, key, new.agent_role)
    if (known := _find_earlier(mailbox, new)) is not None:
        return PostedItem(known, created=False)
    if bounded:
        _refuse_when_full(mailbox)
    item = _item(mailbox, new)
    MailboxItem.objects.for_tenant(tenant_id).bulk_create([item], ignore_conflicts=True)
    stored = MailboxItem.objects.for_tenant(tenant_id).filter(pk=item.pk).first()
    if stored is None:
        # The same was said at the same moment, and the other has committed by now.
        return PostedItem(_find_earlier(mailbox, new) or item, created=False)
    if mailbox.agent_role:
        deliver(mailbox, stored, actor=actor, bounded=bounded)
    return PostedItem(stored, created=True)


def _find_earlier(mailbox: Mailbox, new: NewItem) -> MailboxItem | None:
    if new.client_message_id is None:
        return None
    items = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(mailbox_id=mailbox.pk)
    found: MailboxItem | None = items.filter(client_message_id=new.client_message_id).first()
    return found


def _refuse_when_full(mailbox: Mailbox) -> None:
    most = settings.ORCHESTRATOR_MAILBOX_ITEMS
    waiting = MailboxItem.objects.for_tenant(mailbox.tenant_id).filter(
        mailbox_id=mailbox.pk, state__in=(ItemState.PENDING, ItemState.CLAIMED)
    )
    if waiting.count() >= most:
        raise MailboxFull(f"{most} items wait in the mailbox {mailbox.key} already.")


def _item(mailbox: Mailbox, new: NewItem) -> MailboxItem:
    alone = new.kind == ItemKind.TASK_NOTIFICATION
    return MailboxItem(
        tenant_id=mailbox.tenant_id, mailbox_id=mailbox.pk, agent_role=mailbox.agent_role, kind=new.kind, content=new.content,
        text=new.text, source=new.source, priority=new.priority, run_after=new.run_after, due_at=new.run_after,
        max_attempts=new.max_attempts, backoff=dict(new.backoff), client_message_id=new.client_message_id, scope_key=new.scope_key,
        is_coalescable=not alone if new.is_coalescable is None else new.is_coalescable and not alone,
    )  # fmt: skip


# A mailbox's priorities, 0 to 9 with 5 in the middle, on the one scale of activities.


MOST = 9


def convert_priority(priority: int) -> int:
    """0 is urgent, 5 normal, 9 background; between them in proportion."""
    low, middle, high = BANDS["urgent"], BANDS["normal"], BANDS["background"]
    if priority <= 5:
        return low + (middle - low) * priority // 5
    return middle + (high - middle) * (priority - 5) // (MOST - 5)


# Items become wakes of an activity of the mailbox's agent, which continues the mailbox's conversation.
#
# What may be told together wakes one activity, the only live one of its mailbox: what comes within the window, while it waits or while it
# runs is told in the order in which it came, by one run. Whatever comes alone has an activity of its own; the group lets one run at a
# time.
# The wakes are the truth: a run takes them, gives them back when it fails or is lost, and uses them up with its result.


TRIES = 5  # The activity may end between the look at it and its lock, or begin between the look and the submission.

#: What the end of the activity means for what it had been told.
_ENDS = {
    Status.DONE: ItemState.DONE,
    Status.APPROVED: ItemState.DONE,
    Status.REJECTED: ItemState.DONE,  # its revision goes on with it
    Status.REASSIGNED: ItemState.DONE,  # its successor does
    Status.FAILED: ItemState.FAILED,
    Status.NEEDS_REVIEW: ItemState.FAILED,
    Status.CANCELLED: ItemState.CANCELLED,
}


def deliver(mailbox: Mailbox, item: MailboxItem, *, actor: str, bounded: bool = False) -> None:
    """Deliver the item to the mailbox's agent. In the caller's `tenant_scope`; locks the live activity, if there is one.

    Raises `BacklogFull` if it is `bounded`, needs an activity of its own, and there is no room for one.
    """
    for _ in range(TRIES):
        activity_id = _tell_with_others(mailbox, item) if item.is_coalescable else None
        activity_id = activity_id or _tell_alone(mailbox, item, actor, bounded)
        if activity_id is not None:
            item.activity_id = activity_id
            MailboxItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk).update(activity_id=activity_id)
            return
    raise SubmissionRaced(
        "The mailbox's agent began and ended at the same moment, again and again. Try again."
    )


def follow(ended: Any) -> None:
    """The activity has ended in this transaction. End the items that it was given, and give those that it never got to another activity.

    `ended` is a `transitions.Moved`.
    """
    if ended.mailbox_id is None:
        return
    items = MailboxItem.objects.for_tenant(ended.tenant_id).filter(activity_id=ended.id).order_by("pk")
    open_ones = list(items.filter(state__in=(ItemState.PENDING, ItemState.FAILED)))
    if not open_ones:
        return
    end = _ENDS[Status(ended.status)]
    unheard = set() if end == ItemState.CANCELLED else _unheard(ended, [item.pk for item in open_ones])
    ending = [item for item in open_ones if item.pk not in unheard and item.state != end]
    _end(ended, ending, end)
    if unheard:
        _tell_anew(ended, [item for item in open_ones if item.pk in unheard])


def _tell_with_others(mailbox: Mailbox, item: MailboxItem) -> UUID | None:
    """Join the activity that is to hear, or hears, of others. It is locked, so that its end comes before or after this."""
    live = Activity.objects.for_tenant(item.tenant_id).filter(
        in_status(*LIVE), dedup_key=_together(mailbox, item)
    )
    activity_id = live.values_list("pk", flat=True).first()
    activity = activity_tree.lock(item.tenant_id, [activity_id]).get(activity_id) if activity_id else None
    if activity is None or activity.status not in LIVE:
        return None
    _let_pass(activity)
    if item.run_after is None:
        _lift(activity, convert_priority(item.priority))
    outbox.add(activity, item.pk, WakeReason.MESSAGE, payload=_payload(mailbox, item), due_at=item.run_after)
    return activity.pk


def _lift(activity: Activity, priority: int) -> None:
    """Make a locked activity as urgent as the news; never less. Where it waits for its turn it is taken out of the order, and the offer
    that comes with the news puts it where it belongs now."""
    if priority >= activity.priority:
        return
    activity.priority = priority
    Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk).update(priority=priority)
    if activity.status == Status.CREATED:
        relay.after_commit(Exchange(withdrawals=[activity.pk]))


def _let_pass(activity: Activity) -> None:
    """What was said for later holds up nobody who comes meanwhile. The window, a retry and the like do: who comes goes with the others."""
    for_later = MailboxItem.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, run_after__gt=Now()
    )
    passed = Wake.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, state=WakeState.PENDING, pk__in=for_later.values("pk"), cause="wake"
    )
    if passed.update(cause=outbox.LATER):
        # Its date was that of the news.
        Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk).update(not_before=None)


def _tell_alone(mailbox: Mailbox, item: MailboxItem, actor: str, bounded: bool) -> UUID | None:
    window = timedelta(milliseconds=settings.ORCHESTRATOR_MAILBOX_WINDOW_MS)
    not_before = item.run_after or (clock.now() + window if item.is_coalescable and window else None)
    (submitted,) = submit(
        [
            NewActivity(
                name=f"{_NAMES[item.kind]} in {mailbox.key}"[:200],
                agent_role=mailbox.agent_role,
                priority=convert_priority(item.priority),
                mailbox_id=mailbox.pk,
                dedup_key=_together(mailbox, item) if item.is_coalescable else None,
                group_key=f"mailbox:{mailbox.pk}",
                not_before=not_before,
                max_attempts=item.max_attempts,
                retry=_retry_of(item),
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


def _together(mailbox: Mailbox, item: MailboxItem) -> str:
    """By which the activity is found that hears of all of a scope. A scope's name may be longer than a key."""
    if not item.scope_key:
        return f"mailbox:{mailbox.pk}"
    return f"mailbox:{mailbox.pk}:{hashlib.blake2b(item.scope_key.encode(), digest_size=16).hexdigest()}"


def _retry_of(item: MailboxItem) -> dict[str, Any]:
    return {
        "base_seconds": settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS,
        "max_attempts": item.max_attempts,
        **item.backoff,
    }


def _payload(mailbox: Mailbox, item: MailboxItem) -> dict[str, Any]:
    return {
        "item": str(item.pk), "mailbox": mailbox.key, "kind": item.kind, "source": item.source, "text": item.text,
        "content": item.content,
    }  # fmt: skip


def _unheard(ended: Any, item_ids: Iterable[UUID]) -> set[UUID]:
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
        logger.warning("Items of a mailbox have failed for good", extra=facts)


def _tell_anew(ended: Any, items: list[MailboxItem]) -> None:
    """By another activity. Their wakes go with them, so that a retry of the one that ended does not tell them again."""
    mailbox = Mailbox.objects.for_tenant(ended.tenant_id).get(pk=ended.mailbox_id)
    Wake.objects.for_tenant(ended.tenant_id).filter(pk__in=[item.pk for item in items]).delete()
    for item in items:
        deliver(mailbox, item, actor="engine")


# How mailboxes and their items stand. An agent's item stands as its wake does until its activity has ended.

EMPTY = {"pending": 0, "claimed": 0, "failed": 0, "oldest_pending_at": None}


def items_of(tenant_id: UUID, mailbox: Mailbox) -> QuerySet[Any]:
    """The items with `stands`, their state; items of an agent also with `run_id`, the run that gets or got them."""
    return _standing(tenant_id).filter(mailbox_id=mailbox.pk)


def item_with_id(tenant_id: UUID, item_id: UUID) -> Any:
    return _standing(tenant_id).get(pk=item_id)


def figures(tenant_id: UUID, mailboxes: Iterable[Mailbox]) -> dict[UUID, dict[str, Any]]:
    """Of each mailbox: how many items are pending, claimed and failed, and since when the oldest pending one waits."""
    ids = [mailbox.pk for mailbox in mailboxes]
    counted = (
        _standing(tenant_id)
        .filter(mailbox_id__in=ids, state__in=(ItemState.PENDING, ItemState.CLAIMED, ItemState.FAILED))
        .order_by()
        .values("mailbox_id")
        .annotate(
            pending=Count("pk", filter=Q(stands=ItemState.PENDING)),
            claimed=Count("pk", filter=Q(stands=ItemState.CLAIMED)),
            failed=Count("pk", filter=Q(stands=ItemState.FAILED)),
            oldest_pending_at=Min("created_at", filter=Q(stands=ItemState.PENDING)),
        )
    )
    found = {row.pop("mailbox_id"): row for row in counted}
    return {mailbox_id: found.get(mailbox_id, EMPTY) for mailbox_id in ids}


def consumers_of(tenant_id: UUID, mailbox: Mailbox) -> list[dict[str, Any]]:
    """The consumers that hold items of the mailbox now: how many, since when, and until when at least. The longest holder comes first."""
    batches = MailboxBatch.objects.for_tenant(tenant_id).filter(mailbox_id=mailbox.pk, state=BatchState.OPEN)
    found: Iterable[Any] = (
        batches.order_by()
        .values("consumer")
        .annotate(claimed=Sum("size"), since=Min("created_at"), until=Min("leased_until"))
    )
    return sorted(found, key=lambda row: (row["since"], row["consumer"]))


def seconds_since(since: datetime | None, now: datetime) -> float | None:
    """Rounded to milliseconds; None when there is no such time."""
    return None if since is None else round(max(0.0, (now - since).total_seconds()), 3)


def _standing(tenant_id: UUID) -> QuerySet[Any]:
    wakes = Wake.objects.for_tenant(tenant_id).filter(pk=OuterRef("pk"))
    rows: QuerySet[Any] = MailboxItem.objects.for_tenant(tenant_id)
    activity = Activity.objects.for_tenant(tenant_id).filter(pk=OuterRef("activity_id"))
    return rows.annotate(
        tries=Coalesce(Subquery(activity.values("attempts")[:1]), F("attempts")),
        run_id=Subquery(wakes.values("run_id")[:1]),
        stands=Case(
            When(~Q(state=ItemState.PENDING) | Q(agent_role=None), then=F("state")),
            When(Exists(wakes.filter(is_carried(tenant_id))), then=Value(ItemState.CLAIMED.value)),
            When(Exists(wakes.exclude(state=WakeState.PENDING)), then=Value(ItemState.DONE.value)),
            default=F("state"),
            output_field=CharField(),
        ),
    )


# People have decided something about work of a session: the session's mailbox is told, in the transaction of the decision.
#
# A mailbox that is consumed outside hears of every decision. An agent that waits for an answer, or whose result is sent back, is started
# again with it anyway; in its mailbox it only finds that its result was approved.


_QUESTIONS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_ANSWERS = (Status.APPROVED, Status.REJECTED, Status.DONE)


def tell_decision(ended: Any) -> None:
    """Post a decision to the mailbox. `ended` is a `transitions.Moved`; only answers to questions to people are posted."""
    if ended.link_kind not in _QUESTIONS or ended.status not in _ANSWERS:
        return
    concerned = _activities_concerned(ended)
    found = Mailbox.objects.for_tenant(ended.tenant_id).filter(pk__in={box for _, box in concerned})
    for mailbox in found.order_by("pk"):
        if mailbox.agent_role and (ended.link_kind != LinkKind.GATE or ended.status != Status.APPROVED):
            continue
        about = [activity for activity, box in concerned if box == mailbox.pk and activity is not None]
        post(ended.tenant_id, mailbox.key, _result(ended, about), actor="engine", bounded=False)


def _activities_concerned(ended: Any) -> list[tuple[UUID | None, UUID]]:
    """The activities that the decision is about, each with its mailbox."""
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
