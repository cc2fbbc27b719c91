"""The base classes of all views of the API: one tenant, one transaction, one format of answers.

A request is authenticated first. Then the handler runs in the tenant's scope, and its answer is rendered
there, so that nothing is read outside. Any error rolls everything back. Actions after
the commit run before the answer is sent. Deadlocks and serialisation failures are retried.

Resources derive from `ListResource`, `Resource` or `VersionedResource` and contain only what is specific to them: the rows, their
representation, and their changes. The base classes contain the list, the page of a row and the lock before a change; `@describe_resource`
describes the list and the page in the OpenAPI schema.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from inspect import getmembers_static
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import structlog
from django.db import DatabaseError, OperationalError, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_view
from rest_framework.decorators import MethodMapper
from rest_framework.exceptions import NotFound
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import ViewSetMixin

from tenants import outages, turns
from tenants.api import auditing, etags, idempotency, throttling
from tenants.api.bodies import refuse_odd_body
from tenants.api.documentation import operation, when_requested
from tenants.api.etags import Versioned
from tenants.api.problems import problem_of
from tenants.api.serializers import EmptySerializer, StrictSerializer, read, read_change
from tenants.context import APP, tenant_scope
from tenants.principals import Principal, caller_of
from tenants.wire_json import dumps

TRIES = 3
PAUSE_SECONDS = 0.05  # the maximum, times the number of the attempt, so that two conflicting requests do not conflict again

Handler = Callable[..., Any]
Row = TypeVar("Row")
View = TypeVar("View", bound=type[Any])


class TenantView(GenericAPIView):
    """The base of views of tenants' rows. `queryset` is limited to the caller's tenant."""

    # False for views that answer with a stream, or need several transactions. They open `tenant_scope` themselves.
    in_one_transaction: ClassVar[bool] = True
    # Why a view's POST leaves no entry in the audit trail, for example because it changes nothing. Empty: it leaves one.
    not_audited: ClassVar[str] = ""

    # The caller who is charged for the request. Stored, because a failed authentication would fail again.
    _charged: Principal | None = None

    @property
    def principal(self) -> Principal:
        """Return the caller. Only for views that require a credential."""
        principal = caller_of(self.request)
        assert principal is not None, "the view's permissions allow requests without a caller"  # noqa: S101
        return principal

    @property
    def tenant_id(self) -> UUID:
        return self.principal.tenant_id

    def get_queryset(self) -> QuerySet[Any]:
        rows: Any = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):  # the schema is generated without a caller
            return rows.none()
        return rows.for_tenant(self.tenant_id)

    def find_address(self) -> QuerySet[Any] | None:
        """Return the row that the address names, as a query. None if the address names no row of the tenant, or may name a new one."""
        return None

    def answer_page(self, rows: Any, kind: Callable[..., BaseSerializer[Any]]) -> Response:
        """Return one page of the rows, filtered and ordered by the query string."""
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response(kind(page, many=True).data)

    def before_transaction(self) -> None:
        """Do long computations that need no database, so that no transaction is open meanwhile. May raise to refuse the request."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self._charged = caller_of(request)
        if self._charged is not None:
            turns.belongs_to(self._charged.tenant_id)
        if any("\x00" in value for value in kwargs.values() if isinstance(value, str)):
            raise Http404  # PostgreSQL does not accept such a parameter
        if request.method not in SAFE_METHODS and hasattr(self, (request.method or "").lower()):
            refuse_odd_body(request, self)
            # Parsed here, so that a handler that needs no body does not accept an invalid one.
            _ = request.data

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        began = time.thread_time()
        try:
            self.initial(self.request, *args, **kwargs)
            self.response = self._handle(self._handler())
        except Exception as error:  # noqa: BLE001 - becomes a problem; unknown errors are logged
            problem = self.handle_exception(self._error_of_address(error) or error)
            self.response = self.finalize_response(self.request, problem, *args, **kwargs)
            auditing.record_refusal(self, self.response)
        finally:
            throttling.note_work(self._charged, time.thread_time() - began)
        for name, value in self.headers.items():
            self.response.setdefault(name, value)  # a stored answer lacks the headers of this request
        return self.response

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        return Response(status=204)  # `Allow` names the methods; the OpenAPI schema describes them

    def _error_of_address(self, error: Exception) -> Exception | None:
        """Return the error of an invalid request whose address names no row, which is reported before anything else."""
        if self._charged is None or problem_of(error).status != 400:
            return None
        try:
            with tenant_scope(self.tenant_id):
                row = self.find_address()
                return NotFound() if row is not None and not row.exists() else None
        except DatabaseError as outage:
            return outage

    def _handler(self) -> Handler:
        method = (self.request.method or "").lower()
        known = method in self.http_method_names
        return getattr(self, method, self.http_method_not_allowed) if known else self.http_method_not_allowed

    def _handle(self, handler: Handler) -> Any:
        if caller_of(self.request) is None:
            return self._answer(handler)
        with structlog.contextvars.bound_contextvars(tenant=str(self.tenant_id)):
            return self._handle_for_caller(handler)

    def _handle_for_caller(self, handler: Handler) -> Any:
        if not self.in_one_transaction:
            return self._once(idempotency.over_several, handler)
        self.before_transaction()
        turns.give_way()
        return retry_conflicts(lambda: self._in_scope(handler))

    def _in_scope(self, handler: Handler) -> Any:
        with tenant_scope(self.tenant_id):
            response = self._once(idempotency.once, handler)
            if response.status_code >= 400:
                # Roll back what the handler did before it answered with an error.
                transaction.set_rollback(True, using=APP)
        return response

    def _once(self, once: Callable[..., Any], handler: Handler) -> Any:
        return once(
            self.request, self.principal, answer=lambda: self._answer(handler), keep=self._body_to_keep
        )

    def _answer(self, handler: Handler) -> Any:
        before = auditing.before(self)
        body = getattr(handler, "body", None)
        if isinstance(body, type) and issubclass(body, EmptySerializer):
            read(body, self.request.data)
        if not getattr(handler, "is_conditional", True):
            etags.refuse_condition(self.request)
        response = handler(self.request, *self.args, **self.kwargs)
        response = self.finalize_response(self.request, response, *self.args, **self.kwargs)
        answer = response.render() if isinstance(response, Response) else response
        auditing.record_change(self, before, answer)
        return etags.answer_conditionally(self.request, answer)

    def _body_to_keep(self, response: Any) -> bytes:
        data = getattr(response, "data", None)
        # A secret is sent only once, so a repetition under an Idempotency-Key is answered without it.
        answer = {**data, "secret": None} if isinstance(data, Mapping) and "secret" in data else data
        return response.content if answer is data else dumps(answer)


class OfOneRow(TenantView):
    """A view whose address names a row of `queryset`, by `lookup_url_kwarg` or `lookup_field`."""

    def find_address(self) -> QuerySet[Any] | None:
        key = self.kwargs.get(self.lookup_url_kwarg or self.lookup_field)
        return None if key is None else self.get_queryset().filter(**{self.lookup_field: key})


class TenantViewSet(ViewSetMixin, TenantView):
    """`TenantView` for a router, with actions instead of methods. Add REST framework's mixins to it."""

    lookup_value_converter: ClassVar[str]  # in the address of a row

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.lookup_value_converter = "uuid" if cls.lookup_field == "pk" else "str"

    @classmethod
    def get_extra_actions(cls) -> list[Any]:
        """Find the actions like REST framework, but without reading every attribute, because reading `schema` imports drf-spectacular."""
        return [
            member
            for _, member in getmembers_static(
                cls, lambda member: isinstance(getattr(member, "mapping", None), MethodMapper)
            )
        ]


def retry_conflicts(action: Callable[[], Any]) -> Any:
    """Return the result of `action`, which is retried a few times when the database requests it. It must be one transaction, or idempotent.

    A lock timeout is retried once: when many callers decide the same thing, most of them have finished by then. It is not retried more
    often, because each wait blocks a thread for seconds.
    """
    waited = False
    for attempt in range(1, TRIES):
        try:
            return action()
        except OperationalError as error:
            if not outages.is_contention(error) or (waited and not outages.asks_for_repetition(error)):
                raise
            waited = waited or not outages.asks_for_repetition(error)
            time.sleep(random.uniform(0, PAUSE_SECONDS * attempt))  # noqa: S311 - no secret
    return action()


# The handlers of resources have no docstrings, because the schema would use them as descriptions of every resource.


class ListResource(TenantViewSet):
    """Rows that can be listed, with the filters, the search and the order that the view declares."""

    # The serializer for the list, if it has fewer members than a row's own page.
    list_serializer_class: ClassVar[type[BaseSerializer[Any]] | None] = None

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(self.show(page, many=True))

    def show(self, rows: Any, *, many: bool = False) -> Any:
        """Return the representation of a row, or with `many` of the rows of a list."""
        kind = (self.list_serializer_class if many else None) or self.get_serializer_class()
        return kind(rows, many=many).data


class Resource(OfOneRow, ListResource):
    """Rows that can be listed, and read one by one at `address` followed by the lookup field."""

    address: ClassVar[str] = ""
    # Members that change by themselves, for example with work. In the body of a change, they may be old. See also `DigestEtag`.
    volatile: ClassVar[tuple[str, ...]] = ()

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(self.show(self.get_object()))

    def present(self) -> Mapping[str, Any]:
        """Return the row of the address as a GET does."""
        with tenant_scope(self.tenant_id):
            rows = self.find_address()
            return dict(self.show(require_found(None if rows is None else rows.first())))

    def read_change(self, kind: type[StrictSerializer], **context: Any) -> dict[str, Any]:
        """Read the body of a PUT or PATCH, which may contain all members that a GET has returned."""
        return read_change(kind, self.request.data, self.present, self.volatile, **context)

    def answer_created(self, row: Any, data: Any = None) -> Response:
        """Answer 201, with the representation of the row (or `data`), and its address."""
        location = f"{self.address}{getattr(row, self.lookup_field)}/"
        return Response(self.show(row) if data is None else data, status=201, headers={"Location": location})


class VersionedResource(Versioned, Resource):
    """Rows that count their changes, so that a change with `If-Match` is refused when somebody else has changed the row."""

    def lock_row(self) -> Any:
        """Return the row of the address, locked until the end of the transaction.

        Raises `NotFound`, or `PreconditionFailed` when the row does not match the caller's If-Match.
        """
        key = self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        rows = self.rows_to_lock().select_for_update()
        row = require_found(rows.filter(**{self.lookup_field: key}).first())
        self.check_if_match(getattr(row, self.version_field))
        return row

    def save_changed(self, row: Any) -> None:
        """Save a row of `lock_row` as a new version."""
        row.version += 1
        row.save()

    def rows_to_lock(self) -> Any:
        """Return the caller's rows without the annotations and joins of `get_queryset`."""
        rows: Any = type(self).queryset
        return rows.for_tenant(self.tenant_id)


def describe_resource(*, many: str, one: str = "") -> Callable[[View], View]:
    """Add the list to the schema with this summary, and with `one` the page of a row."""

    def decorate(view: View) -> View:
        serializer = view.serializer_class
        assert serializer is not None, f"{view.__name__} has no serializer_class"  # noqa: S101
        list_serializer = getattr(view, "list_serializer_class", None) or serializer
        handlers = {"list": operation(many, answer=list_serializer(many=True), refusals=(400,))}
        if one:
            handlers["retrieve"] = operation(one, answer=serializer, refusals=(404,))
        when_requested(lambda: extend_schema_view(**handlers)(view))
        return view

    return decorate


def put_members(row: Any, members: Mapping[str, Any], names: Iterable[str]) -> None:
    """Set these members of a row. Omitted ones get the values of a new row."""
    empty = type(row)()
    for name in names:
        setattr(row, name, members.get(name, getattr(empty, name)))


def require_found(row: Row | None) -> Row:
    """Return the row. Raises `NotFound` if it is None."""
    if row is None:
        raise NotFound
    return row
