"""Pages of the inbox: the list, and beside it one item, which is answered or put aside there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from activities.notifications.digests import zone_of
from console.inbox import actions, snooze, undo
from console.inbox.actions import Result
from console.inbox.detail import Item, item
from console.inbox.listing import inbox, list_closed
from console.inbox.query import View
from console.inbox.snooze import choices, until
from console.live import parts_wanted
from console.page import ACTING, PageContext, id_or_404, page, render_page
from tenants import clock

PARTS_OF_ITEM = frozenset({"asked", "verdict"})


@page("inbox")
def list_items(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Everything that people are asked for in the tenant."""
    return _page(request, visit)


def _answer(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    if "aside" in request.POST:
        _snooze(request, visit, item_id)
    elif undo.is_held():
        # The page says so, for as long as it can be taken back.
        undo.hold(visit.who, item_id, request.POST)
    else:
        result = actions.act(visit.who, item_id, request.POST)
        messages.success(request, f"{result.words}: {result.name}")
    return HttpResponseRedirect(_next(request, visit))


@page("inbox", act=_answer)
def show_item(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    """One item beside the list. A POST answers it or puts it aside, and leads on to the next one."""
    if request.method != "POST" and not _wants_item(request):
        return _page(request, visit, open_id=item_id)
    return _page(request, visit, item(visit.who, item_id))


def _approve(request: HttpRequest, visit: PageContext) -> Sequence[Result]:
    approve = undo.hold_together if undo.is_held() else actions.approve_together
    return approve(visit.who, request.POST.getlist("chosen"))


@page("inbox", ACTING, act=_approve)
def approve(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Approve the chosen items together. Each has its own result."""
    return _page(request, visit, results=visit.acted)


def _end_snooze(request: HttpRequest, visit: PageContext) -> HttpResponse:
    item_id = id_or_404(request.POST.get("item", ""))
    name = snooze.end_snooze(visit.who, item_id)
    messages.success(request, f"Back in your list: {name}")
    view = _view(request, visit)
    if request.POST.get("open"):
        return HttpResponseRedirect(_address_of(item_id, view.of_kind(view.kind)))
    view = view if inbox(visit.who, view).rows else view.of_kind("")
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{view.address}#content")


@page("inbox", ACTING, act=_end_snooze)
def bring_back(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Bring an item back that the person had put aside. It leads to where it was asked for."""
    return _page(request, visit)


@page("inbox")
def show_gone(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What has become of the items named with ?id=, for a page from whose list they have gone."""
    ids = [id_or_404(given) for given in request.GET.getlist("id")]
    return render(
        request, "console/inbox_gone.html", {"acting": visit.who, "gone": list_closed(visit.who, ids)}
    )


def _snooze(request: HttpRequest, visit: PageContext, item_id: UUID) -> None:
    shown, zone = snooze.version_shown(request.POST), _zone(visit)
    moment = until(request.POST["aside"], request.POST.get("own", ""), clock.now(), zone)
    row, back_at = snooze.snooze(visit.who, item_id, shown=shown, until=moment)
    due = ", when it is due" if back_at < moment else ""
    messages.success(request, f"Put aside until {snooze.in_words(back_at, zone)}{due}: {row.name}")


def _wants_item(request: HttpRequest) -> bool:
    """Whether the item is to be read as well: a page that follows the list alone does not fetch its item again."""
    parts = parts_wanted(request)
    return parts is None or bool(parts & PARTS_OF_ITEM)


def _page(
    request: HttpRequest,
    visit: PageContext,
    opened: Item | None = None,
    *,
    open_id: UUID | None = None,
    results: Sequence[Result] | None = None,
) -> HttpResponse:
    """The list and perhaps an item. After a refusal the item is shown as it is now, with what had been written."""
    listed = inbox(visit.who, _view(request, visit))
    context: dict[str, Any] = {
        "inbox": listed,
        "answered": opened is not None and listed.is_answered(opened.row.pk),
        "item": opened,
        "open_id": opened.row.pk if opened else open_id,
        "next": listed.next_after(opened.row.pk) if opened else None,
        "sent": request.POST if visit.refusal else {},
        "results": results,
        "zone": (zone := _zone(visit)),
        "choices": choices(clock.now(), zone) if opened and not visit.who.break_glass_id else (),
    }
    template = "inbox_refreshed" if parts_wanted(request) and not opened else "inbox"
    return render_page(request, visit, f"console/{template}.html", context)


def _view(request: HttpRequest, visit: PageContext) -> View:
    """Which part of the inbox the person looks at."""
    return View.read(visit.who.tenant, request.GET)


def _zone(visit: PageContext) -> ZoneInfo:
    """That of the tenant. Who looks at it from outside has no times to choose."""
    return zone_of(next((own.timezone for own in visit.tenants if own.pk == visit.tenant_id), "UTC"))


def _address_of(item_id: UUID | str, view: View) -> str:
    return f"{reverse('console:inbox_item', args=[item_id])}?{view.address}#item"


def _next(request: HttpRequest, visit: PageContext) -> str:
    """Where an answered item leads: to the one that followed it if that is still open, else to the list."""
    view = _view(request, visit)
    listed = inbox(visit.who, view)
    following = request.POST.get("next", "")
    if any(str(row.id) == following for row in listed.rows):
        return _address_of(following, view)
    view = view if listed.rows else replace(view, page=1)
    # With a fragment of its own: else the browser would keep the one of the form, and look for the item.
    return f"{reverse('console:inbox')}?{view.address}#content"
