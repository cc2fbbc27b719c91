"""What was consumed and what it cost: as pictures with their tables, and as files of the same rows."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from console.csv_export import csv_of
from console.page import PageContext, page, shown

from . import queries
from .queries import UsageFilter

HEADS = ("runs", "input tokens", "output tokens", "cost in dollars", "tokens without a price")


@page("usage")
def usage(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """The days that were asked for, by day, role and pipeline, and how the budgets stand."""
    wanted = UsageFilter.read(request.GET)
    return shown(request, desk, "console/usage/usage.html", {"usage": queries.usage(desk.tenant_id, wanted)})


@page("usage")
def export(request: HttpRequest, desk: PageContext, what: str) -> HttpResponse:
    """One of the tables of that page."""
    wanted = UsageFilter.read(request.GET)
    found = queries.usage(desk.tenant_id, wanted)
    tables = {"days": found.days, "roles": found.roles, "pipelines": found.pipelines}
    if what not in tables:
        raise Http404
    rows = ([line.name, *line.figures] for line in tables[what])
    name = f"usage-{desk.who.tenant}-{what}-{wanted.first}-{wanted.last}"
    return csv_of(name, (what.removesuffix("s"), *HEADS), rows)
