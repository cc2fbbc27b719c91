"""Questions and messages to people: inbox, approvals, alerts, channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Members, Moment, Resource
from orchestrator_client.objects import Activity, Approval, Record


class Inbox(Resource[D]):
    """`/inbox/`: everything that waits for a person."""

    @LIST("/inbox/", Activity)
    def list(
        self,
        /,
        *,
        human_role: str | None = None,
        mine: bool | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List the waiting items, most urgent first."""

    @POST("/inbox/decide/", Record)
    def decide(self, /, *, items: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Decide several items, each `{id, decision, notes?, chosen_option?}`. The answer has one of the `results` for each item."""


class Approvals(Resource[D]):
    """`/approvals/`: questions about one or several activities."""

    @LIST("/approvals/", Approval)
    def list(self, /, *, status: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/approvals/", Approval)
    def create(
        self,
        /,
        *,
        type: str,
        title: str,
        options: Sequence[Any] | None = None,
        activity_ids: Sequence[str] | None = None,
        human_role: str | None = None,
        due_seconds: int | None = None,
        **more: Any,
    ) -> None:
        """Ask people; the activities wait for the answer."""

    @GET("/approvals/{approval_id}/", Approval)
    def get(self, /, approval_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @POST("/approvals/{approval_id}/decide/", Approval)
    def decide(
        self,
        /,
        approval_id: str,
        *,
        decision: str,
        notes: str | None = None,
        chosen_option: str | None = None,
        **more: Any,
    ) -> None:
        """Decide: `approved` or `rejected`."""

    @POST("/approvals/{approval_id}/withdraw/", Approval)
    def withdraw(self, /, approval_id: str, *, reason: str | None = None, **more: Any) -> None:
        """Withdraw the question."""


class Alerts(Resource[D]):
    """`/alerts/`."""

    @LIST("/alerts/", Record)
    def list(self, /, *, kind: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @GET("/alerts/{alert_id}/", Record)
    def get(self, /, alert_id: str, **options: Any) -> None:
        """Get one, with its deliveries."""

    @POST("/alerts/{alert_id}/acknowledge/", Record)
    def acknowledge(self, /, alert_id: str, **options: Any) -> None:
        """Acknowledge it."""


class NotificationChannels(Resource[D]):
    """`/notification-channels/`: where alerts are sent."""

    @LIST("/notification-channels/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/notification-channels/", Record)
    def create(self, /, *, name: str, kind: str, target: Any, **more: Any) -> None:
        """Create one. The secret of a webhook is returned only once."""

    @GET("/notification-channels/{channel_id}/", Record)
    def get(self, /, channel_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/notification-channels/{channel_id}/", Record)
    def update(
        self, /, channel_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it."""

    @DELETE("/notification-channels/{channel_id}/")
    def delete(self, /, channel_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""

    @POST("/notification-channels/{channel_id}/renew-secret/", Record)
    def renew_secret(self, /, channel_id: str, **options: Any) -> None:
        """Rotate its secret. The new one is returned only once."""

    @POST("/notification-channels/{channel_id}/test/", Record)
    def test(self, /, channel_id: str, **options: Any) -> None:
        """Send a test alert to it."""


class Channels(Resource[D]):
    """`/channels/`: connections to external services that agents need."""

    @LIST("/channels/", Record)
    def list(self, /, *, kind: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/channels/", Record)
    def create(self, /, *, kind: str, name: str, **more: Any) -> None:
        """Create one."""

    @GET("/channels/{channel_id}/", Record)
    def get(self, /, channel_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/channels/{channel_id}/", Record)
    def update(
        self, /, channel_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it."""

    @DELETE("/channels/{channel_id}/")
    def delete(self, /, channel_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""

    @POST("/channels/{channel_id}/disable/", Record)
    def disable(self, /, channel_id: str, **options: Any) -> None:
        """Disable it."""

    @POST("/channels/{channel_id}/expire/", Record)
    def expire(self, /, channel_id: str, **options: Any) -> None:
        """Mark it as expired."""

    @POST("/channels/{channel_id}/reactivate/", Record)
    def reactivate(self, /, channel_id: str, *, expires_at: Moment | None = None, **more: Any) -> None:
        """Reactivate it. Work that it blocked continues."""
