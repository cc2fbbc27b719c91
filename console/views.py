"""Pages for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console import decisions
from console.acting import acting, own_tenants, tenants_that_ask
from console.containment import contained, contained_with_scripts
from console.decisions import Result
from console.inbox import inbox
from console.inbox_view import View
from console.item import Item, item
from console.overview import overview
from console.refusals import Refused
from tenants.models import Tenant
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

REFRESH_SECONDS = 20


@contained
@never_cache
@require_safe
@login_required(login_url="console:login")
def home(request: HttpRequest) -> HttpResponse:
    """How things are: for the tenant chosen with ?tenant=, the person's only one, or for superusers all of them."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    tenants = own_tenants(user)
    # Superusers begin with everything, others with the first of their tenants.
    first = "" if user.is_superuser or not tenants else tenants[0].slug
    who = acting(user, request.GET.get("tenant") or first)
    may_look = who is not None or user.is_superuser
    context = {
        "page": overview(who.tenant_id if who else None) if may_look else None,
        "acting": who,
        "tenants": tenants,
        "refresh_seconds": REFRESH_SECONDS,
        "flower_url": settings.ORCHESTRATOR_FLOWER_URL,
        "here": "home",
    }
    return render(request, "console/overview.html", context)


@contained_with_scripts
@never_cache
@require_safe
@login_required(login_url="console:login")
def inbox_list(request: HttpRequest) -> HttpResponse:
    """Everything that people are asked for in the tenant chosen with ?tenant=, or the person's first one."""
    desk = _desk(request)
    return _choose(request) if desk is None else _page(request, desk)


@contained_with_scripts
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@login_required(login_url="console:login")
def inbox_item(request: HttpRequest, item_id: UUID) -> HttpResponse:
    """One item beside the list. A POST answers it, and leads on to the next one."""
    desk = _desk(request)
    if desk is None:
        return _choose(request)
    if request.method != "POST":
        return _page(request, desk, item(desk.who, item_id))
    try:
        result = decisions.act(desk.who, item_id, request.POST)
    except Refused as refusal:
        return _page(request, desk, item(desk.who, item_id), refusal=refusal)
    messages.success(request, f"{result.words}: {result.name}")
    return HttpResponseRedirect(_next(request, desk))


@contained_with_scripts
@never_cache
@require_POST
@login_required(login_url="console:login")
def inbox_approve(request: HttpRequest) -> HttpResponse:
    """Approve the chosen items together. Each has its own result."""
    desk = _desk(request)
    if desk is None:
        return _choose(request)
    try:
        results = decisions.approve_together(desk.who, request.POST.getlist("chosen"))
    except Refused as refusal:
        return _page(request, desk, refusal=refusal)
    return _page(request, desk, results=results)


@contained_with_scripts
@never_cache
@require_safe
@login_required(login_url="console:login")
def inbox_tenants(request: HttpRequest) -> HttpResponse:
    """Where a superuser chooses whose inbox to look at."""
    return _choose(request)


@dataclass(frozen=True, slots=True)
class _Desk:
    """At whose inbox a person sits, and which part of it they look at. `tenants` are the person's own."""

    who: Principal
    tenants: Sequence[Tenant]
    view: View


def _desk(request: HttpRequest) -> _Desk | None:
    """None when a superuser has still to choose a tenant, or the person belongs to none."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    tenants = own_tenants(user)
    who = acting(user, request.GET.get("tenant") or (tenants[0].slug if tenants else ""))
    return None if who is None else _Desk(who, tenants, View.read(who.tenant, request.GET))


def _choose(request: HttpRequest) -> HttpResponse:
    context = {"tenants": tenants_that_ask() if request.user.is_superuser else [], "here": "inbox"}
    return render(request, "console/inbox_choose.html", context)


def _page(
    request: HttpRequest,
    desk: _Desk,
    shown: Item | None = None,
    *,
    refusal: Refused | None = None,
    results: Sequence[Result] | None = None,
) -> HttpResponse:
    """The list and perhaps an item. After a refusal the item is shown as it is now, with what had been written."""
    listed = inbox(desk.who, desk.view)
    context: dict[str, Any] = {
        "acting": desk.who,
        "acting_is_own": any(tenant.slug == desk.who.tenant for tenant in desk.tenants),
        "tenants": desk.tenants,
        "inbox": listed,
        "item": shown,
        "next": listed.next_after(shown.row.pk) if shown else None,
        "refusal": refusal,
        "sent": request.POST if refusal else {},
        "results": results,
        "here": "inbox",
    }
    return render(request, "console/inbox.html", context, status=refusal.status if refusal else 200)


def _next(request: HttpRequest, desk: _Desk) -> str:
    """Where an answered item leads: to the one that followed it if that is still open, else to the list."""
    listed = inbox(desk.who, desk.view)
    following = request.POST.get("next", "")
    if any(str(row.id) == following for row in listed.rows):
        return f"{reverse('console:inbox_item', args=[following])}?{desk.view.address}#item"
    view = desk.view if listed.rows else replace(desk.view, page=1)
    # With a fragment of its own: else the browser would keep the one of the form, and look for the item.
    return f"{reverse('console:inbox')}?{view.address}#content"
