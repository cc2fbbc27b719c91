"""Templates, pipelines and their runs as the API shows them."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal
from typing import Any

from rest_framework import serializers

from activities.api.serializers import link_of as activity_link
from pipelines.models import Pipeline, PipelineRun
from pipelines.models.run import RunState, StepState
from pipelines.selectors import MOST_BRANCHES, BranchRow, StepRow
from pipelines.subjects import faults_of_labels
from tenants.api.serializers import ResponseSerializer

RUNS = "/api/v1/pipeline-runs/"
PIPELINES = "/api/v1/pipelines/"
TEMPLATES = "/api/v1/templates/"


class LabelsField(serializers.DictField):
    """Names and texts by which people find a run."""

    child = serializers.CharField()

    def to_internal_value(self, data: Any) -> Any:
        if faults := list(faults_of_labels(data)):
            raise serializers.ValidationError(
                {name: [text] for name, text in faults if name} or [faults[0][1]]
            )
        return data


class TemplateSerializer(ResponseSerializer):
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


class PipelineSerializer(ResponseSerializer):
    """A pipeline in short."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField(help_text="Nothing new of its runs starts until somebody resumes it.")
    version = serializers.IntegerField(source="latest", help_text="Number of the newest version; the ETag.")
    created_by = serializers.CharField(help_text="Who saved its first version.")
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


class BranchSerializer(serializers.Serializer[Any]):
    """One branch of a step that was fanned out."""

    branch = serializers.IntegerField(help_text="From 1, in the order of the items.")
    item = serializers.JSONField(allow_null=True)
    status = serializers.CharField()
    activity = serializers.UUIDField(allow_null=True)
    activity_status = serializers.CharField(allow_null=True)
    round = serializers.IntegerField()
    output_ref = serializers.UUIDField(allow_null=True)
    settled_at = serializers.DateTimeField(allow_null=True)
    link = serializers.CharField(allow_null=True)


class BranchCountsSerializer(serializers.Serializer[Any]):
    """How the branches of a step stand."""

    total = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    active = serializers.IntegerField()


class StepErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(
        help_text="expression_error, output_missing, invalid_params or dependency_timeout"
    )
    message = serializers.CharField()


class StepSerializer(serializers.Serializer[Any]):
    """Where one step of a run stands."""

    step = serializers.CharField()
    name = serializers.CharField()
    agent_role = serializers.CharField(allow_null=True)
    human_role = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField(help_text="Of its activities: the step's own, else the run's.")
    status = serializers.CharField(help_text=f"One of {', '.join(StepState.values)}.")
    reason = serializers.CharField(
        allow_null=True,
        help_text="Why it was skipped or does not start yet: condition, upstream, evaluating or backlog.",
    )
    reason_detail = serializers.CharField(allow_null=True, help_text="The reason in words.")
    error = StepErrorSerializer(
        allow_null=True,
        help_text="Why it failed without an activity; that of an activity is in the activity.",
    )
    activity = serializers.UUIDField(
        allow_null=True, help_text="The activity that does it, in its latest round."
    )
    activity_status = serializers.CharField(allow_null=True)
    round = serializers.IntegerField()
    needs = serializers.ListField(child=serializers.CharField(), help_text="The steps that it waits for.")
    branch = serializers.IntegerField(help_text="0: the step as a whole.")
    branch_counts = BranchCountsSerializer(
        allow_null=True, help_text="Of a step that was fanned out, else null."
    )
    branches = BranchSerializer(
        many=True,
        help_text=f"The first {MOST_BRANCHES} in the answer for one run, none in lists; `GET /activities/` with `pipeline_run`"
        " and `step` gives all.",
    )
    output_ref = serializers.UUIDField(allow_null=True)
    waits_until = serializers.DateTimeField(
        allow_null=True, help_text="When it fails unless what it depends on has ended by then."
    )
    settled_at = serializers.DateTimeField(allow_null=True)
    link = serializers.CharField(allow_null=True)


class PipelineRunSerializer(ResponseSerializer):
    """One passage through a version of a pipeline."""

    id = serializers.UUIDField()
    pipeline = serializers.CharField(source="version.pipeline.key")
    version = serializers.IntegerField(source="version.number")
    status = serializers.CharField(help_text=f"One of {', '.join(RunState.values)}.")
    params = serializers.DictField()
    name = serializers.CharField(
        help_text="What it is about: as it was given, or as the plan of its period or the pipeline's `subject` says."
    )
    labels = serializers.DictField(child=serializers.CharField())
    deliverable = serializers.UUIDField(source="deliverable_id", allow_null=True)
    period = serializers.UUIDField(
        source="period_id", allow_null=True, help_text="The month of the deliverable that it belongs to."
    )
    schedule = serializers.UUIDField(
        source="schedule_id", allow_null=True, help_text="The schedule that it comes from."
    )
    replay_of = serializers.UUIDField(allow_null=True, help_text="The run that it does again.")
    replay_from = serializers.SerializerMethodField(help_text="The step that it began with.")
    priority = serializers.IntegerField()
    cost_usd = serializers.SerializerMethodField(
        help_text="Of all attempts so far, as their agents report it; an exact decimal."
    )
    waits_for = serializers.SerializerMethodField(
        help_text="Whom it waits for: people by their role, as in `people: editor`, then the roles of agents whose turn it is."
    )
    steps = serializers.SerializerMethodField()
    created_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField()

    def get_replay_from(self, run: PipelineRun) -> str | None:
        return run.replay_from or None

    def get_cost_usd(self, run: PipelineRun) -> str:
        return f"{self.context['costs'].get(run.pk, Decimal(0)).normalize():f}"

    def get_waits_for(self, run: PipelineRun) -> list[str]:
        return list(self.context["waits"].get(run.pk, ()))

    def get_steps(self, run: PipelineRun) -> list[dict[str, Any]]:
        return [_step(step, run) for step in self.context["steps"].get(run.pk, ())]

    def get_link(self, run: PipelineRun) -> str:
        return f"{RUNS}{run.pk}/"


def _step(step: StepRow, whole: PipelineRun) -> dict[str, Any]:
    run, counts = step.run, step.counts
    return {
        "step": run.step,
        "name": step.name,
        "agent_role": step.agent_role,
        "human_role": step.human_role,
        "priority": step.priority or whole.priority,
        "status": run.status,
        "reason": run.reason or None,
        "reason_detail": run.get_reason_display() or None,
        "error": run.error,
        "activity": run.activity_id,
        "activity_status": step.activity_status,
        "round": run.round,
        "needs": list(step.needs),
        "branch": run.branch,
        "branch_counts": asdict(counts) if counts else None,
        "branches": [_branch(branch) for branch in step.branches],
        "output_ref": run.output_ref,
        "waits_until": run.waits_until,
        "settled_at": run.settled_at,
        "link": activity_link(run.activity_id) if run.activity_id else None,
    }


def _branch(branch: BranchRow) -> dict[str, Any]:
    run = branch.run
    return {
        "branch": run.branch,
        "item": branch.item,
        "status": run.status,
        "activity": run.activity_id,
        "activity_status": branch.activity_status,
        "round": run.round,
        "output_ref": run.output_ref,
        "settled_at": run.settled_at,
        "link": activity_link(run.activity_id) if run.activity_id else None,
    }
