"""Actions of operators on any activity: cancel, retry, reassign, reschedule, run now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from uuid import UUID

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import activity_tree, cancellation, reassignment, relay, rescheduling, wait_reasons
from activities.api.allowed_actions import list_allowed_actions
from activities.api.decisions import voter_of
from activities.api.serializers import ActivitySerializer, link_of
from activities.exceptions import NotFound
from activities.human_tasks import decisions
from activities.models import Activity
from activities.schemas import SCALES, PriorityField, ReassignmentSerializer, priority_of
from activities.states import BANDS
from tenants.api.documentation import change, command
from tenants.api.etags import Versioned
from tenants.api.serializers import OPTIONAL, EmptySerializer, Moment, OneOf, StrictSerializer, Text, read
from tenants.api.views import OfOneRow
from tenants.context import tenant_scope
from tenants.models import Role


class ReasonSerializer(StrictSerializer):
    """The reason for an action."""

    reason = Text(allow_blank=True, max_length=2_000, **OPTIONAL)


class ReschedulingSerializer(StrictSerializer):
    """The priority and the dates of waiting work. Omitted members stay as they are; null removes a date, or sets the priority to normal."""

    priority = PriorityField(help_text="1 (urgent) to 20, or the name of a band.", **OPTIONAL)
    priority_scale = OneOf(
        choices=list(SCALES), help_text="The scale of `priority`, if it is not 1 to 20.", **OPTIONAL
    )
    not_before = Moment(help_text="The work does not start before this time.", **OPTIONAL)
    due_at = Moment(help_text="When the work should be done, or decided.", **OPTIONAL)
    expires_at = Moment(help_text="The work is cancelled if it has not started by this time.", **OPTIONAL)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        errors: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for part in (super().to_internal_value, self._priority):
            try:
                values |= part(data)
            except serializers.ValidationError as error:
                errors = {**dict(error.detail), **errors}  # type: ignore[arg-type]  # a mapping: it has paths
        if errors:
            raise serializers.ValidationError(errors)
        cleared = [name for name in data if data[name] is None and name not in ("priority_scale", *values)]
        values.pop("priority_scale", None)
        return {**dict.fromkeys(cleared, None), **values}

    def _priority(self, data: Any) -> dict[str, Any]:
        """Return the priority as it is stored, or nothing if it is missing or invalid (the field reports the error)."""
        body = data if isinstance(data, Mapping) else {}
        scale, priority = body.get("priority_scale"), body.get("priority")
        if scale is not None and priority is None:
            raise serializers.ValidationError({"priority_scale": ["needs priority"]})
        if "priority" not in body or isinstance(priority, bool) or not isinstance(priority, int | str | None):
            return {}
        if scale not in (None, *SCALES) or (isinstance(priority, str) and priority not in BANDS):
            return {}
        return {"priority": priority_of(priority, scale)}


class OperationActions:
    """Mixin of `ActivityViewSet`, like `DecisionActions`."""

    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("cancel", "retry", "reassign", "partial_update"), Role.OPERATOR
    )

    tenant_id: UUID
    principal: Any
    show: Callable[..., Any]
    _lock_unchanged: Callable[[UUID], UUID]

    @command("Cancel an activity", ReasonSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """Waiting work never starts. A running agent is told to stop at its next heartbeat, and its result is refused."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        self._lock_unchanged(pk)
        return Response(
            self.show(cancellation.cancel(self.tenant_id, pk, actor=self.principal.actor, reason=reason))
        )

    @command("Retry a failed activity", EmptySerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: UUID) -> Response:
        """It runs again for the reason of its last run, with its full number of attempts. Its pipeline run continues."""
        return Response(
            self.show(
                cancellation.retry(self.tenant_id, self._lock_unchanged(pk), actor=self.principal.actor)
            )
        )

    @command("Reassign an activity to another role", ReassignmentSerializer, ActivitySerializer, status=201)
    @action(detail=True, methods=["post"])
    def reassign(self, request: Request, pk: UUID) -> Response:
        """The answer is the successor: a new activity with the same input, in the same place of its pipeline run. Whatever waited for the
        original activity gets the successor's result."""
        body = read(ReassignmentSerializer, request.data, tenant_id=self.tenant_id)
        successor = reassignment.reassign(
            self.tenant_id, self._lock_unchanged(pk), actor=self.principal.actor, reason=body["reason"],
            agent_role=body.get("agent_role"), human_role=body.get("human_role"),
        )  # fmt: skip
        return Response(self.show(successor), status=201, headers={"Location": link_of(successor.pk)})

    @change(
        "Change the priority and the dates of an activity",
        ReschedulingSerializer,
        ActivitySerializer,
        refusals=(404, 409),
    )
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Takes effect at once. 409 if the activity is running or has ended."""
        changes = read(ReschedulingSerializer, request.data)
        self._lock_unchanged(pk)
        if "due_at" in changes:
            decisions.refuse_hastening(self.tenant_id, pk, changes["due_at"], voter_of(self.principal))
        changed = rescheduling.reschedule(self.tenant_id, pk, changes, actor=self.principal.actor)
        return Response(self.show(changed))


class RunNowSerializer(StrictSerializer):
    """The reason to run an activity now."""

    reason = Text(max_length=2_000, help_text="Why the activity cannot wait; recorded in the audit trail.")


class RunNow(Versioned, OfOneRow):
    # After the commit, admission is asked what the activity still waits for.
    in_one_transaction = False
    queryset = Activity.objects
    lookup_url_kwarg = "activity_id"
    scope = "activities"
    required_role: ClassVar[Role] = Role.OPERATOR

    @command("Run an activity now, even if it is paused or delayed", RunNowSerializer, ActivitySerializer)
    def post(self, request: Request, activity_id: UUID) -> Response:
        """Its next run ignores the tenant's pauses, `not_before` and the delay before a retry. `waiting_for` says what it still waits for,
        such as a budget or a limit; after that it starts before all other work. 409 if the activity waits for people or other work
        (`still_held`), is running or has ended, or is a person's task."""
        reason = read(RunNowSerializer, request.data)["reason"]
        with tenant_scope(self.tenant_id):
            locked = activity_tree.lock(self.tenant_id, [activity_id]).get(activity_id)
            if locked is None:
                raise NotFound("activity", activity_id)
            self.check_if_match(locked.version)
            activity = rescheduling.run_now(
                self.tenant_id, activity_id, actor=self.principal.actor, reason=reason
            )
            allowed_actions = list_allowed_actions(self.principal, [activity])
        relay.flush(timeout=FLUSH_SECONDS)
        reason_to_wait = wait_reasons.why(self.tenant_id, activity_id)
        context = {"waiting": {activity.pk: reason_to_wait}, "allowed_actions": allowed_actions}
        return Response(ActivitySerializer(activity, context=context).data)


#: How long to wait for the relay to notify admission, so that `waiting_for` is current. The relay delivers it in any case.
FLUSH_SECONDS = 1.0
