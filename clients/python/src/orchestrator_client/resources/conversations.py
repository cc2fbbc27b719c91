"""Mailboxes of agents' sessions, and agents that agents have started."""

from __future__ import annotations

from typing import Any

from orchestrator_client.calls import GET, LIST, POST, D, Resource
from orchestrator_client.objects import Record


class Mailboxes(Resource[D]):
    """`/mailboxes/`: what was said to an agent's session, taken in batches."""

    @POST("/mailboxes/{key}/items/", Record)
    def put(
        self,
        /,
        key: str,
        *,
        kind: str,
        content: Any = None,
        text: str | None = None,
        source: str | None = None,
        priority: int | None = None,
        run_after: str | None = None,
        max_attempts: int | None = None,
        backoff_multiplier: float | None = None,
        max_backoff_ms: int | None = None,
        is_coalescable: bool | None = None,
        scope_key: str | None = None,
        client_message_id: str | None = None,
        agent_role: str | None = None,
        **more: Any,
    ) -> None:
        """Put an item in. One with a known `client_message_id` is answered with what is there."""

    @LIST("/mailboxes/", Record)
    def list(self, /, *, agent_role: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match, with what waits in each."""

    @GET("/mailboxes/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """One, with what waits in it."""

    @LIST("/mailboxes/{key}/items/", Record)
    def items(
        self,
        /,
        key: str,
        *,
        kind: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """What was said, newest first."""

    @GET("/mailboxes/{key}/items/{item_id}/", Record)
    def item(self, /, key: str, item_id: str, **options: Any) -> None:
        """One item, and how it stands."""

    @POST("/mailboxes/{key}/items/{item_id}/retry/", Record)
    def retry_item(self, /, key: str, item_id: str, **options: Any) -> None:
        """Let a failed item be taken again, with all its attempts."""

    @POST("/mailboxes/{key}/items/{item_id}/cancel/", Record)
    def cancel_item(self, /, key: str, item_id: str, **options: Any) -> None:
        """Cancel an item that waits or has failed."""

    @POST("/mailboxes/{key}/take/", Record)
    def take(
        self,
        /,
        key: str,
        *,
        consumer: str,
        window_ms: int | None = None,
        lease_seconds: float | None = None,
        limit: int | None = None,
        **more: Any,
    ) -> None:
        """Lease the next batch; None when nothing is due."""

    @POST("/mailboxes/{key}/batches/{batch_id}/completed/", Record)
    def completed(self, /, key: str, batch_id: str, *, result: Any = None, **more: Any) -> None:
        """Say that all of the batch is done."""

    @POST("/mailboxes/{key}/batches/{batch_id}/failed/", Record)
    def failed(
        self, /, key: str, batch_id: str, *, error: Any, retryable: bool | None = None, **more: Any
    ) -> None:
        """Say that it failed; what has attempts left comes again later."""

    @POST("/mailboxes/{key}/batches/{batch_id}/heartbeat/", Record)
    def heartbeat(
        self, /, key: str, batch_id: str, *, lease_seconds: float | None = None, **more: Any
    ) -> None:
        """Keep the lease."""


class Subagents(Resource[D]):
    """`/subagents/`."""

    @POST("/subagents/", Record)
    def create(
        self, /, *, subagent_type: str, prompt: str, description: str | None = None, **more: Any
    ) -> None:
        """Start one; its task id, output and subagent id are answered."""

    @LIST("/subagents/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @GET("/subagents/{subagent_id}/", Record)
    def get(self, /, subagent_id: str, **options: Any) -> None:
        """One with what has become of it."""

    @GET("/subagents/{subagent_id}/transcript/", str)
    def transcript(self, /, subagent_id: str, **options: Any) -> None:
        """What it said and did, as text."""

    @POST("/subagents/{subagent_id}/cancel/", Record)
    def cancel(self, /, subagent_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Tell it to stop."""
