"""What came of schedules: executions with their jobs, and times with what became of each. Shown, never edited."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities.models import Activity
from pipelines.exceptions import PipelineError
from pipelines.models import Firing, PipelineRun, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState
from pipelines.schedules import executions
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    RecordAdmin,
    ShownInline,
    TenantFilter,
    actor_of,
    as_json,
    badge,
    link_to,
)

EXECUTION_LABELS = {
    ExecutionStatus.RUNNING.value: "info",
    ExecutionStatus.SUCCESS.value: "success",
    ExecutionStatus.PARTIAL.value: "warning",
    ExecutionStatus.FAILED.value: "danger",
}
FIRING_LABELS = {FiringState.FIRED.value: "success", FiringState.SKIPPED.value: "warning"}
JOB_LABELS = {"enqueued": "info", "done": "success", "failed": "danger"}

CANCEL = Action(
    "cancel_selected",
    "Cancel executions",
    "Cancelled",
    "These executions end, and with them every job of theirs that has not ended.",
    (PipelineError,),
    notes="Reason",
    danger=True,
    path="cancel",
    icon="cancel",
    label="Cancel",
    button="Cancel the execution",
    variant=ActionVariant.DANGER,
    do=lambda request, row, reason: executions.cancel(
        row.tenant_id, row.pk, actor=actor_of(request), reason=reason
    ),
)


class Told:
    """Columns of executions, in lists and on pages."""

    @display(description="Execution")
    def execution_link(self, execution: ScheduleExecution) -> SafeString:
        when = execution.nominal_at or execution.started_at
        return link_to(ScheduleExecution, execution.pk, f"{when:%Y-%m-%d %H:%M:%S}")

    @display(description="Status")
    def state(self, execution: ScheduleExecution) -> SafeString:
        return badge(execution.status, EXECUTION_LABELS.get(execution.status, ""))

    @display(description="Jobs")
    def counts(self, execution: ScheduleExecution) -> str:
        told = f"{execution.jobs_created} made, {execution.jobs_enqueued} enqueued"
        return f"{told}, {execution.jobs_failed} failed" if execution.jobs_failed else told


class ExecutionInline(Told, ShownInline):
    model = ScheduleExecution
    fields = ("execution_link", "state", "counts", "created_by", "finished_at")
    readonly_fields = fields
    ordering = ("-started_at", "-pk")
    per_page = 10
    verbose_name_plural = "Executions"

    def get_queryset(self, request: HttpRequest) -> QuerySet[ScheduleExecution]:
        rows: QuerySet[ScheduleExecution] = super().get_queryset(request)
        return rows.defer("definition", "errors", "metadata")


class FiringInline(ShownInline):
    model = Firing
    fields = ("nominal_at", "last_at", "count", "state_label", "reason", "at")
    readonly_fields = fields
    ordering = ("-nominal_at",)
    per_page = 10
    verbose_name_plural = "Times that have passed"

    @display(description="State")
    def state_label(self, firing: Firing) -> SafeString:
        return badge(firing.state, FIRING_LABELS.get(firing.state, ""))


class JobInline(ShownInline):
    """The jobs in the order of the expansion."""

    model = ScheduleJob
    fields = ("ordinal", "batch", "due_at", "state_label", "work", "shown_params", "told_error")
    readonly_fields = fields
    ordering = ("ordinal",)
    per_page = 50
    verbose_name_plural = "Jobs"

    @display(description="State")
    def state_label(self, job: ScheduleJob) -> SafeString:
        return badge(job.state, JOB_LABELS.get(job.state, ""))

    @display(description="Done by")
    def work(self, job: ScheduleJob) -> SafeString:
        return work_of(job)

    @display(description="Params")
    def shown_params(self, job: ScheduleJob) -> SafeString:
        return format_html("<code>{}</code>", as_json(job.params))

    @display(description="Error")
    def told_error(self, job: ScheduleJob) -> str:
        return str(job.error.get("message", job.error)) if isinstance(job.error, dict) else ""


def work_of(job: ScheduleJob) -> SafeString:
    """A link to the activity or the pipeline run that does a job."""
    if job.activity_id:
        return link_to(Activity, job.activity_id, "activity")
    return link_to(PipelineRun, job.pipeline_run_id, "pipeline run") if job.pipeline_run_id else NOTHING


@admin.register(ScheduleExecution)
class ScheduleExecutionAdmin(Told, ActionsAdmin, RecordAdmin):
    list_display = ("started_at", "schedule_name", "tenant", "state", "counts", "created_by", "finished_at")
    list_filter = (TenantFilter, "status")
    list_select_related = ("tenant",)
    search_fields = ("schedule_name", "tenant__slug")
    stands_for = {
        "schedule_link": "schedule_id",
        "faults": "errors",
        "figures": "metadata",
        "frozen": "definition",
    }
    fields = (
        "schedule_link", "schedule_name", "tenant", "nominal_at", "state", "counts", "faults", "figures", "frozen", "created_by",
        "started_at", "expanded_at", "finished_at", "id",
    )  # fmt: skip
    readonly_fields = fields
    inlines = (JobInline,)
    row_actions = (CANCEL,)

    @display(description="Schedule")
    def schedule_link(self, execution: ScheduleExecution) -> SafeString:
        return link_to(Schedule, execution.schedule_id, execution.schedule_name)

    @display(description="Errors")
    def faults(self, execution: ScheduleExecution) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_json(execution.errors))

    @display(description="Figures")
    def figures(self, execution: ScheduleExecution) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_json(execution.metadata))

    @display(description="The schedule as it was then")
    def frozen(self, execution: ScheduleExecution) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_json(execution.definition))

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        found = self.get_object(request, object_id)
        open_ones = (ExecutionStatus.RUNNING, ExecutionStatus.QUEUED)
        return super().get_actions_detail(request, object_id) if found and found.status in open_ones else []


@admin.register(ScheduleJob)
class ScheduleJobAdmin(RecordAdmin):
    list_display = ("execution", "tenant", "ordinal", "batch", "state_label", "due_at", "ended_at")
    list_filter = (TenantFilter, "state")
    list_select_related = ("tenant", "execution")
    search_fields = ("execution__schedule_name", "tenant__slug")
    stands_for = {"state_label": "state", "shown_params": "params"}
    fields = (
        "execution", "tenant", "ordinal", "batch", "due_at", "state_label", "work", "shown_params", "error", "ended_at", "id",
    )  # fmt: skip
    readonly_fields = fields

    @display(description="State")
    def state_label(self, job: ScheduleJob) -> SafeString:
        return badge(job.state, JOB_LABELS.get(job.state, ""))

    @display(description="Done by")
    def work(self, job: ScheduleJob) -> SafeString:
        return work_of(job)

    @display(description="Params")
    def shown_params(self, job: ScheduleJob) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_json(job.params))


@admin.register(Firing)
class FiringAdmin(RecordAdmin):
    list_display = ("nominal_at", "schedule", "tenant", "state_label", "count", "reason", "at")
    list_filter = (TenantFilter, "state")
    list_select_related = ("tenant", "schedule")
    search_fields = ("schedule__name", "tenant__slug")
    stands_for = {"state_label": "state"}
    fields = ("schedule", "tenant", "nominal_at", "last_at", "count", "state_label", "reason", "at")
    readonly_fields = fields

    @display(description="State")
    def state_label(self, firing: Firing) -> SafeString:
        return badge(firing.state, FIRING_LABELS.get(firing.state, ""))
