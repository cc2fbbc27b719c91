"""The runs of a month, below it."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.decorators import display

from pipelines.admin.run import RUN_LABELS
from pipelines.models import PipelineRun
from tenants.admin.bases import badge, link_to


class RunInline(TabularInline):
    """The runs in the order of the plan."""

    model = PipelineRun
    fields = ("run_link", "state", "unsettled", "started_at", "finished_at")
    readonly_fields = fields
    ordering = ("plan_item", "pk")
    extra = 0
    per_page = 50
    can_delete = False
    hide_title = True
    verbose_name_plural = "Runs"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PipelineRun]:
        rows: QuerySet[PipelineRun] = super().get_queryset(request)
        return rows.select_related("version__pipeline").defer("input", "version__definition")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Run")
    def run_link(self, run: PipelineRun) -> SafeString:
        return link_to(run, run.pk, run.name or run.version.pipeline.name)

    @display(description="Status")
    def state(self, run: PipelineRun) -> SafeString:
        return badge(run.status, RUN_LABELS.get(run.status, ""))
