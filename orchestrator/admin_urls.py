"""The addresses below `/admin/`. To import this loads every admin of every application, so it is done when one of them is needed."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path

from agents.admin.platform import providers_page
from tenants.admin import audit

admin.autodiscover()

app_name = "admin"
urlpatterns: list[URLPattern | URLResolver] = [
    path("break-glass/", admin.site.admin_view(audit.break_glass_page), name="break-glass"),
    path("providers/", admin.site.admin_view(providers_page), name="model-providers"),
    *admin.site.get_urls(),
]
