"""The audit trail, for admins: who did what to which object and when, with what was before and after; and the same as a file."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.csv_export import csv_of
from console.page import PageContext, for_admins, page, shown

from . import queries
from .queries import OUTCOMES, AuditFilter

HEADS = (
    "number", "at", "actor kind", "actor", "operation", "outcome", "object kind", "object", "changes", "detail", "request", "address",
    "broken glass", "hash",
)  # fmt: skip


@page("audit")
@for_admins("The audit trail")
def trail(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """The newest entries that fit, a page at a time."""
    found = queries.trail(desk.tenant_id, AuditFilter.read(request.GET))
    return shown(request, desk, "console/audit/trail.html", {"trail": found, "outcomes": OUTCOMES})


@page("audit")
@for_admins("The audit trail")
def export(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """The entries that fit, newest first, up to ten thousand."""
    found = queries.all_of(desk.tenant_id, AuditFilter.read(request.GET))
    return csv_of(f"audit-{desk.who.tenant}", HEADS, (queries.cells(entry) for entry in found))
