"""The colours of statuses in the admin. The word is always there as well."""

from __future__ import annotations

from activities.models.alert import DeliveryState, Severity
from activities.states import RunStatus, Status, WakeState

STATUS = {
    Status.ASSIGNED.value: "info",
    Status.IN_PROGRESS.value: "info",
    Status.AWAITING_APPROVAL.value: "warning",
    Status.AWAITING_SUBTASK.value: "warning",
    Status.AWAITING_REVIEW.value: "warning",
    Status.BLOCKED.value: "warning",
    Status.DONE.value: "success",
    Status.APPROVED.value: "success",
    Status.REJECTED.value: "danger",
    Status.FAILED.value: "danger",
    Status.NEEDS_REVIEW.value: "danger",
}
RUN = {
    RunStatus.RUNNING.value: "info",
    RunStatus.COMPLETED.value: "success",
    RunStatus.FAILED.value: "danger",
    RunStatus.STALLED.value: "warning",
}
WAKE = {WakeState.PENDING.value: "warning", WakeState.TAKEN.value: "info"}
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
