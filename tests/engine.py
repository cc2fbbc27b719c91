"""The engine in the test's own process: real PostgreSQL, real Redis, real messages, and a test that decides what happens next.

Messages are taken from the role queues one by one, as a worker would, so every interleaving can be written down as a sequence.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from time import monotonic, sleep
from typing import Any
from unittest import mock
from uuid import UUID

from django.conf import settings
from django.db import connections

from activities import dispatch, leases, relay, tasks
from activities.admission import Exchange, keys, limits, rebuilding
from activities.models import Activity, ActivityRun
from activities.submission import NewActivity, submit
from agents import configuration
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.models import AgentConfig
from agents.routing import queue_of
from tenants import tracing
from tenants.context import SYSTEM, tenant_scope
from tenants.models import Tenant
from tenants.redis import client


def elsewhere(action: Callable[[], Any]) -> Any:
    """Run the action in another thread with a separate database connection, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_closing, action).result()


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Run all actions at the same moment, each in a thread. Return results and exceptions in order."""
    barrier = Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return _closing(action)
        except Exception as error:  # noqa: BLE001  # the outcome is what the test looks at
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until the condition is true; fail after the time-out."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"still not true after {seconds} s"
        sleep(0.01)


def somebody_waits_for_a_lock() -> bool:
    """Whether a connection of this server waits for what another one holds."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def _closing(action: Callable[[], Any]) -> Any:
    try:
        return action()
    finally:
        connections.close_all()


Behaviour = Callable[[AgentRequest], AgentResult]


def _answer(request: AgentRequest) -> AgentResult:
    return Completed(Output(content=f"{request.name}: done", data={"round": request.attempt}))


@dataclass
class ScriptedAgent:
    """Records its requests, and answers as the test says."""

    behaviour: Behaviour = _answer
    calls: list[AgentRequest] = field(default_factory=list)

    def __call__(self, request: AgentRequest) -> AgentResult:
        self.calls.append(request)
        return self.behaviour(request)


AGENT = ScriptedAgent()


def agent(request: AgentRequest) -> AgentResult:
    """What the inline adapter of tests calls."""
    return AGENT(request)


#: Whether there is work or a rate, whether anybody has limits of their own, and a digest of the registry.
_FOUND = """
    SELECT EXISTS (SELECT FROM activities_activity) OR EXISTS (SELECT FROM agents_agentconfig WHERE rate <> '{}'),
        EXISTS (SELECT FROM agents_agentconfig) OR EXISTS (SELECT FROM tenants_pause) OR EXISTS (
            SELECT FROM tenants_tenant WHERE NOT is_active OR paused OR plan_id IS NOT NULL OR weight <> 1
            OR max_concurrency IS NOT NULL OR max_concurrency_per_group IS NOT NULL
        ),
        (SELECT md5(string_agg(a::text, '|' ORDER BY a.role)) FROM agents_agent a)
"""
_usual_limits: dict[tuple[str, ...], Any] = {}


def _open_admission() -> None:
    """Build admission from PostgreSQL. Where there is no work, none is looked for, and where nobody has limits of their own, those of the
    registry are made out once: that would take a fifth of a test's time.
    """
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_FOUND)
        is_used, has_limits, registry = cursor.fetchone()
    if is_used:
        rebuilding.rebuild()
        return
    make_out = limits._limits

    def kept(workers: Any) -> Any:
        given = (settings.ORCHESTRATOR_MAX_CONCURRENCY, settings.ORCHESTRATOR_STARTS_PER_MINUTE)
        key = (registry, repr(workers), repr(given))
        if key not in _usual_limits:
            _usual_limits[key] = make_out(workers)
        return _usual_limits[key]

    nothing = {
        "_restore_starts": lambda _: None,
        "_restore_runs": lambda _: 0,
        "_restore_waiting": lambda _: 0,
    }
    with (
        mock.patch.multiple(rebuilding, **nothing),
        mock.patch.object(limits, "_limits", make_out if has_limits else kept),
    ):
        rebuilding.rebuild()


class Engine:
    """A worker's seats without a worker: the test delivers the messages."""

    def __init__(self, roles: list[str], seats: int = 10) -> None:
        AGENT.calls.clear()
        AGENT.behaviour = _answer
        self.agent, self.roles = AGENT, roles
        # Seconds, until what was handed over for admission must be through. On a busy machine that takes long; no test counts on less.
        self.patience = 20.0
        configuration.forget()
        self.lease = leases.begin(roles=roles, concurrency=seats, watched=False)
        _open_admission()

    def replace_worker(self) -> None:
        """Another worker process with the same seats, as after one has been drained or lost."""
        leases.end()
        self.lease = leases.begin(roles=self.roles, concurrency=self.lease.concurrency, watched=False)
        limits.refresh()

    def close(self) -> None:
        self.wait_for_relief()
        relay.flush()
        leases.end()

    def wait_for_relief(self) -> bool:
        """Wait for the threads that have taken over quick work, which no delivery waits for. Returns False if there are none."""
        quick = dispatch.QUICK_WORK
        with quick._lock:
            # With nothing left to watch it ends soon, and until then it may be about to start a thread.
            watch = None if quick._groups or quick._waiting_grants or quick._threads else quick._relief
        if watch is not None and watch is not threading.current_thread():
            watch.join(self.patience)
        relieving = [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("relief of") and thread is not threading.current_thread()
        ]
        for thread in relieving:
            thread.join(self.patience)
        return bool(relieving)

    def serve(self, tenant: Tenant, *roles: str, **fields: Any) -> None:
        """Let the scripted agent do these roles for the tenant."""
        given = {"adapter": "inline", "endpoint": "tests.engine:agent", **fields}
        with tenant_scope(tenant.pk):
            AgentConfig.objects.bulk_create(
                [AgentConfig(tenant=tenant, agent_id=role, **given) for role in roles or self.roles],
                update_conflicts=True, unique_fields=("tenant", "agent"), update_fields=list(given),
            )  # fmt: skip
        configuration.forget()
        limits.refresh()

    def submit(self, tenant: Tenant, role: str = "qa", count: int = 1, **fields: Any) -> list[UUID]:
        with tenant_scope(tenant.pk):
            items = [NewActivity(name=f"work {number}", agent_role=role, **fields) for number in range(count)]
            submitted = submit(items, actor="test")
        relay.flush(self.patience)
        return [item.id for item in submitted]

    def messages(self) -> int:
        relay.flush(self.patience)
        return sum(client().llen(queue_of(role)) for role in self.roles)

    def take(self) -> dict[str, str] | None:
        """The arguments of the next message, taken off its queue."""
        relay.flush(self.patience)
        for role in self.roles:
            raw = client().rpop(queue_of(role))
            if raw is not None:
                message = json.loads(raw)
                tracing.note_arrival(message["headers"].get("traceparent"))
                arguments: dict[str, str] = json.loads(base64.b64decode(message["body"]))[1]
                return arguments
        return None

    def deliver(self) -> bool:
        """Run the next message; False when there is none."""
        arguments = self.take()
        if arguments is None:
            return False
        tasks.run(**arguments)
        return True

    def drain(self) -> int:
        """Deliver until no message is left and no thread works on one; returns how many there were."""
        delivered, before = 0, -1
        # A thread may leave a message and end just before it is looked for, so messages are taken after the threads.
        while self.wait_for_relief() or before != delivered:
            before = delivered
            while self.deliver():
                delivered += 1
        return delivered

    def end_holds(self) -> None:
        """Let the delays that providers requested be over."""
        relay.flush(self.patience)
        root = keys.generation(client().get(keys.pointer()).decode())
        for name, hold in client().hgetall(f"{root}holds").items():
            client().hset(f"{root}holds", name, b"0|" + hold.split(b"|", 1)[1])
        for member in client().zrange(f"{root}due", 0, -1):
            client().zadd(f"{root}due", {member: 0})
        relay.release_and_acquire(Exchange())

    def get(self, tenant: Tenant, activity_id: UUID) -> Activity:
        with tenant_scope(tenant.pk):
            return Activity.objects.get(pk=activity_id)

    def status(self, tenant: Tenant, activity_id: UUID) -> str:
        return self.get(tenant, activity_id).status

    def runs(self, tenant: Tenant, activity_id: UUID) -> list[ActivityRun]:
        with tenant_scope(tenant.pk):
            return list(ActivityRun.objects.filter(activity_id=activity_id).order_by("fence"))

    def make_due(self, tenant: Tenant) -> None:
        """Let every delay of the tenant's wakes be over, and promote them."""
        from django.db.models.functions import Now

        from activities import outbox
        from activities.models import Wake

        with tenant_scope(tenant.pk):
            Wake.objects.filter(state="pending", due_at__isnull=False).update(due_at=Now())
        outbox.promote()
        relay.flush(self.patience)
