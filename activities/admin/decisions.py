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

from activities import approvals, cancellation, states
from activities.exceptions import ActivityError
from activities.models import Activity
from activities.states import Status
from tenants.admin.deeds import Deed, DeedsAdmin

APPROVE = Deed(
    "approve_selected",
    "Approve",
    "Approved",
    "The results are accepted, and what depends on them goes on.",
    (ActivityError,),
    notes="Notes for the record",
)
REJECT = Deed(
    "reject_selected",
    "Reject",
    "Rejected",
    "The work goes back to its agent, which is told what you write here.",
    (ActivityError,),
    notes="What is to be done differently",
    notes_needed=True,
    danger=True,
)
CANCEL = Deed(
    "cancel_selected",
    "Cancel activities",
    "Cancelled",
    "These activities end without a result. Agents at work on them are told to stop.",
    (ActivityError,),
    notes="Reason",
    danger=True,
)
RETRY = Deed(
    "retry_selected",
    "Try again",
    "Started anew",
    "Failed activities start again, with all their attempts, for the reason they ran last.",
    (ActivityError,),
)

#: The verbs of the state table that a button stands for. A button is shown when one of them may happen now.
VERBS = {
    "approve": ("approve", "approve_gate"),
    "reject": ("reject", "reject_gate"),
    "cancel": ("cancel",),
    "retry": ("retry",),
}


class DecisionsAdmin(DeedsAdmin):
    """The actions of the list, and the same as buttons on an activity's page."""

    actions = ("approve_selected", "reject_selected", "retry_selected", "cancel_selected")
    actions_detail = ("approve", "reject", "retry", "cancel")

    @admin.action(description="Approve", permissions=["view"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, APPROVE, partial(_act, approvals.approve, request, "notes"))

    @admin.action(description="Reject", permissions=["view"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Activity]) -> HttpResponse | None:
        return self.perform(request, queryset, REJECT, partial(_act, approvals.reject, request, "notes"))

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
    """The deeds that the activity's status allows."""
    may = set(states.verbs_from(activity.status))
    if activity.status != Status.AWAITING_APPROVAL and not activity.is_approval_gate:
        may -= {"approve_gate", "reject_gate"}
    return {deed for deed, verbs in VERBS.items() if may.intersection(verbs)}


def _act(do: Callable[..., Any], request: HttpRequest, words: str, activity: Activity, notes: str) -> Any:
    """Call `do` for one activity; `words` is the name under which it takes the notes."""
    return do(
        activity.tenant_id,
        activity.pk,
        actor=f"user:{request.user.get_username()}",
        **({words: notes} if words else {}),
    )
