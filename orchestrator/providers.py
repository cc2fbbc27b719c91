"""The admin's page of model providers: how each stands, for superusers, to be looked at only."""

from __future__ import annotations

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse

from agents.governor import overview


def page(request: HttpRequest) -> TemplateResponse:
    """All providers that were called within two days."""
    if not request.user.is_superuser:
        raise PermissionDenied
    context = {
        **admin.site.each_context(request),
        "title": "Model providers",
        "providers": overview.of_platform(),
    }
    return TemplateResponse(request, "admin/providers.html", context)
