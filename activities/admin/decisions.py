"""What operators do to activities. Each calls what the API calls, in the activity's own tenant, under the operator's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
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
    path="approve",
    icon="check",
    variant=ActionVariant.SUCCESS,
    do=lambda *asked: _decide(approvals.approve, *asked),
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
    path="reject",
    icon="undo",
    variant=ActionVariant.WARNING,
    do=lambda *asked: _decide(approvals.reject, *asked),
)
CANCEL = Action(
    "cancel_selected",
    "Cancel activities",
    "Cancelled",
    "These activities end without a result. Agents at work on them are told to stop.",
    (ActivityError,),
    notes="Reason",
    danger=True,
    path="cancel",
    icon="cancel",
    label="Cancel",
    button="Cancel",
    variant=ActionVariant.DANGER,
    do=lambda *asked: _act(cancellation.cancel, "reason", *asked),
)
RETRY = Action(
    "retry_selected",
    "Try again",
    "Started anew",
    "Failed activities start again, with all their attempts, for the reason they ran last.",
    (ActivityError,),
    path="retry",
    icon="replay",
    do=lambda *asked: _act(cancellation.retry, "", *asked),
)

RESOLVE = Action(
    "resolve_selected",
    "Blocker removed",
    "Resolved",
    "The blocked agents start again and are told what you write here.",
    (ActivityError,),
    notes="How it was removed",
    notes_needed=True,
    path="resolve",
    icon="lock_open",
    do=lambda *asked: _act(blockers.resolve, "note", *asked),
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
    path="reassign",
    icon="forward",
    do=lambda *asked, choice: _hand_on(*asked, choice=choice),
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

    row_actions = (APPROVE, REJECT, RESOLVE, RETRY, REASSIGN, CANCEL)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """The buttons that would do something now. The page behind a button that is no longer shown refuses by itself."""
        found = self.get_object(request, object_id)
        wanted = possible(found) if found else set()
        return [button for button in super().get_actions_detail(request, object_id) if button.path in wanted]


def possible(activity: Activity) -> set[str]:
    """The actions that the activity's status and kind allow."""
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


def _act(do: Callable[..., Any], words: str, request: HttpRequest, activity: Activity, notes: str) -> Any:
    """Call `do` for one activity; `words` is the name under which it takes the notes."""
    return do(
        activity.tenant_id,
        activity.pk,
        actor=actor_of(request),
        **({words: notes} if words else {}),
    )
