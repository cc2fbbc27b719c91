"""Pipelines: definitions, each change of which is a new version, and the start of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.submissions import GivenInputSerializer
from activities.priorities import PriorityField, priority_of
from agents.api.pausing import Pausable
from pipelines import selectors, versions
from pipelines.api.runs import shown_run
from pipelines.api.serializers import (
    PIPELINES,
    RUNS,
    LabelsField,
    PipelineDetailSerializer,
    PipelineRunSerializer,
    PipelineSerializer,
)
from pipelines.exceptions import AlreadyExists, NotFound
from pipelines.models import Pipeline
from pipelines.submission import NewRun, start_run
from tenants import pausing
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.faults import InvalidRequest
from tenants.api.resources import VersionedResource, described
from tenants.api.strict import OPTIONAL, Identifier, Member, StrictSerializer, Text, read
from tenants.models import PauseKind, Role
from tenants.plain_names import LONGEST_NAME, fault_of_name


class NewRunSerializer(StrictSerializer):
    """What a run is given: parameters for all steps, and what its first steps work on."""

    name = Text(
        max_length=LONGEST_NAME,
        help_text="What it is about. Left out, the pipeline's `subject` says it.",
        **OPTIONAL,
    )
    labels = LabelsField(**OPTIONAL)
    params = Member(**OPTIONAL)
    deliverable = Identifier(**OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    input = GivenInputSerializer(**OPTIONAL)

    def validate_name(self, name: str | None) -> str | None:
        if name and (fault := fault_of_name(name)):
            raise serializers.ValidationError(fault)
        return name

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "priority": priority_of(attrs.get("priority"))}


@described(many="The pipelines")
class PipelineViewSet(Pausable, VersionedResource):
    queryset = Pipeline.objects
    serializer_class = PipelineSerializer
    filterset_fields = ("enabled",)
    search_fields = ("key", "name", "description")
    ordering_fields = ("key", "created_at", "updated_at")
    ordering = ("key",)
    lookup_field = "key"
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = {
        "create": Role.ADMIN,
        "update": Role.ADMIN,
        "runs": Role.OPERATOR,
        **Pausable.required_role,
    }

    def before_transaction(self) -> None:
        if self.action in ("create", "update"):
            versions.read_ahead(self.request.data)

    @operation("One pipeline with its newest definition", answer=PipelineDetailSerializer, refusals=(404,))
    def retrieve(self, request: Request, key: str) -> Response:
        return Response(self._shown(key))

    @operation(
        "Make a pipeline",
        request=OpenApiTypes.OBJECT,
        answer=PipelineDetailSerializer,
        status=201,
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """The body is the definition, as in a pipeline file. Every fault is named by its path."""
        body: Any = request.data
        version = versions.save(self.tenant_id, body, actor=self.principal.actor)
        key = version.pipeline.key
        if version.number != 1:
            raise AlreadyExists("pipeline", key, "PUT makes a new version of it")
        return Response(self._shown(key), status=201, headers={"Location": f"{PIPELINES}{key}/"})

    @operation(
        "Save a new version of a pipeline",
        request=OpenApiTypes.OBJECT,
        answers={200: PipelineDetailSerializer, 201: PipelineDetailSerializer},
        refusals=(400, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, key: str) -> Response:
        """Runs under way keep the version that they began with. A pipeline that is not there is made."""
        body: Any = request.data
        if body.setdefault("key", key) != key:
            raise InvalidRequest([("key", f"is not {key!r}, the key in the address")])
        present = self.get_queryset().filter(key=key).first()
        self.check_if_match(present.latest if present else None)
        version = versions.save(self.tenant_id, body, actor=self.principal.actor)
        return Response(self._shown(key), status=200 if version.number > 1 else 201)

    @operation(
        "Start a run of the newest version",
        request=NewRunSerializer,
        answer=PipelineRunSerializer,
        status=201,
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    @action(detail=True, methods=["post"])
    def runs(self, request: Request, key: str) -> Response:
        given = read(NewRunSerializer, request.data)
        new = NewRun(
            name=given.get("name") or "",
            labels=given.get("labels") or {},
            params=given.get("params", {}),
            input=given.get("input") or None,
            deliverable_id=given.get("deliverable"),
            priority=given["priority"],
            requested_identity=self.principal.identity,
        )
        run = start_run(self.tenant_id, key, new, actor=self.principal.actor)
        return Response(
            shown_run(self.tenant_id, run.pk), status=201, headers={"Location": f"{RUNS}{run.pk}/"}
        )

    def switch(self, *, paused: bool, key: str) -> Mapping[str, Any]:
        """Of its runs, those under way and those that begin meanwhile."""
        pipeline = self.get_queryset().filter(key=key).first()
        if pipeline is None:
            raise NotFound("pipeline", key)
        self.check_if_match(pipeline.latest)
        return self.switch_part(PauseKind.PIPELINE, pipeline.pk, key, paused=paused)

    def get_queryset(self) -> QuerySet[Any]:
        return pausing.with_pauses(super().get_queryset(), PauseKind.PIPELINE)

    def _shown(self, key: str) -> Any:
        # Not `get_object`: that would hold an If-Match against the version that was just made.
        rows = pausing.with_pauses(Pipeline.objects.for_tenant(self.tenant_id), PauseKind.PIPELINE)
        pipeline = rows.filter(key=key).first()
        if pipeline is None:
            raise NotFound("pipeline", key)
        newest = selectors.newest_version(self.tenant_id, pipeline)
        return PipelineDetailSerializer(
            (pipeline, newest, selectors.versions_of(self.tenant_id, pipeline))
        ).data
