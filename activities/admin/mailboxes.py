"""Read-only admin of mailboxes, their items and batches, and subagents."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities.admin import columns
from activities.models import Activity, Mailbox, MailboxBatch, MailboxItem, Subagent
from activities.models.mailbox import ItemState
from tenants.admin.bases import NOTHING, RecordAdmin, badge, badge_of, link_of


@admin.register(Mailbox)
class MailboxAdmin(RecordAdmin):
    list_display = ("key", "tenant", "consumer", "waiting", "created_at")
    list_filter = ("agent_role",)
    search_fields = ("key",)
    fields = ("id", "key", "tenant", "consumer", "waiting", "fence", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        is_open = Q(items__state__in=(ItemState.PENDING, ItemState.CLAIMED))
        return super().get_queryset(request).annotate(open_items=Count("items", filter=is_open))

    @display(description="Consumed by")
    def consumer(self, mailbox: Mailbox) -> str:
        return mailbox.agent_role or "anyone who takes from it"

    @display(description="Open items")
    def waiting(self, mailbox: Any) -> int:
        return int(mailbox.open_items)


class MailboxPartAdmin(RecordAdmin):
    """Rows that belong to a mailbox."""

    list_select_related = ("mailbox",)
    search_fields = ("mailbox__key",)

    mailbox_link = link_of("mailbox_id", Mailbox, "Mailbox", text=lambda row: row.mailbox)
    situation = badge_of("state", "State", pending="")


@admin.register(MailboxItem)
class MailboxItemAdmin(MailboxPartAdmin):
    list_display = (
        "created_at", "mailbox_link", "tenant", "kind", "source", "priority", "situation", "attempts", "due_at",
    )  # fmt: skip
    list_filter = ("kind", "state")

    activity_link = link_of("activity_id", Activity, "Activity")
    batch_link = link_of("batch_id", MailboxBatch, "Batch")


@admin.register(MailboxBatch)
class MailboxBatchAdmin(MailboxPartAdmin):
    list_display = (
        "created_at",
        "mailbox_link",
        "tenant",
        "consumer",
        "size",
        "situation",
        "leased_until",
        "ended_at",
    )
    list_filter = ("state",)


@admin.register(Subagent)
class SubagentAdmin(RecordAdmin):
    list_display = ("created_at", "name", "tenant", "subagent_type", "state", "model", "parent_mailbox")
    list_filter = ("subagent_type",)
    list_select_related = ("activity", "conversation")
    search_fields = ("description", "subagent_type")
    fields = (
        "id", "name", "tenant", "subagent_type", "state", "activity_link", "conversation_link", "continues_id", "prompt", "model",
        "max_turns", "tool_call_id", "run_in_background", "silent", "parent_mailbox", "created_by", "created_at",
    )  # fmt: skip

    @display(description="Status")
    def state(self, subagent: Subagent) -> SafeString:
        return badge(subagent.activity.status, columns.STATUS.get(subagent.activity.status, ""))

    @display(description="Task")
    def name(self, subagent: Subagent) -> str:
        return subagent.description or subagent.activity.name or NOTHING

    activity_link = link_of("activity_id", Activity, "Activity", text=lambda row: row.activity)
    conversation_link = link_of("conversation_id", Mailbox, "Conversation", text=lambda row: row.conversation)
