"""Items become wakes of an activity of the mailbox's agent, which continues the mailbox's conversation.

What may be told together wakes one activity, the only live one of its mailbox: what comes within the window, while it waits or while it
runs is told in the order in which it came, by one run. Whatever comes alone has an activity of its own; the group lets one run at a time.
The wakes are the truth: a run takes them, gives them back when it fails or is lost, and uses them up with its result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models.functions import Now

from activities import families, relay, wakes
from activities.admission import Exchange
from activities.exceptions import SubmissionRaced
from activities.mailboxes.priorities import stored_priority
from activities.models import Activity, Mailbox, MailboxItem, Wake
from activities.models.mailbox import ItemState
from activities.states import LIVE, Status, WakeReason, WakeState
from activities.submission import NewActivity, submit
from tenants import clock

logger = logging.getLogger(__name__)

TRIES = 5  # The activity may end between the look at it and its lock, or begin between the look and the submission.

#: What the end of the activity means for what it had been told.
_ENDS = {
    Status.DONE: ItemState.DONE,
    Status.APPROVED: ItemState.DONE,
    Status.REJECTED: ItemState.DONE,  # its revision goes on with it
    Status.REASSIGNED: ItemState.DONE,  # its heir does
    Status.FAILED: ItemState.FAILED,
    Status.NEEDS_REVIEW: ItemState.FAILED,
    Status.CANCELLED: ItemState.CANCELLED,
}


def deliver(mailbox: Mailbox, item: MailboxItem, *, actor: str, bounded: bool = False) -> None:
    """Have the mailbox's agent told. In the caller's `tenant_scope`; locks the live activity, if there is one.

    Raises `BacklogFull` if it is `bounded`, needs an activity of its own, and there is no room for one.
    """
    for _ in range(TRIES):
        activity_id = _told_with_others(mailbox, item) if item.is_coalescable else None
        activity_id = activity_id or _told_by_itself(mailbox, item, actor, bounded)
        if activity_id is not None:
            item.activity_id = activity_id
            MailboxItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk).update(activity_id=activity_id)
            return
    raise SubmissionRaced(
        "The mailbox's agent began and ended at the same moment, again and again. Try again."
    )


def follow(ended: Any) -> None:
    """The activity has ended, in this transaction: so have the items that it was told. What it never heard of is told to another one.

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
    told = [item for item in open_ones if item.pk not in unheard and item.state != end]
    _end(ended, told, end)
    if unheard:
        _tell_anew(ended, [item for item in open_ones if item.pk in unheard])


def _told_with_others(mailbox: Mailbox, item: MailboxItem) -> UUID | None:
    """Join the activity that is to hear, or hears, of others. It is locked, so that its end comes before or after this."""
    live = Activity.objects.for_tenant(item.tenant_id).filter(dedup_key=_together(mailbox), status__in=LIVE)
    activity_id = live.values_list("pk", flat=True).first()
    activity = families.lock(item.tenant_id, [activity_id]).get(activity_id) if activity_id else None
    if activity is None or activity.status not in LIVE:
        return None
    _let_pass(activity)
    if item.run_after is None:
        _lift(activity, stored_priority(item.priority))
    wakes.add(activity, item.pk, WakeReason.MESSAGE, payload=_payload(mailbox, item), due_at=item.run_after)
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
    Wake.objects.for_tenant(activity.tenant_id).filter(
        activity_id=activity.pk, state=WakeState.PENDING, pk__in=for_later.values("pk"), cause="wake"
    ).update(cause=wakes.LATER)


def _told_by_itself(mailbox: Mailbox, item: MailboxItem, actor: str, bounded: bool) -> UUID | None:
    window = timedelta(milliseconds=settings.ORCHESTRATOR_MAILBOX_WINDOW_MS)
    not_before = item.run_after or (clock.now() + window if item.is_coalescable and window else None)
    (submitted,) = submit(
        [
            NewActivity(
                name=f"{_NAMES[item.kind]} in {mailbox.key}"[:200],
                agent_role=mailbox.agent_role,
                priority=stored_priority(item.priority),
                mailbox_id=mailbox.pk,
                dedup_key=_together(mailbox) if item.is_coalescable else None,
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


def _together(mailbox: Mailbox) -> str:
    return f"mailbox:{mailbox.pk}"


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
