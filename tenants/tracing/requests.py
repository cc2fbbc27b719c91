"""A span around every request but those of probes. It continues the trace that the caller names in `traceparent`."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import MiddlewareNotUsed
from django.http import HttpRequest, HttpResponse

from tenants import request_context, tracing

Next = Callable[[HttpRequest], HttpResponse]

PROBES = ("/healthz", "/readyz", "/metrics", "/static/")


class TracingMiddleware:
    """Leaves itself out while tracing is off."""

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
            _say_what_became_of(request, response)
        return response


def _say_what_became_of(request: HttpRequest, response: HttpResponse) -> None:
    route = getattr(request.resolver_match, "route", "")
    facts = {"http.response.status_code": response.status_code} | ({"http.route": route} if route else {})
    tracing.note(f"{request.method} {route}".strip(), **facts)
    if response.status_code >= 500:
        tracing.fail(str(response.status_code))
