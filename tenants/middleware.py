"""What surrounds every request: its id, and the database role that the platform's admin works under."""

from __future__ import annotations

import re
from collections.abc import Callable

import structlog
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from tenants.context import system_scope
from tenants.identifiers import uuid7

Next = Callable[[HttpRequest], HttpResponse]

# What a caller may choose goes into logs and headers, so it is short and has no spaces, quotes or line ends.
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

ADMIN = "/admin/"
# Where people become somebody else, so whoever they are now must reach it.
ADMIN_DOOR = ("/admin/login/", "/admin/logout/")


class RequestIdMiddleware:
    """Takes X-Request-Id or makes one; it is in the answer, in problems, and in the request's log lines."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        offered = request.headers.get("X-Request-Id", "")
        request_id = offered if REQUEST_ID.fullmatch(offered) else str(uuid7())
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class PlatformAdminMiddleware:
    """A superuser's request under /admin/ sees all tenants, through the role `system`. Nobody else gets in.

    Who signed in is found out before, with the ordinary role; the answer's session is saved after, with the
    same.
    """

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith(ADMIN) or not request.user.is_authenticated:
            return self.get_response(request)
        if request.user.is_superuser:
            with system_scope():
                return self.get_response(request)
        if request.path in ADMIN_DOOR:
            return self.get_response(request)
        raise PermissionDenied("Only superusers of the platform may use the admin.")
