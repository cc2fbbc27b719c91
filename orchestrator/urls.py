"""Every address of the server. A web process loads the admin, the console and the API's description with the first request for them."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, include, path
from django.urls.resolvers import RoutePattern

from console.health import healthz, readyz
from orchestrator.metrics import metrics


class Area(URLResolver):
    """Addresses whose module is imported when one of them is asked for or made, instead of with the addresses beside them.

    What a process is never asked for costs it nothing; the first request of an area waits until it is loaded, some tenths of a second. An
    area has a namespace of its own, and none inside. Whatever looks at `url_patterns`, such as `manage.py check`, loads it and sees all.
    """

    def __init__(self, prefix: str, module: str, namespace: str) -> None:
        super().__init__(RoutePattern(prefix), module, app_name=namespace, namespace=namespace)
        self.is_needed = False

    @property
    def reverse_dict(self) -> Any:
        self.is_needed = True
        return super().reverse_dict

    def _populate(self) -> None:
        """Called in advance as well, by the resolver above, which then keeps no more of this one than its namespace."""
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
    # Before the admin, whose catch-all would answer for the console's addresses below /admin/.
    Area("", "console.urls", "console"),
    Area("admin/", "orchestrator.admin", "admin"),
]

handler400 = "console.error_pages.bad_request"
handler403 = "console.error_pages.permission_denied"
handler404 = "console.error_pages.not_found"
handler500 = "console.error_pages.server_error"
