"""Health checks of PostgreSQL, Redis, admission, MongoDB, the workers and the system jobs.

Without PostgreSQL nothing works. Without Redis work is accepted and stored but does not start; without MongoDB outputs wait in PostgreSQL.
So only a failure of PostgreSQL makes the system unavailable; others make it degraded.

`/healthz` tells that this process is alive, `/readyz` the state of the servers behind it. Both are for frequent requests of machines
without a login: they are cheap, end within a second whatever hangs, and reveal neither addresses nor users. The web's processes reserve
threads for them (`orchestrator.web_worker`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from activities import outputs, queue_stats
from activities.maintenance import job_records
from tenants import redis
from tenants.context import APP

# Probes of servers that may hang: each runs in a thread of its own, so that callers can stop waiting.
#
# Each probe has at most one running thread, whose answer all concurrent callers share. So a server that hangs costs one thread, however
# many requests arrive.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a probe: a value, or a `fault` that reveals no addresses."""

    value: Any = None
    fault: str = ""
    milliseconds: float = 0.0
    at: float = field(default_factory=time.monotonic)  # the time of the answer, by the monotonic clock

    @property
    def seconds_ago(self) -> float:
        return round(time.monotonic() - self.at, 1)


@dataclass(slots=True)
class _Execution:
    started: float = field(default_factory=time.monotonic)
    ended: threading.Event = field(default_factory=threading.Event)
    answer: Answer = field(default_factory=Answer)


class Probe:
    """A check of one server. Thread-safe."""

    def __init__(self, name: str, question: Callable[[], Any]) -> None:
        self.name, self.question = name, question
        self.last: Answer | None = None
        self._lock = threading.Lock()
        self._running: _Execution | None = None

    def begin(self) -> _Execution:
        """Start the probe, or return its running execution."""
        with self._lock:
            if self._running is None:
                execution = _Execution()
                threading.Thread(
                    target=self._execute, args=(execution,), name=f"probe-{self.name}", daemon=True
                ).start()
                self._running = execution  # set last: a thread that could not be started would never end
            return self._running

    def _execute(self, execution: _Execution) -> None:
        try:
            execution.answer = Answer(self.question(), "", _since(execution))
        except Exception as error:  # noqa: BLE001  # any error means that the server does not work
            logger.info(
                "Probe failed",
                extra={"action": "probe_failed", "probe": self.name, "reason": str(error).strip()},
            )
            # Only the type: error texts contain hosts and users, and this answer is public.
            execution.answer = Answer(None, type(error).__name__, _since(execution))
        finally:
            with self._lock:
                self._running = None
                self.last = execution.answer
            execution.ended.set()
            connections.close_all()


def ask(
    probes: Iterable[Probe], *, patience_seconds: float, memory_seconds: float = 0.0
) -> dict[str, Answer]:
    """Run all probes concurrently and return the answers by name, after `patience_seconds` at the latest.

    If a probe takes longer, its last answer counts if it is at most `memory_seconds` old: a busy machine is not a silent server.
    """
    executions = [(probe, probe.begin()) for probe in probes]
    deadline = time.monotonic() + patience_seconds
    return {
        probe.name: _await_answer(probe, execution, deadline, memory_seconds)
        for probe, execution in executions
    }


def _await_answer(probe: Probe, execution: _Execution, deadline: float, memory_seconds: float) -> Answer:
    last = probe.last
    if execution.ended.wait(max(0.0, deadline - time.monotonic())):
        return execution.answer
    if last is not None and last.seconds_ago <= memory_seconds:
        return last
    return Answer(None, "no answer", _since(execution))


def _since(execution: _Execution) -> float:
    return round((time.monotonic() - execution.started) * 1000, 1)


PATIENCE_SECONDS = 0.7  # so that /readyz answers within a second, whatever hangs
MEMORY_SECONDS = 5.0  # the maximum age of an answer that replaces a late one
REDIS_PATIENCE_SECONDS = 0.6
LEADERLESS_SECONDS = 30.0

#: The consequences of each failure, for people.
CONSEQUENCES = {
    "postgresql": "No request can be served.",
    "migrations": "The database schema is older than the program.",
    "redis": "Work is accepted and stored, but does not start.",
    "admission": "No work starts until the queues in Redis have been rebuilt.",
    "mongodb": "Outputs wait in PostgreSQL.",
    "workers": "Work that was granted to them does not start.",
    "upkeep": "Tasks such as delays, retries and recovery are late.",
}
TITLES = {
    "postgresql": "PostgreSQL",
    "migrations": "The database migrations",
    "redis": "Redis",
    "admission": "Admission",
    "mongodb": "MongoDB",
    "workers": "Workers",
    "upkeep": "Maintenance",
}
NEEDED = frozenset({"postgresql", "migrations"})


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one dependency: ok or open if it works, else failing, silent, behind, closed, idle or leaderless."""

    name: str
    state: str
    milliseconds: float
    fault: str = ""
    seconds_ago: float = 0.0  # the age of this result

    @property
    def is_healthy(self) -> bool:
        return self.state in ("ok", "open")

    @property
    def sentence(self) -> str:
        state = {
            "behind": f"are behind: {self.fault}",
            "closed": "is closed",
            "silent": "does not answer",
            "idle": f"{self.fault} start no work",
            "leaderless": "has no leader",
        }
        return (
            f"{TITLES[self.name]} {state.get(self.state, f'fails ({self.fault})')}. {CONSEQUENCES[self.name]}"
        )


def check_all(*, patience_seconds: float = PATIENCE_SECONDS) -> list[Check]:
    """Run all checks concurrently. Takes `patience_seconds` at most, whatever hangs."""
    answers = ask(PROBES, patience_seconds=patience_seconds, memory_seconds=MEMORY_SECONDS)
    checks = [_check(name, answers[name]) for name in ("postgresql", "redis", "admission", "mongodb")]
    missing = answers["postgresql"].value
    if missing:
        checks.insert(1, Check("migrations", "behind", 0.0, f"{missing} not applied"))
    if not answers["workers"].fault:  # a fault is reported by another check
        checks.append(_workers(answers["workers"]))
    if not answers["upkeep"].fault:
        checks.append(_upkeep(answers["upkeep"]))
    return checks


def status_of(checks: list[Check]) -> str:
    """Return `ready`, `degraded` or `unavailable`."""
    unhealthy = {check.name for check in checks if not check.is_healthy}
    return "unavailable" if unhealthy & NEEDED else "degraded" if unhealthy else "ready"


def _check(name: str, answer: Answer) -> Check:
    if answer.fault:
        state = "silent" if answer.fault == "no answer" else "failing"
        return Check(name, state, answer.milliseconds, answer.fault, answer.seconds_ago)
    if name == "admission":
        state = "open" if answer.value else "closed"
        return Check(name, state, answer.milliseconds, seconds_ago=answer.seconds_ago)
    return Check(name, "ok", answer.milliseconds, seconds_ago=answer.seconds_ago)


def _workers(answer: Answer) -> Check:
    roles = ", ".join(idle.role for idle in answer.value)
    fault = roles and f"of {roles}"
    return Check("workers", "idle" if roles else "ok", answer.milliseconds, fault, answer.seconds_ago)


def _upkeep(answer: Answer) -> Check:
    """Name the system jobs that fail or hang. A short time without a leader is normal at every change of the leader."""
    jobs: job_records.Upkeep = answer.value
    if jobs.expired is not None and jobs.expired > LEADERLESS_SECONDS:
        return Check("upkeep", "leaderless", answer.milliseconds, f"nobody leads for {jobs.expired:.0f} s")
    names = ", ".join(job.name for job in jobs.unhealthy)
    return Check("upkeep", "failing" if names else "ok", answer.milliseconds, names)


def _missing_migrations() -> int:
    """Count the program's migrations that are not applied."""
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations")
        return len(_migrations() - set(cursor.fetchall()))


@cache
def _migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


PROBES = (
    Probe("postgresql", _missing_migrations),
    Probe("redis", lambda: redis.client(timeout_seconds=REDIS_PATIENCE_SECONDS).ping()),
    Probe("admission", queue_stats.admission_is_open),
    Probe("mongodb", lambda: outputs.collection().database.client.admin.command("ping")),
    Probe("workers", queue_stats.list_idle_roles),
    Probe("upkeep", job_records.read_jobs),
)


@csrf_exempt  # so that another method gets 405 and `Allow`, not 403
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process is alive. It queries no server, so an outage elsewhere never causes a restart."""
    return JsonResponse({"status": "alive"})


@csrf_exempt  # so that another method gets 405 and `Allow`, not 403
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """503 without PostgreSQL or with missing migrations; else 200, as `degraded` if another check fails.

    Every request runs the checks; for a server that takes too long its last answer counts. `seconds_ago` is the age of the oldest answer.
    """
    checks = check_all()
    status = status_of(checks)
    results = {
        check.name: {"state": check.state, "milliseconds": check.milliseconds}
        | ({"detail": check.fault} if check.fault else {})
        for check in checks
    }
    body = {"status": status, "checks": results, "seconds_ago": max(check.seconds_ago for check in checks)}
    return JsonResponse(body, status=503 if status == "unavailable" else 200)
