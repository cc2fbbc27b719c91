"""What operators do with any activity: cancel it, try it again, or hand it to somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import cancellation, reassignment
from activities.api.decisions import CHANGE, EmptySerializer
from activities.api.serializers import link_of
from activities.exceptions import TransitionRefused
from activities.models import Activity
from activities.schemas import ReassignmentSerializer
from activities.states import LinkKind
from tenants.api.documentation import operation
from tenants.api.strict import OPTIONAL, StrictSerializer, Text, read
from tenants.models import Role


class ReasonSerializer(StrictSerializer):
    reason = Text(allow_blank=True, max_length=2_000, **OPTIONAL)


class OperationActions:
    """Actions of an `ActivityViewSet`."""

    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("cancel", "retry", "reassign"), Role.OPERATOR)

    tenant_id: UUID
    principal: Any
    shown: Callable[..., Any]
    _unchanged: Callable[[UUID], UUID]

    @operation("Cancel an activity", request=ReasonSerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """What waits never starts. An agent at work is told to stop at its next heartbeat, and its result is refused."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        self._refuse_gate(self._unchanged(pk))
        return Response(
            self.shown(cancellation.cancel(self.tenant_id, pk, actor=self.principal.actor, reason=reason))
        )

    @operation("Try a failed activity again", request=EmptySerializer, **CHANGE)
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: UUID) -> Response:
        """For the reason that it ran for last, with all its attempts. Its pipeline run goes on."""
        read(EmptySerializer, request.data)
        return Response(
            self.shown(cancellation.retry(self.tenant_id, self._unchanged(pk), actor=self.principal.actor))
        )

    @operation(
        "Hand an activity to somebody else", request=ReassignmentSerializer, **{**CHANGE, "status": 201}
    )
    @action(detail=True, methods=["post"])
    def reassign(self, request: Request, pk: UUID) -> Response:
        """Its heir is a new activity with the same input and place, which is the answer; whoever waits gets the heir's result."""
        body = read(ReassignmentSerializer, request.data)
        heir = reassignment.reassign(
            self.tenant_id, self._unchanged(pk), actor=self.principal.actor, reason=body["reason"],
            agent_role=body.get("agent_role"), human_role=body.get("human_role"),
        )  # fmt: skip
        return Response(self.shown(heir), status=201, headers={"Location": link_of(heir.pk)})

    def _refuse_gate(self, pk: UUID) -> None:
        # Without its gate, what waits could be neither approved nor rejected any more.
        gate = Activity.objects.for_tenant(self.tenant_id).filter(pk=pk, link_kind=LinkKind.GATE).first()
        if gate is not None:
            raise TransitionRefused(
                pk, "cancel", gate.status, f"Activity {pk} is the gate of {gate.parent_id}: cancel that one."
            )
