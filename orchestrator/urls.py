"""All URLs of the server. A web process loads the admin, the console and the API document at the first request for them."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, include, path
from django.urls.resolvers import RoutePattern

from console.health import healthz, readyz
from orchestrator.metrics import metrics


class Area(URLResolver):
    """URLs whose module is imported when one of them is first resolved or reversed.

    So a process does not load areas that it never serves; the first request of an area waits some tenths of a second. An area has its own
    namespace, and none inside. Everything that reads `url_patterns`, such as `manage.py check`, loads it.
    """

    def __init__(self, prefix: str, module: str, namespace: str) -> None:
        super().__init__(RoutePattern(prefix), module, app_name=namespace, namespace=namespace)
        self.is_needed = False

    @property
    def reverse_dict(self) -> Any:
        self.is_needed = True
        return super().reverse_dict

    def _populate(self) -> None:
        """Skip the call that the parent resolver makes in advance, which only needs the namespace."""
        if self.is_needed:
            super()._populate()


api: list[URLPattern | URLResolver] = [
    path("", include("tenants.api.urls")),
    path("", include("agents.api.urls")),
    path("", include("activities.api.urls")),
    path("", include("pipelines.api.urls")),
    Area("", "orchestrator.api_document", "api_document"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
    path("api/v1/", include(api)),
    # Before the admin, whose catch-all view would match the console's URLs below /admin/.
    Area("", "console.urls", "console"),
    Area("admin/", "orchestrator.admin", "admin"),
]

handler400 = "console.error_pages.bad_request"
handler403 = "console.error_pages.permission_denied"
handler404 = "console.error_pages.not_found"
handler500 = "console.error_pages.server_error"
