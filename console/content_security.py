"""Sends a Content-Security-Policy with every response.

A page may load style sheets and pictures of this site, scripts only if its view allows them, and nothing else. The views of the console and
of the API's documentation set the policy themselves. The middleware adds it to all other responses: pages of the admin may run the theme's
scripts, other pages may load style sheets, and a response that is not HTML may do nothing at all, even if somebody opens it in a window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

HEADER = "Content-Security-Policy"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
POLICY_WITH_SCRIPTS = f"{POLICY}; script-src 'self'; connect-src 'self'"

View = Callable[..., Any]


def send_policy(view: View, policy: str = POLICY) -> View:
    """Send the policy with every response of the view."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        response[HEADER] = policy
        return response

    return wrapper


def send_policy_with_scripts(view: View) -> View:
    """Like `send_policy`, but allow script files of this site, which may connect to this site only. Inline scripts stay forbidden."""
    return send_policy(view, POLICY_WITH_SCRIPTS)


ADMIN = "/admin/"
NO_PAGE = "default-src 'none'; frame-ancestors 'none'"

# The theme uses Alpine, which evaluates attributes and sets styles. Inline scripts and scripts of other sites stay forbidden, and no page
# may connect to another site, so that its data cannot be sent away.
ADMIN_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "object-src 'none'",
        "frame-ancestors 'none'",
    )
)


class ContentPolicyMiddleware:
    """Adds the policy to responses without one. It precedes all middleware that may respond itself, such as that of static files."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if HEADER not in response:
            response[HEADER] = _policy(request, response)
        return response


def _policy(request: HttpRequest, response: HttpResponseBase) -> str:
    if not response.get("Content-Type", "").startswith("text/html"):
        return NO_PAGE
    return ADMIN_POLICY if request.path.startswith(ADMIN) else POLICY
