"""The engine in the process of the test, on real PostgreSQL and Redis.

The test takes messages from the role queues one by one, as a worker does, so that it can write down every interleaving as a sequence.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Barrier
from time import monotonic, sleep
from typing import Any
from unittest import mock
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connections

from activities import dispatch, leases, relay, tasks
from activities.admission import Exchange, keys, limits, rebuilding
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.submission import NewActivity, submit
from agents import configuration
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.models import AgentConfig
from agents.routing import queue_of
from tenants import tracing
from tenants.context import SYSTEM, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tenants.sql import Statement
from tests import quick_rows


def in_another_thread(action: Callable[[], Any]) -> Any:
    """Run the action in another thread with a separate database connection, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_call_and_close_connections, action).result()


def simultaneously(*actions: Callable[[], Any]) -> list[Any]:
    """Run all actions at the same moment, each in a thread. Return results and exceptions in order."""
    barrier = Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return _call_and_close_connections(action)
        except Exception as error:  # noqa: BLE001  # because the test checks the outcome
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until the condition is true; fail after the time-out. The longer it takes, the less often it is checked."""
    began = monotonic()
    while not condition():
        waited = monotonic() - began
        assert waited < seconds, f"still not true after {seconds} s"
        sleep(min(0.01 + waited / 10, 0.05))


@contextmanager
def no_threads() -> Iterator[None]:
    """Refuse to start threads, as the operating system does at its limit."""
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        yield


def somebody_waits_for_a_lock() -> bool:
    """Return whether a connection to this database waits for a lock. Other databases of the server belong to other test processes."""
    with connections[SYSTEM].cursor() as cursor:
        # A wait for a transaction names no database, so its connection is found by its other locks.
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_locks WHERE database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())))"
        )
        return bool(cursor.fetchone()[0])


def _call_and_close_connections(action: Callable[[], Any]) -> Any:
    try:
        return action()
    finally:
        connections.close_all()


Behaviour = Callable[[AgentRequest], AgentResult]


def _answer(request: AgentRequest) -> AgentResult:
    return Completed(Output(content=f"{request.name}: done", data={"round": request.attempt}))


@dataclass
class ScriptedAgent:
    """Records its requests and answers with its behaviour, which the test sets."""

    behaviour: Behaviour = _answer
    calls: list[AgentRequest] = field(default_factory=list)

    def __call__(self, request: AgentRequest) -> AgentResult:
        self.calls.append(request)
        return self.behaviour(request)


AGENT = ScriptedAgent()


def agent(request: AgentRequest) -> AgentResult:
    """Answer as the scripted agent. The adapter `inline` calls this function."""
    return AGENT(request)


#: Whether work or rates exist, whether tenants have limits that their settings of roles do not contain, the tenants with such settings,
#: their settings, a digest of the registry, and the workers.
_STATE = Statement(
    "state_of_limits",
    """
    SELECT EXISTS (SELECT FROM activities_activity) OR EXISTS (SELECT FROM agents_agentconfig WHERE rate <> '{}') AS is_used,
        EXISTS (SELECT FROM tenants_pause) OR EXISTS (
            SELECT FROM tenants_tenant WHERE NOT is_active OR paused OR plan_id IS NOT NULL OR weight <> 1
            OR max_concurrency IS NOT NULL OR max_concurrency_per_group IS NOT NULL
        ) AS has_other_limits,
        ARRAY(SELECT DISTINCT tenant_id::text FROM agents_agentconfig ORDER BY 1) AS tenants,
        (
            SELECT string_agg(c.tenant || (c.row - '{id,tenant_id}'::text[])::text, '|' ORDER BY c.tenant, c.role)
            FROM (SELECT dense_rank() OVER (ORDER BY tenant_id) AS tenant, role, to_jsonb(a) AS row FROM agents_agentconfig a) c
        ) AS settings,
        (SELECT md5(string_agg(a::text, '|' ORDER BY a.role)) FROM agents_agent a) AS registry,
        (SELECT jsonb_agg(ARRAY[to_jsonb(roles), to_jsonb(concurrency), closed] ORDER BY id) FROM activities_workerprocess
            WHERE ended_at IS NULL) AS workers
    """,
)
_known_limits: dict[tuple[str, ...], bytes] = {}
_compute_limits = limits._limits


@contextmanager
def _limits_of_known_states() -> Iterator[bool]:
    """Compute the limits of each state once, whichever tenant it belongs to. Yield whether work or rates exist.

    Computing them took a fifth of the time of a test with the engine.
    """
    (state,) = _STATE.run({}, using=SYSTEM)
    if state.has_other_limits:
        yield state.is_used
        return
    tenants = [tenant.encode() for tenant in state.tenants]
    workers = [(roles, concurrency, closed) for roles, concurrency, closed in state.workers or ()]

    def recall(workers: Any) -> Any:
        defaults = (settings.ORCHESTRATOR_MAX_CONCURRENCY, settings.ORCHESTRATOR_STARTS_PER_MINUTE)
        key = (str(state.settings), str(state.registry), repr(workers), repr(defaults))
        if key not in _known_limits:
            found = orjson.dumps(_compute_limits(workers))
            for number, tenant in enumerate(tenants):
                found = found.replace(tenant, b"tenant %d" % number)
            _known_limits[key] = found
        known = _known_limits[key]
        for number, tenant in enumerate(tenants):
            known = known.replace(b"tenant %d" % number, tenant)
        return orjson.loads(known)

    with mock.patch.multiple(limits, _limits=recall, _present_workers=lambda: workers):
        yield state.is_used


def _open_admission() -> None:
    """Rebuild admission from PostgreSQL, without the search for work if there is none."""
    with _limits_of_known_states() as is_used:
        no_work = {
            "_restore_starts": lambda _: None,
            "_restore_runs": lambda _: 0,
            "_restore_waiting": lambda _: 0,
        }
        with (
            nullcontext() if is_used else mock.patch.multiple(rebuilding, **no_work),
            mock.patch.object(rebuilding.logger, "disabled", True),
        ):
            rebuilding.rebuild()


#: Compiling and planning this takes several times as long as executing it.
_END_WORKER = Statement(
    "end_worker",
    "UPDATE activities_workerprocess SET ended_at = now(), end_reason = 'stopped' WHERE id = %(id)s AND ended_at IS NULL",
)


def _end(lease: leases.Lease) -> None:
    """Do the same as `Lease.end`."""
    lease.closed = leases.DRAINING
    lease.draining.set()
    lease.ended.set()
    _END_WORKER.run({"id": lease.worker_id})


class Engine:
    """The seats of a worker whose messages the test delivers."""

    def __init__(self, roles: list[str], seats: int = 10) -> None:
        AGENT.calls.clear()
        AGENT.behaviour = _answer
        self.agent, self.roles = AGENT, roles
        # Seconds within which admission must process what was handed over to it, also on a busy machine.
        self.patience = 20.0
        configuration.forget()
        dispatch.QUICK_WORK._forget_threads()  # and the grants that an earlier test has left to them
        if leases._lease and leases._lease.ended.is_set():
            leases._lease = None  # that of an earlier test, which is not ended again
        with quick_rows.of(WorkerProcess):
            self.lease = leases.begin(roles=roles, concurrency=seats, watched=False)
        _open_admission()

    def replace_worker(self) -> None:
        """Start another worker with the same seats, as after the first was drained or lost."""
        leases.end()
        self.lease = leases.begin(roles=self.roles, concurrency=self.lease.concurrency, watched=False)
        limits.refresh()

    def close(self) -> None:
        self.wait_for_relief()
        relay.flush()
        with mock.patch.object(leases.Lease, "end", _end):
            leases.end()

    def wait_for_relief(self) -> bool:
        """Wait for the threads that have taken over quick work, and return whether there were any."""
        quick = dispatch.QUICK_WORK
        with quick._lock:
            # A watch without work ends soon, but may start a thread before that.
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
        values = {"adapter": "inline", "endpoint": "tests.engine:agent", **fields}
        with tenant_scope(tenant.pk):
            configs = [AgentConfig(tenant=tenant, agent_id=role, **values) for role in roles or self.roles]
            quick_rows.insert(configs, replace=list(values))
        configuration.forget()
        with _limits_of_known_states():
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
        """Remove the next message from its queue and return its arguments."""
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
        """Run the next message and return whether there was one."""
        arguments = self.take()
        if arguments is None:
            return False
        tasks.run(**arguments)
        return True

    def drain(self) -> int:
        """Deliver all messages, including those that follow, and return how many there were."""
        delivered, before = 0, -1
        # Deliver after waiting for the threads, because a thread may send a message just before it ends.
        while self.wait_for_relief() or before != delivered:
            before = delivered
            while self.deliver():
                delivered += 1
        return delivered

    def end_holds(self) -> None:
        """End the delays that providers requested."""
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
        """End every date and delay of the tenant's work, and offer it."""
        from django.db.models.functions import Now

        from activities import outbox
        from activities.models import Wake

        with tenant_scope(tenant.pk):
            Activity.objects.filter(not_before__gt=Now()).update(not_before=Now())
            Wake.objects.filter(state="pending", due_at__isnull=False).update(due_at=Now())
        outbox.promote()
        relay.flush(self.patience)
