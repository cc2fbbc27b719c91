"""What scenarios have in common: a tenant with an inline agent, pipelines, clients of the API, and waiting for work to end."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from django.db import connections

from activities.admission import limits, rebuilding
from activities.models import Activity, LeaderLease, WorkerProcess
from agents.models import AgentConfig
from benchmarks import environment
from pipelines import versions
from tenants import registration, tokens
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant

ROLE = "qa"
UNFINISHED = ["created", "assigned", "in_progress"]


def make_tenant(
    name: str,
    *,
    role: str = ROLE,
    endpoint: str = "benchmarks.agents:one_kilobyte",
    cap: int = 100,
    per_group: int | None = None,
) -> Tenant:
    """Create a tenant whose role runs an inline function. `cap`: runs of the role at the same time; `per_group`: of a group."""
    tenant = registration.register(f"{name}-{uuid4().hex[:8]}", "")
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(
            tenant=tenant, agent_id=role, adapter="inline", endpoint=endpoint, max_concurrency=cap, max_concurrency_per_group=per_group
        )  # fmt: skip
    return tenant


def save_pipeline(tenant: Tenant, key: str, steps: list[dict[str, Any]]) -> None:
    versions.save(tenant.pk, {"key": key, "name": key, "steps": steps}, actor="bench")


def chain(length: int) -> list[dict[str, Any]]:
    """Steps that follow each other."""
    return [{"id": f"s{number}", "agent_role": ROLE} for number in range(length)]


def wait_for_workers(count: int) -> None:
    """Wait until admission is open and this number of worker processes is registered."""

    def are_ready() -> bool:
        with system_scope():
            return WorkerProcess.objects.filter(ended_at=None).count() >= count and rebuilding.is_open()

    environment.wait_until(are_ready, 60)


def forget_workers() -> None:
    """Mark all registered worker processes as ended."""
    with system_scope():
        WorkerProcess.objects.filter(ended_at=None).update(ended_at=datetime.now(UTC))


def count_rows(model: Any, tenant: Tenant, **conditions: object) -> int:
    with tenant_scope(tenant.pk):
        return int(model.objects.filter(tenant=tenant, **conditions).count())


def is_done(tenant: Tenant) -> bool:
    """Whether none of the tenant's activities waits or runs."""
    return count_rows(Activity, tenant, status__in=UNFINISHED) == 0


def open_admission() -> None:
    """Put the limits in force as a leader would. Uses the epoch of the last leader, because earlier epochs are refused."""
    with system_scope():
        last = LeaderLease.objects.values_list("epoch", flat=True).first()
    rebuilding.rebuild(epoch=last or 0)
    limits.refresh()


class ApiClient:
    """A client of the API with an admin's token and a connection that stays open."""

    def __init__(self, port: int, tenant: Tenant) -> None:
        _, secret = tokens.create(tenant, "admin", f"bench {uuid4().hex[:8]}")
        connections.close_all()  # the client may be created in a thread that ends soon
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def send(
        self, method: str, address: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, float, int]:
        """Return the status, the seconds until the answer was read, and the number of bytes sent."""
        text = "" if body is None else json.dumps(body)
        began = time.perf_counter()
        self.connection.request(method, f"/api/v1{address}", text, self._headers)
        answer = self.connection.getresponse()
        answer.read()
        return answer.status, time.perf_counter() - began, len(text)

    def time(self, method: str, address: str, body: Mapping[str, Any] | None = None) -> float:
        """Return the seconds of a request that must succeed."""
        status, seconds, _ = self.send(method, address, body)
        if status != 200:
            raise RuntimeError(f"{method} {address} was answered with {status}.")
        return seconds
