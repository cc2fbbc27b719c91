"""Schedules, and the datasets that their data sources read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, PATCH, POST, PUT, D, Members, Moment, Resource
from orchestrator_client.objects import Forecast, Record, Schedule


class Schedules(Resource[D]):
    """`/schedules/`."""

    @LIST("/schedules/", Schedule)
    def list(
        self,
        /,
        *,
        enabled: bool | None = None,
        search: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match."""

    @POST("/schedules/", Schedule)
    def create(
        self,
        /,
        *,
        name: str,
        repeat: str,
        target_type: str,
        cron: str | None = None,
        interval_ms: int | None = None,
        timezone: str | None = None,
        start_at: Moment | None = None,
        agent_role: str | None = None,
        pipeline: str | None = None,
        params: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
        **more: Any,
    ) -> None:
        """Create one: `repeat` is `once` or `repeating`, `target_type` is `agent` or `pipeline`."""

    @GET("/schedules/{schedule_id}/", Schedule)
    def get(self, /, schedule_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/schedules/{schedule_id}/", Schedule)
    def update(
        self, /, schedule_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it."""

    @PATCH("/schedules/{schedule_id}/", Schedule)
    def change(
        self, /, schedule_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Change only the named members."""

    @DELETE("/schedules/{schedule_id}/")
    def delete(self, /, schedule_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it. Its current executions continue."""

    @POST("/schedules/{schedule_id}/pause/", Record)
    def pause(self, /, schedule_id: str, **options: Any) -> None:
        """Pause it: no new work starts, and current runs continue."""

    @POST("/schedules/{schedule_id}/resume/", Record)
    def resume(self, /, schedule_id: str, **options: Any) -> None:
        """Resume: new work starts again."""

    @POST("/schedules/{schedule_id}/run/", Record)
    def run(self, /, schedule_id: str, **options: Any) -> None:
        """Run it now. Returns the execution."""

    @GET("/schedules/{schedule_id}/preview/", Forecast)
    def preview(
        self, /, schedule_id: str, *, count: int | None = None, after: Moment | None = None, **options: Any
    ) -> None:
        """Preview its next times and their jobs."""

    @POST("/schedules/preview/", Forecast, "count", "after")
    def preview_of(
        self, /, body: Members = None, *, count: int | None = None, after: Moment | None = None, **fields: Any
    ) -> None:
        """Preview a schedule that is not saved."""

    @LIST("/schedules/{schedule_id}/firings/", Record)
    def firings(self, /, schedule_id: str, *, limit: int | None = None, **filters: Any) -> None:
        """List its past times and their results."""

    @LIST("/schedules/{schedule_id}/executions/", Record)
    def executions(
        self, /, schedule_id: str, *, status: str | None = None, limit: int | None = None, **filters: Any
    ) -> None:
        """List its executions."""

    @GET("/schedules/{schedule_id}/executions/{execution_id}/", Record)
    def execution(self, /, schedule_id: str, execution_id: str, **options: Any) -> None:
        """Get one execution."""

    @POST("/schedules/{schedule_id}/executions/{execution_id}/cancel/", Record)
    def cancel_execution(
        self, /, schedule_id: str, execution_id: str, *, reason: str | None = None, **more: Any
    ) -> None:
        """Cancel an execution and its jobs."""

    @LIST("/schedules/{schedule_id}/executions/{execution_id}/jobs/", Record)
    def jobs(
        self,
        /,
        schedule_id: str,
        execution_id: str,
        *,
        state: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List the jobs of an execution."""


class Datasets(Resource[D]):
    """`/datasets/`: a tenant's own tables for data sources."""

    @LIST("/datasets/", Record)
    def list(self, /, *, search: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/datasets/", Record)
    def create(
        self,
        /,
        *,
        name: str,
        fields: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        """Create one. `fields` maps names to `string`, `integer`, `number`, `boolean` or `datetime`."""

    @GET("/datasets/{name}/", Record)
    def get(self, /, name: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/datasets/{name}/", Record)
    def update(self, /, name: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace it."""

    @PATCH("/datasets/{name}/", Record)
    def change(self, /, name: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Change only the named members."""

    @DELETE("/datasets/{name}/")
    def delete(self, /, name: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it with its rows."""

    @LIST("/datasets/{name}/rows/", Record)
    def rows(self, /, name: str, *, limit: int | None = None, **options: Any) -> None:
        """List its rows."""

    @POST("/datasets/{name}/rows/", Record, "replace")
    def add_rows(
        self, /, name: str, *, rows: Sequence[Mapping[str, Any]], replace: bool | None = None, **more: Any
    ) -> None:
        """Add rows, or replace all rows."""

    @DELETE("/datasets/{name}/rows/{key}/")
    def delete_row(self, /, name: str, key: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete one row."""
