"""`ETag` for objects that do not count their changes: a digest of what is shown.

For objects that change seldom. The change itself is made under the lock that its function takes; between the check of
`If-Match` and that lock somebody may come in between, which is why what people fight over has a version instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from django.utils.http import parse_etags
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.renderers import dumps
from tenants.api.versions import PreconditionFailed


class Digested:
    """For a `TenantView` whose answers with one object are that object."""

    request: Any  # the view's
    # Members that grow by themselves, which are no change of the object.
    passing: ClassVar[tuple[str, ...]] = ()

    def refuse_changed(self, shown: Mapping[str, Any]) -> None:
        """Raise `PreconditionFailed` if the caller's If-Match names another state than the present one, given as shown."""
        if "If-Match" not in self.request.headers:
            return
        wanted = parse_etags(self.request.headers["If-Match"])
        if not ("*" in wanted or self._tag(shown) in wanted):
            raise PreconditionFailed("The object has changed. Read it again and decide anew.")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        data = getattr(response, "data", None)
        is_object = isinstance(data, Mapping) and "results" not in data
        if isinstance(response, Response) and response.status_code < 300 and is_object:
            response.headers.setdefault("ETag", self._tag(data or {}))
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # the view's

    def state_of(self, shown: Mapping[str, Any]) -> Mapping[str, Any]:
        """What of the object makes its tag."""
        return {name: value for name, value in shown.items() if name not in self.passing}

    def _tag(self, shown: Mapping[str, Any]) -> str:
        return etag_of(self.state_of(shown))


def etag_of(shown: Mapping[str, Any]) -> str:
    return f'"{hashlib.sha256(dumps(shown)).hexdigest()[:32]}"'
