"""People have decided something about work of a session: the session's mailbox is told, in the transaction of the decision.

A mailbox that is consumed outside hears of every decision. An agent that waits for an answer, or whose result is sent back, is started
again with it anyway; in its mailbox it only finds that its result was approved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from activities.mailboxes.posting import NewItem, post
from activities.models import Activity, ApprovalLink, Mailbox
from activities.models.mailbox import ItemKind, ItemSource
from activities.states import LinkKind, Status

_QUESTIONS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_ANSWERS = (Status.APPROVED, Status.REJECTED, Status.DONE)


def tell_decision(ended: Any) -> None:
    """`ended` is a `transitions.Moved`; only what people were asked is news."""
    if ended.link_kind not in _QUESTIONS or ended.status not in _ANSWERS:
        return
    concerned = _concerned(ended)
    found = Mailbox.objects.for_tenant(ended.tenant_id).filter(pk__in={box for _, box in concerned})
    for mailbox in found.order_by("pk"):
        if mailbox.agent_role and (ended.link_kind != LinkKind.GATE or ended.status != Status.APPROVED):
            continue
        about = [activity for activity, box in concerned if box == mailbox.pk and activity is not None]
        post(ended.tenant_id, mailbox.key, _result(ended, about), actor="engine", bounded=False)


def _concerned(ended: Any) -> list[tuple[UUID | None, UUID]]:
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
    told = {
        "decision": ended.status, "question": ended.name, "kind": ended.link_kind, "id": str(ended.id),
        "activities": sorted({str(activity) for activity in about}), "notes": ended.reviewer_notes,
        "chosen_option": ended.chosen_option, "decided_by": ended.decided_by,
    }  # fmt: skip
    notes = f" {ended.reviewer_notes}" if ended.reviewer_notes else ""
    return NewItem(
        kind=ItemKind.APPROVAL_RESULT,
        source=ItemSource.ENGINE,
        content=told,
        text=f"{ended.name}: {ended.status}.{notes}",
        client_message_id=f"decision:{ended.id}",
    )
