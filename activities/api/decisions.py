"""What people do with the activities that are theirs: decide gates, take tasks up, complete them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import approvals, people
from activities.api.serializers import ActivitySerializer
from activities.exceptions import AlreadyDecided, TransitionRefused
from activities.models import Activity
from activities.states import LinkKind
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import OPTIONAL, Json, StrictSerializer, Text, read
from tenants.models import Role

LONGEST_NOTES = 20_000


class ApprovalSerializer(StrictSerializer):
    """A yes, with whatever there is to say."""

    notes = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, **OPTIONAL)


class RejectionSerializer(StrictSerializer):
    """A no. The notes are what the agent works by."""

    notes = Text(max_length=LONGEST_NOTES)
    chosen_option = Text(max_length=200, **OPTIONAL)


class GivenOutputSerializer(StrictSerializer):
    """What a person produced."""

    content = Text(allow_blank=True, trim_whitespace=False, **OPTIONAL)
    data = Json(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute
    content_type = Text(max_length=100, **OPTIONAL)


class CompletionSerializer(StrictSerializer):
    output = GivenOutputSerializer(**OPTIONAL)
    note = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)


class EmptySerializer(StrictSerializer):
    """A body without members, or none at all."""


class Decided(AlreadyDecided):
    """`AlreadyDecided` with the facts of the decision that counts."""

    def __init__(self, first: Activity, error: TransitionRefused) -> None:
        super().__init__(error.activity_id, error.verb, error.current, str(error))
        self.problem_members: dict[str, Any] = {
            "decision": first.status, "decided_by": first.decided_by, "decided_at": first.decided_at
        }  # fmt: skip


CHANGE: dict[str, Any] = {
    "answer": ActivitySerializer,
    "refusals": (400, 404, 409, 412),
    "parameters": (IDEMPOTENCY_KEY, IF_MATCH),
}


def decide(
    tenant_id: UUID, activity_id: UUID, decision: str, *, actor: str, body: dict[str, Any]
) -> Activity:
    """Approve or reject. Raises `Decided` naming who was first. In the caller's `tenant_scope`."""
    act: Callable[..., Activity] = {"approve": approvals.approve, "reject": approvals.reject}[decision]
    try:
        return act(
            tenant_id,
            activity_id,
            actor=actor,
            notes=body.get("notes", ""),
            chosen_option=body.get("chosen_option"),
        )
    except AlreadyDecided as error:
        first = Activity.objects.for_tenant(tenant_id).get(pk=error.activity_id)
        raise Decided(first, error) from error


def lock_pairs(tenant_id: UUID, ids: set[UUID]) -> None:
    """Lock activities with their gates, or gates with what waits behind them, in the one order that all use."""
    rows = Activity.objects.for_tenant(tenant_id)
    asked = dict(rows.filter(pk__in=ids).values_list("pk", "parent_id"))
    gates = rows.filter(parent_id__in=ids, link_kind=LinkKind.GATE).values_list("pk", flat=True)
    pairs = {*asked, *(parent for parent in asked.values() if parent is not None), *gates}
    list(rows.filter(pk__in=pairs).order_by("pk").select_for_update().values_list("pk", flat=True))


class DecisionActions:
    """Actions of an `ActivityViewSet`. A decision is final: a second or late one is told who decided what and when."""

    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("approve", "reject", "start", "complete"), Role.REVIEWER
    )

    request: Any
    tenant_id: UUID
    principal: Any
    get_object: Callable[[], Activity]
    shown: Callable[..., Any]

    def _unchanged(self, pk: UUID) -> UUID:
        """The id, after `If-Match` was found true of the activity, which is locked from then on."""
        if "If-Match" in self.request.headers:
            lock_pairs(self.tenant_id, {pk})
            self.get_object()
        return pk

    def _decide(self, decision: str, pk: UUID, kind: type[StrictSerializer]) -> Response:
        body = read(kind, self.request.data)
        decided = decide(self.tenant_id, self._unchanged(pk), decision, actor=self.principal.actor, body=body)
        return Response(self.shown(decided))

    @operation("Approve what waits behind a gate", request=ApprovalSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, pk: UUID) -> Response:
        """Takes the gate's id, or that of the activity that waits behind it."""
        return self._decide("approve", pk, ApprovalSerializer)

    @operation("Send back what waits behind a gate", request=RejectionSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def reject(self, request: Request, pk: UUID) -> Response:
        """The agent starts again, as the next round, with its result and these notes."""
        return self._decide("reject", pk, RejectionSerializer)

    @operation("Take up a person's task", request=EmptySerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def start(self, request: Request, pk: UUID) -> Response:
        read(EmptySerializer, request.data)
        return Response(
            self.shown(people.take_up(self.tenant_id, self._unchanged(pk), actor=self.principal.actor))
        )

    @operation("Complete a person's task", request=CompletionSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def complete(self, request: Request, pk: UUID) -> Response:
        body = read(CompletionSerializer, request.data)
        self._unchanged(pk)
        self.get_object()  # An output is kept before the move, so whose it is must be certain before.
        completed = people.complete(
            self.tenant_id,
            pk,
            actor=self.principal.actor,
            output=body.get("output"),
            note=body.get("note", ""),
        )
        return Response(self.shown(completed))
