"""One skill, read by the agent of a run that needs it: `/agent-runs/{run_id}/skills/{key}/`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities import reports
from activities.api.run_callbacks import STOP, RunView
from activities.models import Activity
from agents import skills
from agents.api.documentation import operation
from agents.api.shown import Shown
from tenants.context import tenant_scope


class RunSkillSerializer(Shown):
    """A skill as an agent reads it."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    version = serializers.IntegerField()
    content = serializers.CharField(help_text="Markdown.")


class RunSkill(RunView):
    serializer_class: Any = RunSkillSerializer

    @operation("A skill", answer=RunSkillSerializer, refusals=(404, 409), notes={409: STOP})
    def get(self, request: Request, run_id: UUID, key: str) -> Response:
        """In its present version, for agents of the roles that may know it, as long as the run is live."""
        token = self.caller.token
        reports.live_run(token)
        with tenant_scope(token.tenant_id):
            asking = Activity.objects.for_tenant(token.tenant_id).filter(pk=token.activity_id)
            role = asking.values_list("agent_role", flat=True).get()
            skill = skills.find(token.tenant_id, role or "", key)
        if skill is None:
            raise NotFound
        return Response(RunSkillSerializer(skill).data, headers={"ETag": f'"{skill.version}"'})
