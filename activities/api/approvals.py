"""Approvals over many activities: creates, lists, decides and withdraws them. Only a POST decides, so opening a link changes nothing."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import Exists, OuterRef, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import activity_tree, states
from activities.api.decisions import LONGEST_NOTES, act_or_name_first, decide, voter_of
from activities.api.operations import ReasonSerializer
from activities.api.serializers import link_of
from activities.exceptions import NotFound
from activities.human_tasks import approvals, decisions
from activities.human_tasks.approvals import STATUSES, NewApproval, Question, questions
from activities.models import Activity, Approval, ApprovalLink, Vote
from activities.schemas import ApprovalRequestSerializer, RulesSerializer, rules_of
from tenants.api.documentation import command, creation, operation
from tenants.api.etags import Versioned
from tenants.api.filters import StrictFilterSet
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import Resource, describe_resource
from tenants.models import Role

DECISIONS = {"approved": "approve", "rejected": "reject"}


class NewApprovalSerializer(ApprovalRequestSerializer, RulesSerializer):
    """A question about any number of activities. Those that have not started wait for the answer."""


class VerdictSerializer(StrictSerializer):
    """A decision. If several people must agree, it counts as one vote."""

    decision = OneOf(choices=list(DECISIONS))
    notes = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, help_text="One of the options, if there are any.", **OPTIONAL)


class ApprovalFilter(StrictFilterSet):
    type = django_filters.CharFilter()
    status = django_filters.ChoiceFilter(
        method="with_status", choices=[(status, status) for status in STATUSES]
    )
    human_role = django_filters.CharFilter(method="filter_by_role")
    activity = django_filters.UUIDFilter(method="about", help_text="Only approvals about this activity.")

    def with_status(self, rows: Any, name: str, value: str) -> Any:
        return rows.filter(Exists(_item(status__in=STATUSES[value])))

    def filter_by_role(self, rows: Any, name: str, value: str) -> Any:
        return rows.filter(Exists(_item(human_role=value)))

    def about(self, rows: Any, name: str, value: UUID) -> Any:
        links = ApprovalLink.objects.filter(tenant_id=OuterRef("tenant_id"), approval_id=OuterRef("pk"))
        return rows.filter(Exists(links.filter(activity_id=value)))


def _item(**conditions: Any) -> QuerySet[Activity]:
    """Return a subquery for the activity of an approval of the outer query."""
    return Activity.objects.filter(tenant_id=OuterRef("tenant_id"), pk=OuterRef("pk"), **conditions)


ADDRESS = "/api/v1/approvals/"


class ApprovalItemSerializer(ResponseSerializer):
    """A question to people, with the activities that depend on the answer. Its id is also that of its item in the inbox."""

    id = serializers.UUIDField(source="approval.pk")
    type = serializers.CharField(source="approval.type")
    title = serializers.CharField(source="item.name")
    description = serializers.CharField(source="item.description")
    options = serializers.ListField(
        child=serializers.CharField(),
        source="approval.options",
        help_text="If empty, the answer is yes or no.",
    )
    status = serializers.CharField(help_text=f"One of {', '.join(STATUSES)}.")
    human_role = serializers.CharField(source="item.human_role")
    priority = serializers.IntegerField(source="item.priority")
    requested_by = serializers.CharField(source="approval.requested_by")
    requested_for = serializers.UUIDField(
        source="item.parent_id", allow_null=True, help_text="The activity whose agent asked."
    )
    due_at = serializers.DateTimeField(source="item.due_at", allow_null=True)
    on_timeout = serializers.CharField(source="rules.on_timeout", allow_null=True)
    quorum = serializers.IntegerField(source="rules.quorum", help_text="How many people must agree.")
    voters = serializers.IntegerField(
        source="rules.voters", allow_null=True, help_text="How many people are asked."
    )
    self_approval = serializers.BooleanField(
        source="rules.self_approval", help_text="Whether the requester may decide."
    )
    votes = Computed(list[dict[str, Any]], lambda question: [_vote(vote) for vote in question.votes])
    decided_by = serializers.CharField(source="item.decided_by", allow_null=True)
    decided_at = serializers.DateTimeField(source="item.decided_at", allow_null=True)
    chosen_option = serializers.CharField(source="item.chosen_option", allow_null=True)
    notes = Computed(str | None, lambda question: question.item.reviewer_notes or question.item.cancel_reason)
    links = Computed(
        list[dict[str, Any]],
        lambda question: [
            {
                "activity": linked.activity,
                "name": linked.name,
                "status": linked.status,
                "state": linked.state,
                "reason": linked.reason,
                "link": link_of(linked.activity),
            }
            for linked in question.links
        ],
    )
    created_at = serializers.DateTimeField(source="approval.created_at")
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    link = Computed(str, lambda question: f"{ADDRESS}{question.approval.pk}/")


def _vote(vote: Vote) -> dict[str, Any]:
    return {
        "by": vote.actor,
        "decision": states.target_of(vote.decision),
        "chosen_option": vote.chosen_option,
        "notes": vote.notes,
        "at": vote.at,
    }


class SettledApprovalSerializer(ApprovalItemSerializer):
    """An approval after a decision; the links say what happened to each activity."""

    woken = Computed(
        list[UUID],
        lambda question: [linked.activity for linked in question.links if linked.state == "woken"],
        help_text="Activities whose next run receives the answer.",
    )
    skipped = Computed(
        list[UUID],
        lambda question: [linked.activity for linked in question.links if linked.state == "skipped"],
        help_text="Activities that had ended, or that are not started automatically.",
    )


@describe_resource(many="Approvals, newest first")
class ApprovalViewSet(Versioned, Resource):
    """Approvals can also be decided in the inbox, and at `/activities/{id}/approve/` and `/reject/`."""

    queryset = Approval.objects
    serializer_class = ApprovalItemSerializer
    filterset_class = ApprovalFilter
    ordering_fields = ("created_at",)
    scope = "approvals"
    required_role: ClassVar[dict[str, Role]] = {
        "create": Role.OPERATOR,
        "decide": Role.REVIEWER,
        "withdraw": Role.REVIEWER,
    }

    def show(self, found: Any, *, many: bool = False) -> Any:
        return super().show(questions(self.tenant_id, found) if many else found, many=many)

    @operation("One approval", answer=ApprovalItemSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(ApprovalItemSerializer(self._question(pk)).data)

    @creation("Ask people to approve activities", NewApprovalSerializer, ApprovalItemSerializer)
    def create(self, request: Request) -> Response:
        """From now on, no run of these activities begins until this question and every other open question about them is decided; a
        question never answers, closes or replaces another one. A current run continues. An activity that has ended before the decision is
        listed as skipped."""
        body = read(NewApprovalSerializer, request.data)
        activity_ids = body.get("activity_ids", [])
        linked = activity_tree.lock(self.tenant_id, activity_ids)
        if unknown := [index for index, activity_id in enumerate(activity_ids) if activity_id not in linked]:
            raise InvalidRequest(
                [(f"activity_ids[{index}]", "is not an activity of this tenant") for index in unknown]
            )
        new = NewApproval(
            type=body["type"], title=body["title"], description=body.get("description", ""),
            human_role=body.get("human_role"), rules=rules_of(body),
        )  # fmt: skip
        by = self.principal
        approval = approvals.open_approval(self.tenant_id, new, actor=by.actor, identity=by.identity)
        approvals.link(self.tenant_id, approval, list(linked.values()), actor=by.actor)
        body = ApprovalItemSerializer(self._question(approval)).data
        return Response(body, status=201, headers={"Location": body["link"]})

    @command("Decide an approval", VerdictSerializer, SettledApprovalSerializer)
    @action(detail=True, methods=["post"])
    def decide(self, request: Request, pk: UUID) -> Response:
        """Every linked activity receives the decision and the chosen option in one run: at once, or after everything else that it waits
        for. If several people must agree, this is one vote of the person behind the session or token (`person_required` if there is none),
        and the approval stays pending until the outcome is certain. A second, contrary or late decision is refused with 409, which says who
        decided what and when."""
        body = read(VerdictSerializer, request.data)
        self._lock_unchanged(pk)
        decide(self.tenant_id, pk, DECISIONS[body["decision"]], by=self.principal, body=body)
        return Response(SettledApprovalSerializer(self._question(pk)).data)

    @command("Withdraw an approval", ReasonSerializer, SettledApprovalSerializer)
    @action(detail=True, methods=["post"])
    def withdraw(self, request: Request, pk: UUID) -> Response:
        """Allowed for the requester and for operators. Work that waits for the approval wakes, and is told that nobody will decide."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        self._lock_unchanged(pk)
        act_or_name_first(
            self.tenant_id,
            lambda: decisions.withdraw(self.tenant_id, pk, by=voter_of(self.principal), reason=reason),
        )
        return Response(SettledApprovalSerializer(self._question(pk)).data)

    def _question(self, pk: UUID) -> Question:
        found = questions(self.tenant_id, list(Approval.objects.for_tenant(self.tenant_id).filter(pk=pk)))
        if not found:
            raise NotFound("approval", pk)
        return found[0]

    def _lock_unchanged(self, pk: UUID) -> None:
        """Lock the approval and all activities that its decision may change, then check `If-Match`."""
        approvals.lock_concerned_by(self.tenant_id, [pk])
        self.check_if_match(self._question(pk).version)
