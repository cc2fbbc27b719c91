"""Pages of the inbox: the list, and next to it one item, which can be answered or snoozed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from activities.notifications.digests import zone_of
from console.inbox import actions, snooze, undo
from console.inbox.actions import Result
from console.inbox.detail import Item, item
from console.inbox.listing import View, inbox, is_listed, list_closed
from console.inbox.snooze import choices, until
from console.live import requested_parts
from console.page import ACTING, PageContext, id_or_404, page
from tenants import clock

PARTS_OF_ITEM = frozenset({"asked", "verdict"})


@page("inbox")
def list_items(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The list of everything that waits for people of the tenant."""
    return _page(request, visit)


def _answer(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    # A claim is no answer: the person now works on the item, and others should know at once.
    is_claim = request.POST.get("action") == actions.CLAIM.name
    if "aside" in request.POST:
        version, zone = snooze.displayed_version(request.POST), zone_of(visit.zone_name)
        moment = until(request.POST["aside"], request.POST.get("own", ""), clock.now(), zone)
        row, back_at = snooze.snooze(visit.who, item_id, version=version, until=moment)
        why = ", when it is due" if back_at == row.due_at else ", an hour before it expires"
        earlier = why if back_at < moment else ""
        messages.success(request, f"Snoozed until {snooze.in_words(back_at, zone)}{earlier}: {row.name}")
    elif undo.is_held() and not is_claim:
        # No message here: the page lists the answer as long as it can be undone.
        undo.hold(visit.who, item_id, request.POST)
    else:
        result = actions.act(visit.who, item_id, request.POST)
        messages.success(request, f"{result.words}: {result.name}")
    if is_claim:
        return HttpResponseRedirect(_address_of(item_id, _view(request, visit)))
    return _redirect_to_next(request, visit)


@page("inbox", act=_answer)
def show_item(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    """One item next to the list. A POST answers or snoozes it, and redirects to the next one."""
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


TOO_LATE = "Too late to undo: the answer has already taken effect."


@page("inbox", ACTING)
def take_back(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Undo the answers named by `held`, or dismiss refused ones. A single one leads back to its item."""
    ids = [id_or_404(held_id) for held_id in request.POST.getlist("held")]
    item_id = id_or_404(text) if (text := request.POST.get("item", "")) else None
    undone, view = undo.take_back(visit.who, ids), _view(request, visit)
    if request.POST.get("action") == "read":
        return _redirect_to_list(view)
    if undone:
        words = "Answer undone. Nothing was changed." if undone == 1 else f"{undone} answers undone."
        messages.success(request, words)
    if undone < len(ids):
        messages.warning(request, TOO_LATE)
    return HttpResponseRedirect(_address_of(item_id, view)) if item_id and undone else _redirect_to_list(view)


def _end_snooze(request: HttpRequest, visit: PageContext) -> HttpResponse:
    item_id = id_or_404(request.POST.get("item", ""))
    name = snooze.end_snooze(visit.who, item_id)
    messages.success(request, f"Back in your list: {name}")
    view = _view(request, visit)
    if request.POST.get("open"):
        return HttpResponseRedirect(_address_of(item_id, view.of_kind(view.kind)))
    return _redirect_to_list(view if inbox(visit.who, view).rows else view.of_kind(""))


@page("inbox", ACTING, act=_end_snooze)
def bring_back(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """End the snooze of an item, and redirect to the page that requested it."""
    return _page(request, visit)


@page("inbox")
def show_gone(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The outcomes of the items named with ?id=, for a page from whose list they have disappeared."""
    ids = [id_or_404(item_id) for item_id in request.GET.getlist("id")]
    return render(
        request, "console/inbox_gone.html", {"acting": visit.who, "gone": list_closed(visit.who, ids)}
    )


def _wants_item(request: HttpRequest) -> bool:
    """Return whether the item is needed: a live update of the list alone does not read the item again."""
    parts = requested_parts(request)
    return parts is None or bool(parts & PARTS_OF_ITEM)


def _page(
    request: HttpRequest,
    visit: PageContext,
    opened: Item | None = None,
    *,
    open_id: UUID | None = None,
    results: Sequence[Result] | None = None,
) -> HttpResponse:
    """Render the list and perhaps an item. After a refusal the item is read again, and the form keeps its input."""
    listed = inbox(visit.who, _view(request, visit))
    context: dict[str, Any] = {
        "inbox": listed,
        "answered": opened is not None and listed.is_answered(opened.row.pk),
        "item": opened,
        "open_id": opened.row.pk if opened else open_id,
        "next": listed.next_after(opened.row.pk) if opened else None,
        "sent": request.POST if visit.refusal else {},
        "results": results,
        "zone": (zone := zone_of(visit.zone_name)),
        "choices": choices(clock.now(), zone) if opened and not visit.who.break_glass_id else (),
    }
    template = "inbox_refreshed" if requested_parts(request) and not opened else "inbox"
    return visit.render(f"console/{template}.html", context)


def _view(request: HttpRequest, visit: PageContext) -> View:
    return View.read(visit.who.tenant, request.GET)


def _address_of(item_id: UUID | str, view: View) -> str:
    return f"{reverse('console:inbox_item', args=[item_id])}?{view.address}#item"


def _redirect_to_list(view: View) -> HttpResponse:
    # The explicit fragment keeps the browser from reusing the form's fragment, which names the item.
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{view.address}#content")


def _redirect_to_next(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Redirect after an answer: to the next item if it is still listed, else to the list."""
    view, following = _view(request, visit), request.POST.get("next", "")
    if is_listed(visit.who, view, following):
        return HttpResponseRedirect(_address_of(following, view))
    is_past_the_end = view.page > 1 and not inbox(visit.who, view).rows
    return _redirect_to_list(replace(view, page=1) if is_past_the_end else view)
