"""Subagents: an agent works on one prompt for another agent, in a conversation of its own, and reports its result to the parent's mailbox.

A subagent's work is an activity like any other, with the same admission, retries, budgets and cancellation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Min, Sum

from activities import activity_tree, cancellation, outputs, sessions
from activities.exceptions import NotFound, SubmissionInvalid
from activities.mailboxes import producer
from activities.mailboxes.producer import NewItem, convert_priority, open_mailbox
from activities.models import Activity, ActivityRun, Mailbox, Subagent
from activities.models.mailbox import ItemKind, ItemSource
from activities.states import Status
from activities.submission import NewActivity, submit
from agents.models import AgentSession
from tenants import clock
from tenants.identifiers import uuid7
from tenants.models import UsageEntry

# Starting: creates the conversation and then the activity, in one transaction.
#
# A subagent has its own mailbox, `subagent:<id>`; items posted there continue its conversation. If it continues an earlier subagent, it
# uses that one's mailbox. If it continues a conversation by its id, it gets a new mailbox with that conversation.

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubagent:
    """The request for a subagent. `priority` is from 0 to 9, lower first. At most one of the two `existing_` ids is set."""

    subagent_type: str
    prompt: str
    description: str = ""
    model: str = ""
    tool_call_id: str = ""
    existing_agent_id: UUID | None = None
    existing_conversation_id: str | None = None
    max_turns: int | None = None
    priority: int = 5
    run_in_background: bool = True
    silent: bool = False
    parent_mailbox: str = ""


@dataclass(frozen=True, slots=True)
class StartedSubagent:
    """The subagent, and whether it is new."""

    subagent: Subagent
    created: bool


def start(tenant_id: UUID, new: NewSubagent, *, actor: str) -> StartedSubagent:
    """Start a subagent, in the caller's `tenant_scope`. Idempotent for one `tool_call_id` of a parent.

    Raises `SubmissionInvalid` if the subagent or conversation to continue does not exist, or belongs to another role.
    """
    if new.parent_mailbox and (earlier := _find_same_call(tenant_id, new)) is not None:
        return StartedSubagent(earlier, created=False)
    subagent_id = uuid7()
    conversation = _conversation(tenant_id, new, subagent_id)
    (submitted,) = submit([_activity(new, conversation, subagent_id)], actor=actor)
    subagent = Subagent.objects.create(
        id=subagent_id, tenant_id=tenant_id, activity_id=submitted.id, conversation_id=conversation.pk, continues_id=new.existing_agent_id,
        subagent_type=new.subagent_type, description=new.description, prompt=new.prompt, model=new.model, max_turns=new.max_turns,
        tool_call_id=new.tool_call_id, run_in_background=new.run_in_background, silent=new.silent, parent_mailbox=new.parent_mailbox,
        created_by=actor,
    )  # fmt: skip
    return StartedSubagent(subagent, created=True)


def _find_same_call(tenant_id: UUID, new: NewSubagent) -> Subagent | None:
    """Return the subagent of the same tool call. Creates and locks the parent's mailbox, so that equal calls run one after the other."""
    parent = open_mailbox(tenant_id, new.parent_mailbox)
    if not new.tool_call_id:
        return None
    Mailbox.objects.for_tenant(tenant_id).select_for_update().get(pk=parent.pk)
    same = Subagent.objects.for_tenant(tenant_id).filter(
        parent_mailbox=new.parent_mailbox, tool_call_id=new.tool_call_id
    )
    return same.first()


def _activity(new: NewSubagent, conversation: Mailbox, subagent_id: UUID) -> NewActivity:
    name = new.description or new.prompt.strip().splitlines()[0]
    options: dict[str, Any] = {"model": new.model, "max_turns": new.max_turns}
    return NewActivity(
        name=" ".join(name.split())[:LONGEST_NAME],
        description=new.prompt,
        agent_role=new.subagent_type,
        priority=convert_priority(new.priority),
        mailbox_id=conversation.pk,
        group_key=f"mailbox:{conversation.pk}",
        agent_options={option: value for option, value in options.items() if value},
        metadata={"subagent": str(subagent_id)},
    )


def _conversation(tenant_id: UUID, new: NewSubagent, subagent_id: UUID) -> Mailbox:
    if new.existing_agent_id is not None:
        return _conversation_of(tenant_id, new.existing_agent_id, new.subagent_type)
    if new.existing_conversation_id is not None:
        # Accept only ids that an agent of this tenant reported, because one program may hold the conversations of all tenants.
        conversations = AgentSession.objects.for_tenant(tenant_id).filter(
            agent_id=new.subagent_type, external_session_id=new.existing_conversation_id
        )
        if not conversations.exists():
            raise _error(
                "existing_conversation_id", f"is not a conversation of a {new.subagent_type} of this tenant"
            )
    mailbox = open_mailbox(tenant_id, f"subagent:{subagent_id}", new.subagent_type)
    if new.existing_conversation_id is not None:
        sessions.begin(tenant_id, mailbox.pk, new.subagent_type, new.existing_conversation_id)
    return mailbox


def _conversation_of(tenant_id: UUID, subagent_id: UUID, role: str) -> Mailbox:
    rows = Subagent.objects.for_tenant(tenant_id).select_related("conversation").filter(pk=subagent_id)
    subagent = rows.first_or_raise(_error("existing_agent_id", "is not a subagent of this tenant"))
    if subagent.subagent_type != role:
        raise _error("existing_agent_id", f"has the role {subagent.subagent_type}, not {role}")
    return subagent.conversation


def _error(path: str, message: str) -> SubmissionInvalid:
    return SubmissionInvalid([{"path": path, "message": message}])


# Ending: posts the end of a subagent to its parent's mailbox, in the transaction of the end, once for each end.

LONGEST_RESULT = 100_000  # characters of the output in a notification; all of it is at `output_file`
LONGEST_SUMMARY = 500


def output_file_of(subagent_id: UUID) -> str:
    """Return the path of its transcript, or at least its output, in the API."""
    return f"/api/v1/subagents/{subagent_id}/transcript/"


def notify_parent(ended: Any) -> None:
    """Post the end of a subagent's activity, a `transitions.Moved`, unless it is silent or its caller waits for it."""
    if ended.mailbox_id is None or ended.status == Status.REASSIGNED:
        return
    if ended.status == Status.REJECTED and activity_tree.has_successor(ended.tenant_id, ended.id):
        return  # the end of its revision will be posted
    first = activity_tree.origin_of(ended.tenant_id, ended).first_id
    subagent = Subagent.objects.for_tenant(ended.tenant_id).filter(activity_id=first).first()
    if subagent is None or subagent.silent or not subagent.run_in_background or not subagent.parent_mailbox:
        return
    # Not bounded, because a full mailbox must not make the subagent's end fail.
    notification = _notification(subagent, ended)
    producer.post(ended.tenant_id, subagent.parent_mailbox, notification, actor="engine", bounded=False)


def _notification(subagent: Subagent, ended: Any) -> NewItem:
    status = status_of(ended.status)
    content: dict[str, Any] = {
        "task_id": str(subagent.activity_id), "subagent_id": str(subagent.pk), "tool_call_id": subagent.tool_call_id or None,
        "description": subagent.description, "status": status, "output_file": output_file_of(subagent.pk),
    }  # fmt: skip
    result, error = _result_of(ended) if status == COMPLETED else None, getattr(ended, "error", None)
    name = subagent.description or subagent.subagent_type
    notes = getattr(ended, "reviewer_notes", None) or getattr(ended, "cancel_reason", None)
    text = result if isinstance(result, str) else (error or {}).get("message") or notes
    line = " ".join(text.split()) if text else ""
    summary = f"The task {name!r} is {status}." + (f" {line}" if line else "")[:LONGEST_SUMMARY]
    content |= {"summary": summary} | ({"result": result} if status == COMPLETED else {"error": error})
    return NewItem(
        kind=ItemKind.TASK_NOTIFICATION,
        source=ItemSource.ENGINE,
        content=content,
        text=summary,
        # The escalation of a failure is no second end, but the failure of a retry is: it has a higher fencing number.
        client_message_id=f"{ended.id}:{status}:{ended.fence}"
        if status == FAILED
        else f"{ended.id}:{status}",
    )


def _result_of(ended: Any) -> Any:
    """Return the output from the spool, where it still is, because the activity has just ended."""
    if ended.output_ref is None:
        return None
    output = outputs.read_spooled(ended.tenant_id, {ended.output_ref}).get(ended.output_ref)
    if output is None:
        return None
    return output.content[:LONGEST_RESULT] if output.content is not None else output.data


# State: read from the subagent's activity, or its newest successor, and from the ledger.

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = "pending", "running", "completed", "failed", "cancelled"
STATUSES = (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED)
ENDED = (COMPLETED, FAILED, CANCELLED)

_STATUS_OF = {
    Status.CREATED: PENDING,
    Status.DONE: COMPLETED,
    Status.APPROVED: COMPLETED,
    Status.REJECTED: FAILED,
    Status.FAILED: FAILED,
    Status.NEEDS_REVIEW: FAILED,
    Status.CANCELLED: CANCELLED,
}


@dataclass(frozen=True, slots=True)
class SubagentState:
    """The state of a subagent. `activity` has the work now. `ids` are all activities that had it, oldest first."""

    subagent: Subagent
    activity: Activity
    ids: Sequence[UUID]
    total_tokens: int
    duration_seconds: float | None

    @property
    def status(self) -> str:
        return status_of(self.activity.status)


def status_of(status: str) -> str:
    """Return a subagent's status for an activity's status. It counts as running while it waits during its work."""
    return _STATUS_OF.get(Status(status), RUNNING)


def state_of(tenant_id: UUID, subagent_id: UUID) -> SubagentState:
    """Return the state of one subagent. Raises `NotFound`. In the caller's `tenant_scope`, like all of this module."""
    rows = Subagent.objects.for_tenant(tenant_id).select_related("activity", "conversation")
    subagent = rows.get_or_raise(NotFound, "subagent", subagent_id)
    return states_of(tenant_id, [subagent])[0]


def states_of(tenant_id: UUID, subagents: Sequence[Subagent]) -> list[SubagentState]:
    """Return the state of each, with as many statements as for one, except for the successors of reassigned or rejected work."""
    lines = [activity_tree.line_from(tenant_id, subagent.activity) for subagent in subagents]
    ids = [activity.pk for line in lines for activity in line]
    tokens, starts = _tokens_by_activity(tenant_id, lines), _start_times(tenant_id, ids)
    return [
        _state_of_line(subagent, line, tokens, starts)
        for subagent, line in zip(subagents, lines, strict=True)
    ]


def cancel(tenant_id: UUID, subagent_id: UUID, *, actor: str, reason: str = "") -> SubagentState:
    """Cancel the subagent's activity. A subagent that has ended does not change. Raises `NotFound`."""
    state = state_of(tenant_id, subagent_id)
    if state.status not in ENDED:
        cancellation.cancel(tenant_id, state.activity.pk, actor=actor, reason=reason)
    return state_of(tenant_id, subagent_id)


def _state_of_line(
    subagent: Subagent, line: Sequence[Activity], tokens: dict[UUID, int], starts: dict[UUID, datetime]
) -> SubagentState:
    ids = [activity.pk for activity in line]
    own_starts = [starts[activity_id] for activity_id in ids if activity_id in starts]
    last = line[-1]
    end = last.finished_at or clock.now()
    seconds = round(max(0.0, (end - min(own_starts)).total_seconds()), 3) if own_starts else None
    return SubagentState(subagent, last, ids, sum(tokens.get(activity_id, 0) for activity_id in ids), seconds)


def _tokens_by_activity(tenant_id: UUID, lines: Sequence[Sequence[Activity]]) -> dict[UUID, int]:
    """Sum the reported tokens of each activity. The filter names days and roles, because the ledger has no index on activities."""
    members = [activity for line in lines for activity in line]
    if not members:
        return {}
    entries = UsageEntry.objects.for_tenant(tenant_id).filter(
        day__gte=min(activity.created_at for activity in members).astimezone(UTC).date(),
        agent_role__in={activity.agent_role for activity in members if activity.agent_role},
        activity_id__in=[activity.pk for activity in members],
    )
    sums: Any = (
        entries.order_by().values_list("activity_id").annotate(Sum("input_tokens"), Sum("output_tokens"))
    )
    return {activity_id: read + written for activity_id, read, written in sums}


def _start_times(tenant_id: UUID, ids: Iterable[UUID]) -> dict[UUID, datetime]:
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id__in=list(ids))
    return dict(runs.order_by().values_list("activity_id").annotate(Min("started_at")))
