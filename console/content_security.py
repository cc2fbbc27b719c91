"""No answer leaves without saying what a browser may do with it.

A page of ours may load our style sheets and pictures, our scripts if its view says so, and nothing else. The views of the console and the
page of the API send the policy themselves. To all other answers the middleware adds it: a page of the admin may run the theme's scripts,
any other page may show our style sheets, and an answer that is no page may do nothing at all, even if somebody opens it in a window.
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
    """Send the policy with every answer of the view."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        response[HEADER] = policy
        return response

    return wrapper


def send_policy_with_scripts(view: View) -> View:
    """`send_policy`, for a page with script files of ours, which talk to us alone. Scripts inside the page stay forbidden."""
    return send_policy(view, POLICY_WITH_SCRIPTS)


ADMIN = "/admin/"
NO_PAGE = "default-src 'none'; frame-ancestors 'none'"

# The theme is Alpine's: what stands in its attributes is evaluated, and it sets styles. No script inside a page runs, and none from
# elsewhere; no address but ours is asked for anything, so that nothing that a page shows can be carried away.
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
    """Adds the policy to answers that have none. It comes before all middleware that may answer by itself, as that of static files does."""

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
