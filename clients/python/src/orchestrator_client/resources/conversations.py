"""Mailboxes of agents' sessions, and subagents."""

from __future__ import annotations

from typing import Any

from orchestrator_client.calls import GET, LIST, POST, D, Moment, Resource
from orchestrator_client.objects import Record


class Mailboxes(Resource[D]):
    """`/mailboxes/`: the items of an agent's session, taken in batches."""

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
        run_after: Moment | None = None,
        max_attempts: int | None = None,
        backoff_multiplier: float | None = None,
        max_backoff_ms: int | None = None,
        is_coalescable: bool | None = None,
        scope_key: str | None = None,
        client_message_id: str | None = None,
        agent_role: str | None = None,
        **more: Any,
    ) -> None:
        """Post an item. With a known `client_message_id`, the existing item is returned."""

    @LIST("/mailboxes/", Record)
    def list(self, /, *, agent_role: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match, with the numbers of their items."""

    @GET("/mailboxes/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """Get one, with the numbers of its items."""

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
        """List its items, newest first."""

    @GET("/mailboxes/{key}/items/{item_id}/", Record)
    def item(self, /, key: str, item_id: str, **options: Any) -> None:
        """Get one item."""

    @POST("/mailboxes/{key}/items/{item_id}/retry/", Record)
    def retry_item(self, /, key: str, item_id: str, **options: Any) -> None:
        """Retry a failed item, with its full number of attempts."""

    @POST("/mailboxes/{key}/items/{item_id}/cancel/", Record)
    def cancel_item(self, /, key: str, item_id: str, **options: Any) -> None:
        """Cancel a pending or failed item."""

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
        """Lease the next batch. None if nothing is due."""

    @POST("/mailboxes/{key}/batches/{batch_id}/completed/", Record)
    def completed(self, /, key: str, batch_id: str, *, result: Any = None, **more: Any) -> None:
        """Complete a batch."""

    @POST("/mailboxes/{key}/batches/{batch_id}/failed/", Record)
    def failed(
        self, /, key: str, batch_id: str, *, error: Any, retryable: bool | None = None, **more: Any
    ) -> None:
        """Report that a batch failed. Items with attempts left are delivered again later."""

    @POST("/mailboxes/{key}/batches/{batch_id}/heartbeat/", Record)
    def heartbeat(
        self, /, key: str, batch_id: str, *, lease_seconds: float | None = None, **more: Any
    ) -> None:
        """Extend the lease of a batch."""


class Subagents(Resource[D]):
    """`/subagents/`."""

    @POST("/subagents/", Record)
    def create(
        self, /, *, subagent_type: str, prompt: str, description: str | None = None, **more: Any
    ) -> None:
        """Start one. Returns its task id, output file and subagent id."""

    @LIST("/subagents/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @GET("/subagents/{subagent_id}/", Record)
    def get(self, /, subagent_id: str, **options: Any) -> None:
        """Get one, with its state."""

    @GET("/subagents/{subagent_id}/transcript/", str)
    def transcript(self, /, subagent_id: str, **options: Any) -> None:
        """Read its transcript, as text."""

    @POST("/subagents/{subagent_id}/cancel/", Record)
    def cancel(self, /, subagent_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Cancel it; a running agent is told to stop."""
