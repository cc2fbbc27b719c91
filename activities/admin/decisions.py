"""An operator's deeds on activities. Each calls what the API calls, in the activity's own tenant, under the operator's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action
from unfold.enums import ActionVariant

from activities import cancellation, reassignment, states
from activities.decision_rules import DEFAULT_ESCALATION_ROLE, GENERAL_ROLE, Voter
from activities.exceptions import ActivityError
from activities.human_tasks import approvals, blockers
from activities.models import Activity
from activities.states import LinkKind, Status
from agents import configuration
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import actor_of

APPROVE = Action(
    "approve_selected",
    "Approve",
    "Approved",
    "The results are accepted, and what depends on them goes on.",
    (ActivityError,),
    notes="Notes for the record",
)
REJECT = Action(
    "reject_selected",
    "Reject",
    "Rejected",
    "The work goes back to its agent, which is told what you write here.",
    (ActivityError,),
    notes="What is to be done differently",
    notes_needed=True,
    danger=True,
)
CANCEL = Action(
    "cancel_selected",
    "Cancel activities",
    "Cancelled",
    "These activities end without a result. Agents at work on them are told to stop.",
    (ActivityError,),
    notes="Reason",
    danger=True,
)
RETRY = Action(
    "retry_selected",
    "Try again",
    "Started anew",
    "Failed activities start again, with all their attempts, for the reason they ran last.",
    (ActivityError,),
)

RESOLVE = Action(
    "resolve_selected",
    "Blocker removed",
    "Resolved",
    "The blocked agents start again and are told what you write here.",
    (ActivityError,),
    notes="How it was removed",
    notes_needed=True,
)
AGENT, PERSON = "agent:", "human:"


def _assignees() -> list[tuple[str, Any]]:
    """Everybody who may be given work: the roles of the registry, and the people who are asked when nobody is named."""
    people = [(f"{PERSON}{role}", role) for role in (DEFAULT_ESCALATION_ROLE, GENERAL_ROLE, "editor")]
    agents = [(f"{AGENT}{role}", role) for role in sorted(configuration.known_roles())]
    return [("People", people), ("Agents", agents)]


REASSIGN = Action(
    "reassign_selected",
    "Hand on",
    "Handed on",
    "Another agent or a person gets the work, as a new activity. Whoever waits for it gets the new one's result.",
    (ActivityError,),
    notes="Why",
    notes_needed=True,
    choice="To whom",
    choices=_assignees,
)

#: The verbs of the state table that a button stands for. A button is shown when one of them may happen now.
VERBS = {
    "approve": ("approve", "approve_gate"),
    "reject": ("reject", "reject_gate"),
    "cancel": ("cancel",),
    "retry": ("retry",),
    "reassign": ("reassign",),
    "resolve": ("finish", "wake"),
}


class DecisionsAdmin(ActionsAdmin):
    """The actions of the list, and the same as buttons on an activity's page."""

    actions = (
        "approve_selected", "reject_selected", "resolve_selected", "retry_selected", "reassign_selected", "cancel_selected",
    )  # fmt: skip
    actions_detail = ("approve", "reject", "resolve", "retry", "reassign", "cancel")

    @admin.action(description="Approve", permissions=["view"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, APPROVE, partial(_decide, approvals.approve, request))

    @admin.action(description="Reject", permissions=["view"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, REJECT, partial(_decide, approvals.reject, request))

    @admin.action(description="Blocker removed", permissions=["view"])
    def resolve_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, RESOLVE, partial(_act, blockers.resolve, request, "note"))

    @admin.action(description="Hand on", permissions=["view"])
    def reassign_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, REASSIGN, partial(_hand_on, request))

    @admin.action(description="Try again", permissions=["view"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, RETRY, partial(_act, cancellation.retry, request, ""))

    @admin.action(description="Cancel", permissions=["view"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, CANCEL, partial(_act, cancellation.cancel, request, "reason"))

    @action(
        description="Approve",
        url_path="approve",
        icon="check",
        permissions=["view"],
        variant=ActionVariant.SUCCESS,
    )
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.approve_selected)

    @action(
        description="Reject",
        url_path="reject",
        icon="undo",
        permissions=["view"],
        variant=ActionVariant.WARNING,
    )
    def reject(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.reject_selected)

    @action(description="Blocker removed", url_path="resolve", icon="lock_open", permissions=["view"])
    def resolve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.resolve_selected)

    @action(description="Hand on", url_path="reassign", icon="forward", permissions=["view"])
    def reassign(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.reassign_selected)

    @action(description="Try again", url_path="retry", icon="replay", permissions=["view"])
    def retry(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.retry_selected)

    @action(
        description="Cancel",
        url_path="cancel",
        icon="cancel",
        permissions=["view"],
        variant=ActionVariant.DANGER,
    )
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.perform_one(request, object_id, self.cancel_selected)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """The buttons that would do something now. The page behind a button that is no longer shown refuses by itself."""
        found = self.get_object(request, object_id)
        wanted = possible(found) if found else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.path in wanted]


def possible(activity: Activity) -> set[str]:
    """The deeds that the activity's status and kind allow."""
    may = set(states.verbs_from(activity.status))
    kind = activity.link_kind
    if (
        activity.status != Status.AWAITING_APPROVAL
        and not activity.is_approval_gate
        and kind != LinkKind.REVIEW
    ):
        may -= {"approve_gate", "reject_gate"}
    if kind in (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL, LinkKind.RESOLUTION, LinkKind.ESCALATION):
        may.discard("reassign")  # Whoever is asked answers it.
    found = {deed for deed, verbs in VERBS.items() if may.intersection(verbs)}
    blocks = kind == LinkKind.RESOLUTION or activity.status == Status.BLOCKED
    return found if blocks else found - {"resolve"}


def _decide(do: Callable[..., Any], request: HttpRequest, activity: Activity, notes: str) -> Any:
    voter = Voter(actor_of(request), identity=f"user:{request.user.pk}")
    return do(activity.tenant_id, activity.pk, actor=voter, notes=notes)


def _hand_on(request: HttpRequest, activity: Activity, notes: str, *, choice: str) -> Any:
    kind, _, role = choice.partition(":")
    to = {"agent_role": role} if f"{kind}:" == AGENT else {"human_role": role}
    return reassignment.reassign(activity.tenant_id, activity.pk, actor=actor_of(request), reason=notes, **to)


def _act(do: Callable[..., Any], request: HttpRequest, words: str, activity: Activity, notes: str) -> Any:
    """Call `do` for one activity; `words` is the name under which it takes the notes."""
    return do(
        activity.tenant_id,
        activity.pk,
        actor=actor_of(request),
        **({words: notes} if words else {}),
    )
