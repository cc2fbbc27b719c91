"""Activity templates: kinds of work that several pipelines share."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration
from agents.api.configurations import DAY, RetrySerializer
from pipelines.api.serializers import TEMPLATES, TemplateSerializer
from pipelines.definition.reading import ABOUT_IDENTIFIERS, IDENTIFIER
from pipelines.exceptions import AlreadyExists
from pipelines.models import ActivityTemplate
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.etags import DigestEtag
from tenants.api.resources import Resource, described
from tenants.api.strict import OPTIONAL, Flag, Member, StrictSerializer, Text, Whole, read
from tenants.models import Role

LONGEST_DESCRIPTION = 20_000


class TemplateBodySerializer(StrictSerializer):
    """A template, but for its key."""

    name = Text(max_length=200)
    description = Text(allow_blank=True, trim_whitespace=False, max_length=LONGEST_DESCRIPTION, **OPTIONAL)
    agent_role = Text(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    requires_approval = Flag(**OPTIONAL)
    is_approval_gate = Flag(**OPTIONAL)
    params = Member(**OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        agent, human = attrs.get("agent_role"), attrs.get("human_role")
        faults: dict[str, list[str]] = {}
        if agent and human:
            faults["human_role"] = ["cannot be given together with agent_role"]
        if agent and agent not in configuration.known_roles():
            faults["agent_role"] = [f"{agent!r} is no role of the registry; GET /api/v1/agents/ lists them"]
        if attrs.get("is_approval_gate") and (agent or attrs.get("requires_approval")):
            faults["is_approval_gate"] = ["is for a person's work"]
        if attrs.get("requires_approval") and human:
            faults["requires_approval"] = ["is for an agent's work"]
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


class NewTemplateSerializer(TemplateBodySerializer):
    key = Text(max_length=63, help_text=ABOUT_IDENTIFIERS)

    def validate_key(self, key: str) -> str:
        if not IDENTIFIER.fullmatch(key):
            raise serializers.ValidationError(ABOUT_IDENTIFIERS)
        return key


@described(many="The templates", one="One template")
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

    @operation(
        "Make a template",
        request=NewTemplateSerializer,
        answer=TemplateSerializer,
        status=201,
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        body = read(NewTemplateSerializer, request.data)
        own = ActivityTemplate.objects.for_tenant(self.tenant_id)
        template, made = own.get_or_create(tenant_id=self.tenant_id, key=body["key"], defaults=body)
        if not made:
            raise AlreadyExists("template", body["key"])
        template.refresh_from_db()
        return self.created(template)

    @operation(
        "Change a template",
        request=TemplateBodySerializer,
        answer=TemplateSerializer,
        refusals=(400, 404, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, key: str) -> Response:
        """What is left out is emptied. Pipelines take the change up with their next version; runs under way never do."""
        template = self.get_queryset().select_for_update().filter(key=key).first() or self.get_object()
        self.refuse_changed(TemplateSerializer(template).data)
        body = read(TemplateBodySerializer, request.data)
        empty = ActivityTemplate()
        for name in map(str, TemplateBodySerializer().fields):
            setattr(template, name, body.get(name, getattr(empty, name)))
        template.save()
        return Response(self.shown(template))
