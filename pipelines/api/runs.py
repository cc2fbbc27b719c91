"""The API of pipeline runs: reading, pictures, cancelling and replaying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.operations import ReasonSerializer
from activities.api.serializers import link_of as activity_link
from activities.api.submissions import GivenInputSerializer
from activities.exceptions import ActivityError
from activities.schemas import LONGEST_REASON
from pipelines import diagram, selectors, versions
from pipelines.cancellation import cancel_run
from pipelines.diagram import StepPicture
from pipelines.exceptions import NotFound, PipelineError
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import RunState, StepState
from pipelines.replay import first_failed_step, replay
from pipelines.selectors import MOST_BRANCHES, StepRow
from tenants.api.bodies import JSONRenderer
from tenants.api.documentation import command, operation, posting
from tenants.api.etags import DigestEtag
from tenants.api.filters import SEARCH_LENGTH, MomentFilter, StrictFilterSet, WholeNumberFilter
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    Identifier,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import OfOneRow, Resource, TenantView
from tenants.context import tenant_scope
from tenants.models import Role

SVG = "image/svg+xml"
RUNS = "/api/v1/pipeline-runs/"


class BranchSerializer(ResponseSerializer):
    """One branch of a fanned-out step."""

    branch = serializers.IntegerField(
        source="run.branch", help_text="The number of the branch, from 1, in the order of the items."
    )
    item = serializers.JSONField(allow_null=True)
    status = serializers.CharField(source="run.status")
    activity = serializers.UUIDField(source="run.activity_id", allow_null=True)
    activity_status = serializers.CharField(allow_null=True)
    round = serializers.IntegerField(source="run.round")
    output_ref = serializers.UUIDField(source="run.output_ref", allow_null=True)
    settled_at = serializers.DateTimeField(source="run.settled_at", allow_null=True)
    link = Computed(str | None, lambda branch: _link_of(branch.run), read_only=False, allow_null=True)


class BranchCountsSerializer(serializers.Serializer[Any]):
    """The numbers of a step's branches, by state."""

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
    """The state of one step of a run."""

    step = serializers.CharField()
    name = serializers.CharField()
    agent_role = serializers.CharField(allow_null=True)
    human_role = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField(
        help_text="The priority of its activities: the step's own, otherwise the run's."
    )
    status = serializers.CharField(help_text=f"One of {', '.join(StepState.values)}.")
    reason = serializers.CharField(
        allow_null=True,
        help_text="Why it was skipped, does not start yet, or was cancelled: condition, upstream, evaluating, backlog or cancelled.",
    )
    reason_detail = serializers.CharField(allow_null=True, help_text="The reason in words.")
    error = StepErrorSerializer(
        allow_null=True,
        help_text="Why it failed before it had an activity. The error of an activity is part of the activity.",
    )
    activity = serializers.UUIDField(allow_null=True, help_text="Its activity, in the latest round.")
    activity_status = serializers.CharField(allow_null=True)
    round = serializers.IntegerField()
    needs = serializers.ListField(child=serializers.CharField(), help_text="The steps that it waits for.")
    branch = serializers.IntegerField(help_text="0 for the step as a whole.")
    branch_counts = BranchCountsSerializer(allow_null=True, help_text="Null if the step is not fanned out.")
    branches = BranchSerializer(
        many=True,
        help_text=f"The first {MOST_BRANCHES} in the answer for one run, none in lists; `GET /activities/` with "
        f"`pipeline_run` and `step` returns all.",
    )
    output_ref = serializers.UUIDField(allow_null=True)
    waits_until = serializers.DateTimeField(
        allow_null=True,
        help_text="The time at which it fails if the steps that it depends on have not ended.",
    )
    settled_at = serializers.DateTimeField(allow_null=True)
    link = serializers.CharField(allow_null=True)


class PipelineRunSerializer(ResponseSerializer):
    """One execution of a version of a pipeline."""

    id = serializers.UUIDField()
    pipeline = serializers.CharField(source="version.pipeline.key")
    version = serializers.IntegerField(source="version.number")
    status = serializers.CharField(help_text=f"One of {', '.join(RunState.values)}.")
    params = serializers.DictField()
    name = serializers.CharField(
        help_text="What the run is about: from the request, from the plan of its period, or from the pipeline's `subject`."
    )
    labels = serializers.DictField(child=serializers.CharField())
    deliverable = serializers.UUIDField(source="deliverable_id", allow_null=True)
    period = serializers.UUIDField(
        source="period_id",
        allow_null=True,
        help_text="The period (month) of the deliverable that it belongs to.",
    )
    schedule = serializers.UUIDField(
        source="schedule_id", allow_null=True, help_text="The schedule that it comes from."
    )
    replay_of = serializers.UUIDField(allow_null=True, help_text="The run that it replays.")
    replay_from = Computed(
        str | None, lambda run: run.replay_from or None, help_text="The first step that is replayed."
    )
    priority = serializers.IntegerField()
    cost_usd = serializers.SerializerMethodField(
        help_text="The cost of all attempts so far, as their agents report it; an exact decimal."
    )
    waits_for = serializers.SerializerMethodField(
        help_text="Who has to act next: people by their role, as in `people: editor`, then roles of agents."
    )
    steps = serializers.SerializerMethodField()
    created_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    link = Computed(str, lambda run: f"{RUNS}{run.pk}/")

    def get_cost_usd(self, run: PipelineRun) -> str:
        return f"{self.context['costs'].get(run.pk, Decimal(0)).normalize():f}"

    def get_waits_for(self, run: PipelineRun) -> list[str]:
        return list(self.context["waits"].get(run.pk, ()))

    def get_steps(self, run: PipelineRun) -> list[dict[str, Any]]:
        return [_step(step, run) for step in self.context["steps"].get(run.pk, ())]


def _step(step: StepRow, pipeline_run: PipelineRun) -> dict[str, Any]:
    run, counts = step.run, step.counts
    return {
        "step": run.step,
        "name": step.name,
        "agent_role": step.agent_role,
        "human_role": step.human_role,
        "priority": step.priority or pipeline_run.priority,
        "status": run.status,
        "reason": step.reason or None,
        "reason_detail": step.reason_detail or None,
        "error": run.error,
        "activity": run.activity_id,
        "activity_status": step.activity_status,
        "round": run.round,
        "needs": list(step.needs),
        "branch": run.branch,
        "branch_counts": asdict(counts) if counts else None,
        "branches": BranchSerializer(step.branches, many=True).data,
        "output_ref": run.output_ref,
        "waits_until": run.waits_until,
        "settled_at": run.settled_at,
        "link": _link_of(run),
    }


def _link_of(run: StepRun) -> str | None:
    return activity_link(run.activity_id) if run.activity_id else None


class PipelineRunFilter(StrictFilterSet):
    pipeline = django_filters.CharFilter(field_name="version__pipeline__key")
    version = WholeNumberFilter(field_name="version__number")
    status = django_filters.ChoiceFilter(choices=RunState.choices)
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    period = django_filters.UUIDFilter(field_name="period_id")
    schedule = django_filters.UUIDFilter(field_name="schedule_id")
    replay_of = django_filters.UUIDFilter()
    label = django_filters.CharFilter(
        method="with_label",
        help_text="A label such as `client:acme`, or only its name, such as `client`, for every run with that label.",
    )
    search = django_filters.CharFilter(
        method="search_runs",
        max_length=SEARCH_LENGTH,
        help_text="Words in the name, the parameters or the pipeline's name.",
    )
    started_after = MomentFilter(field_name="started_at", lookup_expr="gte")
    started_before = MomentFilter(field_name="started_at", lookup_expr="lt")

    def with_label(self, rows: QuerySet[PipelineRun], name: str, label: str) -> QuerySet[PipelineRun]:
        return selectors.with_label(rows, label)

    def search_runs(self, rows: QuerySet[PipelineRun], name: str, words: str) -> QuerySet[PipelineRun]:
        return selectors.search(rows, self.request.user.tenant_id, words)


def show_run(tenant_id: UUID, run_id: UUID) -> Any:
    """Return the run as the API shows it. Raises `NotFound`. Call it within a `tenant_scope`."""
    run = selectors.runs(tenant_id).get_or_raise(NotFound, "pipeline run", run_id)
    return _show_runs(tenant_id, [run], branches=selectors.MOST_BRANCHES)[0]


def _show_runs(tenant_id: UUID, page: Sequence[PipelineRun], *, branches: int = 0) -> Any:
    steps = selectors.steps_of(tenant_id, page, branches=branches)
    context = {
        "steps": steps,
        "costs": selectors.costs_of(tenant_id, page),
        "waits": selectors.waits_for(tenant_id, steps),
    }
    return PipelineRunSerializer(page, many=True, context=context).data


class PipelineRunViewSet(DigestEtag, Resource):
    queryset = PipelineRun.objects
    serializer_class = PipelineRunSerializer
    filterset_class = PipelineRunFilter
    ordering_fields = ("started_at", "finished_at", "priority")
    ordering = ("-started_at", "-id")
    # Cancelling takes several transactions, see `pipelines.cancellation`.
    in_one_transaction = False
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = {"cancel": Role.OPERATOR}

    def get_queryset(self) -> QuerySet[Any]:
        rows = super().get_queryset()
        return rows if getattr(self, "swagger_fake_view", False) else selectors.runs(self.tenant_id)

    @operation("Runs, newest first", answer=PipelineRunSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        with tenant_scope(self.tenant_id):
            page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
            return self.get_paginated_response(_show_runs(self.tenant_id, page))

    @operation("One run", answer=PipelineRunSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        with tenant_scope(self.tenant_id):
            return Response(show_run(self.tenant_id, pk))

    @command("Cancel a run and all of its unfinished work", ReasonSerializer, PipelineRunSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """May be repeated, to cancel what is still unfinished in a cancelled run."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        with tenant_scope(self.tenant_id):
            self.refuse_changed(show_run(self.tenant_id, pk))
        cancel_run(self.tenant_id, pk, actor=self.principal.actor, reason=reason)
        with tenant_scope(self.tenant_id):
            return Response(show_run(self.tenant_id, pk))


class SvgRenderer(JSONRenderer):
    """Accepts callers that only accept pictures; problems are still JSON."""

    media_type = SVG
    format = "svg"


class RunPicture(TenantView):
    queryset = PipelineRun.objects
    renderer_classes = (SvgRenderer, JSONRenderer)
    scope = "pipelines"

    @operation(
        "A diagram of a run",
        answers={
            (200, SVG): OpenApiResponse(
                OpenApiTypes.STR, description="An SVG without scripts and external references."
            )
        },
        refusals=(404,),
    )
    def get(self, request: Request, run_id: UUID) -> HttpResponse:
        run = selectors.runs(self.tenant_id).get_or_raise(NotFound, "pipeline run", run_id)
        steps = selectors.steps_of(self.tenant_id, [run])[run.pk]
        states = {
            step.run.step: StepPicture(
                status=step.shown_status,
                detail=f"{step.counts.total - step.counts.active} of {step.counts.total}"
                if step.counts
                else "",
                round=step.run.round,
            )
            for step in steps
        }
        definition = versions.compile_version(run.version_id).definition
        drawn = diagram.draw(definition, states, title=f"{definition.name}: {run.status}")
        # Forbid loading and scripts, even if the picture is opened directly.
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
        return HttpResponse(drawn, content_type=SVG, headers=policy)


class RunReplaySerializer(StrictSerializer):
    """The step to begin with, and optionally another input."""

    from_step = Text(max_length=63)
    input = GivenInputSerializer(
        help_text="The input of the step, instead of the outputs of the steps before it.", **OPTIONAL
    )


class RunReplay(DigestEtag, OfOneRow):
    queryset = PipelineRun.objects
    lookup_url_kwarg = "run_id"
    scope = "pipelines"
    required_role: ClassVar[Role] = Role.OPERATOR

    @command(
        "Replay an ended run from one of its steps",
        RunReplaySerializer,
        PipelineRunSerializer,
        status=201,
        examples=[
            OpenApiExample(
                "On other input",
                {"from_step": "brief", "input": {"content": "Shorter."}},
                summary="From one step, with another input",
                request_only=True,
            )
        ],
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """The answer is a new run of the same version. It refers to the outputs of the steps before `from_step`. It repeats `from_step`,
        all later steps, and parallel steps that failed or never ended. 409 while the run or another replay of it has not ended."""
        body = read(RunReplaySerializer, request.data)
        self.refuse_changed(show_run(self.tenant_id, run_id))
        run = replay(
            self.tenant_id, run_id, from_step=body["from_step"], new_input=body.get("input"),
            actor=self.principal.actor, requested_identity=self.principal.identity,
        )  # fmt: skip
        return Response(
            show_run(self.tenant_id, run.pk), status=201, headers={"Location": f"{RUNS}{run.pk}/"}
        )


MOST_AT_ONCE = 50


class RunsActionSerializer(StrictSerializer):
    """One action for several runs."""

    action = OneOf(
        choices=("cancel", "replay"), help_text="`replay` repeats a run from the first step that failed."
    )
    ids = serializers.ListField(child=Identifier(), allow_empty=False, max_length=MOST_AT_ONCE)
    reason = Text(max_length=LONGEST_REASON, help_text="The reason, for a cancellation.", **OPTIONAL)


class DoneSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    run = serializers.UUIDField(help_text="The new run, for a replay; otherwise the run itself.")


class LeftAloneSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    code = serializers.CharField()
    message = serializers.CharField()


class RunsActionAnswer(serializers.Serializer[Any]):
    """The result for each run, in the order of the request."""

    done = DoneSerializer(many=True)
    left_alone = LeftAloneSerializer(many=True)


class RunsInBulk(TenantView):
    queryset = PipelineRun.objects
    # Each run is cancelled or replayed in its own transactions.
    in_one_transaction = False
    scope = "pipelines"
    required_role: ClassVar[Role] = Role.OPERATOR

    @posting(
        "Cancel several runs, or replay them from where they failed", RunsActionSerializer, RunsActionAnswer
    )
    def post(self, request: Request) -> Response:
        """The runs are independent: if one cannot be cancelled or replayed, it stays as it is, and `left_alone` says why."""
        body = read(RunsActionSerializer, request.data)
        done, left_alone = [], []
        for run_id in dict.fromkeys(body["ids"]):
            try:
                done.append({"id": run_id, "run": self._one(run_id, body)})
            except (PipelineError, ActivityError) as error:
                left_alone.append({"id": run_id, "code": error.code, "message": str(error)})
        return Response({"done": done, "left_alone": left_alone})

    def _one(self, run_id: UUID, body: Mapping[str, Any]) -> UUID:
        who = self.principal
        if body["action"] == "cancel":
            cancel_run(self.tenant_id, run_id, actor=who.actor, reason=body.get("reason") or "")
            return run_id
        new: UUID = replay(
            self.tenant_id, run_id, from_step=first_failed_step(self.tenant_id, run_id), actor=who.actor,
            requested_identity=who.identity,
        ).pk  # fmt: skip
        return new
