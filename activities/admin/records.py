"""Read-only admin of the engine's records: runs, wakes, history, outputs, worker processes, counters, bulk jobs, batches, mailboxes."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Count, F, FloatField, Q, QuerySet, Subquery
from django.db.models.functions import Extract, Now
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from unfold.decorators import display

from activities import provider_batches
from activities.admin import columns
from activities.leases import ALL
from activities.maintenance import job_records
from activities.models import (
    Activity,
    ActivityEvent,
    ActivityRun,
    BatchItem,
    BulkItem,
    BulkJob,
    Condition,
    Counter,
    CountingMark,
    HeldAnswer,
    LeaderLease,
    Mailbox,
    MailboxBatch,
    MailboxItem,
    OutputSpool,
    ProviderBatch,
    SnoozedItem,
    Subagent,
    SystemJob,
    TurnedAway,
    Wake,
    WorkerProcess,
)
from activities.models.mailbox import ItemState
from tenants import clock
from tenants.admin.bases import NOTHING, RecordAdmin, badge, badge_of, column_of, link_of, link_to, seconds_of
from tenants.wording import name_some

MOST_ROLES = 3  # of a worker process, in a list


class PartAdmin(RecordAdmin):
    """Rows that belong to an activity."""

    list_select_related: tuple[str, ...] = ("tenant", "activity")
    search_fields = ("activity__name",)

    activity_link = link_of("activity_id", Activity, "Activity", text=lambda row: row.activity)
    run_link = link_of("run_id", ActivityRun, "Run")


@admin.register(ActivityRun)
class ActivityRunAdmin(PartAdmin):
    list_display = ("started_at", "activity_link", "tenant", "state", "attempt", "wake_reason", "ended_at")
    list_filter = ("status", "wake_reason")

    state = badge_of("status")
    worker = link_of("worker_id", WorkerProcess, "Worker process")


@admin.register(Wake)
class WakeAdmin(PartAdmin):
    list_display = (
        "created_at",
        "activity_link",
        "tenant",
        "reason",
        "cause",
        "situation",
        "due_at",
        "merged",
    )
    list_filter = ("state", "reason")

    situation = badge_of("state", "State")


@admin.register(ActivityEvent)
class ActivityEventAdmin(PartAdmin):
    list_display = ("at", "activity_link", "tenant", "seq", "verb", "source", "state", "actor")

    state = badge_of("target", "Target", **columns.STATUS)


@admin.register(OutputSpool)
class OutputSpoolAdmin(RecordAdmin):
    list_display = ("created_at", "activity_link", "tenant", "content_type")
    not_in_list = ("content", "data")  # which may have a megabyte each

    activity_link = link_of("activity_id", Activity, "Activity")


@admin.register(HeldAnswer)
class HeldAnswerAdmin(PartAdmin):
    list_display = ("activity_link", "tenant", "user", "outcome", "due_at", "refusal")
    list_select_related = ("activity",)


@admin.register(SnoozedItem)
class SnoozedItemAdmin(PartAdmin):
    list_display = ("activity_link", "tenant", "membership", "until", "created_at")
    list_select_related = ("activity", "membership__user")


@admin.register(TurnedAway)
class TurnedAwayAdmin(RecordAdmin):
    list_display = ("tenant", "agent_role", "reason", "count")
    list_filter = ("reason",)
    search_fields = ("agent_role",)


@admin.register(WorkerProcess)
class WorkerProcessAdmin(RecordAdmin):
    list_display = (
        "host", "pid", "state", "roles_briefly", "concurrency", "active", "load_in_words", "closed_roles", "beat_at", "started_at",
    )  # fmt: skip
    search_fields = ("host",)
    fields = (
        "id", "name", "host", "pid", "boot", "version", "state",
        "roles_in_words", "concurrency", "active", "runs_under_way", "load_in_words", "closed_roles",
        "taken", "counter", "started_at", "beat_at", "ended_at", "end_reason",
    )  # fmt: skip

    @display(description="State")
    def state(self, worker: WorkerProcess) -> SafeString:
        if worker.ended_at:
            return badge(worker.end_reason or "ended", "danger" if worker.end_reason == "lost" else "")
        silent = (clock.now() - worker.beat_at).total_seconds() > settings.ORCHESTRATOR_LOST_AFTER_SECONDS
        return badge("silent", "danger") if silent else badge("beating", "success")

    @display(description="Roles")
    def roles_in_words(self, worker: WorkerProcess) -> str:
        return ", ".join(worker.roles) or NOTHING

    @display(description="Roles")
    def roles_briefly(self, worker: WorkerProcess) -> str:
        """Name only a few roles, so that a row of the list keeps its height."""
        return name_some(worker.roles, MOST_ROLES) or NOTHING

    @display(description="Host load")
    def load_in_words(self, worker: WorkerProcess) -> str:
        if not worker.load:
            return NOTHING
        return f"processor {worker.load['cpu']:.0%}, memory {worker.load['memory']:.0%}"

    @display(description="Intake paused")
    def closed_roles(self, worker: WorkerProcess) -> str:
        return worker.closed.get(ALL) or NOTHING

    @display(description="Active runs")
    def runs_under_way(self, worker: WorkerProcess) -> SafeString:
        runs = ActivityRun.objects.filter(worker_id=worker.pk, status="running").select_related("activity")
        rows = (
            (link_to(ActivityRun, run.pk, run.activity.agent_role or NOTHING), run.started_at)
            for run in runs[:100]
        )
        return format_html_join(", ", "{} since {:%H:%M:%S} UTC", rows) or mark_safe(NOTHING)  # noqa: S308 - our own text


# Counters and problems of the platform, for superusers. The tenants concerned get alerts; they are not listed here.


@admin.register(Condition)
class ConditionAdmin(RecordAdmin):
    list_display = ("kind", "since", "facts", "tenant_count")
    list_filter = ("kind",)
    fields = ("kind", "since", "facts", "over", "tenant_count")

    @display(description="Notified tenants")
    def tenant_count(self, condition: Condition) -> int:
        return len(condition.tenants)


@admin.register(Counter)
class CounterAdmin(RecordAdmin):
    list_display = ("name", "role", "status", "le", "count", "total")
    list_filter = ("name", "status")
    search_fields = ("role",)


@admin.register(CountingMark)
class CountingMarkAdmin(RecordAdmin):
    list_display = ("counted", "seen", "at", "complete_at")


@admin.register(LeaderLease)
class LeaderLeaseAdmin(RecordAdmin):
    list_display = ("host", "pid", "epoch", "since", "expires_at", "outage_ended_at")


@admin.register(SystemJob)
class SystemJobAdmin(RecordAdmin):
    """The state of each system job, as the leader recorded it."""

    ordering = ("name",)
    list_display = (
        "name", "state", "period", "started_at", "duration", "lag", "failures", "error", "owner", "budget",
    )  # fmt: skip
    search_fields = ("name", "owner")
    fields = (
        "name", "owner", "state", "period", "budget", "started_at", "finished_at", "succeeded_at", "duration", "lag", "failures", "error",
        "epoch",
    )  # fmt: skip

    period = seconds_of("period_seconds", "Period")
    budget = seconds_of("budget_seconds", "Time limit of a statement")
    duration = seconds_of("duration_seconds", "Duration")
    lag = seconds_of("lag_seconds", "Delay")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SystemJob]:
        def seconds_since(moment: Any) -> Extract:
            return Extract(Now() - moment, "epoch", output_field=FloatField())

        rows: QuerySet[SystemJob] = super().get_queryset(request)
        led = seconds_since(Subquery(LeaderLease.objects.values("since")[:1]))
        return rows.annotate(period=F("period_seconds"), finished=seconds_since(F("finished_at")), led=led)

    @display(description="State")
    def state(self, job: SystemJob) -> SafeString:
        state = job_records.state_of(job)
        if state == "waiting":
            return badge(f"waiting: {job.error}")
        return badge(state, "" if state == "ok" else "danger")


@admin.register(BulkJob)
class BulkJobAdmin(RecordAdmin):
    list_display = (
        "created_at",
        "tenant",
        "action",
        "status",
        "total",
        "done",
        "skipped",
        "failed",
        "created_by",
    )
    list_filter = ("status", "action")
    search_fields = ("created_by",)


@admin.register(BulkItem)
class BulkItemAdmin(RecordAdmin):
    list_display = ("activity_id", "job", "tenant", "state", "ended_at", "error")
    list_filter = ("state",)


PROVIDER = column_of("provider", "Provider", lambda row, provider: provider_batches.provider_name(provider))


@admin.register(ProviderBatch)
class ProviderBatchAdmin(RecordAdmin):
    list_display = ("created_at", "tenant", "place", "model", "situation", "size", "sendings", "ended_at")
    list_filter = ("state", "model")
    search_fields = ("external_id",)

    place = PROVIDER
    situation = badge_of("state", "State", bound="warning", sent="info", ended="success")


@admin.register(BatchItem)
class BatchItemAdmin(PartAdmin):
    list_display = ("created_at", "activity_link", "tenant", "agent_role", "model", "situation", "batch_link")
    list_filter = ("state", "model")
    list_select_related = ("activity", "batch")
    not_in_list = ("body", "begun")  # the prompts

    place = PROVIDER
    situation = badge_of("state", "State")
    batch_link = link_of("batch_id", ProviderBatch, "Batch", text=lambda row: row.batch)


@admin.register(Mailbox)
class MailboxAdmin(RecordAdmin):
    list_display = ("key", "tenant", "consumer", "waiting", "created_at")
    list_filter = ("agent_role",)
    search_fields = ("key",)
    fields = ("id", "key", "tenant", "consumer", "waiting", "fence", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        is_open = Q(items__state__in=(ItemState.PENDING, ItemState.CLAIMED))
        return super().get_queryset(request).annotate(open_items=Count("items", filter=is_open))

    @display(description="Consumed by")
    def consumer(self, mailbox: Mailbox) -> str:
        return mailbox.agent_role or "anyone who takes from it"

    @display(description="Open items")
    def waiting(self, mailbox: Any) -> int:
        return int(mailbox.open_items)


class MailboxPartAdmin(RecordAdmin):
    """Rows that belong to a mailbox."""

    list_select_related = ("mailbox",)
    search_fields = ("mailbox__key",)

    mailbox_link = link_of("mailbox_id", Mailbox, "Mailbox", text=lambda row: row.mailbox)
    situation = badge_of("state", "State", pending="")


@admin.register(MailboxItem)
class MailboxItemAdmin(MailboxPartAdmin):
    list_display = (
        "created_at", "mailbox_link", "tenant", "kind", "source", "priority", "situation", "attempts", "due_at",
    )  # fmt: skip
    list_filter = ("kind", "state")

    activity_link = link_of("activity_id", Activity, "Activity")
    batch_link = link_of("batch_id", MailboxBatch, "Batch")


@admin.register(MailboxBatch)
class MailboxBatchAdmin(MailboxPartAdmin):
    list_display = (
        "created_at",
        "mailbox_link",
        "tenant",
        "consumer",
        "size",
        "situation",
        "leased_until",
        "ended_at",
    )
    list_filter = ("state",)


@admin.register(Subagent)
class SubagentAdmin(RecordAdmin):
    list_display = ("created_at", "name", "tenant", "subagent_type", "state", "model", "parent_mailbox")
    list_filter = ("subagent_type",)
    list_select_related = ("activity", "conversation")
    search_fields = ("description", "subagent_type")
    fields = (
        "id", "name", "tenant", "subagent_type", "state", "activity_link", "conversation_link", "continues_id", "prompt", "model",
        "max_turns", "tool_call_id", "run_in_background", "silent", "parent_mailbox", "created_by", "created_at",
    )  # fmt: skip

    @display(description="Status")
    def state(self, subagent: Subagent) -> SafeString:
        return badge(subagent.activity.status, columns.STATUS.get(subagent.activity.status, ""))

    @display(description="Task")
    def name(self, subagent: Subagent) -> str:
        return subagent.description or subagent.activity.name or NOTHING

    activity_link = link_of("activity_id", Activity, "Activity", text=lambda row: row.activity)
    conversation_link = link_of("conversation_id", Mailbox, "Conversation", text=lambda row: row.conversation)
