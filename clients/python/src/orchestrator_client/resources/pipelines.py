"""Pipelines, their runs, the templates of their steps, and deliverables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Members, Resource
from orchestrator_client.objects import PipelineRun, Record


class Pipelines(Resource[D]):
    """`/pipelines/`."""

    @LIST("/pipelines/", Record)
    def list(self, /, *, search: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/pipelines/", Record)
    def create(self, /, body: Mapping[str, Any], **options: Any) -> None:
        """Create one from its definition, as in a pipeline file. Errors have paths."""

    @GET("/pipelines/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """Get one with its newest definition and its `etag`."""

    @PUT("/pipelines/{key}/", Record)
    def update(
        self, /, key: str, body: Mapping[str, Any], *, etag: str | None = None, **options: Any
    ) -> None:
        """Save a new version, or create the pipeline. Runs keep the version that they began with."""

    @POST("/pipelines/{key}/pause/", Record)
    def pause(self, /, key: str, **options: Any) -> None:
        """Pause it: no new work starts, and current runs continue."""

    @POST("/pipelines/{key}/resume/", Record)
    def resume(self, /, key: str, **options: Any) -> None:
        """Resume: new work starts again."""

    @POST("/pipelines/{key}/runs/", PipelineRun)
    def run(
        self,
        /,
        key: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,
        deliverable: str | None = None,
        priority: int | None = None,
        **more: Any,
    ) -> None:
        """Start a run of the newest version."""


class PipelineRuns(Resource[D]):
    """`/pipeline-runs/`."""

    @LIST("/pipeline-runs/", PipelineRun)
    def list(
        self,
        /,
        *,
        pipeline: str | None = None,
        status: str | Sequence[str] | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match."""

    @GET("/pipeline-runs/{run_id}/", PipelineRun)
    def get(self, /, run_id: str, **options: Any) -> None:
        """Get one with the state of its steps and its `etag`."""

    @GET("/pipeline-runs/{run_id}/picture/", str)
    def picture(self, /, run_id: str, *, format: str | None = None, **options: Any) -> None:
        """Get a diagram of its steps and their states, as SVG."""

    @POST("/pipeline-runs/{run_id}/cancel/", PipelineRun)
    def cancel(self, /, run_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Cancel it and all of its unfinished work."""

    @POST("/pipeline-runs/{run_id}/replay/", PipelineRun)
    def replay(self, /, run_id: str, *, from_step: str, **more: Any) -> None:
        """Replay it from this step on."""

    @POST("/pipeline-runs/bulk/", Record)
    def bulk(self, /, *, action: str, ids: Sequence[str], reason: str | None = None, **more: Any) -> None:
        """Cancel several, or replay them from the first step that failed. Returns `done`, and `left_alone` with the reasons."""


class Templates(Resource[D]):
    """`/templates/`: steps that several pipelines use."""

    @LIST("/templates/", Record)
    def list(self, /, *, search: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/templates/", Record)
    def create(self, /, *, key: str, name: str, **more: Any) -> None:
        """Create one."""

    @GET("/templates/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/templates/{key}/", Record)
    def update(self, /, key: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace it."""


class Deliverables(Resource[D]):
    """`/deliverables/`: what a client is owed every month."""

    @LIST("/deliverables/", Record)
    def list(self, /, *, status: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/deliverables/", Record)
    def create(self, /, *, key: str, name: str, pipelines: Sequence[Any], **more: Any) -> None:
        """Create one."""

    @GET("/deliverables/{deliverable_id}/", Record)
    def get(self, /, deliverable_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/deliverables/{deliverable_id}/", Record)
    def update(
        self, /, deliverable_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it."""

    @DELETE("/deliverables/{deliverable_id}/")
    def delete(self, /, deliverable_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""

    @POST("/deliverables/{deliverable_id}/start-period/", Record)
    def start_period(self, /, deliverable_id: str, **options: Any) -> None:
        """Start the period of the current month, unless it exists."""


class DeliverablePeriods(Resource[D]):
    """`/deliverable-periods/`."""

    @LIST("/deliverable-periods/", Record)
    def list(
        self,
        /,
        *,
        deliverable: str | None = None,
        at_risk: bool | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match."""

    @GET("/deliverable-periods/{period_id}/", Record)
    def get(self, /, period_id: str, **options: Any) -> None:
        """Get one with its plan, its runs and its `etag`."""

    @POST("/deliverable-periods/{period_id}/cancel/", Record)
    def cancel(self, /, period_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Cancel it and all of its runs."""

    @POST("/deliverable-periods/{period_id}/plan/", Record)
    def plan(self, /, period_id: str, *, plan: Any = None, **more: Any) -> None:
        """Set its plan, if the planner has produced none."""
