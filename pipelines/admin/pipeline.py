"""Pipelines and their versions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.decorators import display

from pipelines.admin.definition_form import PipelineForm, as_yaml
from pipelines.admin.pictures import drawn
from pipelines.exceptions import VersionConflict
from pipelines.models import Pipeline, PipelineVersion
from tenants.admin.bases import NOTHING, KeptAdmin, RecordAdmin, TenantFilter, link_to


class VersionInline(TabularInline):
    """The versions, newest first."""

    model = PipelineVersion
    fields = ("version_link", "created_by", "created_at", "digest")
    readonly_fields = fields
    extra = 0
    per_page = 10
    hide_title = True
    can_delete = False
    verbose_name_plural = "Versions"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Version")
    def version_link(self, version: PipelineVersion) -> SafeString:
        return link_to(PipelineVersion, version.pk, version.number)


@admin.register(Pipeline)
class PipelineAdmin(KeptAdmin):
    form = PipelineForm
    list_display = ("name", "key", "tenant", "latest", "enabled", "updated_at")
    list_filter = (TenantFilter, "enabled")
    list_select_related = ("tenant",)
    search_fields = ("key", "name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    inlines = (VersionInline,)
    actions = ("enable_selected", "disable_selected")

    def get_fieldsets(self, request: HttpRequest, obj: Pipeline | None = None) -> Any:
        fields = ("tenant", "enabled", "definition", "expected")
        return ((None, {"fields": ("picture", *fields) if obj else fields}),)

    def get_readonly_fields(self, request: HttpRequest, obj: Pipeline | None = None) -> tuple[str, ...]:
        return ("picture", "tenant") if obj else ()

    def get_inlines(self, request: HttpRequest, obj: Pipeline | None) -> Any:
        return self.inlines if obj else ()

    @display(description="Newest version")
    def picture(self, pipeline: Pipeline) -> SafeString:
        newest = pipeline.versions.order_by("-number").first()
        return drawn(newest.pk, title=pipeline.name) if newest else NOTHING

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        try:
            response: HttpResponse = super().changeform_view(request, object_id, form_url, extra_context)
        except VersionConflict as conflict:
            messages.error(
                request,
                f"Not saved: {conflict} Your text is gone from this page; go back in the browser to copy it.",
            )
            return HttpResponseRedirect(request.path)
        return response

    def save_model(self, request: HttpRequest, obj: Pipeline, form: PipelineForm, change: bool) -> None:
        """The version is saved first and by itself: its transaction belongs to the tenant, the one around us to the platform."""
        if form.is_changed:
            version = form.save_version(obj.tenant_id, actor=f"user:{request.user.get_username()}")
            obj.pk = version.pipeline_id
            messages.info(request, f"Saved as version {version.number}.")
        elif change and "definition" in form.changed_data:
            messages.info(request, "The definition means the same as before, so there is no new version.")
        Pipeline.objects.filter(pk=obj.pk).update(enabled=form.cleaned_data["enabled"])
        obj.refresh_from_db()

    @admin.action(description="Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Pipeline]) -> None:
        self._switch(request, queryset, on=True)

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Pipeline]) -> None:
        self._switch(request, queryset, on=False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Pipeline], *, on: bool) -> None:
        word = "Enabled" if on else "Disabled"
        for pipeline in queryset.exclude(enabled=on):
            Pipeline.objects.filter(pk=pipeline.pk).update(enabled=on)
            self.log_change(request, pipeline, f"{word}.")
            messages.success(request, f"{word}: {pipeline}.")


@admin.register(PipelineVersion)
class PipelineVersionAdmin(RecordAdmin):
    list_display = ("title", "tenant", "created_by", "created_at", "digest")
    list_filter = (TenantFilter,)
    list_select_related = ("tenant", "pipeline")
    search_fields = ("pipeline__key", "tenant__slug")
    fields = ("pipeline_link", "tenant", "number", "picture", "text", "digest", "created_by", "created_at")
    readonly_fields = fields

    @display(description="Version")
    def title(self, version: PipelineVersion) -> str:
        return f"{version.pipeline.name}, {version}"

    @display(description="Pipeline")
    def pipeline_link(self, version: PipelineVersion) -> SafeString:
        return link_to(Pipeline, version.pipeline_id, version.pipeline)

    @display(description="Picture")
    def picture(self, version: PipelineVersion) -> SafeString:
        return drawn(version.pk, title=f"{version.pipeline.name}, {version}")

    @display(description="Definition")
    def text(self, version: PipelineVersion) -> SafeString:
        return format_html('<pre class="orc-output">{}</pre>', as_yaml(version.definition))
