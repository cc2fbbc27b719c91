"""A page of the console: who looks, for which tenant, what a browser may do with it, where long lists go on, and what it says afterwards.

A view is decorated with `page`, gets a `PageContext` as its `visit`, and answers with `render_page`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from activities.models import Activity
from activities.selectors import OPEN_FOR_PEOPLE
from console.content_security import send_policy_with_scripts
from console.error_pages import show_outages
from tenants import break_glass, members, outages, turns
from tenants.context import system_scope
from tenants.members import MembershipRefused
from tenants.models import Role, Tenant
from tenants.models.audit import BreakGlass
from tenants.principals import Principal

from .internal_api import Reply

if TYPE_CHECKING:
    from django.contrib.auth.models import User

View = Callable[..., HttpResponse]
LOOKING = ("GET", "HEAD")
ACTING = ("POST",)
PAGE_WIDTH = 980.0  # pixels that a page has for a picture on a usual screen


@dataclass(frozen=True, slots=True)
class PageContext:
    """Who visits which page, for which tenant. `tenants` are the person's own.

    After a POST that the page itself answers: `refusal` is why nothing was done, `acted` what it came to otherwise, such as a count.
    """

    who: Principal
    tenants: Sequence[Tenant]
    here: str
    refusal: Refused | None = None
    acted: Any = None

    @property
    def tenant_id(self) -> UUID:
        return self.who.tenant_id

    @property
    def query(self) -> str:
        """What an address needs to stay with this tenant: `tenant=acme`."""
        return urlencode({"tenant": self.who.tenant})


def page(
    here: str,
    methods: Sequence[str] = LOOKING,
    *,
    act: Callable[..., Any] | None = None,
    least: Role | None = None,
    for_admins: str = "",
) -> Callable[[View], View]:
    """Make `view(request, visit, ...)` a page for people who signed in. `here` is its name in the navigation.

    A POST is answered by `act(request, visit, ...)`, and by the page as well when that refuses or returns no answer. People below the role
    `least` are answered 404. With `for_admins`, a word for what others do not see, all but admins are told so.

    It acts for the tenant chosen with ?tenant=, else for the one looked at last, else for the person's first one. Who may not is answered
    404; who belongs to no tenant is asked to choose. The page is never cached, runs only scripts from our own files, and talks to nobody
    but us.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def page_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            visit = visit_of(request, here)
            if visit is None:
                return choose(request, here)
            if least is not None and not visit.who.role.includes(least):
                raise Http404
            if for_admins and not visit.who.role.includes(Role.ADMIN):
                answer = render_page(request, visit, "console/for_admins.html", {"what": for_admins}, 403)
            else:
                answer = answer_visit(request, visit, *args, **kwargs)
            remember_tenant(request, answer, visit.who, visit.tenants)
            return answer

        def answer_visit(request: HttpRequest, visit: PageContext, *args: Any, **kwargs: Any) -> HttpResponse:
            if act is not None and request.method == "POST":
                try:
                    acted = act(request, visit, *args, **kwargs)
                except Refused as refusal:
                    visit = replace(visit, refusal=refusal)
                else:
                    if isinstance(acted, HttpResponse):
                        return acted
                    visit = replace(visit, acted=acted)
            return view(request, visit, *args, **kwargs)

        allowed = [*methods, *(ACTING if act is not None and methods == LOOKING else ())]
        guarded = show_outages(login_required(page_view, login_url="console:login"))
        return send_policy_with_scripts(never_cache(require_http_methods(allowed)(guarded)))

    return decorate


def visit_of(request: HttpRequest, here: str) -> PageContext | None:
    """None when a superuser has still to choose a tenant, or the person belongs to none. Raises `Http404`."""
    who, tenants = acting(request)
    return None if who is None else PageContext(who, tenants, here)


def choose(request: HttpRequest, here: str) -> HttpResponse:
    """Where a superuser chooses for whom to look, and where others learn that they belong to no tenant."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    glass = break_glass.list_open(user)
    context = {
        "asking": tenants_that_ask(glass) if user.is_superuser else [],
        "all_seen": any(each.opened_for is None for each in glass),
        "here": here,
        "wanted": request.path if here else reverse("console:inbox"),
    }
    return render(request, "console/choose_tenant.html", context)


def render_page(
    request: HttpRequest,
    visit: PageContext,
    template: str,
    context: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page from its template, within the console's frame. A refusal of what was sent is told there; the answer has its status."""
    framed = {
        "acting": visit.who,
        "tenants": visit.tenants,
        "here": visit.here,
        "visit": visit,
        "refusal": visit.refusal,
        **(context or {}),
    }
    return render(request, template, framed, status=visit.refusal.status if visit.refusal else status)


# For which tenant a person who signed in acts: one of their own, or as a superuser any that they name.


LAST = "orchestrator_tenant"  # the cookie with the tenant that somebody looked at last
REMEMBERED = 365 * 86_400  # seconds


def last_tenant(request: HttpRequest, tenants: Sequence[Tenant]) -> str:
    """The tenant that was looked at last in this browser, if it is one of the person's own; empty when none is."""
    last = request.COOKIES.get(LAST, "")
    return last if any(tenant.slug == last for tenant in tenants) else ""


def remember_tenant(
    request: HttpRequest, answer: HttpResponse, who: Principal | None, tenants: Sequence[Tenant]
) -> None:
    """What somebody asks for by name is where they are without a name from then on."""
    if who is None or request.GET.get("tenant") != who.tenant or request.COOKIES.get(LAST) == who.tenant:
        return
    if len(tenants) > 1 and any(tenant.slug == who.tenant for tenant in tenants):
        answer.set_cookie(
            LAST,
            who.tenant,
            max_age=REMEMBERED,
            httponly=True,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )


MOST_LISTED = 100  # tenants that a superuser is shown; any other can be named


@dataclass(frozen=True, slots=True)
class WaitingTenant:
    """A tenant in which people are asked for something. `seen`: whether the glass that the superuser has broken shows it."""

    slug: str
    name: str
    items: int
    seen: bool


def acting(request: HttpRequest, *, first: bool = True) -> tuple[Principal | None, list[Tenant]]:
    """The person acting for the tenant that the address names, and the tenants that they are a member of, by slug.

    Without a name it is the one of their own that they looked at last, else the first, or nobody: when they have none, or with `first`
    unset. Raises `Http404` when they may not act for the tenant, or there is none.
    """
    user: User = request.user  # type: ignore[assignment]  # a login is required
    slug = request.GET.get("tenant", "")
    own = members.memberships_of(user)
    tenants = [membership.tenant for membership in own]
    # PostgreSQL cannot even be asked for this character.
    chosen_slug = slug.replace("\x00", "")
    if not chosen_slug and tenants and first:
        chosen_slug = last_tenant(request, tenants) or tenants[0].slug
    if not chosen_slug:
        return None, tenants
    try:
        who = members.principal_of(user, chosen_slug, own)
    except MembershipRefused as refusal:
        raise Http404 from refusal
    turns.belongs_to(who.tenant_id)
    return who, tenants


def tenants_that_ask(glass: Collection[BreakGlass]) -> list[WaitingTenant]:
    """The tenants in which most waits for people. For superusers alone; `glass` is what they have broken."""
    seen = {each.opened_for for each in glass}
    with system_scope():
        rows = Activity.objects.filter(OPEN_FOR_PEOPLE, tenant__is_active=True).order_by()
        counted = rows.values("tenant_id", "tenant__slug", "tenant__name").annotate(items=Count("pk"))
        page = counted.order_by("-items", "tenant__slug")[:MOST_LISTED]
        return [
            WaitingTenant(
                row["tenant__slug"], row["tenant__name"], row["items"], bool(seen & {None, row["tenant_id"]})
            )
            for row in page
        ]


# Where a page of a long list begins. Lists are in the order of a time, newest first, and of ids where times are equal.


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind the row with this time and id. Written into addresses."""

    at: datetime
    id: UUID

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """None for what is no place: then the page is the first one."""
        microseconds, _, number = text.partition(".")
        try:
            return cls(datetime.fromtimestamp(int(microseconds) / 1_000_000, UTC), UUID(number))
        except (ValueError, OverflowError, OSError):
            return None

    def __str__(self) -> str:
        return f"{round(self.at.timestamp() * 1_000_000)}.{self.id.hex}"


def page_of(rows: QuerySet[Any], by: str, after: Cursor | None, size: int) -> tuple[list[Any], Cursor | None]:
    """The newest of the rows behind a place, and where the next page begins if there is one. `by` is the name of the time."""
    if after is not None:
        # The first condition is what an index understands; the second leaves out what the last page has shown.
        rows = rows.filter(
            Q(**{f"{by}__lte": after.at}) & (Q(**{f"{by}__lt": after.at}) | Q(pk__lt=after.id))
        )
    found = list(rows.order_by(f"-{by}", "-pk")[: size + 1])
    last = found[size - 1] if len(found) > size else None
    return found[:size], Cursor(getattr(last, by), last.pk) if last else None


# What a page shows, as a file for a spreadsheet: the same rows, none of which a spreadsheet takes for a formula.

#: A cell that begins so is computed by spreadsheets, anyone who wrote it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(name: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """The rows under their heads, as `name`.csv. Texts that would be formulas get an apostrophe in front."""
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(heads)
    writer.writerows([_cell(value) for value in row] for row in rows)
    answer = HttpResponse(sheet.getvalue(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value.isoformat() if hasattr(value, "isoformat") else value


# What a person is told after they did something: on the next page that it was done, or on the same page why it was not.

NOT_OFFERED = "This page does not offer that."
NOT_SURE = "Say that you are sure: this cannot be undone."


def redirect_with_success(request: HttpRequest, visit: PageContext, address: str, words: str) -> HttpResponse:
    """On to that page, which says what was done."""
    messages.success(request, words)
    return HttpResponseRedirect(f"{address}?{urlencode({'tenant': visit.who.tenant})}")


def id_or_404(text: str) -> UUID:
    """Raises `Http404` for what is no id."""
    try:
        return UUID(text)
    except ValueError as error:
        raise Http404 from error


def refusal_of(reply: Reply) -> Refused:
    """What a page says of an answer that refuses, beside what was typed."""
    errors = [f"{path}: {message}" if path else message for path, message in reply.errors.items()]
    return Refused(" ".join(errors) or reply.reason, status=reply.status)


def refuse_unsure(request: HttpRequest) -> Refused | None:
    """For what cannot be undone: the person has said so, or this is why nothing is done."""
    return None if request.POST.get("sure") == "yes" else Refused(NOT_SURE, status=400, field="sure")


# Why an answer was not taken. Nothing is done then.


BUSY = "Many answers met at the same moment, and this one was given up. Nothing was done; try again."


class Refused(Exception):
    """Nothing was done, and why. `status` is the HTTP status of the page that says so, `field` what of the form is that is wrong."""

    def __init__(self, reason: str, *, status: int = 409, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.field = reason, status, field


@contextmanager
def refuse_when_busy() -> Iterator[None]:
    """The database gives up a transaction that others stand in the way of. Anyone who sent it may simply try again."""
    try:
        yield
    except OperationalError as error:
        if outages.is_contention(error):
            raise Refused(BUSY, status=503) from error
        raise
