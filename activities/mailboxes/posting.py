"""Something is said to a session. Said twice under one `client_message_id` it is one item, however it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from activities.exceptions import MailboxFull, OtherConsumer
from activities.mailboxes import delivering
from activities.models import Mailbox, MailboxItem
from activities.models.mailbox import ItemKind, ItemSource, ItemState


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """What is said. `priority` is from 0 to 9, lower first. `is_coalescable` None: unless it is a task notification.

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
    client_message_id: str | None = None
    agent_role: str | None = None


@dataclass(frozen=True, slots=True)
class Posted:
    """The item, and whether it is new."""

    item: MailboxItem
    created: bool


def opened(tenant_id: UUID, key: str, agent_role: str | None = None) -> Mailbox:
    """The mailbox of this key, made when there is none. Raises `OtherConsumer` when another role, or nobody in particular, consumes it."""
    mailbox, _ = Mailbox.objects.for_tenant(tenant_id).get_or_create(
        tenant_id=tenant_id, key=key, defaults={"agent_role": agent_role}
    )
    if agent_role and mailbox.agent_role != agent_role:
        consumer = f"the agent {mailbox.agent_role}" if mailbox.agent_role else "whoever takes from it"
        raise OtherConsumer(f"The mailbox {key} is consumed by {consumer}, not by the agent {agent_role}.")
    return mailbox


def post(tenant_id: UUID, key: str, new: NewItem, *, actor: str, bounded: bool = True) -> Posted:
    """Put it into the mailbox, in the caller's `tenant_scope`. Raises `OtherConsumer` and, if `bounded`, `MailboxFull` and `BacklogFull`.

    An agent's activity is told of it in the same transaction.
    """
    mailbox = opened(tenant_id, key, new.agent_role)
    if (known := _known(mailbox, new)) is not None:
        return Posted(known, created=False)
    if bounded:
        _refuse_when_full(mailbox)
    item = _item(mailbox, new)
    MailboxItem.objects.for_tenant(tenant_id).bulk_create([item], ignore_conflicts=True)
    stored = MailboxItem.objects.for_tenant(tenant_id).filter(pk=item.pk).first()
    if stored is None:
        # The same was said at the same moment, and the other has committed by now.
        return Posted(_known(mailbox, new) or item, created=False)
    if mailbox.agent_role:
        delivering.deliver(mailbox, stored, actor=actor, bounded=bounded)
    return Posted(stored, created=True)


def _known(mailbox: Mailbox, new: NewItem) -> MailboxItem | None:
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
        max_attempts=new.max_attempts, backoff=dict(new.backoff), client_message_id=new.client_message_id,
        is_coalescable=not alone if new.is_coalescable is None else new.is_coalescable and not alone,
    )  # fmt: skip
