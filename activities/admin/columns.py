"""The colours of statuses in the admin. The word is always there as well."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ChoicesFieldListFilter, SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from activities.models import Activity
from activities.models.activity import in_status
from activities.models.alert import DeliveryState, Severity
from activities.models.batch import BatchState, ItemState
from activities.models.dead_letter import DeadLetterState
from activities.models.decision import LinkState
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import INDEXED, RUNNING, STATUSES, RunStatus, Status, WakeState
from agents.models import Agent
from tenants.models.events import WebhookDeliveryState

_OF_TONE = {"live": "info", "ask": "warning", "good": "success", "bad": "danger"}
STATUS = {str(status): _OF_TONE.get(spec.tone, "") for status, spec in STATUSES.items()}
RUN = {
    RunStatus.RUNNING.value: "info",
    RunStatus.COMPLETED.value: "success",
    RunStatus.FAILED.value: "danger",
    RunStatus.STALLED.value: "warning",
}
WAKE = {WakeState.PENDING.value: "warning"}
SEVERITY = {
    Severity.INFO.value: "info",
    Severity.WARNING.value: "warning",
    Severity.CRITICAL.value: "danger",
}
DELIVERY = {
    DeliveryState.PENDING.value: "warning",
    DeliveryState.SENDING.value: "info",
    DeliveryState.SENT.value: "success",
    DeliveryState.FAILED.value: "danger",
    DeliveryState.UNKNOWN.value: "warning",
}
BATCH = {
    BatchState.BOUND.value: "warning",
    BatchState.SENDING.value: "info",
    BatchState.SENT.value: "info",
    BatchState.ENDED.value: "success",
    BatchState.REFUSED.value: "danger",
}
BATCH_ITEM = {
    ItemState.COLLECTED.value: "warning",
    ItemState.BOUND.value: "info",
    ItemState.ANSWERED.value: "success",
    ItemState.FAILED.value: "danger",
}
WEBHOOK_DELIVERY = {
    WebhookDeliveryState.PENDING.value: "warning",
    WebhookDeliveryState.SENDING.value: "info",
    WebhookDeliveryState.DELIVERED.value: "success",
    WebhookDeliveryState.FAILED.value: "danger",
    WebhookDeliveryState.DROPPED.value: "warning",
}
APPROVAL = {"pending": "warning", "approved": "success", "rejected": "danger"}
LINK = {LinkState.WAITING.value: "warning", LinkState.WOKEN.value: "success"}
DEAD_LETTER = {DeadLetterState.OPEN.value: "danger", DeadLetterState.REPLAYED.value: "info"}


# Filters whose choices are known without looking through the table.


class SituationFilter(SimpleListFilter):
    """What an operator looks for: several statuses at once."""

    title, parameter_name = "situation", "situation"

    SITUATIONS = {
        "queued": ("Waits for a worker", Q(in_status(Status.CREATED), assignee_type="agent")),
        "running": ("Runs", Q(in_status(*RUNNING), assignee_type="agent")),
        "people": ("Waits for a person", OPEN_FOR_PEOPLE),
        "trouble": ("Failed or blocked", in_status(Status.FAILED, Status.NEEDS_REVIEW, Status.BLOCKED)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, words) for key, (words, _) in self.SITUATIONS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        found = self.SITUATIONS.get(self.value() or "")
        return queryset.filter(found[1]) if found else queryset


class StatusFilter(ChoicesFieldListFilter):
    """The status, in the words by which its index is found."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        found: Any = super().queryset(request, queryset)
        known = [status for status in self.lookup_val or () if status in INDEXED]
        return found.filter(in_status(*known)) if known else found


class RoleFilter(SimpleListFilter):
    """The agent's role, from the registry."""

    title, parameter_name = "role", "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(role, role) for role in Agent.objects.order_by("role").values_list("role", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        return queryset.filter(agent_role=self.value()) if self.value() else queryset
