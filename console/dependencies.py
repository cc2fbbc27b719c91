"""The servers that the system works with: whether each answers, and what is lost while one does not.

Without PostgreSQL nothing works. Without Redis work is accepted and kept but none begins; without MongoDB outputs wait in PostgreSQL.
So only the first makes the system unavailable, the others make it degraded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from django.db import connections
from django.db.migrations.loader import MigrationLoader

from activities import job_records, outputs, queue_stats
from console.probes import Answer, Probe, ask
from tenants import redis
from tenants.context import APP

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
    """One dependency. `state` is ok or open when all is well, else failing, silent, behind, closed, idle,
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
    if not answers["workers"].fault:  # else another check tells why nobody knows
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
    Probe("workers", queue_stats.idle_roles),
    Probe("upkeep", job_records.read),
)
