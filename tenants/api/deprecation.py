"""Deprecation: an operation that will go says so in every answer, with the day, long before it goes.

`Deprecation` (RFC 9745) is the moment since which nobody should begin to use it, `Sunset` (RFC 8594) the moment from which it may be
gone, and `Link` says what to use instead. The schema marks it as deprecated. Between the two lie at least six months.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

from django.utils.http import http_date
from drf_spectacular.utils import extend_schema

NOTICE = timedelta(days=182)
DOCUMENTATION = "/api/v1/docs/"

Handler = TypeVar("Handler", bound=Callable[..., Any])


def deprecated(
    *, since: datetime, sunset: datetime, instead: str = DOCUMENTATION
) -> Callable[[Handler], Handler]:
    """For a method or action of a `TenantView`, outermost. Refusals carry the headers as well.

    Raises `ValueError` for times without an offset and for a notice of less than six months.
    """
    if since.tzinfo is None or sunset.tzinfo is None:
        raise ValueError("Both moments need an offset from UTC")
    if sunset - since < NOTICE:
        raise ValueError(f"Between {since:%Y-%m-%d} and {sunset:%Y-%m-%d} lie less than {NOTICE.days} days")
    headers = {
        "Deprecation": f"@{int(since.timestamp())}",
        "Sunset": http_date(sunset.astimezone(UTC).timestamp()),
        "Link": f'<{instead}>; rel="deprecation"',
    }

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def told(view: Any, *args: Any, **kwargs: Any) -> Any:
            view.headers.update(headers)
            return handler(view, *args, **kwargs)

        marked: Handler = extend_schema(deprecated=True)(told)  # type: ignore[assignment]
        return marked

    return decorate
