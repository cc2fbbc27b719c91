"""The page on which a superuser breaks the glass, and ends it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from tenants import admin_scope, break_glass
from tenants.admin.permissions import is_superuser
from tenants.break_glass import GlassRefused


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


def page(request: HttpRequest) -> HttpResponse:
    """GET shows what is broken and asks for a reason; POST breaks, or ends with `end=<id>`."""
    if not is_superuser(request):
        raise PermissionDenied
    form = GlassForm(
        request.POST if request.method == "POST" and "end" not in request.POST else None,
        initial={"tenant": request.GET.get("tenant", "")},
    )
    if request.method == "POST" and "end" in request.POST:
        _end(request)
        return HttpResponseRedirect(reverse("break-glass"))
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
            return HttpResponseRedirect(reverse("break-glass"))
    context = {
        **admin.site.each_context(request),
        "title": "Break the glass",
        "form": form,
        "broken": admin_scope.of_request(request).glass,
    }
    return TemplateResponse(request, "admin/break_glass.html", context)


def _end(request: HttpRequest) -> None:
    try:
        break_glass.end(request.user, UUID(request.POST["end"]))  # type: ignore[arg-type]  # somebody signed in
    except ValueError:
        messages.error(request, "There is no such broken glass.")
