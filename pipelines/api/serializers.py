"""Templates, pipelines and their runs as the API shows them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.api.serializers import link_of as activity_link
from agents.api.shown import Shown
from pipelines.models import Pipeline, PipelineRun
from pipelines.models.run import RunState, StepState
from pipelines.selectors import StepShown

RUNS = "/api/v1/pipeline-runs/"
PIPELINES = "/api/v1/pipelines/"
TEMPLATES = "/api/v1/templates/"


class TemplateSerializer(Shown):
    """What several pipelines do in the same way: a step that names it takes from here what it does not say itself."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    agent_role = serializers.SerializerMethodField()
    human_role = serializers.SerializerMethodField()
    requires_approval = serializers.BooleanField()
    is_approval_gate = serializers.BooleanField()
    params = serializers.DictField()
    retry = serializers.DictField()
    timeout_seconds = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()

    def get_agent_role(self, template: Any) -> str | None:
        return template.agent_role or None

    def get_human_role(self, template: Any) -> str | None:
        return template.human_role or None


class PipelineSerializer(Shown):
    """A pipeline in short."""

    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    enabled = serializers.BooleanField()
    version = serializers.IntegerField(source="latest", help_text="Number of the newest version; the ETag.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    link = serializers.SerializerMethodField()

    def get_link(self, pipeline: Pipeline) -> str:
        return f"{PIPELINES}{pipeline.key}/"


class VersionSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    digest = serializers.CharField(help_text="Equal for equal definitions.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class PipelineDetailSerializer(PipelineSerializer):
    """A pipeline with its newest definition, templates resolved."""

    definition = serializers.DictField()
    versions = VersionSerializer(many=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        pipeline, newest, versions = instance
        shown = [
            {
                "version": each.number,
                "digest": each.digest,
                "created_by": each.created_by,
                "created_at": each.created_at,
            }
            for each in versions
        ]
        return {
            **PipelineSerializer(pipeline).data,
            "definition": newest.definition if newest else None,
            "versions": shown,
        }


class StepSerializer(serializers.Serializer[Any]):
    """Where one step of a run stands."""

    step = serializers.CharField()
    name = serializers.CharField()
    status = serializers.CharField(help_text=f"One of {', '.join(StepState.values)}.")
    activity = serializers.UUIDField(
        allow_null=True, help_text="The activity that does it, in its latest round."
    )
    activity_status = serializers.CharField(allow_null=True)
    round = serializers.IntegerField()
    needs = serializers.ListField(child=serializers.CharField(), help_text="The steps that it waits for.")
    branch = serializers.IntegerField()
    output_ref = serializers.UUIDField(allow_null=True)
    settled_at = serializers.DateTimeField(allow_null=True)
    link = serializers.CharField(allow_null=True)


class PipelineRunSerializer(Shown):
    """One passage through a version of a pipeline."""

    id = serializers.UUIDField()
    pipeline = serializers.CharField(source="version.pipeline.key")
    version = serializers.IntegerField(source="version.number")
    status = serializers.CharField(help_text=f"One of {', '.join(RunState.values)}.")
    params = serializers.DictField()
    name = serializers.CharField(help_text="What it is about, if its period's plan says so.")
    deliverable = serializers.UUIDField(source="deliverable_id", allow_null=True)
    period = serializers.UUIDField(
        source="period_id", allow_null=True, help_text="The month of the deliverable that it belongs to."
    )
    schedule = serializers.UUIDField(
        source="schedule_id", allow_null=True, help_text="The schedule that it comes from."
    )
    priority = serializers.IntegerField()
    steps = serializers.SerializerMethodField()
    created_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField()

    def get_steps(self, run: PipelineRun) -> list[dict[str, Any]]:
        return [_step(step) for step in self.context["steps"].get(run.pk, ())]

    def get_link(self, run: PipelineRun) -> str:
        return f"{RUNS}{run.pk}/"


def _step(step: StepShown) -> dict[str, Any]:
    run = step.run
    return {
        "step": run.step,
        "name": step.name,
        "status": run.status,
        "activity": run.activity_id,
        "activity_status": step.activity_status,
        "round": run.round,
        "needs": list(step.needs),
        "branch": run.branch,
        "output_ref": run.output_ref,
        "settled_at": run.settled_at,
        "link": activity_link(run.activity_id) if run.activity_id else None,
    }
