"""Operating: queues, workers, providers and their batches, dead letters, consumption and budgets, and who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Resource
from orchestrator_client.objects import Budget, Queue, Record


class Queues(Resource[D]):
    """`/queues/`: what waits and runs, by role."""

    @LIST("/queues/", Queue)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All roles."""

    @POST("/queues/{role}/pause/", Record)
    def pause(self, /, role: str, **options: Any) -> None:
        """Start nothing more of this role; what runs goes on."""

    @POST("/queues/{role}/resume/", Record)
    def resume(self, /, role: str, **options: Any) -> None:
        """Go on."""

    @POST("/tenant/pause/", Record)
    def pause_all(self, /, **options: Any) -> None:
        """Start nothing more of the whole tenant; what runs goes on."""

    @POST("/tenant/resume/", Record)
    def resume_all(self, /, **options: Any) -> None:
        """Go on."""


class Workers(Resource[D]):
    """`/workers/`."""

    @LIST("/workers/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """Those that live, and what each works on."""


class Providers(Resource[D]):
    """`/providers/`."""

    @LIST("/providers/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """Their limits, what is left of them, and their breakers."""

    @POST("/providers/{name}/pause/", Record)
    def pause(self, /, name: str, **options: Any) -> None:
        """Start nothing new of the roles that call it; what runs goes on."""

    @POST("/providers/{name}/resume/", Record)
    def resume(self, /, name: str, **options: Any) -> None:
        """Go on."""


class Batches(Resource[D]):
    """`/batches/` and `/batch-items/`: work that goes to its provider in batches."""

    @LIST("/batches/", Record)
    def list(
        self,
        /,
        *,
        state: str | None = None,
        model: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """All that match, newest first."""

    @GET("/batches/{batch_id}/", Record)
    def get(self, /, batch_id: str, **options: Any) -> None:
        """One, with its `etag`."""

    @LIST("/batch-items/", Record)
    def items(
        self,
        /,
        *,
        batch: str | None = None,
        activity: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """What waits to be sent, was sent, and was answered."""


class Audit(Resource[D]):
    """`/audit/`: who did what, and from where. For admins."""

    @LIST("/audit/", Record)
    def list(
        self,
        /,
        *,
        actor: str | None = None,
        operation: str | None = None,
        object: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """All that match, newest first."""


class DeadLetters(Resource[D]):
    """`/dead-letters/`: what has failed for good."""

    @LIST("/dead-letters/", Record)
    def list(
        self,
        /,
        *,
        state: str | None = None,
        agent_role: str | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """All that match."""

    @GET("/dead-letters/{letter_id}/", Record)
    def get(self, /, letter_id: str, **options: Any) -> None:
        """One with all that is known of it."""

    @LIST("/dead-letters/groups/", Record)
    def groups(self, /, *, state: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """Grouped by fingerprint: the same fault once."""

    @POST("/dead-letters/{letter_id}/replay/", Record)
    def replay_one(self, /, letter_id: str, **options: Any) -> None:
        """Try one again."""

    @POST("/dead-letters/replay/", Record)
    def replay(
        self,
        /,
        *,
        ids: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        dry_run: bool | None = None,
        per_second: float | None = None,
        **more: Any,
    ) -> None:
        """Try many again, by id or by filter; with `dry_run` they are counted only."""

    @POST("/dead-letters/dismiss/", Record)
    def dismiss(
        self,
        /,
        *,
        reason: str,
        ids: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        dry_run: bool | None = None,
        **more: Any,
    ) -> None:
        """Let them rest."""


class Usage(Resource[D]):
    """`/usage/`: what was consumed."""

    @GET("/usage/", Record, "group_by")
    def report(
        self,
        /,
        *,
        group_by: str | Sequence[str] | None = None,
        from_: str | None = None,
        to: str | None = None,
        **filters: Any,
    ) -> None:
        """Figures of the ledger: `results` by group, and their `total`."""


class Budgets(Resource[D]):
    """`/budgets/`."""

    @LIST("/budgets/", Budget)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/budgets/", Budget)
    def create(
        self, /, *, name: str, cap: float, unit: str | None = None, period: str | None = None, **more: Any
    ) -> None:
        """Set a cap."""

    @GET("/budgets/{budget_id}/", Budget)
    def get(self, /, budget_id: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/budgets/{budget_id}/", Budget)
    def update(
        self,
        /,
        budget_id: str,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        **fields: Any,
    ) -> None:
        """Replace it; work that waited for it goes on when the cap was raised."""

    @DELETE("/budgets/{budget_id}/")
    def delete(self, /, budget_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove the cap."""


class Retention(Resource[D]):
    """`/retention/`: how long a tenant keeps what. For admins."""

    @GET("/retention/", Record)
    def get(self, /, **options: Any) -> None:
        """Days by kind, the tenant's own and the platform's."""

    @PUT("/retention/", Record)
    def update(
        self,
        /,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        **fields: Any,
    ) -> None:
        """Keep these kinds for so many days, or `"never"` delete them."""
