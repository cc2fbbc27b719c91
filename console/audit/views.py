"""The audit trail, for admins: who did what to which object and when, with what was before and after; and the same as a file."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.audit import reads
from console.audit.sought import OUTCOMES, Sought
from console.csv_export import csv_of
from console.for_admins import for_admins
from console.pages import Desk, page, shown

HEADS = (
    "number", "at", "actor kind", "actor", "operation", "outcome", "object kind", "object", "changes", "detail", "request", "address",
    "broken glass", "hash",
)  # fmt: skip


@page("audit")
@for_admins("The audit trail")
def trail(request: HttpRequest, desk: Desk) -> HttpResponse:
    """The newest entries that fit, a page at a time."""
    found = reads.trail(desk.tenant_id, Sought.read(request.GET))
    return shown(request, desk, "console/audit/trail.html", {"trail": found, "outcomes": OUTCOMES})


@page("audit")
@for_admins("The audit trail")
def export(request: HttpRequest, desk: Desk) -> HttpResponse:
    """The entries that fit, newest first, up to ten thousand."""
    found = reads.all_of(desk.tenant_id, Sought.read(request.GET))
    return csv_of(f"audit-{desk.who.tenant}", HEADS, (reads.cells(entry) for entry in found))
