"""Executions of schedules with their jobs, and firings. Read-only."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from activities.models import Activity
from pipelines.admin.run import cancel_action
from pipelines.models import Firing, PipelineRun, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus
from pipelines.schedules import executions
from tenants.admin.actions import ActionsAdmin
from tenants.admin.bases import (
    RecordAdmin,
    ShownInline,
    as_json,
    badge_of,
    json_of,
    link_of,
    link_to,
)

CANCEL = cancel_action(
    "executions",
    "This cancels these executions and all of their jobs that have not ended.",
    executions.cancel,
    open_in=(ExecutionStatus.RUNNING, ExecutionStatus.QUEUED),
)


class ExecutionColumns:
    """Columns for lists and pages."""

    state = badge_of("status")

    @display(description="Execution")
    def execution_link(self, execution: ScheduleExecution) -> SafeString:
        when = execution.nominal_at or execution.started_at
        return link_to(ScheduleExecution, execution.pk, f"{when:%Y-%m-%d %H:%M:%S}")

    @display(description="Jobs")
    def counts(self, execution: ScheduleExecution) -> str:
        counts = f"{execution.jobs_created} created, {execution.jobs_enqueued} enqueued"
        return f"{counts}, {execution.jobs_failed} failed" if execution.jobs_failed else counts


class ExecutionInline(ExecutionColumns, ShownInline):
    model = ScheduleExecution
    fields = ("execution_link", "state", "counts", "created_by", "finished_at")
    ordering = ("-started_at", "-pk")
    per_page = 10
    verbose_name_plural = "Executions"

    def get_queryset(self, request: HttpRequest) -> QuerySet[ScheduleExecution]:
        return super().get_queryset(request).defer("definition", "errors", "metadata")


class FiringInline(ShownInline):
    model = Firing
    fields = ("nominal_at", "last_at", "count", "state_label", "reason", "at")
    ordering = ("-nominal_at",)
    per_page = 10
    verbose_name_plural = "Past times"

    state_label = badge_of("state", "State", skipped="warning")


class JobColumns:
    """Columns for lists and pages."""

    state_label = badge_of("state", "State")

    @display(description="Done by")
    def work(self, job: ScheduleJob) -> SafeString:
        """Link to the activity or the pipeline run of the job."""
        if job.activity_id:
            return link_to(Activity, job.activity_id, "activity")
        return link_to(PipelineRun, job.pipeline_run_id, "pipeline run")


class JobInline(JobColumns, ShownInline):
    model = ScheduleJob
    fields = ("ordinal", "batch", "due_at", "state_label", "work", "params_json", "error_text")
    ordering = ("ordinal",)
    per_page = 50
    verbose_name_plural = "Jobs"

    @display(description="Params")
    def params_json(self, job: ScheduleJob) -> SafeString:
        return format_html("<code>{}</code>", as_json(job.params))

    @display(description="Error")
    def error_text(self, job: ScheduleJob) -> str:
        return str(job.error.get("message", job.error)) if isinstance(job.error, dict) else ""


@admin.register(ScheduleExecution)
class ScheduleExecutionAdmin(ExecutionColumns, ActionsAdmin, RecordAdmin):
    list_display = ("started_at", "schedule_name", "tenant", "state", "counts", "created_by", "finished_at")
    list_filter = ("status",)
    search_fields = ("schedule_name",)
    fields = (
        "schedule_link", "schedule_name", "tenant", "nominal_at", "state", "counts", "shown_errors", "figures", "frozen", "created_by",
        "started_at", "expanded_at", "finished_at", "id",
    )  # fmt: skip
    inlines = (JobInline,)
    row_actions = (CANCEL,)

    schedule_link = link_of(
        "schedule_id", Schedule, "Schedule", text=lambda execution: execution.schedule_name
    )
    shown_errors = json_of("errors", "Errors")
    figures = json_of("metadata", "Figures")
    frozen = json_of("definition", "Schedule at that time")


@admin.register(ScheduleJob)
class ScheduleJobAdmin(JobColumns, RecordAdmin):
    list_display = ("execution", "tenant", "ordinal", "batch", "state_label", "due_at", "ended_at")
    list_filter = ("state",)
    search_fields = ("execution__schedule_name",)
    fields = (
        "execution", "tenant", "ordinal", "batch", "due_at", "state_label", "work", "shown_params", "error", "ended_at", "id",
    )  # fmt: skip

    shown_params = json_of("params", "Params")


@admin.register(Firing)
class FiringAdmin(RecordAdmin):
    list_display = ("nominal_at", "schedule", "tenant", "state_label", "count", "reason", "at")
    list_filter = ("state",)
    search_fields = ("schedule__name",)

    state_label = badge_of("state", "State", skipped="warning")
