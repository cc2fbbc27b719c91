"""The colours of statuses in the admin. The word is always there as well."""

from __future__ import annotations

from activities.models.alert import DeliveryState, Severity
from activities.models.batch import BatchState, ItemState
from activities.models.dead_letter import DeadLetterState
from activities.models.decision import LinkState
from activities.states import STATUSES, RunStatus, WakeState
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
