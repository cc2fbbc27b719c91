"""What the platform counts and what is wrong with it, for superusers. Whose work it concerns is told to these tenants, and not here."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities import job_records
from activities.models import Condition, Counter, CountingMark, LeaderLease, SystemJob
from tenants.admin.bases import RecordAdmin, badge


@admin.register(Condition)
class ConditionAdmin(RecordAdmin):
    list_display = ("kind", "since", "facts", "concerned")
    list_filter = ("kind",)
    fields = ("kind", "since", "facts", "over", "concerned")
    readonly_fields = fields

    @display(description="Tenants that were told")
    def concerned(self, condition: Condition) -> int:
        return len(condition.tenants)


@admin.register(Counter)
class CounterAdmin(RecordAdmin):
    list_display = ("name", "role", "status", "le", "count", "total")
    list_filter = ("name", "status")
    search_fields = ("role",)
    fields = ("name", "role", "status", "le", "count", "total")
    readonly_fields = fields


@admin.register(CountingMark)
class CountingMarkAdmin(RecordAdmin):
    list_display = ("counted", "seen", "at", "complete_at")
    fields = ("counted", "seen", "barrier", "at", "noted_at", "complete_at")
    readonly_fields = fields


@admin.register(LeaderLease)
class LeaderLeaseAdmin(RecordAdmin):
    list_display = ("host", "pid", "epoch", "since", "expires_at", "outage_ended_at")
    fields = ("host", "pid", "holder", "epoch", "since", "expires_at", "outage_began_at", "outage_ended_at")
    readonly_fields = fields


@admin.register(SystemJob)
class SystemJobAdmin(RecordAdmin):
    """What upkeep does each second, as the leader wrote it down."""

    ordering = ("name",)
    list_display = (
        "name", "state", "period_seconds", "started_at", "duration_seconds", "lag_seconds", "failures", "error", "owner", "budget_seconds",
    )  # fmt: skip
    search_fields = ("name", "owner")
    fields = (
        "name", "owner", "state", "period_seconds", "budget_seconds", "started_at", "finished_at", "succeeded_at", "duration_seconds",
        "lag_seconds", "failures", "error", "epoch",
    )  # fmt: skip
    readonly_fields = fields

    @display(description="State")
    def state(self, job: SystemJob) -> SafeString:
        failing = job.failures >= job_records.FAILURES
        return badge("failing", "danger") if failing else badge(f"waits: {job.error}" if job.error else "ok")
