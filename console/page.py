"""The frame of the console's pages: access, tenant, browser policy, cursors of long lists, CSV files, messages and refusals.

A view is decorated with `page`, and receives a `PageContext` as its `visit`, with which it calls the API and responds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.db.models import Count, QuerySet
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
from console.internal_api import ApiForm, Reply, call_api
from tenants import break_glass, members, outages, turns
from tenants.api.pagination import Cursor, CursorRefused
from tenants.context import system_scope
from tenants.exceptions import Refusal
from tenants.members import MembershipRefused
from tenants.models import Role, Tenant
from tenants.models.audit import BreakGlass
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

View = Callable[..., HttpResponse]
LOOKING = ("GET", "HEAD")
ACTING = ("POST",)
PAGE_WIDTH = 980.0  # pixels available for a picture on a common screen


@dataclass(frozen=True, slots=True)
class PageContext:
    """A request, with its person, page and tenant. `tenants` are the person's own.

    After a POST that the page itself answers, `refusal` is the reason if nothing was done, and `acted` the result otherwise.
    """

    request: HttpRequest
    who: Principal
    tenants: Sequence[Tenant]
    here: str
    refusal: Refused | None = None
    acted: Any = None

    @property
    def tenant_id(self) -> UUID:
        return self.who.tenant_id

    @property
    def zone_name(self) -> str:
        """The tenant's time zone; UTC for people who are not its members."""
        return next((own.timezone for own in self.tenants if own.pk == self.tenant_id), "UTC")

    @property
    def query(self) -> str:
        """The query string that keeps an address on this tenant: `tenant=acme`."""
        return urlencode({"tenant": self.who.tenant})

    def render(self, template: str, context: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
        """Render a page in the console's frame. After a refused POST it displays the refusal and has its status, and so it does with the
        errors of a `form` that the API has refused."""
        form = (context or {}).get("form")
        if isinstance(form, ApiForm) and form.errors:
            status = form.status
        framed = {
            "acting": self.who,
            "tenants": self.tenants,
            "here": self.here,
            "visit": self,
            "may_operate": self.who.role.includes(Role.OPERATOR),
            "may_administer": self.who.role.includes(Role.ADMIN),
            "refusal": self.refusal,
            **(context or {}),
        }
        return render(self.request, template, framed, status=self.refusal.status if self.refusal else status)

    def redirect(self, words: str, page: str, *place: Any) -> HttpResponse:
        """Redirect to the console's page of this name and place, which displays the message of success, if there is one."""
        if words:
            messages.success(self.request, words)
        return HttpResponseRedirect(f"{reverse(f'console:{page}', args=place)}?{self.query}")

    def answer(self, reply: Reply, words: str, page: str, *place: Any) -> HttpResponse:
        """Redirect to a page that displays `words`, or why the API refused. Raises `Http404` if the object does not exist."""
        if reply.status == HTTPStatus.NOT_FOUND:
            raise Http404
        if not reply.ok:
            messages.error(self.request, reply.reason)
        return self.redirect(words if reply.ok else "", page, *place)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Reply:
        """Call the API as this person. See `call_api`."""
        return call_api(self.request, self.who, method, path, body, **options)

    def act(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        changed: str = "",
        **options: Any,
    ) -> Reply:
        """Perform an action by a call of the API. Raises `Http404` if its object does not exist for this person, else `Refused`.

        With a `version` among the options, `changed` is the reason of the refusal if the object has another one.
        """
        reply = self.call(method, path, body, **options)
        if reply.status == HTTPStatus.NOT_FOUND:
            raise Http404
        if reply.status == HTTPStatus.PRECONDITION_FAILED and changed:
            raise Refused(changed)
        if not reply.ok:
            raise refusal_of(reply)
        return reply

    def read(self, path: str, **query: Any) -> Any:
        """Read an object by the API. Raises `Http404` if it does not exist for this person. Any other refusal is a bug."""
        reply = self.call("GET", path, query=query)
        if reply.status == HTTPStatus.NOT_FOUND:
            raise Http404
        if not reply.ok:
            raise RuntimeError(f"The API refused a read: {reply.status} {reply.reason}")
        return reply.data


def page(
    here: str,
    methods: Sequence[str] = LOOKING,
    *,
    act: Callable[..., Any] | None = None,
    least: Role | None = None,
    for_admins: str = "",
) -> Callable[[View], View]:
    """Make `view(request, visit, ...)` a page for people who are signed in. `here` is its name in the navigation.

    A POST calls `act(request, visit, ...)`. The view renders the page if that raises `Refused` or another `Refusal`, or returns
    no response. People below the role `least` get 404. With `for_admins`, the title of the page, everybody but admins gets a 403 page.

    The tenant is the one of ?tenant=, else the one visited last, else the person's first. A person without access to it gets 404; one
    without any tenant is asked to choose.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def page_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            who, tenants = acting(request)
            if who is None:
                return choose(request, here)
            visit = PageContext(request, who, tenants, here)
            if least is not None and not visit.who.role.includes(least):
                raise Http404
            if for_admins and not visit.who.role.includes(Role.ADMIN):
                answer = visit.render("console/for_admins.html", {"what": for_admins}, 403)
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
                except Refusal as refusal:
                    if refusal.status >= 500:
                        raise
                    visit = replace(visit, refusal=Refused(str(refusal), status=refusal.status))
                else:
                    if isinstance(acted, HttpResponse):
                        return acted
                    visit = replace(visit, acted=acted)
            return view(request, visit, *args, **kwargs)

        return framed([*methods, *(ACTING if act is not None and methods == LOOKING else ())])(page_view)

    return decorate


def framed(methods: Sequence[str]) -> Callable[[View], View]:
    """Make a view a page for people who are signed in. It is never cached, runs only the scripts of this site, and connects to no other."""

    def decorate(view: View) -> View:
        guarded = show_outages(login_required(view, login_url="console:login"))
        return send_policy_with_scripts(never_cache(require_http_methods(list(methods))(guarded)))

    return decorate


def choose(request: HttpRequest, here: str) -> HttpResponse:
    """Render the page on which a superuser chooses a tenant, and others learn that they belong to none."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    glass = break_glass.list_open(user)
    context = {
        "asking": tenants_that_ask(glass) if user.is_superuser else [],
        "all_seen": any(each.opened_for is None for each in glass),
        "here": here,
        "wanted": request.path if here else reverse("console:inbox"),
    }
    return render(request, "console/choose_tenant.html", context)


# The tenant that a person acts for: one of their own, or for a superuser any tenant.


LAST = "orchestrator_tenant"  # the cookie with the tenant visited last
REMEMBERED = 365 * 86_400  # seconds


def last_tenant(request: HttpRequest, tenants: Sequence[Tenant]) -> str:
    """Return the tenant visited last in this browser, if it is one of the person's own; else an empty string."""
    last = request.COOKIES.get(LAST, "")
    return last if any(tenant.slug == last for tenant in tenants) else ""


def remember_tenant(
    request: HttpRequest, answer: HttpResponse, who: Principal | None, tenants: Sequence[Tenant]
) -> None:
    """Make the tenant named in the address the default of this browser."""
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


MOST_LISTED = 100  # tenants; a superuser can enter any other by name


def acting(request: HttpRequest, *, first: bool = True) -> tuple[Principal | None, list[Tenant]]:
    """Return the principal for the tenant that the address names, and the person's own tenants, ordered by slug.

    Without a name it is the tenant visited last, else their first. The principal is None if they have no tenant, or if no tenant is named
    and `first` is unset. Raises `Http404` if they may not act for the tenant, or it does not exist.
    """
    user: User = request.user  # type: ignore[assignment]  # a login is required
    slug = request.GET.get("tenant", "")
    own = members.memberships_of(user)
    tenants = [membership.tenant for membership in own]
    # PostgreSQL refuses this character in any text.
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


def tenants_that_ask(glass: Collection[BreakGlass]) -> list[tuple[str, str, int, bool]]:
    """Return the tenants with the most open inbox items: slug, name, number of items, and whether the person has access.

    Only for superusers; `glass` is their break-glass access.
    """
    seen = {each.opened_for for each in glass}
    with system_scope():
        rows = Activity.objects.filter(OPEN_FOR_PEOPLE, tenant__is_active=True).order_by()
        counted = rows.values_list("tenant__slug", "tenant__name", "tenant_id").annotate(items=Count("pk"))
        asking = counted.order_by("-items", "tenant__slug")[:MOST_LISTED]
        return [(slug, name, items, bool(seen & {None, pk})) for slug, name, pk, items in asking]


# Cursors of long lists, which are ordered by a time, newest first, then by id.


def page_of(rows: QuerySet[Any], by: str, after: str, size: int) -> tuple[list[Any], str]:
    """Return the page after a cursor, and the cursor of the next page, if there is one. `by` is the column of the time.

    An invalid cursor means the first page.
    """
    ordering, of = (f"-{by}", "-pk"), rows.model._meta.label
    with suppress(CursorRefused):
        rows = rows.filter(Cursor.read(after, ordering, of).condition())
    page_rows = list(rows.order_by(*ordering)[: size + 1])
    is_last = len(page_rows) <= size
    return page_rows[:size], "" if is_last else Cursor.at(page_rows[size - 1], ordering).text(of)


# CSV files of a page's rows.

#: Spreadsheets treat cells that start with one of these as formulas, which would execute foreign text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(name: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """Return the rows as `name`.csv. Texts that a spreadsheet would treat as formulas get a leading apostrophe."""
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


# Messages: success on the next page, or a refusal on the same page.

NOT_OFFERED = "This action is not available on this page."
NOT_SURE = "Confirm the action: it cannot be undone."


def id_or_404(text: str) -> UUID:
    """Parse an id. Raises `Http404` if it is invalid."""
    try:
        return UUID(text)
    except ValueError as error:
        raise Http404 from error


def refusal_of(reply: Reply) -> Refused:
    """Convert a refusal of the API for the page."""
    errors = [f"{path}: {message}" if path else message for path, message in reply.errors.items()]
    field = next(iter(reply.errors), "")
    return Refused(" ".join(errors) or reply.reason, status=reply.status, field=field)


def text_in(query: Mapping[str, Any], name: str, longest: int = 200) -> str:
    """Return a text of a form or an address, stripped and cut, without the character that PostgreSQL refuses in any text."""
    return str(query.get(name, "")).replace("\x00", "").strip()[:longest]


def number_in(text: str, digits: int = 9) -> int | None:
    """Parse a whole number of a form or an address; None if it is invalid or has more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def refuse_unsure(request: HttpRequest) -> None:
    """Raise `Refused` unless the person has confirmed an action that cannot be undone."""
    if request.POST.get("sure") != "yes":
        raise Refused(NOT_SURE, status=400, field="sure")


# Refusals. Nothing was done then.


BUSY = "Too many conflicting requests arrived at the same time. Nothing was done; try again."


class Refused(Exception):
    """Nothing was done. `status` is the HTTP status of the page, `field` the invalid field of the form."""

    def __init__(self, reason: str, *, status: int = 409, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.field = reason, status, field


@contextmanager
def refuse_when_busy() -> Iterator[None]:
    """Refuse when the database aborts a transaction because of contention. The person may simply try again."""
    try:
        yield
    except OperationalError as error:
        if outages.is_contention(error):
            raise Refused(BUSY, status=503) from error
        raise
