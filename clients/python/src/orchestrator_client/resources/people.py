"""What people are asked, and what they are told: inbox, approvals, alerts, channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Resource
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
        """What waits, most urgent first."""

    @POST("/inbox/decide/", Record)
    def decide(self, /, *, items: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Decide several, `{id, decision, notes?, chosen_option?}` each; `results` of the answer are one per item."""


class Approvals(Resource[D]):
    """`/approvals/`: questions that may concern several activities."""

    @LIST("/approvals/", Approval)
    def list(self, /, *, status: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

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
        """Ask; the activities wait for the answer."""

    @GET("/approvals/{approval_id}/", Approval)
    def get(self, /, approval_id: str, **options: Any) -> None:
        """One, with its `etag`."""

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
        """Take the question back."""


class Alerts(Resource[D]):
    """`/alerts/`."""

    @LIST("/alerts/", Record)
    def list(self, /, *, kind: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @GET("/alerts/{alert_id}/", Record)
    def get(self, /, alert_id: str, **options: Any) -> None:
        """One, with whom it was told to."""

    @POST("/alerts/{alert_id}/acknowledge/", Record)
    def acknowledge(self, /, alert_id: str, **options: Any) -> None:
        """Say that somebody takes care."""


class NotificationChannels(Resource[D]):
    """`/notification-channels/`: where alerts are told."""

    @LIST("/notification-channels/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/notification-channels/", Record)
    def create(self, /, *, name: str, kind: str, target: Any, **more: Any) -> None:
        """Make one. The secret of a webhook is answered this once."""

    @GET("/notification-channels/{channel_id}/", Record)
    def get(self, /, channel_id: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/notification-channels/{channel_id}/", Record)
    def update(
        self,
        /,
        channel_id: str,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        **fields: Any,
    ) -> None:
        """Replace it."""

    @DELETE("/notification-channels/{channel_id}/")
    def delete(self, /, channel_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove it."""

    @POST("/notification-channels/{channel_id}/renew-secret/", Record)
    def renew_secret(self, /, channel_id: str, **options: Any) -> None:
        """Give it a new secret, answered this once."""

    @POST("/notification-channels/{channel_id}/test/", Record)
    def test(self, /, channel_id: str, **options: Any) -> None:
        """Send an alert there to try it."""


class Channels(Resource[D]):
    """`/channels/`: ways to other systems whose end blocks work."""

    @LIST("/channels/", Record)
    def list(self, /, *, kind: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/channels/", Record)
    def create(self, /, *, kind: str, name: str, **more: Any) -> None:
        """Make one."""

    @GET("/channels/{channel_id}/", Record)
    def get(self, /, channel_id: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/channels/{channel_id}/", Record)
    def update(
        self,
        /,
        channel_id: str,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        **fields: Any,
    ) -> None:
        """Replace it."""

    @DELETE("/channels/{channel_id}/")
    def delete(self, /, channel_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove it."""

    @POST("/channels/{channel_id}/disable/", Record)
    def disable(self, /, channel_id: str, **options: Any) -> None:
        """Use it no more."""

    @POST("/channels/{channel_id}/expire/", Record)
    def expire(self, /, channel_id: str, **options: Any) -> None:
        """Say that its access has run out."""

    @POST("/channels/{channel_id}/reactivate/", Record)
    def reactivate(self, /, channel_id: str, *, expires_at: str | None = None, **more: Any) -> None:
        """Use it again; what it blocked goes on."""
