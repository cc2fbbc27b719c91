"""A subagent is started: its conversation first, then its activity, in one transaction.

It has a mailbox of its own, `subagent:<id>`: whatever is posted there continues its conversation. One that continues an earlier subagent
has that one's mailbox; one that continues a conversation that the tenant's agents know by its id has a new mailbox with that conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities.exceptions import SubmissionInvalid
from activities.mailboxes import opened
from activities.mailboxes.priorities import stored_priority
from activities.models import Mailbox, Subagent
from activities.submission import NewActivity, submit
from agents import sessions
from agents.models import AgentSession
from tenants.identifiers import uuid7

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
class Started:
    """The subagent, and whether it is new."""

    subagent: Subagent
    created: bool


def start(tenant_id: UUID, new: NewSubagent, *, actor: str) -> Started:
    """In the caller's `tenant_scope`. One `tool_call_id` of a parent starts one subagent, however often it is asked for.

    Raises `SubmissionInvalid` when what it shall continue is not there, or is another role's.
    """
    if new.parent_mailbox and (known := _started_before(tenant_id, new)) is not None:
        return Started(known, created=False)
    subagent_id = uuid7()
    conversation = _conversation(tenant_id, new, subagent_id)
    (submitted,) = submit([_activity(new, conversation, subagent_id)], actor=actor)
    subagent = Subagent.objects.create(
        id=subagent_id, tenant_id=tenant_id, activity_id=submitted.id, conversation_id=conversation.pk, continues_id=new.existing_agent_id,
        subagent_type=new.subagent_type, description=new.description, prompt=new.prompt, model=new.model, max_turns=new.max_turns,
        tool_call_id=new.tool_call_id, run_in_background=new.run_in_background, silent=new.silent, parent_mailbox=new.parent_mailbox,
        created_by=actor,
    )  # fmt: skip
    return Started(subagent, created=True)


def _started_before(tenant_id: UUID, new: NewSubagent) -> Subagent | None:
    """By the same call of a tool. The parent's mailbox is made and locked, so that two such calls come one after the other."""
    parent = opened(tenant_id, new.parent_mailbox)
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
        priority=stored_priority(new.priority),
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
    mailbox = opened(tenant_id, f"subagent:{subagent_id}", new.subagent_type)
    if new.existing_conversation_id is not None:
        sessions.begin(tenant_id, mailbox.pk, new.subagent_type, new.existing_conversation_id)
    return mailbox


def _of_earlier(tenant_id: UUID, subagent_id: UUID, role: str) -> Mailbox:
    earlier = Subagent.objects.for_tenant(tenant_id).select_related("conversation").filter(pk=subagent_id)
    found = earlier.first()
    if found is None:
        raise _fault("existing_agent_id", "is no subagent of this tenant")
    if found.subagent_type != role:
        raise _fault("existing_agent_id", f"is a {found.subagent_type}, not a {role}")
    conversation: Mailbox = found.conversation
    return conversation


def _require_known(tenant_id: UUID, conversation_id: str, role: str) -> None:
    """Only what an agent of this tenant has named itself: a program's conversations may be those of all tenants."""
    known = AgentSession.objects.for_tenant(tenant_id).filter(
        agent_id=role, external_session_id=conversation_id
    )
    if not known.exists():
        raise _fault("existing_conversation_id", f"is no conversation that a {role} of this tenant has had")


def _fault(path: str, message: str) -> SubmissionInvalid:
    return SubmissionInvalid([{"path": path, "message": message}])
