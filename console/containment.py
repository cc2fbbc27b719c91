"""What a page of ours may load: our style sheets and pictures, where it says so our scripts, and nothing else from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse

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


def contained(view: View, policy: str = POLICY) -> View:
    """Send the policy with every answer of the view."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        response["Content-Security-Policy"] = policy
        return response

    return wrapper


def contained_with_scripts(view: View) -> View:
    """`contained`, for a page with script files of ours, which talk to us alone. Scripts inside the page stay forbidden."""
    return contained(view, POLICY_WITH_SCRIPTS)
