"""Signing in: the doors of the admin and of the console are watched, and so is what is tried at them."""

from __future__ import annotations

from collections.abc import Callable

from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from tenants import audit, lockout
from tenants.audit import actors
from tenants.audit.origin import address_of
from tenants.audit.redaction import one_line
from tenants.context import APP

DOORS = ("/admin/login/", "/login/")
WAYS_OUT = ("/admin/logout/", "/logout/")
LOGIN = "login"


class SigningInMiddleware:
    """Answers 429 to whoever has failed too often, before the password is looked at, and writes every attempt to the audit trail.

    A name that nobody has is treated like any other: the same answers, the same counting, and Django hashes the password all the same.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and request.path in DOORS:
            return self._tried(request)
        if request.method == "POST" and request.path in WAYS_OUT and request.user.is_authenticated:
            leaving = audit.actor_of(request.user)
            response = self.get_response(request)
            note("login.ended", leaving)
            return response
        return self.get_response(request)

    def _tried(self, request: HttpRequest) -> HttpResponse:
        name, address = request.POST.get("username", "")[:254], address_of(request)
        said = lockout.attempt(LOGIN, address, name)
        if not said.allowed:
            note(
                "login.locked",
                actors.Actor("nobody", "", name),
                outcome="refused",
                retry_after=said.retry_after,
            )
            return too_many(request, said.retry_after)
        response = self.get_response(request)
        if response.status_code == 302 and request.user.is_authenticated:
            said.succeeded()
            note("login.succeeded", audit.actor_of(request.user))
        else:
            note("login.failed", actors.Actor("nobody", "", name), outcome="failed")
        return response


def note(operation: str, actor: audit.Actor, outcome: str = "done", **detail: int) -> None:
    """In the chain of the platform: who signs in belongs to no tenant yet. A database that is away keeps nobody out."""
    try:
        with transaction.atomic(using=APP):
            about = ("user", one_line(actor.name))
            audit.record(operation, actor=actor, about=about, outcome=outcome, detail=detail)
    except DatabaseError:
        return


def too_many(request: HttpRequest, retry_after: int) -> HttpResponse:
    context = {"minutes": -(-retry_after // 60), "address": request.path}
    response = TemplateResponse(request, "console/locked_out.html", context, status=429)
    response["Retry-After"] = str(retry_after)
    response["Cache-Control"] = "no-store"
    return response.render()
