"""Health: whether each of the servers that the system works with answers, and what is lost while one does not.

Without PostgreSQL nothing works. Without Redis work is accepted and kept but none begins; without MongoDB outputs wait in PostgreSQL.
So only the first makes the system unavailable, the others make it degraded.

`/healthz` says that this process answers, `/readyz` what it can do with the servers behind it. Both are for machines that ask often and
without a login: they cost little, end within a second whatever hangs, and say nothing about addresses or users. The web's processes keep
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
from django.views.decorators.http import require_safe

from activities import outputs, queue_stats
from activities.maintenance import job_records
from tenants import redis
from tenants.context import APP

# Questions to servers that may not answer: each in a thread of its own, so that nobody waits longer than they want to.
#
# At most one thread per question is under way. Anyone who asks meanwhile waits for the same answer, so a server that hangs costs one
# thread however often it is asked about, and asking often costs no more than asking once.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question. Exactly one of `value` (with `fault` empty) and `fault` counts. Faults carry no addresses."""

    value: Any = None
    fault: str = ""
    milliseconds: float = 0.0
    at: float = field(default_factory=time.monotonic)  # when it came, by the monotonic clock

    @property
    def seconds_ago(self) -> float:
        return round(time.monotonic() - self.at, 1)


@dataclass(slots=True)
class _Flight:
    """One asking under way."""

    began: float = field(default_factory=time.monotonic)
    landed: threading.Event = field(default_factory=threading.Event)
    answer: Answer = field(default_factory=Answer)


class Probe:
    """One question. Threads may share it."""

    def __init__(self, name: str, question: Callable[[], Any]) -> None:
        self.name, self.question = name, question
        self.last: Answer | None = None
        self._lock = threading.Lock()
        self._flight: _Flight | None = None

    def begin(self) -> _Flight:
        """Ask, or join those who asked already."""
        with self._lock:
            if self._flight is None:
                flight = _Flight()
                threading.Thread(
                    target=self._fly, args=(flight,), name=f"probe-{self.name}", daemon=True
                ).start()
                self._flight = flight  # only now: a thread that could not be started would never land
            return self._flight

    def _fly(self, flight: _Flight) -> None:
        try:
            flight.answer = Answer(self.question(), "", _since(flight))
        except Exception as error:  # noqa: BLE001  # whatever it was, it keeps the server from answering
            logger.info(
                "Probe failed",
                extra={"action": "probe_failed", "probe": self.name, "reason": str(error).strip()},
            )
            # The kind alone: texts of errors name hosts and users, and this goes to anyone who asks.
            flight.answer = Answer(None, type(error).__name__, _since(flight))
        finally:
            with self._lock:
                self._flight = None
                self.last = flight.answer
            flight.landed.set()
            connections.close_all()


def ask(
    probes: Iterable[Probe], *, patience_seconds: float, memory_seconds: float = 0.0
) -> dict[str, Answer]:
    """Ask all at once and return the answers by name, after `patience_seconds` at the latest.

    Instead of an answer that takes longer, the last one counts if it came within `memory_seconds`: a busy machine is not a silent server.
    """
    flights = [(probe, probe.begin()) for probe in probes]
    deadline = time.monotonic() + patience_seconds
    return {probe.name: _await_answer(probe, flight, deadline, memory_seconds) for probe, flight in flights}


def _await_answer(probe: Probe, flight: _Flight, deadline: float, memory_seconds: float) -> Answer:
    last = probe.last
    if flight.landed.wait(max(0.0, deadline - time.monotonic())):
        return flight.answer
    if last is not None and last.seconds_ago <= memory_seconds:
        return last
    return Answer(None, "no answer", _since(flight))


def _since(flight: _Flight) -> float:
    return round((time.monotonic() - flight.began) * 1000, 1)


PATIENCE_SECONDS = 0.7  # so that /readyz answers within a second, whatever hangs
MEMORY_SECONDS = 5.0  # how old an answer may be that stands in for one that takes longer
REDIS_PATIENCE_SECONDS = 0.6
LEADERLESS_SECONDS = 30.0

#: What people are told when one of them does not answer, or is not as it should be.
CONSEQUENCES = {
    "postgresql": "Nothing can be accepted or shown.",
    "migrations": "The database is older than the program.",
    "redis": "Work is accepted and kept, but none begins.",
    "admission": "Nothing begins until the order of work has been rebuilt.",
    "mongodb": "Outputs wait in PostgreSQL.",
    "workers": "Work that was granted to them does not begin.",
    "upkeep": "What it names waits: delays, retries, recovery and the like.",
}
TITLES = {
    "postgresql": "PostgreSQL",
    "migrations": "The database's migrations",
    "redis": "Redis",
    "admission": "Admission",
    "mongodb": "MongoDB",
    "workers": "Workers",
    "upkeep": "Upkeep",
}
NEEDED = frozenset({"postgresql", "migrations"})


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency. `state` is ok or open when all is well, else failing, silent, behind, closed, idle
    or leaderless."""

    name: str
    state: str
    milliseconds: float
    fault: str = ""
    seconds_ago: float = 0.0  # when this was so

    @property
    def well(self) -> bool:
        return self.state in ("ok", "open")

    @property
    def sentence(self) -> str:
        state = {
            "behind": f"are behind: {self.fault}",
            "closed": "is closed",
            "silent": "does not answer",
            "idle": f"take nothing, {self.fault}",
            "leaderless": "is done by nobody",
        }
        return (
            f"{TITLES[self.name]} {state.get(self.state, f'fails ({self.fault})')}. {CONSEQUENCES[self.name]}"
        )


def check_all(*, patience_seconds: float = PATIENCE_SECONDS) -> list[Check]:
    """Ask all at once. Takes `patience_seconds` at most, whatever hangs."""
    answers = ask(PROBES, patience_seconds=patience_seconds, memory_seconds=MEMORY_SECONDS)
    checks = [_check(name, answers[name]) for name in ("postgresql", "redis", "admission", "mongodb")]
    missing = answers["postgresql"].value
    if missing:
        checks.insert(1, Check("migrations", "behind", 0.0, f"{missing} not applied"))
    if not answers["workers"].fault:  # else another check says why nobody knows
        checks.append(_workers(answers["workers"]))
    if not answers["upkeep"].fault:
        checks.append(_upkeep(answers["upkeep"]))
    return checks


def status_of(checks: list[Check]) -> str:
    """ready, degraded or unavailable."""
    unwell = {check.name for check in checks if not check.well}
    return "unavailable" if unwell & NEEDED else "degraded" if unwell else "ready"


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
    """Names the parts that fail or hang. Nobody leads for a moment at every change of the leader, which is no fault."""
    found: job_records.Upkeep = answer.value
    if found.expired is not None and found.expired > LEADERLESS_SECONDS:
        return Check("upkeep", "leaderless", answer.milliseconds, f"nobody leads for {found.expired:.0f} s")
    names = ", ".join(job.name for job in found.unwell)
    return Check("upkeep", "failing" if names else "ok", answer.milliseconds, names)


def _missing_migrations() -> int:
    """How many of the program's migrations the database lacks."""
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations")
        return len(_migrations() - set(cursor.fetchall()))


@cache
def _migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


def _ping_redis() -> None:
    redis.client(timeout_seconds=REDIS_PATIENCE_SECONDS).ping()


def _ping_mongodb() -> None:
    outputs.collection().database.client.admin.command("ping")


PROBES = (
    Probe("postgresql", _missing_migrations),
    Probe("redis", _ping_redis),
    Probe("admission", queue_stats.admission_is_open),
    Probe("mongodb", _ping_mongodb),
    Probe("workers", queue_stats.list_idle_roles),
    Probe("upkeep", job_records.read_jobs),
)


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process is alive. Asks nobody, so an outage elsewhere never gets it restarted."""
    return JsonResponse({"status": "alive"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """503 without PostgreSQL or with migrations missing; else 200, or `degraded` when another server is away or workers take nothing.

    Servers are asked each time; for one that takes too long its last answer is shown. `seconds_ago` is the age of the oldest answer.
    """
    checks = check_all()
    status = status_of(checks)
    shown = {
        check.name: {"state": check.state, "milliseconds": check.milliseconds}
        | ({"detail": check.fault} if check.fault else {})
        for check in checks
    }
    body = {"status": status, "checks": shown, "seconds_ago": max(check.seconds_ago for check in checks)}
    return JsonResponse(body, status=503 if status == "unavailable" else 200)
