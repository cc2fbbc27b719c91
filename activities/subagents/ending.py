"""A subagent's end is told to its parent's mailbox, in the transaction in which it ends, once for each way in which it does."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from activities import families, mailboxes, outputs
from activities.mailboxes import NewItem
from activities.models import Subagent
from activities.models.mailbox import ItemKind, ItemSource
from activities.states import Status
from activities.subagents.standing import COMPLETED, status_of

LONGEST_RESULT = 100_000  # characters of the output in a notification; all of it is at `output_file`
LONGEST_SUMMARY = 500


def output_file_of(subagent_id: UUID) -> str:
    """Where its transcript, or at least its output, can be read."""
    return f"/api/v1/subagents/{subagent_id}/transcript/"


def tell_parent(ended: Any) -> None:
    """`ended` is a `transitions.Moved`. Nobody is told of a silent subagent, or of one whose caller waits for it."""
    if ended.mailbox_id is None or ended.status == Status.REASSIGNED:
        return
    if ended.status == Status.REJECTED and families.has_successor(ended.tenant_id, ended.id):
        return  # Its revision will end.
    first = families.origin_of(ended.tenant_id, ended).first_id
    subagent = Subagent.objects.for_tenant(ended.tenant_id).filter(activity_id=first).first()
    if subagent is None or subagent.silent or not subagent.run_in_background or not subagent.parent_mailbox:
        return
    # However full the mailbox is: the subagent's own end must not fail for it.
    notification = _notification(subagent, ended)
    mailboxes.post(ended.tenant_id, subagent.parent_mailbox, notification, actor="engine", bounded=False)


def _notification(subagent: Subagent, ended: Any) -> NewItem:
    status = status_of(ended.status)
    told: dict[str, Any] = {
        "task_id": str(subagent.activity_id), "subagent_id": str(subagent.pk), "tool_call_id": subagent.tool_call_id or None,
        "description": subagent.description, "status": status, "output_file": output_file_of(subagent.pk),
    }  # fmt: skip
    result, error = _result_of(ended) if status == COMPLETED else None, getattr(ended, "error", None)
    summary = _summary(subagent, status, result, error)
    told |= {"summary": summary} | ({"result": result} if status == COMPLETED else {"error": error})
    return NewItem(
        kind=ItemKind.TASK_NOTIFICATION,
        source=ItemSource.ENGINE,
        content=told,
        text=summary,
        client_message_id=f"{ended.id}:{status}",
    )


def _result_of(ended: Any) -> Any:
    """What is still at hand of its output: at once, all of it."""
    if ended.output_ref is None:
        return None
    output = outputs.at_hand(ended.tenant_id, {ended.output_ref}).get(ended.output_ref)
    if output is None:
        return None
    return output.content[:LONGEST_RESULT] if output.content is not None else output.data


def _summary(subagent: Subagent, status: str, result: Any, error: Any) -> str:
    name = subagent.description or subagent.subagent_type
    said = result if isinstance(result, str) else (error or {}).get("message") if error else None
    line = " ".join(said.split()) if said else ""
    return f"The task {name!r} is {status}." + (f" {line}" if line else "")[:LONGEST_SUMMARY]
