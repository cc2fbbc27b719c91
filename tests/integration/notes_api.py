"""A small API of its own for the tests of the door: activities as notes that callers may write, and ways to
go wrong.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar
from uuid import uuid4

import django_filters
import psycopg
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import OperationalError, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter

from activities.models import Activity
from tenants.api import problems
from tenants.api.etags import Versioned
from tenants.api.filters import StrictFilterSet, WholeNumberFilter
from tenants.api.permissions import PlatformPermission
from tenants.api.views import TenantView, TenantViewSet
from tenants.context import tenant_scope
from tenants.models import Role, Tenant


def names_of(tenant: Tenant) -> list[str]:
    """The names of all notes of a tenant, as they are in the database."""
    with tenant_scope(tenant.pk):
        return sorted(Activity.objects.values_list("name", flat=True))


class NoteSerializer(serializers.ModelSerializer[Activity]):
    class Meta:
        model = Activity
        fields = ("id", "name", "priority", "version", "created_at", "started_at")
        read_only_fields = ("id", "version", "created_at", "started_at")


class NoteFilter(StrictFilterSet):
    name = django_filters.CharFilter()
    priority = WholeNumberFilter()
    status = django_filters.MultipleChoiceFilter(choices=[("created", "created"), ("done", "done")])
    created = django_filters.DateTimeFromToRangeFilter(field_name="created_at")

    class Meta:
        model = Activity
        fields = ("name", "priority", "status", "created")


class StepSerializer(serializers.Serializer[Any]):
    depends_on = serializers.ListField(child=serializers.RegexField(r"^[a-z]+$"), required=False)
    retry = serializers.DictField(child=serializers.IntegerField(), required=False)


class PlanSerializer(serializers.Serializer[Any]):
    steps = StepSerializer(many=True)

    def validate(self, plan: dict[str, Any]) -> dict[str, Any]:
        if not plan["steps"]:
            raise serializers.ValidationError("A plan needs a step.")
        return plan


class Occupied(Exception):
    """A domain error that says everything about itself."""

    code = "occupied"
    status = 409
    retry_after = 2.5
    problem_members: ClassVar[dict[str, Any]] = {"holder": "user:ann", "status": 200, "code": "overwritten?"}


class Misdrawn(Exception):
    """A domain error with faults."""

    code = "misdrawn"
    status = 400

    def __init__(self) -> None:
        super().__init__("two faults")
        self.errors = [{"path": "steps[0]", "message": "no end"}, ("steps[1].when", "no such step")]


class Missing(Exception):
    """A domain error about something that is not there, or is somebody else's."""

    code = "not_found"
    status = 404


class Foreign(Exception):
    """An error of a library, with attributes as domain errors have them."""

    def __init__(self) -> None:
        super().__init__("password=hunter2")
        self.code, self.status = "E42", 402


class NoteViewSet(Versioned, ListModelMixin, RetrieveModelMixin, TenantViewSet):
    queryset = Activity.objects
    serializer_class = NoteSerializer
    filterset_class = NoteFilter
    search_fields = ("name",)
    ordering_fields = ("created_at", "name", "priority", "started_at")
    required_role: ClassVar[dict[str, Role]] = {"decide": Role.REVIEWER, "destroy": Role.ADMIN}
    scope = "notes"

    #: For tests that need to stand inside a handler.
    inside: ClassVar[threading.Event | None] = None
    leave: ClassVar[threading.Event | None] = None
    fail_with: ClassVar[list[Exception]] = []

    def create(self, request: Request) -> Response:
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        note = serializer.save(tenant_id=self.tenant_id, assignee_type="human", human_role="editor")
        note.refresh_from_db()
        if self.inside and self.leave:
            self.inside.set()
            assert self.leave.wait(60)
        if self.fail_with:
            raise self.fail_with.pop(0)
        return Response(
            self.get_serializer(note).data, status=201, headers={"Location": f"/api/notes/{note.pk}/"}
        )

    def partial_update(self, request: Request, pk: str) -> Response:
        note = self.get_object()
        serializer = self.get_serializer(note, data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        rows = Activity.objects.for_tenant(self.tenant_id).filter(pk=note.pk)
        rows.update(version=F("version") + 1, **serializer.validated_data)
        note.refresh_from_db()
        return Response(self.get_serializer(note).data)

    def destroy(self, request: Request, pk: str) -> Response:
        note = self.get_object()
        # The history of activities may only be added to, so Django's own collector would be refused.
        Activity.objects.for_tenant(self.tenant_id).filter(pk=note.pk)._raw_delete("default")
        return Response(status=204)

    @action(detail=True, methods=["post"])
    def decide(self, request: Request, pk: str) -> Response:
        return Response(self.get_serializer(self.get_object()).data)

    @action(detail=False, methods=["post"])
    def half(self, request: Request) -> Response:
        """Writes, then answers with an error instead of raising one."""
        Activity.objects.create(
            tenant_id=self.tenant_id, name="half", assignee_type="human", human_role="editor"
        )
        return Response({"code": "half_done"}, status=409)

    @action(detail=False, methods=["post"])
    def secret(self, request: Request) -> Response:
        return Response({"name": "key", "secret": "s3cret"}, status=201)


class PlanView(TenantView):
    required_role = Role.OPERATOR

    def post(self, request: Request) -> Response:
        PlanSerializer(data=request.data).is_valid(raise_exception=True)
        return Response(status=204)


class BatchView(TenantView):
    max_body_bytes = 1024
    allows_array = True

    def post(self, request: Request) -> Response:
        return Response({"received": request.data})


class RegistryView(TenantView):
    permission_classes = (PlatformPermission,)

    def get(self, request: Request) -> Response:
        return Response({})

    def put(self, request: Request) -> Response:
        return Response({})


class HookView(TenantView):
    """What is to happen after the commit has happened when the answer leaves."""

    done: ClassVar[list[str]] = []

    def post(self, request: Request) -> Response:
        transaction.on_commit(lambda: self.done.append("after commit"), using="default", robust=True)
        return Response(status=400 if request.data.get("fail") else 204)


FAILURES: dict[str, Exception] = {
    "unknown": RuntimeError("password=hunter2 at /srv/secret.py"),
    "occupied": Occupied("Ann is at it."),
    "misdrawn": Misdrawn(),
    "database": OperationalError("server closed the connection unexpectedly at 10.0.0.7"),
    "hidden": NotFound("globex has this one"),
    "missing": Missing("globex has this one"),
    "foreign": Foreign(),
    "django": DjangoValidationError({"name": ["too odd"], "__all__": ["does not add up"]}),
}


class FailView(TenantView):
    def get(self, request: Request, how: str) -> Response:
        raise FAILURES[how]


class CauseView(TenantView):
    """Passes wrong values on to the database, as a careless view might."""

    def get(self, request: Request, how: str) -> Response:
        if how == "range":
            Activity.objects.for_tenant(self.tenant_id).update(priority=99999)
        note = Activity(tenant_id=self.tenant_id, name="one", assignee_type="human", human_role="editor")
        if how == "gone":
            note.parent_id = uuid4()
        note.save(force_insert=True)
        note.save(force_insert=True)
        raise AssertionError("the second insert must fail")


def deadlock() -> OperationalError:
    error = OperationalError("deadlock detected")
    error.__cause__ = psycopg.errors.DeadlockDetected()
    return error


def lock_timeout() -> OperationalError:
    error = OperationalError("canceling statement due to lock timeout")
    error.__cause__ = psycopg.errors.LockNotAvailable()
    return error


def broken_page(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("outside of any view of ours")


router = DefaultRouter(use_regex_path=False)
router.include_root_view = False
router.register("notes", NoteViewSet, basename="note")

urlpatterns = [
    path("api/", include(router.urls)),
    path("api/plans/", PlanView.as_view()),
    path("api/batch/", BatchView.as_view()),
    path("api/registry/", RegistryView.as_view()),
    path("api/hook/", HookView.as_view()),
    path("api/fail/<str:how>/", FailView.as_view()),
    path("api/cause/<str:how>/", CauseView.as_view()),
    path("api/broken/", broken_page),
    path("broken/", broken_page),
    path("admin/", lambda request: HttpResponse("inside")),
    path("admin/login/", lambda request: HttpResponse("login")),
]
handler400 = problems.bad_request
handler403 = problems.permission_denied
handler404 = problems.not_found
handler500 = problems.server_error
