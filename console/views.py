"""Pages for people: the overview, and the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from activities.notifications.digests import zone_of
from console.containment import contained_with_scripts
from console.error_pages import told_when_away
from console.inbox import actions, held_answers, snooze
from console.inbox.actions import Result
from console.inbox.detail import Item, item
from console.inbox.items import Refused
from console.inbox.listing import gone, inbox, parts_wanted
from console.inbox.query import View
from console.inbox.snooze import choices, in_words, until
from console.overview import overview, pulse_of
from console.page import ACTING, LOOKING, PageContext, acting, choose, page, remember_tenant, shown
from console.tenants import overview as tenants_overview
from tenants import clock

if TYPE_CHECKING:
    from django.contrib.auth.models import User

PARTS_OF_ITEM = frozenset({"asked", "verdict"})
REFRESH_SECONDS = 20  # for browsers without scripts


@contained_with_scripts
@never_cache
@require_safe
@told_when_away
@login_required(login_url="console:login")
def home(request: HttpRequest) -> HttpResponse:
    """How things are: for the tenant chosen with ?tenant=, the person's only one, or for superusers all of them."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    # Superusers begin with everything, others with the first of their tenants.
    who, own = acting(request, first=not user.is_superuser)
    may_look = who is not None or user.is_superuser
    context = {
        "page": overview(who.tenant_id if who else None) if may_look else None,
        "acting": who,
        "tenants": own,
        "refresh_seconds": REFRESH_SECONDS,
        "here": "home",
        "pulse": pulse_of(who.tenant_id) if who else None,
    }
    answer = render(request, "console/overview.html", context)
    remember_tenant(request, answer, who, own)
    return answer


@contained_with_scripts
@never_cache
@require_safe
@told_when_away
@login_required(login_url="console:login")
def tenants(request: HttpRequest) -> HttpResponse:
    """All tenants of a person beside each other. A superuser without any, or with ?others=yes, chooses for whom to look."""
    _, own = acting(request, first=False)
    if request.user.is_superuser and (not own or request.GET.get("others")):
        return choose(request, "")
    if len(own) < 2 and not request.user.is_superuser:
        return redirect("console:home")
    context = {"overview": tenants_overview(own), "tenants": own, "here": "tenants"}
    return render(request, "console/tenants.html", context)


@page("inbox")
def inbox_list(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Everything that people are asked for in the tenant."""
    return _page(request, visit)


@page("inbox", (*LOOKING, *ACTING))
def inbox_item(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    """One item beside the list. A POST answers it or puts it aside, and leads on to the next one."""
    if request.method != "POST":
        if not _wants_item(request):
            return _page(request, visit, open_id=item_id)
        return _page(request, visit, item(visit.who, item_id))
    if "aside" in request.POST:
        return _aside(request, visit, item_id)
    try:
        if held_answers.is_held():
            held_answers.hold(
                visit.who, item_id, request.POST
            )  # the page says so, for as long as it can be taken back
        else:
            result = actions.act(visit.who, item_id, request.POST)
            messages.success(request, f"{result.words}: {result.name}")
    except Refused as refusal:
        return _page(request, visit, item(visit.who, item_id), refusal=refusal)
    return HttpResponseRedirect(_next(request, visit))


@page("inbox", ACTING)
def inbox_approve(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Approve the chosen items together. Each has its own result."""
    try:
        approve = held_answers.hold_together if held_answers.is_held() else actions.approve_together
        results = approve(visit.who, request.POST.getlist("chosen"))
    except Refused as refusal:
        return _page(request, visit, refusal=refusal)
    return _page(request, visit, results=results)


@page("inbox", ACTING)
def inbox_back(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Bring an item back that the person had put aside. It leads to where it was asked for."""
    try:
        item_id = UUID(request.POST.get("item", ""))
    except ValueError as error:
        raise Http404 from error
    try:
        name = snooze.end_snooze(visit.who, item_id)
    except Refused as refusal:
        return _page(request, visit, refusal=refusal)
    messages.success(request, f"Back in your list: {name}")
    view = _view(request, visit)
    if request.POST.get("open"):
        return HttpResponseRedirect(_address_of(item_id, view.of_kind(view.kind)))
    view = view if inbox(visit.who, view).rows else view.of_kind("")
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{view.address}#content")


@page("inbox")
def inbox_gone(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What has become of the items named with ?id=, for a page from whose list they have gone."""
    try:
        ids = [UUID(given) for given in request.GET.getlist("id")]
    except ValueError as error:
        raise Http404 from error
    return render(request, "console/inbox_gone.html", {"acting": visit.who, "gone": gone(visit.who, ids)})


def _aside(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    """Put an item aside for this person, and on to the next one."""
    try:
        shown, zone = snooze.version_shown(request.POST), _zone(visit)
        wanted = until(request.POST["aside"], request.POST.get("own", ""), clock.now(), zone)
        row, back_at = snooze.snooze(visit.who, item_id, shown=shown, until=wanted)
    except Refused as refusal:
        return _page(request, visit, item(visit.who, item_id), refusal=refusal)
    due = ", when it is due" if back_at < wanted else ""
    messages.success(request, f"Put aside until {in_words(back_at, zone)}{due}: {row.name}")
    return HttpResponseRedirect(_next(request, visit))


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
    refusal: Refused | None = None,
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
        "refusal": refusal,
        "sent": request.POST if refusal else {},
        "results": results,
        "zone": (zone := _zone(visit)),
        "choices": choices(clock.now(), zone) if opened and not visit.who.break_glass_id else (),
    }
    template = "inbox_refreshed" if parts_wanted(request) and not opened else "inbox"
    return shown(
        request, visit, f"console/{template}.html", context, status=refusal.status if refusal else 200
    )


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
