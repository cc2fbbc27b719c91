"""A page of the console: who looks, for which tenant, and what a browser may do with it.

A view is decorated with `page`, gets the desk that the person sits at, and answers with `shown`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from console.acting import acting, tenants_that_ask
from console.away import told_when_away
from console.containment import contained_with_scripts
from tenants import break_glass
from tenants.models import Tenant
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

View = Callable[..., HttpResponse]
LOOKING = ("GET", "HEAD")
ACTING = ("POST",)


@dataclass(frozen=True, slots=True)
class Desk:
    """At whose desk a person sits, and at which page. `tenants` are the person's own."""

    who: Principal
    tenants: Sequence[Tenant]
    here: str

    @property
    def tenant_id(self) -> UUID:
        return self.who.tenant_id

    @property
    def query(self) -> str:
        """What an address needs to stay with this tenant: `tenant=acme`."""
        return urlencode({"tenant": self.who.tenant})


def page(here: str, methods: Sequence[str] = LOOKING) -> Callable[[View], View]:
    """Make `view(request, desk, ...)` a page for people who signed in. `here` is its name in the navigation.

    It acts for the tenant chosen with ?tenant=, else for the person's first one. Who may not is answered 404; who belongs to no tenant is
    asked to choose. The page is never cached, runs only scripts from our own files, and talks to nobody but us.
    """

    def made(view: View) -> View:
        @wraps(view)
        def at_desk(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            desk = sit_down(request, here)
            return choose(request, here) if desk is None else view(request, desk, *args, **kwargs)

        guarded = told_when_away(login_required(at_desk, login_url="console:login"))
        return contained_with_scripts(never_cache(require_http_methods(list(methods))(guarded)))

    return made


def sit_down(request: HttpRequest, here: str) -> Desk | None:
    """None when a superuser has still to choose a tenant, or the person belongs to none. Raises `Http404`."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    who, tenants = acting(user, request.GET.get("tenant", ""))
    return None if who is None else Desk(who, tenants, here)


def choose(request: HttpRequest, here: str) -> HttpResponse:
    """Where a superuser chooses for whom to look, and where others learn that they belong to no tenant."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    glass = break_glass.broken_by(user)
    context = {
        "asking": tenants_that_ask(glass) if user.is_superuser else [],
        "all_seen": any(each.opened_for is None for each in glass),
        "here": here,
        "wanted": request.path if here else reverse("console:inbox"),
    }
    return render(request, "console/choose_tenant.html", context)


def shown(
    request: HttpRequest, desk: Desk, template: str, context: dict[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    """The page from its template, within the console's frame."""
    framed = {"acting": desk.who, "tenants": desk.tenants, "here": desk.here, "desk": desk, **(context or {})}
    return render(request, template, framed, status=status)
