"""Webhooks, and the stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Members, Resource
from orchestrator_client.events import STREAM
from orchestrator_client.objects import Record


class Webhooks(Resource[D]):
    """`/webhooks/`."""

    @LIST("/webhooks/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/webhooks/", Record)
    def create(self, /, *, url: str, kinds: Sequence[str] | None = None, **more: Any) -> None:
        """Create one, for these kinds of events or for all. Its secret is returned only once."""

    @GET("/webhooks/{webhook_id}/", Record)
    def get(self, /, webhook_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/webhooks/{webhook_id}/", Record)
    def update(
        self, /, webhook_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it."""

    @DELETE("/webhooks/{webhook_id}/")
    def delete(self, /, webhook_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""

    @LIST("/webhooks/{webhook_id}/deliveries/", Record)
    def deliveries(self, /, webhook_id: str, *, limit: int | None = None, **filters: Any) -> None:
        """List its deliveries."""

    @POST("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver/", Record)
    def redeliver(self, /, webhook_id: str, delivery_id: str, **options: Any) -> None:
        """Send a delivery again, with the same `webhook-id`."""

    @POST("/webhooks/{webhook_id}/rotate/", Record)
    def rotate(self, /, webhook_id: str, **options: Any) -> None:
        """Rotate its secret. The new one is returned only once; the previous one also signs for 24 hours."""

    @POST("/webhooks/{webhook_id}/test/", Record)
    def test(self, /, webhook_id: str, **options: Any) -> None:
        """Send a test message to it."""


class Events(Resource[D]):
    """`/events/`: the events of the tenant."""

    @STREAM("/events/")
    def stream(
        self,
        /,
        *,
        last_event_id: str | int | None = None,
        kind: str | Sequence[str] | None = None,
        activity: str | None = None,
        pipeline_run: str | None = None,
        **filters: Any,
    ) -> None:
        """Stream events: after `last_event_id` without gaps, or else from now on. The stream does not end by itself."""

    @LIST("/events/", Record)
    def list(
        self,
        /,
        *,
        after: int | None = None,
        kind: str | Sequence[str] | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List the stored events, oldest first, until now."""
