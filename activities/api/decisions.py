"""Actions of people on their activities: decide gates, claim and complete tasks, resolve blockers, answer reviews."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import suspension
from activities.api.serializers import ActivitySerializer
from activities.decision_rules import Voter
from activities.exceptions import AlreadyDecided, TransitionRefused
from activities.human_tasks import approvals, decisions, human_work
from activities.models import Activity
from activities.states import Status
from tenants.api.documentation import command
from tenants.api.serializers import OPTIONAL, EmptySerializer, Flag, Json, StrictSerializer, Text, read
from tenants.models import Role
from tenants.principals import Principal

LONGEST_NOTES = 20_000


class RejectionSerializer(StrictSerializer):
    """A request for changes. The agent works with the notes."""

    notes = Text(max_length=LONGEST_NOTES)
    chosen_option = Text(max_length=200, **OPTIONAL)


class GivenOutputSerializer(StrictSerializer):
    """An output that a person produced."""

    content = Text(allow_blank=True, trim_whitespace=False, **OPTIONAL)
    data = Json(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute
    content_type = Text(max_length=100, **OPTIONAL)


class ApprovalSerializer(StrictSerializer):
    """An approval. An `output` replaces the result as a whole."""

    notes = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, **OPTIONAL)
    output = GivenOutputSerializer(**OPTIONAL)


class CompletionSerializer(StrictSerializer):
    """The result of a person's task."""

    output = GivenOutputSerializer(**OPTIONAL)
    note = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)


class ResolutionSerializer(StrictSerializer):
    """How the blocker was removed. The agent continues with this note."""

    note = Text(max_length=LONGEST_NOTES)


class ReviewSerializer(StrictSerializer):
    """A reviewer's answer. Feedback is optional with an approval, and required otherwise."""

    approved = Flag()
    feedback = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        if attrs.get("approved") is False and not (attrs.get("feedback") or "").strip():
            return {"feedback": ["is required for changes: the agent works by it"]}
        return {}


_DECISION_NAMES: dict[str, str] = {Status.CANCELLED: "withdrawn"}


class Decided(AlreadyDecided):
    """`AlreadyDecided` that also tells who made the valid decision, and when."""

    def __init__(self, first: Activity, error: TransitionRefused) -> None:
        super().__init__(error.activity_id, error.verb, error.current, str(error))
        self.problem_members: dict[str, Any] = {
            "decision": _DECISION_NAMES.get(first.status, first.status), "decided_by": first.decided_by, "decided_at": first.decided_at
        }  # fmt: skip


def voter_of(principal: Principal) -> Voter:
    """Return the principal as a voter. Operators and admins may decide everything, others only items of their human roles."""
    return Voter(
        principal.actor,
        identity=principal.identity,
        human_roles=principal.human_roles,
        decides_all=principal.role.includes(Role.OPERATOR),
    )


def decide(
    tenant_id: UUID, activity_id: UUID, decision: str, *, by: Principal, body: dict[str, Any]
) -> Activity:
    """Approve or reject. Raises `Decided` if somebody else decided first. Must run in a `tenant_scope`."""
    notes, option = body.get("notes", ""), body.get("chosen_option")
    return act_or_name_first(
        tenant_id,
        lambda: decisions.decide(
            tenant_id,
            activity_id,
            decision,
            by=voter_of(by),
            notes=notes,
            chosen_option=option,
            output=body.get("output"),
        ),
    )


def answer(
    tenant_id: UUID, activity_id: UUID, decision: str, *, by: Principal, body: dict[str, Any]
) -> Activity:
    """Approve, reject, resolve a blocker or complete a task, as `decision` says. Must run in a `tenant_scope`."""
    note = body.get("notes", "")
    if decision == "resolve":
        return act_or_name_first(
            tenant_id, lambda: suspension.resolve_blocker(tenant_id, activity_id, actor=by.actor, note=note)
        )
    if decision == "complete":
        return act_or_name_first(
            tenant_id,
            lambda: human_work.complete(tenant_id, activity_id, actor=by.actor, note=note, note_path="notes"),
        )
    return decide(tenant_id, activity_id, decision, by=by, body=body)


def act_or_name_first(tenant_id: UUID, action: Callable[[], Activity]) -> Activity:
    """Run the action. Raises `Decided` if somebody else decided first."""
    try:
        return action()
    except AlreadyDecided as error:
        first = Activity.objects.for_tenant(tenant_id).get(pk=error.activity_id)
        raise Decided(first, error) from error


class DecisionActions:
    """Mixin of `ActivityViewSet`. A decision is final: a later one is refused and told who decided what and when."""

    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("approve", "reject", "start", "complete", "resolve", "review"), Role.REVIEWER
    )

    request: Any
    tenant_id: UUID
    principal: Any
    get_object: Callable[[], Activity]
    show: Callable[..., Any]

    def _lock_unchanged(self, pk: UUID) -> UUID:
        """Check `If-Match`, if it was sent, and lock the activity. Returns the id."""
        if "If-Match" in self.request.headers:
            approvals.lock_concerned_by(self.tenant_id, {pk})
            self.get_object()
        return pk

    def _decide(self, decision: str, pk: UUID, kind: type[StrictSerializer]) -> Response:
        body = read(kind, self.request.data)
        decided = decide(self.tenant_id, self._lock_unchanged(pk), decision, by=self.principal, body=body)
        return Response(self.show(decided))

    @command("Approve the work that waits at a gate", ApprovalSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, pk: UUID) -> Response:
        """The id may be that of the gate or of the activity that waits for it. An `output` is approved in place of the agent's output, and
        later steps work with it; the gate's `input_ref` still refers to the agent's output. It is refused if several people decide."""
        return self._decide("approve", pk, ApprovalSerializer)

    @command("Request changes to the work that waits at a gate", RejectionSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def reject(self, request: Request, pk: UUID) -> Response:
        """The agent starts the next round, with its previous result and these notes."""
        return self._decide("reject", pk, RejectionSerializer)

    @command("Claim a person's task", EmptySerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def start(self, request: Request, pk: UUID) -> Response:
        return Response(
            self.show(
                human_work.take_up(self.tenant_id, self._lock_unchanged(pk), actor=self.principal.actor)
            )
        )

    @command("Complete a person's task", CompletionSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def complete(self, request: Request, pk: UUID) -> Response:
        body = read(CompletionSerializer, request.data)
        self._lock_unchanged(pk)
        self.get_object()  # 404 for another tenant's activity before its output is stored.
        completed = act_or_name_first(
            self.tenant_id,
            lambda: human_work.complete(
                self.tenant_id,
                pk,
                actor=self.principal.actor,
                output=body.get("output"),
                note=body.get("note", ""),
            ),
        )
        return Response(self.show(completed))

    @command("Resolve a blocker", ResolutionSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def resolve(self, request: Request, pk: UUID) -> Response:
        """The id may be that of the resolution or of the blocked activity. The blocked activity wakes with the note."""
        note = read(ResolutionSerializer, request.data)["note"]
        self._lock_unchanged(pk)
        resolved = act_or_name_first(
            self.tenant_id,
            lambda: suspension.resolve_blocker(self.tenant_id, pk, actor=self.principal.actor, note=note),
        )
        return Response(self.show(resolved))

    @command("Answer a review that an agent requested", ReviewSerializer, ActivitySerializer)
    @action(detail=True, methods=["post"])
    def review(self, request: Request, pk: UUID) -> Response:
        """The id may be that of the review or of the activity whose agent asked. Either answer wakes that activity, with the feedback."""
        body = read(ReviewSerializer, request.data)
        item = suspension.open_review_of(self.tenant_id, self._lock_unchanged(pk))
        answered = decide(
            self.tenant_id, item, "approve" if body["approved"] else "reject", by=self.principal,
            body={"notes": body.get("feedback", ""), "chosen_option": body.get("chosen_option")},
        )  # fmt: skip
        return Response(
            self.show(answered if item == pk else Activity.objects.for_tenant(self.tenant_id).get(pk=pk))
        )
