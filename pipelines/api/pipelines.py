"""The API of pipelines with their versions, of starting runs, and of templates."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.submissions import GivenInputSerializer
from activities.schemas import PriorityField, errors_of_priority, priority_of
from agents import configuration
from agents.api.configurations import DAY, RetrySerializer
from agents.api.pausing import Pausable
from agents.api.role_names import RoleName
from pipelines import selectors, versions
from pipelines.api.runs import RUNS, PipelineRunSerializer, show_run
from pipelines.definition import DefinitionError, InputError
from pipelines.definition.reading import ABOUT_IDENTIFIERS, IDENTIFIER
from pipelines.exceptions import AlreadyExists, NotFound
from pipelines.models import ActivityTemplate, Pipeline
from pipelines.subjects import errors_of_labels
from pipelines.submission import NewRun, start_run
from tenants import pausing
from tenants.api.documentation import change, command, creation, operation
from tenants.api.etags import DigestEtag, digest_of
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    Flag,
    Identifier,
    Member,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import Resource, VersionedResource, describe_resource, put_members
from tenants.models import PauseKind, Role
from tenants.plain_names import LONGEST_NAME, error_of_name

PIPELINES = "/api/v1/pipelines/"
TEMPLATES = "/api/v1/templates/"


class PipelineSerializer(ResponseSerializer):
    """A pipeline, without its definition."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField(
        help_text="Whether it is paused: no new work of its runs starts until it is resumed."
    )
    version = serializers.IntegerField(
        source="latest", help_text="The number of the newest version; the ETag begins with it."
    )
    created_by = serializers.CharField(help_text="Who saved its first version.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    link = Computed(str, lambda pipeline: f"{PIPELINES}{pipeline.key}/")


class VersionSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(source="number")
    digest = serializers.CharField(help_text="A hash of the definition; equal definitions have the same.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class PipelineDetailSerializer(PipelineSerializer):
    """A pipeline with its newest definition, in which templates are resolved."""

    definition = serializers.DictField()
    versions = VersionSerializer(many=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        pipeline, newest, versions = instance
        return {
            **PipelineSerializer(pipeline).data,
            "definition": newest.definition if newest else None,
            "versions": VersionSerializer(versions, many=True).data,
        }


class LabelsField(serializers.DictField):
    """Names and texts by which people find a run."""

    child = serializers.CharField()

    def to_internal_value(self, data: Any) -> Any:
        if errors := list(errors_of_labels(data)):
            raise serializers.ValidationError(
                {name: [text] for name, text in errors if name} or [errors[0][1]]
            )
        return data


class NewRunSerializer(StrictSerializer):
    """A new run: parameters for all steps, and the input of its first steps."""

    name = Text(
        max_length=LONGEST_NAME,
        help_text="What the run is about. Default: the pipeline's `subject`.",
        **OPTIONAL,
    )
    labels = LabelsField(**OPTIONAL)
    params = Member(**OPTIONAL)
    deliverable = Identifier(**OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    input = GivenInputSerializer(**OPTIONAL)

    def validate_name(self, name: str | None) -> str | None:
        if name and (error := error_of_name(name)):
            raise serializers.ValidationError(error)
        return name

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        return errors_of_priority(attrs)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "priority": priority_of(attrs.get("priority"))}


@describe_resource(many="The pipelines")
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

    def find_address(self) -> QuerySet[Any] | None:
        return None if self.action == "update" else super().find_address()  # it creates the pipeline

    def before_transaction(self) -> None:
        if self.action in ("create", "update"):
            versions.read_ahead(self.request.data)

    @operation("One pipeline with its newest definition", answer=PipelineDetailSerializer, refusals=(404,))
    def retrieve(self, request: Request, key: str) -> Response:
        return Response(self._render(key))

    @creation("Create a pipeline", OpenApiTypes.OBJECT, PipelineDetailSerializer)
    def create(self, request: Request) -> Response:
        """The body is the definition, as in a pipeline file. Errors name their paths."""
        body: Any = request.data
        version = versions.save(self.tenant_id, body, actor=self.principal.actor)
        key = version.pipeline.key
        if version.number != 1:
            raise AlreadyExists("pipeline", key, "PUT makes a new version of it")
        return Response(self._render(key), status=201, headers={"Location": f"{PIPELINES}{key}/"})

    @change(
        "Save a new version of a pipeline",
        OpenApiTypes.OBJECT,
        refusals=(),
        answers={200: PipelineDetailSerializer, 201: PipelineDetailSerializer},
    )
    def update(self, request: Request, key: str) -> Response:
        """Current runs keep the version that they began with. If the pipeline does not exist, it is created."""
        body: Any = request.data
        is_other = body.get("key") not in (None, key)
        body["key"] = key
        present = self.get_queryset().filter(key=key).first()
        self.check_if_match(present.latest if present else None)
        try:
            version = versions.save(self.tenant_id, body, actor=self.principal.actor)
        except DefinitionError as error:
            others = [InputError("key", _explain_other_key(key))] if is_other else []
            raise DefinitionError([*others, *error.errors]) from error
        if is_other:  # what was saved is rolled back
            raise InvalidRequest([("key", _explain_other_key(key))])
        return Response(self._render(key), status=200 if version.number > 1 else 201)

    @command("Start a run of the newest version", NewRunSerializer, PipelineRunSerializer, status=201)
    @action(detail=True, methods=["post"])
    def runs(self, request: Request, key: str) -> Response:
        """With If-Match only if the newest version is the one that the caller has read."""
        body = read(NewRunSerializer, request.data)
        if "If-Match" in request.headers:
            self._find_unchanged(key)
        new = NewRun(
            name=body.get("name") or "",
            labels=body.get("labels") or {},
            params=body.get("params", {}),
            input=body.get("input") or None,
            deliverable_id=body.get("deliverable"),
            priority=body["priority"],
            requested_identity=self.principal.identity,
        )
        run = start_run(self.tenant_id, key, new, actor=self.principal.actor)
        data = show_run(self.tenant_id, run.pk)
        # Its `version` is the pipeline's, so it is not the run's tag.
        return Response(data, status=201, headers={"Location": f"{RUNS}{run.pk}/", "ETag": digest_of(data)})

    def switch(self, *, paused: bool, key: str) -> Mapping[str, Any]:
        """Of its runs, those under way and those that begin meanwhile."""
        return self.switch_part(PauseKind.PIPELINE, self._find_unchanged(key).pk, key, paused=paused)

    def _find_unchanged(self, key: str) -> Pipeline:
        """Return the pipeline at the version of If-Match, if there is one; then it stays at that version until the end of the request."""
        rows: Any = self.get_queryset()
        pipeline: Pipeline = rows.filter(key=key).first_or_raise(NotFound("pipeline", key))
        self.check_if_match(pipeline.latest)
        return pipeline

    def get_queryset(self) -> QuerySet[Any]:
        return pausing.with_pauses(super().get_queryset(), PauseKind.PIPELINE)

    def _render(self, key: str) -> Any:
        # Not `get_object`, which would compare If-Match with the version that was just saved.
        rows = pausing.with_pauses(Pipeline.objects.for_tenant(self.tenant_id), PauseKind.PIPELINE)
        pipeline = rows.filter(key=key).first_or_raise(NotFound("pipeline", key))
        newest = selectors.newest_version(self.tenant_id, pipeline)
        return PipelineDetailSerializer(
            (pipeline, newest, selectors.versions_of(self.tenant_id, pipeline))
        ).data


def _explain_other_key(key: str) -> str:
    return f"is not {key!r}, the key in the address"


LONGEST_DESCRIPTION = 20_000


class TemplateSerializer(ResponseSerializer):
    """A template for steps of several pipelines. A step that names it takes from it every member that the step does not set itself."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    agent_role = Computed(str | None, lambda template: template.agent_role or None)
    human_role = Computed(str | None, lambda template: template.human_role or None)
    requires_approval = serializers.BooleanField()
    is_approval_gate = serializers.BooleanField()
    params = serializers.DictField()
    retry = serializers.DictField()
    timeout_seconds = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()


class TemplateBodySerializer(StrictSerializer):
    """A complete template, without its key."""

    name = Text(max_length=200)
    description = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_DESCRIPTION, **OPTIONAL)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    requires_approval = Flag(**OPTIONAL)
    is_approval_gate = Flag(**OPTIONAL)
    params = Member(**OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        agent, human = attrs.get("agent_role"), attrs.get("human_role")
        errors: dict[str, list[str]] = {}
        if agent and human:
            errors["human_role"] = ["cannot be given together with agent_role"]
        if agent and (unknown := configuration.errors_of_role(agent)):
            errors["agent_role"] = unknown
        if attrs.get("is_approval_gate") and (agent or attrs.get("requires_approval")):
            errors["is_approval_gate"] = ["is for a person's work"]
        if attrs.get("requires_approval") and human:
            errors["requires_approval"] = ["is for an agent's work"]
        return errors


class KeyedSerializer(StrictSerializer):
    """Base of new objects with a key."""

    key = Text(max_length=63, help_text=ABOUT_IDENTIFIERS)

    def validate_key(self, key: str) -> str:
        if not IDENTIFIER.fullmatch(key):
            raise serializers.ValidationError(ABOUT_IDENTIFIERS)
        return key


class NewTemplateSerializer(TemplateBodySerializer, KeyedSerializer):
    pass


class ChangedTemplateSerializer(TemplateBodySerializer):
    """A complete template. Its key may be omitted."""

    key = Text(help_text="As in the address.", **OPTIONAL)

    def validate_key(self, key: str) -> str:
        if key != self.context["key"]:
            raise serializers.ValidationError(_explain_other_key(self.context["key"]))
        return key


@describe_resource(many="The templates", one="One template")
class TemplateViewSet(DigestEtag, Resource):
    queryset = ActivityTemplate.objects
    serializer_class = TemplateSerializer
    address = TEMPLATES
    search_fields = ("key", "name", "description")
    ordering_fields = ("key", "created_at")
    ordering = ("key",)
    lookup_field = "key"
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = {"create": Role.ADMIN, "update": Role.ADMIN}

    @creation("Create a template", NewTemplateSerializer, TemplateSerializer)
    def create(self, request: Request) -> Response:
        body = read(NewTemplateSerializer, request.data)
        own = ActivityTemplate.objects.for_tenant(self.tenant_id)
        template, was_created = own.get_or_create(tenant_id=self.tenant_id, key=body["key"], defaults=body)
        if not was_created:
            raise AlreadyExists("template", body["key"])
        template.refresh_from_db()
        return self.answer_created(template)

    @change("Change a template", ChangedTemplateSerializer, TemplateSerializer)
    def update(self, request: Request, key: str) -> Response:
        """Omitted members are cleared. A pipeline uses the change from its next version on; current runs never do."""
        template = self.get_queryset().select_for_update().filter(key=key).first() or self.get_object()
        self.refuse_changed(TemplateSerializer(template).data)
        body = self.read_change(ChangedTemplateSerializer, key=key)
        put_members(template, body, TemplateBodySerializer().fields)
        template.save()
        return Response(self.show(template))
