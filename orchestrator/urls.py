"""Every address of the server."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularSwaggerSplitView

from agents.admin.platform import providers_page
from console.containment import POLICY_WITH_SCRIPTS, contained
from orchestrator.api_document import SchemaView
from orchestrator.health import healthz, readyz
from orchestrator.metrics import metrics
from tenants.admin import audit

# The page draws itself: its script sets styles, and its style sheet holds pictures as data.
DRAWS_ITSELF = POLICY_WITH_SCRIPTS.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)
admin.autodiscover()
documentation = contained(SpectacularSwaggerSplitView.as_view(url_name="schema"), DRAWS_ITSELF)

api: list[URLPattern | URLResolver] = [
    path("", include("agents.api.urls")),
    path("", include("activities.api.urls")),
    path("", include("pipelines.api.urls")),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", documentation, name="docs"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
    path("api/v1/", include(api)),
    # Before the admin, whose catch-all would answer for the console's addresses below /admin/.
    path("", include("console.urls")),
    path("admin/break-glass/", admin.site.admin_view(audit.break_glass_page), name="break-glass"),
    path("admin/providers/", admin.site.admin_view(providers_page), name="model-providers"),
    path("admin/", admin.site.urls),
]

handler400 = "console.error_pages.bad_request"
handler403 = "console.error_pages.permission_denied"
handler404 = "console.error_pages.not_found"
handler500 = "console.error_pages.server_error"
