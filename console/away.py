"""When PostgreSQL does not answer there is no page, and nobody knows who asks: a person is told so in words, and not by a bare error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from tenants import outages

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponse]
AGAIN_SECONDS = 5


def told_when_away(view: View) -> View:
    """A page that the database has kept from being made is answered 503, by a page that asks nothing of anybody."""

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            return page(request, error)

    return answered


def page(request: HttpRequest, error: BaseException) -> HttpResponse:
    facts = {"action": "page_without_database", "path": request.path, "reason": type(error).__name__}
    logger.warning("A page could not be made", extra=facts)
    # Without the request, whose user would be asked for.
    told = render_to_string("console/away.html", {"has_sent": request.method == "POST"})
    return HttpResponse(told, status=503, headers={"Retry-After": str(AGAIN_SECONDS)})
