"""The actions to pause and resume roles, pipelines, schedules, providers and tenants, below their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from uuid import UUID

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from agents.governor.providers import PROVIDERS
from agents.models import Agent
from tenants import pausing
from tenants.api.channels import NothingSerializer
from tenants.api.documentation import command
from tenants.api.etags import DigestEtag
from tenants.api.views import TenantViewSet
from tenants.models import PauseKind, Role, Tenant
from tenants.principals import Principal


class SwitchedSerializer(serializers.Serializer[Any]):
    """Whether new work is paused. A change takes effect within two seconds; current runs end normally."""

    kind = serializers.CharField(required=False, help_text="pipeline, schedule, provider or tenant")
    name = serializers.CharField(
        required=False, help_text="The key or name of the object, or the tenant's slug."
    )
    paused = serializers.BooleanField()
    role = serializers.CharField(
        required=False, help_text="The role, for a queue; `kind` and `name` are then absent."
    )
    queue = serializers.CharField(required=False, help_text="The name of the queue in Celery.")
    id = serializers.UUIDField(required=False, help_text="The id, for a schedule.")


class Pausable:
    """Adds the two actions to a viewset. `switch` does the work, and returns what the answer contains in addition to `paused`."""

    required_role: ClassVar[Any] = dict.fromkeys(("pause", "resume"), Role.OPERATOR)

    tenant_id: UUID
    principal: Principal
    switch: Callable[..., Mapping[str, Any]]

    @command("Pause: start no new work", NothingSerializer, SwitchedSerializer)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, **address: Any) -> Response:
        return self._switch(request, paused=True, **address)

    @command("Resume: start new work again", NothingSerializer, SwitchedSerializer)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, **address: Any) -> Response:
        return self._switch(request, paused=False, **address)

    def _switch(self, request: Request, *, paused: bool, **address: Any) -> Response:
        return Response({**self.switch(paused=paused, **address), "paused": paused})

    def switch_part(
        self, kind: PauseKind, subject: UUID | str, name: str, *, paused: bool
    ) -> Mapping[str, Any]:
        """Pause or resume a part of the tenant's work that has no column of its own for it. Idempotent."""
        actor = self.principal.actor
        pausing.switch_part(self.tenant_id, kind, subject, name=name, paused=paused, actor=actor)
        return {"kind": kind.value, "name": name}


class ProviderSwitches(DigestEtag, Pausable, TenantViewSet):
    """Applies to all roles of the caller's tenant that call this model provider, in real time or in batches."""

    queryset = Agent.objects
    scope = "agents"

    def switch(self, *, paused: bool, name: str) -> Mapping[str, Any]:
        if name not in PROVIDERS:
            raise NotFound
        is_paused = (PauseKind.PROVIDER, name) in pausing.parts_of(self.tenant_id, PauseKind.PROVIDER)
        self.refuse_changed({"kind": PauseKind.PROVIDER.value, "name": name, "paused": is_paused})
        return self.switch_part(PauseKind.PROVIDER, name, name, paused=paused)


class TenantSwitches(DigestEtag, Pausable, TenantViewSet):
    """Applies to all work of the caller's tenant. Only its admins are allowed to do this."""

    queryset = Tenant.objects
    scope = "queues"
    not_audited = "the switch writes its own entry, as for the console's button"
    required_role: ClassVar[Any] = dict.fromkeys(("pause", "resume"), Role.ADMIN)

    def switch(self, *, paused: bool) -> Mapping[str, Any]:
        slug, is_paused = Tenant.objects.values_list("slug", "paused").get(pk=self.tenant_id)
        shown = {"kind": "tenant", "name": slug}
        self.refuse_changed({**shown, "paused": is_paused})
        pausing.switch(self.principal, paused=paused)
        return shown
