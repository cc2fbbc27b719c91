"""Approvals over many activities: asked for, listed, decided, taken back. Looking at one changes nothing; only a POST decides."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import approvals, families
from activities.api.approval_bodies import DECISIONS, NewApprovalSerializer, VerdictSerializer
from activities.api.approval_filter import ApprovalFilter
from activities.api.approvals_shown import ApprovalItemSerializer, SettledApprovalSerializer
from activities.api.decisions import decide, told_who_was_first, voter_of
from activities.api.operations import ReasonSerializer
from activities.approvals import NewApproval, Question, questions
from activities.bodies.rules import rules_of
from activities.exceptions import ActivityNotFound
from activities.models import Approval
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from tenants.api.faults import InvalidRequest
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.models import Role

CHANGE: dict[str, Any] = {
    "answer": SettledApprovalSerializer,
    "refusals": (404, 409),
    "parameters": (IDEMPOTENCY_KEY, IF_MATCH),
}


class ApprovalViewSet(Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    """The same items are decided in the inbox, and at `/activities/{id}/approve/` and `/reject/`."""

    queryset = Approval.objects
    serializer_class = ApprovalItemSerializer
    filterset_class = ApprovalFilter
    ordering_fields = ("created_at",)
    lookup_value_converter = "uuid"
    scope = "approvals"
    required_role: ClassVar[dict[str, Role]] = {
        "create": Role.OPERATOR,
        "decide": Role.REVIEWER,
        "withdraw": Role.REVIEWER,
    }

    @operation("Approvals, newest first", answer=ApprovalItemSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(
            ApprovalItemSerializer(questions(self.tenant_id, page), many=True).data
        )

    @operation("One approval", answer=ApprovalItemSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(ApprovalItemSerializer(self._question(pk)).data)

    @operation(
        "Ask people about activities",
        request=NewApprovalSerializer,
        answer=ApprovalItemSerializer,
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """No run of these activities begins from now on before the decision, nor before that of any other question about them: this one
        answers, closes and replaces no other. A run that is under way goes on; an activity that has ended when the decision comes is listed
        as skipped."""
        body = read(NewApprovalSerializer, request.data)
        wanted = body.get("activity_ids", [])
        linked = families.lock(self.tenant_id, wanted)
        if unknown := [index for index, wished in enumerate(wanted) if wished not in linked]:
            raise InvalidRequest(
                [(f"activity_ids[{index}]", "is no activity of this tenant") for index in unknown]
            )
        new = NewApproval(
            type=body["type"], title=body["title"], description=body.get("description", ""),
            human_role=body.get("human_role"), rules=rules_of(body),
        )  # fmt: skip
        by = self.principal
        approval = approvals.open_approval(self.tenant_id, new, actor=by.actor, identity=by.identity)
        approvals.link(self.tenant_id, approval, list(linked.values()), actor=by.actor, may_hold=linked)
        shown = ApprovalItemSerializer(self._question(approval)).data
        return Response(shown, status=201, headers={"Location": shown["link"]})

    @operation("Decide an approval", request=VerdictSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def decide(self, request: Request, pk: UUID) -> Response:
        """Every linked activity hears of it in one run, with the decision and the option: at once, or when whatever else it waits for is
        over. Where several must agree it counts as
        one voice of the person behind the session or token (`person_required` when there is none), and the approval stays pending until the
        outcome is certain. A second, contrary or late decision is a 409 that names
        who decided what and when."""
        body = read(VerdictSerializer, request.data)
        self._unchanged(pk)
        decide(self.tenant_id, pk, DECISIONS[body["decision"]], by=self.principal, body=body)
        return Response(SettledApprovalSerializer(self._question(pk)).data)

    @operation("Take an approval back", request=ReasonSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def withdraw(self, request: Request, pk: UUID) -> Response:
        """For whoever asked, and for operators. What waits for it wakes and learns that nobody will decide."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        self._unchanged(pk)
        told_who_was_first(
            self.tenant_id,
            lambda: approvals.withdraw(self.tenant_id, pk, by=voter_of(self.principal), reason=reason),
        )
        return Response(SettledApprovalSerializer(self._question(pk)).data)

    def _question(self, pk: UUID) -> Question:
        found = questions(self.tenant_id, list(Approval.objects.for_tenant(self.tenant_id).filter(pk=pk)))
        if not found:
            raise ActivityNotFound(f"There is no approval {pk}.")
        return found[0]

    def _unchanged(self, pk: UUID) -> None:
        """Lock it with all that its end may move, and hold `If-Match` against what it is then."""
        approvals.lock_concerned_by(self.tenant_id, [pk])
        self.check_if_match(self._question(pk).version)
