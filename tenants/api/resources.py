"""Resources of the API: a list, a page for each row, and rows that nobody changes unseen. Each is said once, here.

A view set derives from `ListResource`, `Resource` or `VersionedResource` and says what is its own: the rows, how one is shown, what a
change does. `@described` gives the list and the page their place in the OpenAPI schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from drf_spectacular.utils import extend_schema_view
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from tenants.api.documentation import operation, when_asked
from tenants.api.etags import Versioned
from tenants.api.views import TenantViewSet

View = TypeVar("View", bound=type[Any])


# The handlers have no docstrings: the schema would show them as descriptions of every resource.


class ListResource(TenantViewSet):
    """Rows that can be listed, with the filters, the search and the order that the view names."""

    # How a row looks in the list, where that is less than on its own page.
    list_serializer_class: ClassVar[type[BaseSerializer[Any]] | None] = None

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(self.show(page, many=True))

    def show(self, found: Any, *, many: bool = False) -> Any:
        """A row as the API shows it, or many as its list does."""
        kind = (self.list_serializer_class if many else None) or self.get_serializer_class()
        return kind(found, many=many).data


class Resource(ListResource):
    """Rows that can be listed, and read one by one at `address` and what the lookup field of the row is."""

    address: ClassVar[str] = ""

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(self.show(self.get_object()))

    def answer_created(self, row: Any, data: Any = None) -> Response:
        """201, with the row as shown (or `data`), and where it is from now on."""
        place = f"{self.address}{getattr(row, self.lookup_field)}/"
        return Response(self.show(row) if data is None else data, status=201, headers={"Location": place})


class VersionedResource(Versioned, Resource):
    """Rows that count their changes, so that a change with `If-Match` is refused when somebody else came first."""

    def lock_row(self) -> Any:
        """The row that the address names, locked to the end of the transaction.

        Raises `NotFound`, or `PreconditionFailed` when the row is not as the caller's If-Match says.
        """
        key = self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        rows = self.rows_to_lock().select_for_update()
        row = rows.filter(**{self.lookup_field: key}).first()
        if row is None:
            raise NotFound
        self.check_if_match(getattr(row, self.version_field))
        return row

    def rows_to_lock(self) -> Any:
        """The caller's rows as they are stored: without what `get_queryset` reads beside them."""
        rows: Any = type(self).queryset
        return rows.for_tenant(self.tenant_id)


def described(*, many: str, one: str = "") -> Callable[[View], View]:
    """Put the list into the schema with this summary, and with `one` the page of a row."""

    def decorate(view: View) -> View:
        shown = view.serializer_class
        assert shown is not None, f"{view.__name__} does not say how its rows are shown"  # noqa: S101
        listed = getattr(view, "list_serializer_class", None) or shown
        handlers = {"list": operation(many, answer=listed(many=True), refusals=(400,))}
        if one:
            handlers["retrieve"] = operation(one, answer=shown, refusals=(404,))
        when_asked(lambda: extend_schema_view(**handlers)(view))
        return view

    return decorate
