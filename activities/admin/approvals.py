"""Admin of approvals with their activities, and of votes, deadlines and tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities.admin import activity
from activities.admin.activity import voter_of
from activities.admin.columns import PageByTenant
from activities.admin.records import PartAdmin
from activities.human_tasks import decisions
from activities.human_tasks.approvals import Question, questions
from activities.models import Activity, Approval, ApprovalLink, Deadline, ToolCall, Vote
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    RecordAdmin,
    badge,
    badge_of,
    link_of,
    link_to,
)


def _is_pending(approval: Approval) -> bool:
    return _question_of(approval).status == "pending"


APPROVE = replace(
    activity.APPROVE,
    explanation="The work that waits for these continues. Where several people must agree, this is one vote.",
    notes="Notes for the agents",
    offered=_is_pending,
)
REJECT = replace(
    activity.REJECT,
    explanation="The work that waits for these gets your notes. Where several people must agree, this is one vote.",
    offered=_is_pending,
)
WITHDRAW = Action(
    "withdraw",
    "Withdrawn",
    "These are closed without a decision. The work that waits for them continues and is told so.",
    notes="Reason",
    danger=True,
    icon="cancel",
    variant=ActionVariant.DANGER,
    offered=_is_pending,
    do=lambda request, approval, notes: decisions.withdraw(
        approval.tenant_id, approval.pk, by=voter_of(request), reason=notes
    ),
)


class ApprovalList(PageByTenant):
    def add_facts(self, tenant_id: UUID, rows: list[Approval]) -> None:
        for question in questions(tenant_id, rows):
            question.approval.question = question  # type: ignore[attr-defined]  # read by `_question_of`


@admin.register(Approval)
class ApprovalAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("created_at", "title", "tenant", "type", "state", "activity_count", "requested_by")
    list_filter = ("type",)
    list_disable_select_all = False
    search_fields = ("type", "requested_by")
    fields = (
        "id", "item", "tenant", "type", "state", "addressee", "options", "decision", "votes_so_far", "activities",
        "requested_by", "created_at",
    )  # fmt: skip
    row_actions = (APPROVE, REJECT, WITHDRAW)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[PageByTenant]:
        return ApprovalList

    @display(description="Title")
    def title(self, approval: Approval) -> str:
        return _question_of(approval).item.name

    @display(description="State")
    def state(self, approval: Approval) -> SafeString:
        return badge(_question_of(approval).status)

    @display(description="Activities")
    def activity_count(self, approval: Approval) -> int:
        return len(_question_of(approval).links)

    @display(description="Inbox item")
    def item(self, approval: Approval) -> SafeString:
        return link_to(Activity, approval.pk, _question_of(approval).item.name)

    @display(description="Asked")
    def addressee(self, approval: Approval) -> str:
        question = _question_of(approval)
        due = f", due {question.item.due_at:%Y-%m-%d %H:%M} UTC" if question.item.due_at else ""
        several = f", {question.rules.quorum} must agree" if question.rules.is_voted_on else ""
        return f"{question.item.human_role}{several}{due}"

    @display(description="Decision")
    def decision(self, approval: Approval) -> Any:
        item = _question_of(approval).item
        parts = (item.decided_by, item.chosen_option, item.reviewer_notes or item.cancel_reason)
        return ", ".join(part for part in parts if part) or NOTHING

    @display(description="Votes")
    def votes_so_far(self, approval: Approval) -> SafeString:
        rows = [
            (vote.actor, vote.decision, vote.chosen_option or "", vote.notes)
            for vote in _question_of(approval).votes
        ]
        listed = format_html_join("", "<li>{}: {} {} {}</li>", rows)
        return format_html("<ul>{}</ul>", listed) if rows else NOTHING

    @display(description="Activities")
    def activities(self, approval: Approval) -> SafeString:
        rows = [
            (link_to(Activity, linked.activity, linked.name), linked.status, linked.state, linked.reason)
            for linked in _question_of(approval).links
        ]
        listed = format_html_join("", "<li>{} ({}): {} {}</li>", rows)
        return format_html("<ul>{}</ul>", listed) if rows else NOTHING


def _question_of(approval: Approval) -> Question:
    """Return the question of the approval. It is loaded once per row."""
    question: Question | None = getattr(approval, "question", None)
    if question is None:
        (question,) = questions(approval.tenant_id, [approval])
        approval.question = question  # type: ignore[attr-defined]  # kept with the row, as in ApprovalList
    return question


@admin.register(ApprovalLink)
class ApprovalLinkAdmin(PartAdmin):
    list_display = ("approval_link", "activity_link", "tenant", "situation", "reason")
    list_filter = ("state",)

    approval_link = link_of("approval_id", Approval, "Approval")
    situation = badge_of("state", "State", waiting="warning")


@admin.register(Vote)
class VoteAdmin(PartAdmin):
    list_display = ("at", "activity_link", "tenant", "actor", "decision", "chosen_option")
    list_filter = ("decision",)


@admin.register(Deadline)
class DeadlineAdmin(PartAdmin):
    list_display = ("at", "activity_link", "tenant", "kind", "human_role", "happened_at")
    list_filter = ("kind",)


@admin.register(ToolCall)
class ToolCallAdmin(PartAdmin):
    list_display = ("at", "activity_link", "tenant", "tool")
    list_filter = ("tool",)
