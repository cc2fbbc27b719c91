"""Agents: the registry, a tenant's own settings of roles, skills, and the settings of the platform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, PATCH, POST, PUT, D, Resource
from orchestrator_client.objects import Record


class Agents(Resource[D]):
    """`/agents/`: the platform's registry. Changes need a platform admin's token."""

    @LIST("/agents/", Record)
    def list(self, /, *, search: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/agents/", Record)
    def create(self, /, *, role: str, name: str, **more: Any) -> None:
        """Register a role."""

    @GET("/agents/{role}/", Record)
    def get(self, /, role: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/agents/{role}/", Record)
    def update(
        self, /, role: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace its entry."""

    @PATCH("/agents/{role}/", Record)
    def change(
        self, /, role: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Change what is named and nothing else."""

    @DELETE("/agents/{role}/")
    def delete(self, /, role: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove a role that nothing uses."""

    @POST("/agents/{role}/check/", Record)
    def check(self, /, role: str, **options: Any) -> None:
        """Ask for its health to be looked at now."""

    @LIST("/agents/{role}/deployments/", Record)
    def deployments(
        self, /, role: str, *, environment: str | None = None, limit: int | None = None, **filters: Any
    ) -> None:
        """Its versions, and where each runs."""

    @POST("/agents/{role}/deployments/", Record)
    def deploy(
        self, /, role: str, *, version: str, environment: str, endpoint: str | None = None, **more: Any
    ) -> None:
        """Put a version in an environment."""

    @POST("/agents/{role}/deployments/{deployment_id}/promote/", Record)
    def promote(self, /, role: str, deployment_id: str, **options: Any) -> None:
        """Put it in production."""

    @POST("/agents/{role}/rollback/", Record)
    def roll_back(self, /, role: str, **options: Any) -> None:
        """Put the version before back in production."""


class AgentConfigs(Resource[D]):
    """`/agent-configs/`: a tenant's own settings of a role; what is left out comes from the registry."""

    @LIST("/agent-configs/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """All roles."""

    @GET("/agent-configs/{role}/", Record)
    def get(self, /, role: str, **options: Any) -> None:
        """One, with its `etag`."""

    @PUT("/agent-configs/{role}/", Record)
    def update(
        self, /, role: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace the tenant's settings of a role."""

    @POST("/agent-configs/{role}/rotate-secret/", Record)
    def rotate_secret(self, /, role: str, *, etag: str | None = None, **options: Any) -> None:
        """A new secret for what is signed between us and the agent, answered this once; the one before goes on signing beside it."""


class Skills(Resource[D]):
    """`/skills/`: what a tenant wants its agents to know."""

    @LIST("/skills/", Record)
    def list(self, /, *, role: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """All that match."""

    @POST("/skills/", Record)
    def create(self, /, *, key: str, name: str, content: str, **more: Any) -> None:
        """Make one."""

    @GET("/skills/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """One in full, with its `etag`."""

    @PUT("/skills/{key}/", Record)
    def update(
        self, /, key: str, body: Mapping[str, Any] | None = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace it: a new version."""

    @DELETE("/skills/{key}/")
    def delete(self, /, key: str, *, etag: str | None = None, **options: Any) -> None:
        """Remove it."""


class PlatformConfigs(Resource[D]):
    """`/platform-configs/`: settings of the platform, for platform admins."""

    @GET("/platform-configs/scheduler/", Record)
    def scheduler(self, /, **options: Any) -> None:
        """Those of scheduling, with their `etag`."""

    @PUT("/platform-configs/scheduler/", Record)
    def update_scheduler(
        self, /, body: Mapping[str, Any] | None = None, *, etag: str | None = None, **fields: Any
    ) -> None:
        """Replace those of scheduling."""
