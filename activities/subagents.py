"""Subagents: an agent does one prompt for somebody else, in a conversation of its own, and its parent is told how it went.

Underneath it is an activity like any other, with the same admission, retries, budgets and cancellation.

starting   a new one, or a further task for one that there is
standing   how it stands, and what it took
ending     its parent's mailbox is told
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Min, Sum

from activities.exceptions import NotFound, SubmissionInvalid
from activities.mailboxes import producer
from activities.mailboxes.producer import NewItem, convert_priority, open_mailbox
from activities.models import Activity, ActivityRun, Mailbox, Subagent
from activities.models.mailbox import ItemKind, ItemSource
from activities.states import Status
from activities.submission import NewActivity, submit
from agents import sessions
from agents.models import AgentSession
from tenants import clock
from tenants.identifiers import uuid7
from tenants.models import UsageEntry

from . import activity_tree, cancellation, outputs

# A subagent is started: its conversation first, then its activity, in one transaction.
#
# It has a mailbox of its own, `subagent:<id>`: whatever is posted there continues its conversation. One that continues an earlier
# subagent has that one's mailbox; one that continues a conversation that the tenant's agents know by its id has a new mailbox with that
# conversation.


LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubagent:
    """What is asked of it. `priority` is from 0 to 9, lower first. At most one of the two `existing_` ids is given."""

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
    """In the caller's `tenant_scope`. One `tool_call_id` of a parent starts one subagent, however often it is asked for.

    Raises `SubmissionInvalid` when what it shall continue is not there, or is another role's.
    """
    if new.parent_mailbox and (known := _find_earlier(tenant_id, new)) is not None:
        return StartedSubagent(known, created=False)
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


def _find_earlier(tenant_id: UUID, new: NewSubagent) -> Subagent | None:
    """By the same call of a tool. The parent's mailbox is made and locked, so that two such calls come one after the other."""
    parent = open_mailbox(tenant_id, new.parent_mailbox)
    if not new.tool_call_id:
        return None
    Mailbox.objects.for_tenant(tenant_id).select_for_update().get(pk=parent.pk)
    same = Subagent.objects.for_tenant(tenant_id).filter(
        parent_mailbox=new.parent_mailbox, tool_call_id=new.tool_call_id
    )
    found: Subagent | None = same.first()
    return found


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
        return _of_earlier(tenant_id, new.existing_agent_id, new.subagent_type)
    if new.existing_conversation_id is not None:
        _require_known(tenant_id, new.existing_conversation_id, new.subagent_type)
    mailbox = open_mailbox(tenant_id, f"subagent:{subagent_id}", new.subagent_type)
    if new.existing_conversation_id is not None:
        sessions.begin(tenant_id, mailbox.pk, new.subagent_type, new.existing_conversation_id)
    return mailbox


def _of_earlier(tenant_id: UUID, subagent_id: UUID, role: str) -> Mailbox:
    earlier = Subagent.objects.for_tenant(tenant_id).select_related("conversation").filter(pk=subagent_id)
    found = earlier.first()
    if found is None:
        raise _error("existing_agent_id", "is no subagent of this tenant")
    if found.subagent_type != role:
        raise _error("existing_agent_id", f"is a {found.subagent_type}, not a {role}")
    conversation: Mailbox = found.conversation
    return conversation


def _require_known(tenant_id: UUID, conversation_id: str, role: str) -> None:
    """Only what an agent of this tenant has named itself: a program's conversations may be those of all tenants."""
    known = AgentSession.objects.for_tenant(tenant_id).filter(
        agent_id=role, external_session_id=conversation_id
    )
    if not known.exists():
        raise _error("existing_conversation_id", f"is no conversation that a {role} of this tenant has had")


def _error(path: str, message: str) -> SubmissionInvalid:
    return SubmissionInvalid([{"path": path, "message": message}])


# A subagent's end is told to its parent's mailbox, in the transaction in which it ends, once for each way in which it does.


LONGEST_RESULT = 100_000  # characters of the output in a notification; all of it is at `output_file`
LONGEST_SUMMARY = 500


def output_file_of(subagent_id: UUID) -> str:
    """Where its transcript, or at least its output, can be read."""
    return f"/api/v1/subagents/{subagent_id}/transcript/"


def tell_parent(ended: Any) -> None:
    """`ended` is a `transitions.Moved`. Nobody is told of a silent subagent, or of one whose caller waits for it."""
    if ended.mailbox_id is None or ended.status == Status.REASSIGNED:
        return
    if ended.status == Status.REJECTED and activity_tree.has_successor(ended.tenant_id, ended.id):
        return  # Its revision will end.
    first = activity_tree.origin_of(ended.tenant_id, ended).first_id
    subagent = Subagent.objects.for_tenant(ended.tenant_id).filter(activity_id=first).first()
    if subagent is None or subagent.silent or not subagent.run_in_background or not subagent.parent_mailbox:
        return
    # However full the mailbox is: the subagent's own end must not fail for it.
    notification = _notification(subagent, ended)
    producer.post(ended.tenant_id, subagent.parent_mailbox, notification, actor="engine", bounded=False)


def _notification(subagent: Subagent, ended: Any) -> NewItem:
    status = status_of(ended.status)
    content: dict[str, Any] = {
        "task_id": str(subagent.activity_id), "subagent_id": str(subagent.pk), "tool_call_id": subagent.tool_call_id or None,
        "description": subagent.description, "status": status, "output_file": output_file_of(subagent.pk),
    }  # fmt: skip
    result, error = _result_of(ended) if status == COMPLETED else None, getattr(ended, "error", None)
    summary = _summary(subagent, status, result, error)
    content |= {"summary": summary} | ({"result": result} if status == COMPLETED else {"error": error})
    return NewItem(
        kind=ItemKind.TASK_NOTIFICATION,
        source=ItemSource.ENGINE,
        content=content,
        text=summary,
        client_message_id=f"{ended.id}:{status}",
    )


def _result_of(ended: Any) -> Any:
    """What is still at hand of its output: at once, all of it."""
    if ended.output_ref is None:
        return None
    output = outputs.read_spooled(ended.tenant_id, {ended.output_ref}).get(ended.output_ref)
    if output is None:
        return None
    return output.content[:LONGEST_RESULT] if output.content is not None else output.data


def _summary(subagent: Subagent, status: str, result: Any, error: Any) -> str:
    name = subagent.description or subagent.subagent_type
    text = result if isinstance(result, str) else (error or {}).get("message") if error else None
    line = " ".join(text.split()) if text else ""
    return f"The task {name!r} is {status}." + (f" {line}" if line else "")[:LONGEST_SUMMARY]


# How a subagent stands: read from its activity, or whatever has taken that one's place, and from the ledger.


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
    """`activity` is the one that counts by now. `ids` are all that had the work, the first one first. Times in seconds."""

    subagent: Subagent
    activity: Activity
    ids: Sequence[UUID]
    total_tokens: int
    duration_seconds: float | None

    @property
    def status(self) -> str:
        return status_of(self.activity.status)


def status_of(status: str) -> str:
    """A subagent's status for its activity's: whatever it waits for during its work, it is running."""
    return _STATUS_OF.get(Status(status), RUNNING)


def one(tenant_id: UUID, subagent_id: UUID) -> SubagentState:
    """Raises `NotFound`. In the caller's `tenant_scope`, as all of this module."""
    rows = Subagent.objects.for_tenant(tenant_id).select_related("activity", "conversation")
    found = rows.filter(pk=subagent_id).first()
    if found is None:
        raise NotFound("subagent", subagent_id)
    return states_of(tenant_id, [found])[0]


def states_of(tenant_id: UUID, subagents: Sequence[Subagent]) -> list[SubagentState]:
    """Of each, in as many statements as for one, but for those whose work somebody else has taken over."""
    lines = [_line_of(tenant_id, subagent.activity) for subagent in subagents]
    ids = [activity.pk for line in lines for activity in line]
    tokens, begun = _tokens_by_activity(tenant_id, lines), _find_begin_times(tenant_id, ids)
    return [
        _standing_of(subagent, line, tokens, begun) for subagent, line in zip(subagents, lines, strict=True)
    ]


def cancel(tenant_id: UUID, subagent_id: UUID, *, actor: str, reason: str = "") -> SubagentState:
    """What waits never starts; an agent at work is told to stop. One that has ended stays as it is. Raises `NotFound`."""
    found = one(tenant_id, subagent_id)
    if found.status not in ENDED:
        cancellation.cancel(tenant_id, found.activity.pk, actor=actor, reason=reason)
    return one(tenant_id, subagent_id)


def _line_of(tenant_id: UUID, first: Activity) -> list[Activity]:
    """The activity and what has taken its place, one after the other."""
    line = [first]
    while line[-1].status in (Status.REJECTED, Status.REASSIGNED):
        successors = Activity.objects.for_tenant(tenant_id).filter(
            parent_id=line[-1].pk, link_kind__in=activity_tree.SUCCESSORS
        )
        successor = successors.order_by("-pk").first()
        if successor is None:
            break
        line.append(successor)
    return line


def _standing_of(
    subagent: Subagent, line: Sequence[Activity], tokens: dict[UUID, int], begun: dict[UUID, datetime]
) -> SubagentState:
    ids = [activity.pk for activity in line]
    starts = [begun[activity_id] for activity_id in ids if activity_id in begun]
    last = line[-1]
    end = last.finished_at or clock.now()
    seconds = round(max(0.0, (end - min(starts)).total_seconds()), 3) if starts else None
    return SubagentState(subagent, last, ids, sum(tokens.get(activity_id, 0) for activity_id in ids), seconds)


def _tokens_by_activity(tenant_id: UUID, lines: Sequence[Sequence[Activity]]) -> dict[UUID, int]:
    """What each has consumed, as far as it was reported. The ledger is indexed by day and role, not by activity."""
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


def _find_begin_times(tenant_id: UUID, ids: Iterable[UUID]) -> dict[UUID, datetime]:
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id__in=list(ids))
    return dict(runs.order_by().values_list("activity_id").annotate(Min("started_at")))
