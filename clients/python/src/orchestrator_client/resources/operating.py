"""Operations: queues, workers, providers and their batches, dead letters, usage and budgets, the audit trail and retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, POST, PUT, D, Members, Moment, Resource
from orchestrator_client.objects import Budget, Queue, Record


class Queues(Resource[D]):
    """`/queues/`: waiting and running work, by role."""

    @LIST("/queues/", Queue)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all roles."""

    @POST("/queues/{role}/pause/", Record)
    def pause(self, /, role: str, **options: Any) -> None:
        """Pause a role: no new work starts, and current runs continue."""

    @POST("/queues/{role}/resume/", Record)
    def resume(self, /, role: str, **options: Any) -> None:
        """Resume: new work starts again."""

    @POST("/tenant/pause/", Record)
    def pause_all(self, /, **options: Any) -> None:
        """Pause the whole tenant: no new work starts, and current runs continue."""

    @POST("/tenant/resume/", Record)
    def resume_all(self, /, **options: Any) -> None:
        """Resume: new work starts again."""


class Workers(Resource[D]):
    """`/workers/`."""

    @LIST("/workers/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List the live workers with their current runs."""


class Providers(Resource[D]):
    """`/providers/`."""

    @LIST("/providers/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List the providers with their limits, what is left of them, and their breakers."""

    @POST("/providers/{name}/pause/", Record)
    def pause(self, /, name: str, **options: Any) -> None:
        """Pause the roles that call it: no new work starts, and current runs continue."""

    @POST("/providers/{name}/resume/", Record)
    def resume(self, /, name: str, **options: Any) -> None:
        """Resume: new work starts again."""


class Batches(Resource[D]):
    """`/batches/` and `/batch-items/`: work that is sent to its provider in batches."""

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
        """List all that match, newest first."""

    @GET("/batches/{batch_id}/", Record)
    def get(self, /, batch_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

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
        """List the items of batches, in every state."""


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
        since: Moment | None = None,
        until: Moment | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> None:
        """List all that match, newest first."""


class DeadLetters(Resource[D]):
    """`/dead-letters/`: work that failed permanently."""

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
        """List all that match."""

    @GET("/dead-letters/{letter_id}/", Record)
    def get(self, /, letter_id: str, **options: Any) -> None:
        """Get one."""

    @LIST("/dead-letters/groups/", Record)
    def groups(self, /, *, state: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List similar failures as groups, by fingerprint."""

    @POST("/dead-letters/{letter_id}/replay/", Record)
    def replay_one(self, /, letter_id: str, **options: Any) -> None:
        """Replay one."""

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
        """Replay many, by id or by filter. With `dry_run`, they are only counted."""

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
        """Dismiss them: their work is cancelled."""


class Usage(Resource[D]):
    """`/usage/`: the usage of tokens and money."""

    @GET("/usage/", Record, "group_by")
    def report(
        self,
        /,
        *,
        group_by: str | Sequence[str] | None = None,
        from_: Moment | None = None,
        to: Moment | None = None,
        **filters: Any,
    ) -> None:
        """Get the totals of the ledger: `results` by group, and their `total`."""


class Budgets(Resource[D]):
    """`/budgets/`."""

    @LIST("/budgets/", Budget)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/budgets/", Budget)
    def create(
        self,
        /,
        *,
        name: str,
        cap: float | Decimal,
        unit: str | None = None,
        period: str | None = None,
        **more: Any,
    ) -> None:
        """Create a budget."""

    @GET("/budgets/{budget_id}/", Budget)
    def get(self, /, budget_id: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/budgets/{budget_id}/", Budget)
    def update(
        self, /, budget_id: str, body: Members = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it. Work that waits for it continues if the cap is raised enough."""

    @DELETE("/budgets/{budget_id}/")
    def delete(self, /, budget_id: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""


class Retention(Resource[D]):
    """`/retention/`: how long a tenant's rows are kept. For admins."""

    @GET("/retention/", Record)
    def get(self, /, **options: Any) -> None:
        """Get the days by kind, the tenant's own and the platform's."""

    @PUT("/retention/", Record)
    def update(self, /, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Set the days by kind; `"never"` means that rows are not deleted."""
