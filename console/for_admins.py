"""Pages that only admins of the tenant see. Others are told so, with the status of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse

from tenants.models import Role

from .page import PageContext, shown

View = Callable[..., HttpResponse]


def for_admins(what: str) -> Callable[[View], View]:
    """Below `page`: shows the view to admins alone. `what` says what it is that others do not see."""

    def made(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, desk: PageContext, *args: Any, **kwargs: Any) -> HttpResponse:
            if not desk.who.role.includes(Role.ADMIN):
                return shown(request, desk, "console/for_admins.html", {"what": what}, 403)
            return view(request, desk, *args, **kwargs)

        return guarded

    return made
