"""Activities: submitting and reading work, and the actions of people and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import GET, LIST, PATCH, POST, D, Members, Moment, Resource
from orchestrator_client.objects import Activity, LogPage, Output, Record, Run, SubmittedActivity, Why


class Activities(Resource[D]):
    """`/activities/`."""

    @POST("/activities/", SubmittedActivity)
    def create(
        self,
        /,
        *,
        name: str,
        agent_role: str | None = None,
        human_role: str | None = None,
        description: str | None = None,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,
        priority: int | None = None,
        not_before: Moment | None = None,
        dedup_key: str | None = None,
        requires_approval: bool | None = None,
        max_attempts: int | None = None,
        timeout_seconds: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Submit work for an agent's role or for a human role. `input` is `{content, data}`."""

    @POST("/activities/", Record)
    def create_many(self, /, body: Sequence[Mapping[str, Any]], **options: Any) -> None:
        """Submit several activities, all or none. The `results` of the answer are in the same order."""

    @POST("/activities/bulk/", Record)
    def bulk(
        self,
        /,
        *,
        action: str,
        filter: Mapping[str, Any],
        dry_run: bool | None = None,
        expected_count: int | None = None,
        reason: str | None = None,
        **more: Any,
    ) -> None:
        """Cancel, retry, reassign or reprioritize all activities that match a filter.
        `dry_run` counts them; with `expected_count`, which is what it counted, the answer is a job of `bulk_jobs`.
        """

    @LIST("/activities/", Activity, "status")
    def list(
        self,
        /,
        *,
        status: str | Sequence[str] | None = None,
        agent_role: str | None = None,
        human_role: str | None = None,
        pipeline_run: str | None = None,
        search: str | None = None,
        ordering: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match."""

    @GET("/activities/{activity_id}/", Activity)
    def get(self, /, activity_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @GET("/activities/{activity_id}/input/", Record)
    def input(self, /, activity_id: str, **options: Any) -> None:
        """Get its input: `ref`, `content`, `data`, and `steps` before it. Raises `NotFound` with the code `no_input` if it has none."""

    @GET("/activities/{activity_id}/output/", Output)
    def output(self, /, activity_id: str, **options: Any) -> None:
        """Get its output."""

    @LIST("/activities/{activity_id}/runs/", Run)
    def runs(self, /, activity_id: str, *, limit: int | None = None, **options: Any) -> None:
        """List its runs, which are the attempts at it."""

    @GET("/activities/{activity_id}/runs/{run_id}/log/", LogPage)
    def log(
        self,
        /,
        activity_id: str,
        run_id: str,
        *,
        after: int | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> None:
        """Read the log lines of a run, after the line with the number `after`."""

    @GET("/activities/{activity_id}/runs/{run_id}/transcript/", str)
    def transcript(self, /, activity_id: str, run_id: str, **options: Any) -> None:
        """Read the transcript of a run, as text."""

    @LIST("/activities/{activity_id}/timeline/", Record)
    def timeline(self, /, activity_id: str, *, limit: int | None = None, **options: Any) -> None:
        """List everything that has happened to it."""

    @GET("/activities/{activity_id}/why/", Why)
    def why(self, /, activity_id: str, **options: Any) -> None:
        """Explain why it is not running."""

    @POST("/activities/{activity_id}/approve/", Activity)
    def approve(
        self, /, activity_id: str, *, notes: str | None = None, chosen_option: str | None = None, **more: Any
    ) -> None:
        """Approve the work that waits at a gate."""

    @POST("/activities/{activity_id}/reject/", Activity)
    def reject(
        self, /, activity_id: str, *, notes: str, chosen_option: str | None = None, **more: Any
    ) -> None:
        """Request changes to the work that waits at a gate. The agent revises it with the notes."""

    @POST("/activities/{activity_id}/start/", Activity)
    def start(self, /, activity_id: str, **options: Any) -> None:
        """Claim a person's task."""

    @POST("/activities/{activity_id}/complete/", Activity)
    def complete(
        self, /, activity_id: str, *, output: Any = None, note: str | None = None, **more: Any
    ) -> None:
        """Complete a person's task."""

    @POST("/activities/{activity_id}/resolve/", Activity)
    def resolve(self, /, activity_id: str, *, note: str, **more: Any) -> None:
        """Resolve a blocker, and say how."""

    @POST("/activities/{activity_id}/review/", Activity)
    def review(
        self, /, activity_id: str, *, approved: bool, feedback: str | None = None, **more: Any
    ) -> None:
        """Answer a review that an agent requested."""

    @POST("/activities/{activity_id}/cancel/", Activity)
    def cancel(self, /, activity_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Cancel it; a running agent is told to stop."""

    @POST("/activities/{activity_id}/retry/", Activity)
    def retry(self, /, activity_id: str, **options: Any) -> None:
        """Retry a failed activity."""

    @PATCH("/activities/{activity_id}/", Activity)
    def change(
        self, /, activity_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Change its `priority`, `not_before`, `due_at` and `expires_at` while it waits; None in the `body` removes a date."""

    @POST("/activities/{activity_id}/run-now/", Activity)
    def run_now(self, /, activity_id: str, *, reason: str, **more: Any) -> None:
        """Run it once in spite of the tenant's pauses; `waiting_for` says what it still waits for."""

    @POST("/activities/{activity_id}/reassign/", Activity)
    def reassign(
        self,
        /,
        activity_id: str,
        *,
        reason: str,
        assignee_type: str | None = None,
        agent_role: str | None = None,
        human_role: str | None = None,
        **more: Any,
    ) -> None:
        """Reassign it to another role. Returns the successor."""


class BulkJobs(Resource[D]):
    """`/bulk-jobs/`: one action on many activities, in portions."""

    @LIST("/bulk-jobs/", Record)
    def list(
        self,
        /,
        *,
        action: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match, newest first."""

    @GET("/bulk-jobs/{job_id}/", Record)
    def get(self, /, job_id: str, **options: Any) -> None:
        """Get its progress."""

    @LIST("/bulk-jobs/{job_id}/items/", Record)
    def items(
        self, /, job_id: str, *, state: str | None = None, limit: int | None = None, **filters: Any
    ) -> None:
        """List the result for each activity."""

    @POST("/bulk-jobs/{job_id}/cancel/", Record)
    def cancel(self, /, job_id: str, **options: Any) -> None:
        """Stop before the next portion. Nothing is reverted."""
