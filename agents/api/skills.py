"""Skills and context files that a tenant's agents can read in addition to their task. Changes take effect within two seconds."""

from __future__ import annotations

from typing import Any, ClassVar

import django_filters
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration
from agents.api.role_names import RoleName
from agents.exceptions import AlreadyExists, RegistryError
from agents.models import LONGEST_SKILL, LONGEST_SKILL_DESCRIPTION, Skill, SkillKind, skill_key_validator
from agents.routing import role_named
from tenants.api.documentation import change, creation, removal
from tenants.api.filters import FlagFilter, StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    Flag,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import VersionedResource, describe_resource
from tenants.models import Role

SKILLS = "/api/v1/skills/"
MOST_SKILLS = 100  # per tenant, because the prompt lists all skills of a role
MOST_ROLES = 100


class SkillShortSerializer(ResponseSerializer):
    """A skill without its text."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    kind = serializers.CharField(help_text=f"One of {', '.join(SkillKind.values)}.")
    roles = serializers.ListField(child=serializers.CharField(), help_text="If empty: all roles.")
    enabled = serializers.BooleanField()
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    link = Computed(str, lambda skill: f"{SKILLS}{skill.key}/")


class SkillSerializer(SkillShortSerializer):
    content = serializers.CharField(help_text="Markdown.")


class AgentRole(RoleName):
    """A role of the registry."""

    def to_internal_value(self, data: Any) -> str:
        role = super().to_internal_value(data)
        if errors := configuration.errors_of_role(role):
            raise serializers.ValidationError(errors)
        return role


class SkillBodySerializer(StrictSerializer):
    """A complete skill, without its key. A change starts new sessions of the agents, because their instructions change."""

    name = Text(max_length=100)
    description = Text(
        allow_blank=True,
        max_length=LONGEST_SKILL_DESCRIPTION,
        help_text="When to read the skill. Agents decide by this text.",
        **OPTIONAL,
    )
    content = Text(trim_whitespace=False, max_length=LONGEST_SKILL, help_text="Markdown.")
    kind = OneOf(
        choices=SkillKind.choices,
        help_text="A `context` is sent to agents in full; a `skill`, the default, is read by agents that need it.",
        **OPTIONAL,
    )
    roles = serializers.ListField(
        child=AgentRole(), max_length=MOST_ROLES, help_text="If empty: all roles.", **OPTIONAL
    )
    enabled = Flag(**OPTIONAL)

    def validate_roles(self, roles: list[str] | None) -> list[str] | None:
        return None if roles is None else sorted(set(roles))


class NewSkillSerializer(SkillBodySerializer):
    key = Text(max_length=63, validators=[skill_key_validator], help_text=str(skill_key_validator.message))


class SkillFilter(StrictFilterSet):
    kind = django_filters.ChoiceFilter(choices=SkillKind.choices)
    enabled = FlagFilter()
    role = django_filters.CharFilter(
        method="of_role", help_text="Only skills that agents of this role can read."
    )

    def of_role(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(roles=[]) | Q(roles__contains=[role_named(value)]))


@describe_resource(many="The skills, without their texts", one="One skill")
class SkillViewSet(VersionedResource):
    queryset = Skill.objects
    serializer_class = SkillSerializer
    list_serializer_class = SkillShortSerializer
    address = SKILLS
    filterset_class = SkillFilter
    search_fields = ("key", "name", "description")
    ordering_fields = ("key", "name", "created_at", "updated_at")
    ordering = ("key",)
    lookup_field = "key"
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("create", "update", "destroy"), Role.ADMIN)

    def get_queryset(self) -> QuerySet[Any]:
        rows = super().get_queryset()
        return rows.defer("content") if self.action == "list" else rows

    @creation("Create a skill", NewSkillSerializer, SkillSerializer)
    def create(self, request: Request) -> Response:
        body = read(NewSkillSerializer, request.data)
        own = Skill.objects.for_tenant(self.tenant_id)
        skill, was_created = own.get_or_create(tenant_id=self.tenant_id, key=body["key"], defaults=body)
        if not was_created:
            raise AlreadyExists("skill", body["key"])
        # Counted afterwards, because creating a skill takes the lock of `tenants.bounds`.
        if own.count() > MOST_SKILLS:
            raise RegistryError(
                f"There are already {MOST_SKILLS} skills, which is the maximum.", code="too_many_skills"
            )
        skill.refresh_from_db()
        return self.answer_created(skill)

    @change("Change a skill", SkillBodySerializer, SkillSerializer)
    def update(self, request: Request, key: str) -> Response:
        """Omitted members are cleared. If nothing changes, the version stays the same."""
        skill = self.lock_row()
        body = self.read_change(SkillBodySerializer)
        empty = Skill()
        changed = {
            name: value
            for name in SkillBodySerializer._declared_fields
            if (value := body.get(name, getattr(empty, name))) != getattr(skill, name)
        }
        if changed:
            rows = Skill.objects.for_tenant(self.tenant_id).filter(pk=skill.pk)
            rows.update(**changed, version=skill.version + 1, updated_at=Now())
            skill.refresh_from_db()
        return Response(self.show(skill))

    @removal("Delete a skill")
    def destroy(self, request: Request, key: str) -> Response:
        """Running agents keep what they have received. To be able to restore it later, disable the skill instead."""
        self.lock_row().delete()
        return Response(status=204)
