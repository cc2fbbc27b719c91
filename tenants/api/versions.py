"""`ETag` and `If-Match`: nobody changes what they have not seen.

A view with `Versioned` sends `ETag: "<version>"` with every single object, read or changed. A change with
`If-Match` locks the row first and is refused with 412 when the row has moved on, so between the check and the
change nobody comes in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils.http import parse_etags
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.exceptions import TenantError


class PreconditionFailed(TenantError):
    """The object is no longer, or not yet, as the caller's If-Match says."""

    code = "precondition_failed"
    status = 412


class Versioned:
    """For a `TenantView` whose objects count their changes, and show the number as `version_field`."""

    version_field = "version"

    request: Request

    def get_queryset(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset()  # type: ignore[misc]  # the view's
        return rows.select_for_update(of=("self",)) if self._is_conditional() else rows

    def get_object(self) -> Any:
        found = super().get_object()  # type: ignore[misc]  # the view's
        self.check_if_match(getattr(found, self.version_field))
        return found

    def check_if_match(self, version: int | None) -> None:
        """Raise `PreconditionFailed` unless the caller's If-Match, if any, allows a change of this version.

        None stands for an object that does not exist yet. `get_object` does this by itself.
        """
        if not self._is_conditional():
            return
        wanted = parse_etags(self.request.headers["If-Match"])
        if version is None or not ("*" in wanted or etag_of(version) in wanted):
            now = "does not exist" if version is None else f"is at version {version}"
            raise PreconditionFailed(f"The object {now}. Read it again and decide anew.")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        data = getattr(response, "data", None)
        if response.status_code < 300 and isinstance(response, Response) and isinstance(data, Mapping):
            version = data.get(self.version_field)
            if isinstance(version, int):
                response.headers.setdefault("ETag", etag_of(version))
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # the view's

    def _is_conditional(self) -> bool:
        return self.request.method not in SAFE_METHODS and "If-Match" in self.request.headers


def etag_of(version: int) -> str:
    return f'"{version}"'
