"""What is shown of an approval: the question, the votes, and what hangs on the answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers

from activities.api.serializers import link_of
from activities.approvals import Question
from activities.approvals.reading import STATUSES
from activities.models import Vote
from agents.api.shown import Shown

ADDRESS = "/api/v1/approvals/"


class ApprovalItemSerializer(Shown):
    """A question to people, with everything that hangs on the answer. Its id is that of its item in the inbox."""

    id = serializers.UUIDField(source="approval.pk")
    type = serializers.CharField(source="approval.type")
    title = serializers.CharField(source="item.name")
    description = serializers.CharField(source="item.description")
    options = serializers.ListField(
        child=serializers.CharField(), source="approval.options", help_text="Empty: yes or no."
    )
    status = serializers.CharField(help_text=f"One of {', '.join(STATUSES)}.")
    human_role = serializers.CharField(source="item.human_role")
    priority = serializers.IntegerField(source="item.priority")
    requested_by = serializers.CharField(source="approval.requested_by")
    requested_for = serializers.UUIDField(
        source="item.parent_id", allow_null=True, help_text="The activity whose agent asks."
    )
    due_at = serializers.DateTimeField(source="item.due_at", allow_null=True)
    on_timeout = serializers.CharField(source="rules.on_timeout", allow_null=True)
    quorum = serializers.IntegerField(source="rules.quorum", help_text="So many must agree.")
    voters = serializers.IntegerField(
        source="rules.voters", allow_null=True, help_text="Of so many who are asked."
    )
    self_approval = serializers.BooleanField(
        source="rules.self_approval", help_text="Whether who asks may decide."
    )
    votes = serializers.SerializerMethodField()
    decided_by = serializers.CharField(source="item.decided_by", allow_null=True)
    decided_at = serializers.DateTimeField(source="item.decided_at", allow_null=True)
    chosen_option = serializers.CharField(source="item.chosen_option", allow_null=True)
    notes = serializers.SerializerMethodField()
    links = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField(source="approval.created_at")
    version = serializers.IntegerField(help_text="Raised by everything that happens to it; the ETag.")
    link = serializers.SerializerMethodField()

    def get_votes(self, question: Question) -> list[dict[str, Any]]:
        return [_vote(vote) for vote in question.votes]

    def get_notes(self, question: Question) -> str | None:
        found: str | None = question.item.reviewer_notes or question.item.cancel_reason
        return found

    def get_links(self, question: Question) -> list[dict[str, Any]]:
        return [
            {
                "activity": linked.activity,
                "name": linked.name,
                "status": linked.status,
                "state": linked.state,
                "reason": linked.reason,
                "link": link_of(linked.activity),
            }
            for linked in question.links
        ]

    def get_link(self, question: Question) -> str:
        return f"{ADDRESS}{question.approval.pk}/"


def _vote(vote: Vote) -> dict[str, Any]:
    return {
        "by": vote.actor,
        "decision": "approved" if vote.decision == "approve" else "rejected",
        "chosen_option": vote.chosen_option,
        "notes": vote.notes,
        "at": vote.at,
    }


class SettledApprovalSerializer(ApprovalItemSerializer):
    """An approval after an answer; the links say of each activity what became of it."""

    woken = serializers.SerializerMethodField(help_text="Activities whose next run hears of the answer.")
    skipped = serializers.SerializerMethodField(
        help_text="Activities that had ended, or that nothing starts by itself."
    )

    def get_woken(self, question: Question) -> list[UUID]:
        return [linked.activity for linked in question.links if linked.state == "woken"]

    def get_skipped(self, question: Question) -> list[UUID]:
        return [linked.activity for linked in question.links if linked.state == "skipped"]
