"""The runs of a month, below it."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display

from pipelines.admin.run import RUN_LABELS
from pipelines.models import PipelineRun
from tenants.admin.bases import ShownInline, badge, link_to


class RunInline(ShownInline):
    """The runs in the order of the plan."""

    model = PipelineRun
    fields = ("run_link", "state", "unsettled", "started_at", "finished_at")
    readonly_fields = fields
    ordering = ("plan_item", "pk")
    per_page = 50
    verbose_name_plural = "Runs"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PipelineRun]:
        rows: QuerySet[PipelineRun] = super().get_queryset(request)
        return rows.select_related("version__pipeline").defer("input", "version__definition")

    @display(description="Run")
    def run_link(self, run: PipelineRun) -> SafeString:
        return link_to(run, run.pk, run.name or run.version.pipeline.name)

    @display(description="Status")
    def state(self, run: PipelineRun) -> SafeString:
        return badge(run.status, RUN_LABELS.get(run.status, ""))
