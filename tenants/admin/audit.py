"""The read-only admin of the audit trail, events and break-glass sessions.

Also the page on which a superuser opens and ends break-glass sessions.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from tenants import admin_scope, break_glass
from tenants.admin.bases import NOTHING, RecordAdmin
from tenants.admin.permissions import is_superuser
from tenants.break_glass import GlassRefused
from tenants.models.audit import AuditEntry, BreakGlass
from tenants.models.events import Event, EventLog, FreshEvent


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    """The audit trail. Superusers also see the platform's own entries."""

    list_display = (
        "at",
        "number",
        "actor_in_words",
        "operation",
        "object_in_words",
        "outcome",
        "tenant",
        "ip",
    )
    list_filter = ("outcome", "actor_kind")
    search_fields = ("actor_name", "operation", "object_id", "request_id")
    fields = (
        "number", "at", "tenant", "actor_in_words", "actor_id", "operation", "outcome", "object_kind", "object_id", "changes", "detail",
        "request_id", "ip", "break_glass_id", "id", "previous_hash", "hash",
    )  # fmt: skip

    @display(description="Who")
    def actor_in_words(self, entry: AuditEntry) -> str:
        return f"{entry.actor_kind} {entry.actor_name or entry.actor_id}".strip()

    @display(description="Object")
    def object_in_words(self, entry: AuditEntry) -> str:
        return f"{entry.object_kind} {entry.object_id}".strip() or NOTHING


@admin.register(BreakGlass)
class BreakGlassAdmin(RecordAdmin):
    """Break-glass sessions: user, reason and expiry. Only for superusers, because they belong to the platform."""

    list_display = ("opened_at", "user", "visible_tenants", "reason", "expires_at", "ended_at")
    search_fields = ("slug", "reason", "user__username")
    fields = ("id", "user", "visible_tenants", "reason", "opened_at", "expires_at", "ended_at")

    @display(description="Tenant")
    def visible_tenants(self, glass: BreakGlass) -> str:
        return glass.slug or "all tenants"


# The log of events, as programs read it, and the last number in it.


@admin.register(Event)
class EventAdmin(RecordAdmin):
    list_display = ("at", "tenant", "number", "kind", "activity_id", "pipeline_run_id")


@admin.register(FreshEvent)
class FreshEventAdmin(RecordAdmin):
    list_display = ("id", "tenant", "activities", "kind", "activity_id", "at", "pipeline_run_id")


@admin.register(EventLog)
class EventLogAdmin(RecordAdmin):
    list_display = ("tenant", "last_number", "listened_until")


class GlassForm(forms.Form):
    tenant = forms.SlugField(
        required=False, max_length=63, widget=UnfoldAdminTextInputWidget, help_text="The tenant's short name."
    )
    all_tenants = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Rows of every tenant, when one is not enough.",
    )
    reason = forms.CharField(
        min_length=break_glass.LEAST_REASON,
        max_length=break_glass.LONGEST_REASON,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="The tenant's admins read it in their audit trail.",
    )

    def clean(self) -> dict[str, object]:
        if bool(self.cleaned_data.get("tenant")) == bool(self.cleaned_data.get("all_tenants")):
            raise forms.ValidationError("Name one tenant, or choose all of them.")
        return self.cleaned_data


def break_glass_page(request: HttpRequest) -> HttpResponse:
    """GET renders open break-glass sessions and a form; POST opens one, or ends one with `end=<id>`."""
    if not is_superuser(request):
        raise PermissionDenied
    form = GlassForm(
        request.POST if request.method == "POST" and "end" not in request.POST else None,
        initial={"tenant": request.GET.get("tenant", "")},
    )
    if request.method == "POST" and "end" in request.POST:
        try:
            break_glass.end(request.user, UUID(request.POST["end"]))  # type: ignore[arg-type]  # a superuser
        except ValueError:
            messages.error(request, "There is no such break-glass session.")
        return HttpResponseRedirect(reverse("admin:break-glass"))
    if form.is_valid():
        try:
            user: Any = request.user  # a superuser
            glass = break_glass.open_for(user, form.cleaned_data["tenant"], form.cleaned_data["reason"])
        except GlassRefused as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(
                request, f"Until {glass.expires_at:%H:%M} UTC you see {glass.slug or 'all tenants'}."
            )
            return HttpResponseRedirect(reverse("admin:break-glass"))
    context = {
        **admin.site.each_context(request),
        "title": "Break the glass",
        "form": form,
        "broken": admin_scope.of_request(request).glass,
    }
    return TemplateResponse(request, "admin/break_glass.html", context)
