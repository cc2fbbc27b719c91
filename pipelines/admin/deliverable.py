"""Deliverables, and the start of their running month."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from pipelines import deliverables
from pipelines.exceptions import PipelineError
from pipelines.models import Deliverable
from pipelines.models.deliverable import DeliverableState
from tenants import clock
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, KeptAdmin, TenantFilter, actor_of, badge, link_to

# The form of a deliverable.


class DeliverableForm(forms.ModelForm):
    def clean_pipelines(self) -> list[str]:
        keys = self.cleaned_data["pipelines"]
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise forms.ValidationError('This is a list of keys, such as ["content-brief"].')
        return keys

    def clean_params(self) -> dict[str, Any]:
        params = self.cleaned_data["params"] or {}
        if not isinstance(params, dict):
            raise forms.ValidationError("Parameters are an object.")
        return params

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.instance.tenant if self.instance.tenant_id else values.get("tenant")
        if tenant is not None and "pipelines" in values:
            for key in sorted(deliverables.unknown_pipelines(tenant.pk, values["pipelines"])):
                self.add_error("pipelines", f"There is no pipeline {key!r} of this tenant.")
        return values


DELIVERABLE_LABELS = {DeliverableState.ACTIVE.value: "success", DeliverableState.PAUSED.value: "warning"}

START = Action(
    "start_selected",
    "Start the running month",
    "Started",
    "Each of these gets its period of the running month (UTC), if it has none yet, and the planner is asked for a plan.",
    (PipelineError,),
    path="start",
    icon="event_upcoming",
    permission="change",
    do=lambda request, row, notes: deliverables.start_period(
        row.tenant_id, row.pk, today=clock.now().date(), actor=actor_of(request)
    ),
)


@admin.register(Deliverable)
class DeliverableAdmin(ActionsAdmin, KeptAdmin):
    form = DeliverableForm
    list_display = ("name", "key", "tenant", "state", "next_on", "updated_at")
    list_filter = (TenantFilter, "status")
    list_select_related = ("tenant",)
    search_fields = ("key", "name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    fields = (
        "tenant",
        "key",
        "name",
        "description",
        "status",
        "pipelines",
        "params",
        "target",
        "next_on",
        "periods_link",
    )
    row_actions = (START,)

    def get_readonly_fields(self, request: HttpRequest, obj: Deliverable | None = None) -> tuple[str, ...]:
        shown = ("next_on", "periods_link")
        # Programs name it by its key, so it stays what it is.
        return ("tenant", "key", *shown) if obj else shown

    @display(description="Status")
    def state(self, deliverable: Deliverable) -> SafeString:
        return badge(deliverable.status, DELIVERABLE_LABELS.get(deliverable.status, ""))

    @display(description="Periods")
    def periods_link(self, deliverable: Deliverable) -> SafeString:
        if deliverable._state.adding:
            return NOTHING
        newest = deliverable.periods.order_by("-starts_on")[:12]
        links = format_html_join(", ", "{}", ((link_to(period, period.pk, period),) for period in newest))
        return links or NOTHING

    def save_model(self, request: HttpRequest, obj: Deliverable, form: Any, change: bool) -> None:
        """As the API does it: its transaction belongs to the tenant, the one around us to the platform."""
        values = {
            name: form.cleaned_data[name]
            for name in ("name", "description", "status", "pipelines", "params", "target")
        }
        if change:
            deliverables.change(obj.tenant_id, obj.pk, values)
        else:
            made, _ = deliverables.create(obj.tenant_id, {"key": obj.key, **values})
            obj.pk = made.pk
        obj._state.adding = False
        obj.refresh_from_db()
