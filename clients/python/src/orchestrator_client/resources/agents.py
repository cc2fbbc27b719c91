"""Agents: the registry, a tenant's own settings of roles, skills, and the settings of the platform."""

from __future__ import annotations

from typing import Any

from orchestrator_client.calls import DELETE, GET, LIST, PATCH, POST, PUT, D, Members, Resource
from orchestrator_client.objects import Record


class Agents(Resource[D]):
    """`/agents/`: the platform's registry. Changes need a platform admin's token."""

    @LIST("/agents/", Record)
    def list(self, /, *, search: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/agents/", Record)
    def create(self, /, *, role: str, name: str, **more: Any) -> None:
        """Register a role."""

    @GET("/agents/{role}/", Record)
    def get(self, /, role: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/agents/{role}/", Record)
    def update(self, /, role: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace it."""

    @PATCH("/agents/{role}/", Record)
    def change(self, /, role: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Change only the named members."""

    @DELETE("/agents/{role}/")
    def delete(self, /, role: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete a role that nothing uses."""

    @POST("/agents/{role}/check/", Record)
    def check(self, /, role: str, **options: Any) -> None:
        """Request a health check."""

    @LIST("/agents/{role}/deployments/", Record)
    def deployments(
        self, /, role: str, *, environment: str | None = None, limit: int | None = None, **filters: Any
    ) -> None:
        """List its versions with their environments."""

    @POST("/agents/{role}/deployments/", Record)
    def deploy(
        self, /, role: str, *, version: str, environment: str, endpoint: str | None = None, **more: Any
    ) -> None:
        """Deploy a version to an environment."""

    @POST("/agents/{role}/deployments/{deployment_id}/promote/", Record)
    def promote(self, /, role: str, deployment_id: str, **options: Any) -> None:
        """Promote it to production."""

    @POST("/agents/{role}/rollback/", Record)
    def roll_back(self, /, role: str, **options: Any) -> None:
        """Roll production back to the previous version."""


class AgentConfigs(Resource[D]):
    """`/agent-configs/`: a tenant's own settings of a role; omitted members are taken from the registry."""

    @LIST("/agent-configs/", Record)
    def list(self, /, *, limit: int | None = None, **filters: Any) -> None:
        """List all roles."""

    @GET("/agent-configs/{role}/", Record)
    def get(self, /, role: str, **options: Any) -> None:
        """Get one, with its `etag`."""

    @PUT("/agent-configs/{role}/", Record)
    def update(self, /, role: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace the tenant's settings of a role."""

    @POST("/agent-configs/{role}/rotate-secret/", Record)
    def rotate_secret(self, /, role: str, *, etag: str | None = None, **options: Any) -> None:
        """Create a new signing secret for the agent, which is returned only once. The previous one also signs until the next rotation."""


class Skills(Resource[D]):
    """`/skills/`: texts that a tenant's agents can read."""

    @LIST("/skills/", Record)
    def list(self, /, *, role: str | None = None, limit: int | None = None, **filters: Any) -> None:
        """List all that match."""

    @POST("/skills/", Record)
    def create(self, /, *, key: str, name: str, content: str, **more: Any) -> None:
        """Create one."""

    @GET("/skills/{key}/", Record)
    def get(self, /, key: str, **options: Any) -> None:
        """Get one with its text and its `etag`."""

    @PUT("/skills/{key}/", Record)
    def update(self, /, key: str, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace it, as a new version."""

    @DELETE("/skills/{key}/")
    def delete(self, /, key: str, *, etag: str | None = None, **options: Any) -> None:
        """Delete it."""


class PlatformConfigs(Resource[D]):
    """`/platform-configs/`: settings of the platform, for platform admins."""

    @GET("/platform-configs/scheduler/", Record)
    def scheduler(self, /, **options: Any) -> None:
        """Get the settings of scheduling, with their `etag`."""

    @PUT("/platform-configs/scheduler/", Record)
    def update_scheduler(self, /, body: Members = None, *, etag: str | None = None, **fields: Any) -> None:
        """Replace the settings of scheduling."""
