"""Pages for people: the overview, and the inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Min, QuerySet, Sum
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    HttpResponseRedirect,
)
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from activities.models import Activity
from activities.models.activity import in_status
from activities.notifications.digests import zone_of
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import Status
from console.content_security import contained_with_scripts
from console.error_pages import show_outages
from console.inbox import actions, snooze, undo
from console.inbox.actions import Result
from console.inbox.detail import Item, item
from console.inbox.listing import gone, inbox, parts_wanted
from console.inbox.query import View
from console.inbox.snooze import choices, until
from console.labels import in_words
from console.overview import overview, pulse_of
from console.page import ACTING, PageContext, acting, choose, id_or_404, page, remember_tenant, render_page
from tenants import clock
from tenants.api import event_stream
from tenants.context import admin_scope
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.stream import Subscriber
from tenants.models import BudgetWait, Tenant, UsageEntry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

PARTS_OF_ITEM = frozenset({"asked", "verdict"})
REFRESH_SECONDS = 20  # for browsers without scripts


@contained_with_scripts
@never_cache
@require_safe
@show_outages
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
@show_outages
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
def inbox_item(request: HttpRequest, visit: PageContext, item_id: UUID) -> HttpResponse:
    """One item beside the list. A POST answers it or puts it aside, and leads on to the next one."""
    if request.method != "POST" and not _wants_item(request):
        return _page(request, visit, open_id=item_id)
    return _page(request, visit, item(visit.who, item_id))


def _approve(request: HttpRequest, visit: PageContext) -> Sequence[Result]:
    approve = undo.hold_together if undo.is_held() else actions.approve_together
    return approve(visit.who, request.POST.getlist("chosen"))


@page("inbox", ACTING, act=_approve)
def inbox_approve(request: HttpRequest, visit: PageContext) -> HttpResponse:
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
def inbox_back(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Bring an item back that the person had put aside. It leads to where it was asked for."""
    return _page(request, visit)


@page("inbox")
def inbox_gone(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What has become of the items named with ?id=, for a page from whose list they have gone."""
    ids = [id_or_404(given) for given in request.GET.getlist("id")]
    return render(request, "console/inbox_gone.html", {"acting": visit.who, "gone": gone(visit.who, ids)})


def _snooze(request: HttpRequest, visit: PageContext, item_id: UUID) -> None:
    shown, zone = snooze.version_shown(request.POST), _zone(visit)
    wanted = until(request.POST["aside"], request.POST.get("own", ""), clock.now(), zone)
    row, back_at = snooze.snooze(visit.who, item_id, shown=shown, until=wanted)
    due = ", when it is due" if back_at < wanted else ""
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


# What happens in a tenant, for pages that keep themselves up to date: the stream of the API, for who signed in.

LAST_SEEN = "Last-Event-ID"
LONGEST_NUMBER = 18  # digits, below what a number in the log can have


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events of the tenant named with ?tenant=, or of one activity or pipeline run of it.

    Goes on after `Last-Event-ID`, or after ?after= where a page opens the stream again. It ends with the session, the membership, or with a
    change of the role. Who did not sign in is told so in a way that a browser does not follow to the login page.
    """
    if not request.user.is_authenticated:
        return HttpResponse(status=401)
    who, _ = acting(request, first=False)
    if who is None:
        return HttpResponseBadRequest("Name a tenant.")
    try:
        wanted = EventFilter(activity=_id(request, "activity"), pipeline_run=_id(request, "pipeline_run"))
        after = _number(request.headers.get(LAST_SEEN) or request.GET.get("after", ""))
    except ValueError:
        return HttpResponseBadRequest("That is no id.")
    try:
        return event_stream.follow(request.META, Subscriber(who, request.session.session_key), wanted, after)
    except TooManyStreams as refusal:
        return HttpResponse(str(refusal), status=429, headers={"Retry-After": str(refusal.retry_after)})


def _id(request: HttpRequest, name: str) -> UUID | None:
    given = request.GET.get(name)
    return UUID(given) if given else None


def _number(text: str) -> int | None:
    if text and not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise ValueError(text)
    return int(text) if text else None


# All tenants of a person beside each other: what waits for people, what failed, what runs, and what it costs this month.
#
# Read with the role of the admin, which sees the rows of the tenants that it was given and no others: one statement per figure, however
# many tenants there are.


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One tenant."""

    tenant: Tenant
    asked: int
    oldest: str
    failed: int
    blocked: int
    held: int  # that waits for a budget
    running: int
    spent: Decimal  # dollars in this month, of UTC
    share: float  # of the tenant with the most

    @property
    def needs(self) -> int:
        """How much goes on only when a person does something."""
        return self.asked + self.failed + self.blocked + self.held

    @property
    def state(self) -> str:
        """In one word how it stands."""
        if self.tenant.paused:
            return "paused"
        return "failures" if self.failed else "needs somebody" if self.needs else "all is well"


@dataclass(frozen=True, slots=True)
class TenantsOverview:
    """Those that need somebody first."""

    rows: Sequence[TenantRow]

    @property
    def total(self) -> TenantRow | None:
        """The sum of all, under the tenant that comes first."""
        if not self.rows:
            return None
        figures = ("asked", "failed", "blocked", "held", "running")
        sums: dict[str, Any] = {name: sum(getattr(row, name) for row in self.rows) for name in figures}
        spent = sum((row.spent for row in self.rows), Decimal(0))
        return TenantRow(self.rows[0].tenant, oldest="", spent=spent, share=1.0, **sums)

    @property
    def sentence(self) -> str:
        waiting = sum(1 for row in self.rows if row.needs)
        if not waiting:
            return "All is well in all of them."
        return f"{waiting} of {len(self.rows)} {'needs' if waiting == 1 else 'need'} somebody."


def tenants_overview(own: Sequence[Tenant]) -> TenantsOverview:
    """For the tenants that a person is a member of. Not inside a transaction of a tenant."""
    ids = frozenset(tenant.pk for tenant in own)
    if not ids:
        return TenantsOverview(())
    now = clock.now()
    with admin_scope(reads=ids, writes=(), platform=False):
        works = Activity.objects.filter(tenant_id__in=ids)
        asked = _by_tenant(works.filter(OPEN_FOR_PEOPLE), count=Count("pk"), oldest=Min("created_at"))
        standing = _standing(works)
        entries = UsageEntry.objects.filter(tenant_id__in=ids, day__gte=now.date().replace(day=1))
        spent = {
            key: row["dollars"] or Decimal(0)
            for key, row in _by_tenant(entries, dollars=Sum("dollars")).items()
        }
        waits = _by_tenant(BudgetWait.objects.filter(tenant_id__in=ids), count=Count("pk"))
    most = max((*spent.values(), Decimal(0)))
    rows = [
        TenantRow(
            tenant=tenant,
            asked=asked.get(tenant.pk, {}).get("count", 0),
            oldest=_age(asked.get(tenant.pk, {}).get("oldest"), now),
            failed=standing.get((tenant.pk, Status.NEEDS_REVIEW), 0),
            blocked=standing.get((tenant.pk, Status.BLOCKED), 0),
            held=waits.get(tenant.pk, {}).get("count", 0),
            running=standing.get((tenant.pk, Status.IN_PROGRESS), 0),
            spent=spent.get(tenant.pk, Decimal(0)),
            share=float(spent.get(tenant.pk, Decimal(0)) / most) if most else 0.0,
        )
        for tenant in own
    ]
    return TenantsOverview(sorted(rows, key=lambda row: (-row.failed, -row.needs, row.tenant.slug)))


def _by_tenant(rows: QuerySet[Any], **figures: Any) -> Mapping[UUID, Mapping[str, Any]]:
    return {row["tenant_id"]: row for row in rows.order_by().values("tenant_id").annotate(**figures)}


def _standing(works: QuerySet[Any]) -> dict[tuple[UUID, str], int]:
    """How many agents' activities stand so, by tenant and status."""
    states = (Status.NEEDS_REVIEW, Status.BLOCKED, Status.IN_PROGRESS)
    rows = works.filter(in_status(*states), assignee_type="agent").order_by().values("tenant_id", "status")
    return {(row["tenant_id"], row["status"]): row["count"] for row in rows.annotate(count=Count("pk"))}


def _age(since: datetime | None, now: datetime) -> str:
    return in_words((now - since).total_seconds()) if since else ""
