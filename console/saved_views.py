"""Saved views of a person and of the whole tenant: save, rename, share and delete."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any
from urllib.parse import parse_qsl

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from console.page import NOT_OFFERED, PageContext, Refused, id_or_404, page
from tenants import saved_views
from tenants.context import tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Role
from tenants.models.access import LONGEST_NAME, SavedView


def _act(request: HttpRequest, visit: PageContext) -> HttpResponse:
    action, _, view_id = request.POST.get("action", "").partition(":")
    try:
        if action == "keep":
            return _keep_view(request, visit)
        if action == "rename":
            view = saved_views.rename(visit.who, id_or_404(view_id), request.POST.get("name", ""))
            return visit.redirect(f"Renamed to “{view.name}”.", "saved_views")
        if action == "share":
            view = saved_views.share(visit.who, id_or_404(view_id))
            words = f"“{view.name}” is now shared with everybody in the tenant."
            return visit.redirect(words, "saved_views")
        if action == "delete":
            view = saved_views.delete(visit.who, id_or_404(view_id))
            return _redirect_to_view(
                request, visit, view, f"“{view.name}” was deleted. You can save it again here."
            )
    except TenantError as error:
        raise Refused(str(error), status=error.status, field="name") from error
    raise Refused(NOT_OFFERED, status=400)


@page("", act=_act)
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The views of all pages. A POST saves a view, or changes one."""
    with tenant_scope(visit.tenant_id):
        views = saved_views.views_of(visit.who)
    groups = groupby(sorted(views, key=lambda view: list(PAGES).index(view.page)), key=lambda view: view.page)
    context: dict[str, Any] = {
        "groups": [(PAGES[name][0], [_line(view, visit) for view in group]) for name, group in groups],
        "longest": LONGEST_NAME,
        "sent": request.POST if request.POST.get("action") == "keep" else {},
    }
    return visit.render("console/saved_views/every.html", context)


def _line(view: SavedView, visit: PageContext) -> dict[str, Any]:
    may_change = not view.is_shared or visit.who.role.includes(Role.ADMIN)
    return {
        "view": view,
        "words": in_words(view.query),
        "address": address_of(view.page, view.query, visit.who.tenant),
        "may_change": may_change,
    }


def _keep_view(request: HttpRequest, visit: PageContext) -> HttpResponse:
    where = request.POST.get("page", "")
    if where not in PAGES:
        raise Refused(NOT_OFFERED, status=400)
    view = saved_views.keep(
        visit.who,
        page=where,
        name=request.POST.get("name", ""),
        query=query_of(where, request.POST.get("query", "")),
        shared=request.POST.get("shared") == "yes",
    )
    return _redirect_to_view(
        request, visit, view, f"Saved as “{view.name}”{', shared with everybody' if view.is_shared else ''}."
    )


def _redirect_to_view(request: HttpRequest, visit: PageContext, view: SavedView, words: str) -> HttpResponse:
    messages.success(request, words)
    return HttpResponseRedirect(address_of(view.page, view.query, visit.who.tenant))


#: The pages with saved views, by the name of their URL: the title, and the query parameters that are filters.
PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "inbox": ("Inbox", ("kind", "role", "search")),
    "activities": ("Activities", ("q",)),
    "runs": ("Runs", ("status", "pipeline", "q", "label")),
    "dead_letters": ("Dead letters", ("role", "state")),
}


def query_of(page: str, address: str) -> str:
    """Return the filters of a query string in a fixed order, without the tenant and the page of the list."""
    parameters = dict(parse_qsl(address.replace("\x00", "")))
    return urlencode({name: value for name in PAGES[page][1] if (value := parameters.get(name, "").strip())})


def in_words(query: str) -> str:
    """Return a readable form of a view's query."""
    return ", ".join(value if name == "q" else f"{name}: {value}" for name, value in parse_qsl(query))


def address_of(page: str, query: str, tenant: str) -> str:
    """Return the address of a saved view. The stored query is filtered again, because its page may have changed since."""
    return f"{reverse(f'console:{page}')}?{'&'.join(filter(None, (urlencode({'tenant': tenant}), query_of(page, query))))}"
