"""Middleware of every request: its span, its id, no body for HEAD, and the tenants that a request of the admin may access."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import psycopg
from django.contrib import messages
from django.core.exceptions import MiddlewareNotUsed, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.views import defaults

from tenants import admin_scope, audit, request_context, tracing
from tenants.bounds import TooManyOwned
from tenants.exceptions import TenantNotVisible
from tenants.identifiers import uuid7

PROBES = ("/healthz", "/readyz", "/metrics", "/static/")


class TracingMiddleware:
    """Opens a span around every request except probes. It continues the caller's trace in `traceparent`.

    It is not installed while tracing is off.
    """

    def __init__(self, get_response: Next) -> None:
        if not tracing.is_on():
            raise MiddlewareNotUsed
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith(PROBES):
            return self.get_response(request)
        method = request.method or "GET"
        attributes = {
            "http.request.method": method,
            "url.path": request.path,
            "orchestrator.request_id": request_context.current().get(request_context.REQUEST, ""),
        }
        caller = {"traceparent": request.headers.get("traceparent", "")}
        with tracing.span(method, tracing.SERVER, attributes=attributes, causes=[caller]):
            response = self.get_response(request)
            _record_outcome(request, response)
        return response


def _record_outcome(request: HttpRequest, response: HttpResponse) -> None:
    route = getattr(request.resolver_match, "route", "")
    facts = {"http.response.status_code": response.status_code} | ({"http.route": route} if route else {})
    tracing.note(f"{request.method} {route}".strip(), **facts)
    if response.status_code >= 500:
        tracing.fail(str(response.status_code))


logger = logging.getLogger(__name__)

Next = Callable[[HttpRequest], HttpResponse]

# A caller's id goes into logs and headers, so it must be short, without spaces, quotes or line breaks.
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

ADMIN = "/admin/"
# People sign in as somebody else there, so everybody must be able to reach these.
SIGN_IN_PATHS = ("/admin/login/", "/admin/logout/")


class HeadMiddleware:
    """Removes the body of answers to HEAD but keeps its length. Otherwise gunicorn would remove it and log a warning each time."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.method == "HEAD" and not response.streaming:
            response.headers.setdefault("Content-Length", str(len(response.content)))
            response.content = b""
        return response


class RequestIdMiddleware:
    """Uses the caller's X-Request-Id or creates one. It is in the answer, in problems, and in the request's log lines."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        callers_id = request.headers.get("X-Request-Id", "")
        request_id = callers_id if REQUEST_ID.fullmatch(callers_id) else str(uuid7())
        request.request_id = request_id  # type: ignore[attr-defined]
        origin = audit.Origin(request_id, audit.address_of(request))
        with request_context.of_request(request_id), audit.from_origin(origin):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class AdminMiddleware:
    """Limits a request under /admin/ to the tenants of the signed-in person. People without any are refused.

    The person is read before, and the session is saved afterwards, both with the ordinary database role.
    """

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if (
            not request.path.startswith(ADMIN)
            or not request.user.is_authenticated
            or request.path in SIGN_IN_PATHS
        ):
            return self.get_response(request)
        scope = admin_scope.of_user(request.user)
        if scope.is_empty:
            raise PermissionDenied(
                "Only superusers, admins of a tenant, and staff who are members of one may use the admin."
            )
        request.admin_scope = scope  # type: ignore[attr-defined]
        with scope.scope():
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer a refusal of the database as a missing permission, even if our own code did not check."""
        is_refusal = isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege)
        if request.path.startswith(ADMIN) and (is_refusal or isinstance(error, TenantNotVisible)):
            logger.warning(
                "The admin was denied access to a row",
                extra={"action": "admin_refused", "path": request.path},
            )
            return defaults.permission_denied(request, PermissionDenied("This belongs to another tenant."))
        if request.path.startswith(ADMIN) and isinstance(error, TooManyOwned):
            messages.error(request, str(error))
            return HttpResponseRedirect(request.path)
        return None
