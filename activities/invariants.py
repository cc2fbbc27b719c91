"""Invariants: what must hold at every moment, checked against the whole database in one snapshot.

The check changes nothing. Everything it reads from PostgreSQL comes from one read-only transaction, so work that goes on meanwhile
cannot look like a fault. What needs a server that is away is reported as not checked, never as fine. The liveness checks, which
say that work gets on, hold about a minute after the last fault; ask for them with `quiesced`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import redis
from django.conf import settings
from django.db import connections, transaction
from psycopg import sql
from pymongo.errors import PyMongoError

from activities import outputs, states
from activities.admission import Closed, scripts
from tenants.checks import tenant_tables
from tenants.context import SYSTEM
from tenants.redis import client
from tenants.sql import Statement

FOLDER = Path(__file__).parent / "sql" / "invariants"
SHOWN = 20  # ids in a violation
PATIENCE_SECONDS = 60.0  # a due wake may wait this long before it counts as forgotten
SAMPLE = 500  # outputs looked up in MongoDB
KEPT_SECONDS = 86_400  # how long the outcome of a check is remembered for the metrics
#: A large history takes longer than a request may, and is joined and sorted in memory; compiling the few queries would not pay.
_FOR_THE_CHECK = "SET LOCAL statement_timeout = '5min'; SET LOCAL work_mem = '64MB'; SET LOCAL jit = off"

#: What is checked, in the order of the report. The liveness ones hold only once things have come to rest.
SAFETY = {
    "I01": "An activity has one live run while an agent has it, and none otherwise",
    "I02": "Runs of one activity never overlap",
    "I03": "Statuses change along declared transitions only",
    "I04": "The history of an activity is unbroken and ends in its status",
    "I05": "At most one result is accepted per wake, never one of a superseded run",
    "I06": "Fencing numbers only grow",
    "I08": "What is ready has a wake that asks for it",
    "I09": "What awaits approval has one open gate, and the reverse",
    "I10": "Pipelines go on: no step waits for what has settled, none has two activities",
    "I11": "No more runs at once than the caps allow",
    "I18": "Parent and child belong to the same tenant",
    "I20": "Row-level security is forced on every tenant's table",
    "I22": "Accepted outputs can be read",
    "I29": "A pipeline run's counter and status agree with its steps",
}
LIVENESS = {
    "I07": "Nothing is with an agent without a sign of life",
    "I19": "Nothing that is due waits while a worker is free",
    "I23": "The slots held in Redis are those of the live runs",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold: how often, and some of the rows concerned."""

    invariant: str
    count: int
    sample_ids: tuple[str, ...]
    description: str


@dataclass(slots=True)
class Report:
    """The outcome of a check. `not_checked` says why, by invariant."""

    violations: list[Violation] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, invariant: str, count: int, sample_ids: tuple[str, ...]) -> None:
        if count:
            self.violations.append(Violation(invariant, count, sample_ids, description_of(invariant)))
        else:
            self.held.append(invariant)


def check(*, quiesced: bool = False, since: datetime | None = None) -> list[Violation]:
    """Every invariant that does not hold. `quiesced` adds the liveness ones, `since` the sweep over past runs (I11)."""
    return examine(quiesced=quiesced, since=since).violations


def examine(*, quiesced: bool = False, since: datetime | None = None) -> Report:
    """As `check`, with what held and what could not be checked. Raises only when PostgreSQL does not answer."""
    began, report = time.monotonic(), Report()
    with transaction.atomic(using=SYSTEM, durable=True):
        _take_snapshot()
        for invariant, parameters in _questions(quiesced, since).items():
            report.note(invariant, *_broken(_source(invariant), parameters))
        report.note("I18", *_broken(_of_another_tenant(), {}))
        found = _statement("i22").run({"limit": SAMPLE}, using=SYSTEM)
        live = _statement("live_runs").run({}, using=SYSTEM) if quiesced else []
    if since is None:
        report.not_checked["I11"] = "looks at past runs only: say since when"
    _elsewhere(report, "I22", lambda: _unreadable(found))
    if quiesced:
        _elsewhere(report, "I23", lambda: _slots_beside(live))
    report.held.sort()
    report.violations.sort(key=lambda violation: violation.invariant)
    report.seconds = time.monotonic() - began
    return report


def description_of(invariant: str) -> str:
    return (SAFETY | LIVENESS)[invariant]


def remember(report: Report) -> None:
    """Keep the outcome for the metrics. Raises `redis.RedisError`."""
    counts = dict.fromkeys(report.held, 0) | {violation.invariant: violation.count for violation in report.violations}
    client().set(_key(), orjson.dumps({"at": time.time(), "violations": counts}), ex=KEPT_SECONDS)


def last_known() -> tuple[float, Mapping[str, int]] | None:
    """When the last remembered check ran (Unix seconds) and its violations by invariant. Raises `redis.RedisError`."""
    kept = client().get(_key())
    if kept is None:
        return None
    document = orjson.loads(kept)
    return document["at"], document["violations"]


def _take_snapshot() -> None:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_FOR_THE_CHECK)


def _questions(quiesced: bool, since: datetime | None) -> dict[str, dict[str, Any]]:
    """The invariants that are one statement each, with its parameters."""
    silence = settings.ORCHESTRATOR_LOST_AFTER_SECONDS * 1.5  # recovery needs a tick or two on top
    declared = [(verb, source, step.target) for verb, step in states.TRANSITIONS.items() for source in step.sources]
    verbs, sources, targets = zip(("submit", "", states.Status.CREATED), *declared, strict=True)
    settled = sorted(states.SETTLED - {states.Status.REASSIGNED})
    asked: dict[str, dict[str, Any]] = {
        "I01": {"running": sorted(states.RUNNING)},
        "I02": {},
        "I03": {"verbs": list(verbs), "sources": list(sources), "targets": list(targets)},
        "I04": {},
        "I05": {},
        "I06": {},
        "I08": {},
        "I09": {},
        "I10": {"live": sorted(states.LIVE), "settled": settled},
        "I20": {"tables": tenant_tables()},
        "I29": {},
    }
    if since is not None:
        asked["I11"] = {"since": since}
    if quiesced:
        asked["I07"] = {"silence": silence}
        asked["I19"] = {"patience": PATIENCE_SECONDS, "silence": silence}
    return asked


def _broken(source: str, parameters: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many rows the question returns, and the first ids of them."""
    question = f"SELECT id::text AS id, count(*) OVER () AS total FROM ({source}\n) AS broken ORDER BY 1 LIMIT {SHOWN}"  # noqa: S608
    rows = Statement(name="invariant", text=question).run(parameters, using=SYSTEM)
    return (rows[0].total if rows else 0), tuple(row.id for row in rows)


@cache
def _source(invariant: str) -> str:
    return _statement(invariant.lower()).text


@cache
def _statement(name: str) -> Statement:
    return Statement.load(FOLDER, name)


def _of_another_tenant() -> str:
    """One question over every key between tenants' tables that the catalogue knows."""
    parts = [
        sql.SQL("SELECT {name} || c.{reference} AS id FROM {child} c JOIN {parent} p ON p.id = c.{reference} WHERE p.tenant_id <> c.tenant_id")
        .format(
            name=sql.Literal(f"{key.child}.{key.reference} "),
            reference=sql.Identifier(key.reference),
            child=sql.Identifier(key.child),
            parent=sql.Identifier(key.parent),
        )
        .as_string()
        for key in _statement("tenant_keys").run({}, using=SYSTEM)
    ]
    return " UNION ALL ".join(parts)


def _elsewhere(report: Report, invariant: str, ask: Callable[[], list[str]]) -> None:
    """A check that needs MongoDB or Redis, after the transaction: neither may hold it open."""
    try:
        broken = ask()
    except (PyMongoError, redis.RedisError, Closed) as error:
        server = "MongoDB" if isinstance(error, PyMongoError) else "Redis"
        waits = "is being rebuilt" if isinstance(error, Closed) else f"does not answer ({type(error).__name__})"
        report.not_checked[invariant] = f"{server} {waits}"
        return
    report.note(invariant, len(broken), tuple(sorted(broken)[:SHOWN]))


def _unreadable(found: list[Any]) -> list[str]:
    # What had left the spool when the snapshot was taken was in MongoDB before that.
    copied = {str(row.output_ref): row for row in found if row.spooled_for is None}
    stored: dict[str, str] = {}
    if copied:
        documents = outputs.collection().find({"_id": {"$in": list(copied)}}, {"tenant_id": 1})
        stored = {document["_id"]: document["tenant_id"] for document in documents}
    foreign = [row for row in found if row.spooled_for is not None and row.spooled_for != row.tenant_id]
    missing = [row for reference, row in copied.items() if stored.get(reference) != str(row.tenant_id)]
    return [str(row.id) for row in foreign + missing]


def _slots_beside(live: list[Any]) -> list[str]:
    held = {(slot.activity_id, slot.grant) for slot in scripts.audit(withdraw_orphans=False)}
    return [str(activity_id) for activity_id, _ in held ^ {(run.activity_id, run.grant) for run in live}]


def _key() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}invariants"
