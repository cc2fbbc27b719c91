"""What the server tells by itself: outgoing webhooks, and the stream of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Resource
from orchestrator_client.events import STREAM
from orchestrator_client.objects import Record


class Webhooks(Resource[D]):
    """`/webhooks/`."""

    @LIST("/webhooks/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/webhooks/", Record)
    def create(self, /, *, url: str, kinds: Sequence[str] | None = None, **more: Any) -> None:
        """Make one, for these kinds of events or for all. Its secret is answered this once."""

    @GET("/webhooks/{webhook_id}/", Record)
    def get(self, /, webhook_id: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/webhooks/{webhook_id}/", Record)
    def update(
        self,
        /,
        webhook_id: str,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        **fields: Any,
    ) -> None:
        """Replace it."""

    @DELETE("/webhooks/{webhook_id}/")
    def delete(self, /, webhook_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove it."""

    @LIST("/webhooks/{webhook_id}/deliveries/", Record)
    def deliveries(self, /, webhook_id: str, *, limit: int | None = None, **filters: Any) -> None:
        """What was sent, and what came of it."""

    @POST("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver/", Record)
    def redeliver(self, /, webhook_id: str, delivery_id: str, **options: Any) -> None:
        """Send it again, under the same `webhook-id`."""

    @POST("/webhooks/{webhook_id}/rotate/", Record)
    def rotate(self, /, webhook_id: str, **options: Any) -> None:
        """Give it a new secret, answered this once; the one before goes on signing for a while."""

    @POST("/webhooks/{webhook_id}/test/", Record)
    def test(self, /, webhook_id: str, **options: Any) -> None:
        """Send something to try it."""


class Events(Resource[D]):
    """`/events/`: what happens, as it happens."""

    @STREAM("/events/")
    def stream(
        self,
        /,
        *,
        last_event_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        activity: str | None = None,
        pipeline_run: str | None = None,
        **filters: Any,
    ) -> None:
        """Events as they come, for ever. After `last_event_id` without a gap, or else from now on."""

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
        """Events that are kept, oldest first, up to now."""
