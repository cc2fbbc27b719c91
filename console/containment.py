"""What a page of ours may load: its own style sheet and pictures, and nothing else from anywhere."""

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

View = Callable[..., Any]


def contained(view: View) -> View:
    """Send the policy with every answer of the view."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        response["Content-Security-Policy"] = POLICY
        return response

    return wrapper
