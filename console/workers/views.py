"""The worker processes, looked at by everybody."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.page import PageContext, page, shown

from . import queries


@page("workers")
def every(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """Every process, with what it does for this tenant."""
    return shown(request, desk, "console/workers/every.html", {"workers": queries.workers(desk.tenant_id)})
