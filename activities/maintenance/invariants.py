"""Invariants: what must hold at every moment, checked against the whole database in one snapshot.

The check changes nothing. Everything it reads from PostgreSQL comes from one read-only transaction, so work that goes on meanwhile
cannot look like a fault. What needs a server that is away is reported as not checked, never as fine. The liveness checks, which
say that work gets on, hold about a minute after the last fault; ask for them with `quiesced`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import redis
from django.apps import apps
from django.conf import settings
from django.db import connections, models, transaction
from psycopg import sql
from psycopg.types.json import Jsonb

from activities import keys, outputs, states, suspension
from activities.admission import Closed, scripts
from tenants import clock
from tenants.context import SYSTEM
from tenants.lazy_import import lazy_import
from tenants.redis import client
from tenants.row_security import tenant_tables
from tenants.sql import Statement

if TYPE_CHECKING:
    from pymongo import errors as mongodb
else:
    mongodb = lazy_import("pymongo.errors")

# The check itself: questions to PostgreSQL in one snapshot, then to MongoDB and Redis about what was found there.


SHOWN = 20  # ids of one violation
PATIENCE_SECONDS = 60.0  # a due wake may wait this long before it counts as forgotten
SAMPLE = 500  # outputs looked up in MongoDB

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "invariants"
_STATEMENTS = {path.stem: Statement.load(_FOLDER, path.stem) for path in _FOLDER.glob("*.sql")}

# A large history takes longer than a request may; it is joined and sorted in memory, and planned for what there is.
_FOR_THE_CHECK = "; ".join(
    (
        "SET LOCAL statement_timeout = '5min'",
        "SET LOCAL work_mem = '64MB'",
        "SET LOCAL enable_seqscan = on",
        "SET LOCAL plan_cache_mode = force_custom_plan",
    )
)


def check(*, quiesced: bool = False, since: datetime | None = None) -> list[Violation]:
    """Every invariant that does not hold. `quiesced` adds the liveness ones, `since` the sweep over past runs (I11)."""
    return examine(quiesced=quiesced, since=since).violations


def examine(*, quiesced: bool = False, since: datetime | None = None) -> Report:
    """As `check`, with what held and what could not be checked. Raises only when PostgreSQL does not answer."""
    began, report = time.monotonic(), Report()
    with transaction.atomic(using=SYSTEM, durable=True):
        _take_snapshot()
        for invariant, parameters in _questions(quiesced=quiesced, since=since).items():
            report.note(invariant, *_count_broken(_STATEMENTS[invariant.lower()].text, parameters))
        report.note("I18", *_count_broken(_of_another_tenant(), {}))
        found = _STATEMENTS["i22"].run({"limit": SAMPLE}, using=SYSTEM)
        live = _STATEMENTS["live_runs"].run({}, using=SYSTEM) if quiesced else []
    if since is None:
        report.not_checked["I11"] = "looks at past runs only: say since when"
    _elsewhere(report, "I22", lambda: _unreadable(found))
    if quiesced:
        _elsewhere(report, "I23", lambda: _slots_beside(live))
    report.held.sort()
    report.violations.sort(key=lambda violation: violation.invariant)
    report.seconds = time.monotonic() - began
    return report


def _take_snapshot() -> None:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_FOR_THE_CHECK)


def _questions(*, quiesced: bool, since: datetime | None) -> dict[str, dict[str, Any]]:
    """The invariants that are one statement each, with its parameters."""
    declared = [
        (verb, source, step.target) for verb, step in states.TRANSITIONS.items() for source in step.sources
    ]
    declared += [
        (verb, stays, stays)
        for verb, within in states.REMARKS.items()
        for stays in map(states.Status, within)
    ]
    verbs, sources, targets = zip(("submit", "", states.Status.CREATED), *declared, strict=True)
    questions: dict[str, dict[str, Any]] = {
        "I01": {"running": sorted(states.RUNNING)},
        "I02": {},
        "I03": {"verbs": list(verbs), "sources": list(sources), "targets": list(targets)},
        "I04": {},
        "I05": {},
        "I06": {},
        "I08": {},
        "I09": {"live": sorted(states.LIVE)},
        "I10": {"live": sorted(states.LIVE), "settled": sorted(states.SETTLED)},
        "I14": {},
        "I15": {},
        "I20": {"tables": tenant_tables()},
        "I25": _limits(),
        "I29": {},
        "I30": {},
        "I31": {"settled": sorted(states.SETTLED)},
        "I41": {},
        "I42": {},
        "I43": {},
    }
    if since is not None:
        questions["I11"] = {"since": since}
    if quiesced:
        silence = settings.ORCHESTRATOR_LOST_AFTER_SECONDS * 1.5  # recovery needs a tick or two on top
        questions["I07"] = {"silence": silence}
        questions["I19"] = {"patience": PATIENCE_SECONDS, "silence": silence}
        questions["I32"] = {"patience": PATIENCE_SECONDS}
    return questions


#: What only the tools of agents make, by kind of link.
_MADE_BY = {
    states.LinkKind.SUBTASK: suspension.SUBTASK_TOOL,
    states.LinkKind.RESOLUTION: suspension.BLOCKER_TOOL,
    states.LinkKind.REVIEW: suspension.REVIEW_TOOL,
}


def _limits() -> dict[str, Any]:
    return {
        "calls": settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN,
        "subtasks": settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY,
        "depth": settings.ORCHESTRATOR_SUBTASK_DEPTH,
        "tree": settings.ORCHESTRATOR_ACTIVITIES_PER_TREE,
        "handed_on": settings.ORCHESTRATOR_REASSIGNMENTS,
        "tools": Jsonb({kind.value: tool for kind, tool in _MADE_BY.items()}),
    }


def _count_broken(question: str, parameters: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many rows the question returns, and the first ids of them."""
    text = f"SELECT id::text AS id, count(*) OVER () AS total FROM ({question}\n) AS broken ORDER BY 1 LIMIT {SHOWN}"  # noqa: S608
    rows = Statement(name="invariant", text=text).run(parameters, using=SYSTEM)
    return (rows[0].total if rows else 0), tuple(row.id for row in rows)


_OF_ANOTHER_TENANT = sql.SQL(
    "SELECT {name} || c.{reference} AS id FROM {child} c JOIN {parent} p ON p.id = c.{reference} WHERE p.tenant_id <> c.tenant_id"
)


def _of_another_tenant() -> str:
    """I18: one question over every key between tenants' tables that the catalogue knows."""
    parts = [
        _OF_ANOTHER_TENANT.format(
            name=sql.Literal(f"{key.child}.{key.reference} "),
            reference=sql.Identifier(key.reference),
            child=sql.Identifier(key.child),
            parent=sql.Identifier(key.parent),
        )
        for key in _STATEMENTS["tenant_keys"].run({}, using=SYSTEM)
    ]
    return sql.SQL(" UNION ALL ").join(parts).as_string()


def _elsewhere(report: Report, invariant: str, ask: Callable[[], list[str]]) -> None:
    """A check that needs MongoDB or Redis: after the transaction, since neither may hold it open."""
    try:
        broken = ask()
    except mongodb.PyMongoError as error:
        report.not_checked[invariant] = f"MongoDB does not answer ({type(error).__name__})"
    except redis.RedisError as error:
        report.not_checked[invariant] = f"Redis does not answer ({type(error).__name__})"
    except Closed:
        report.not_checked[invariant] = "Redis was wiped and is not rebuilt yet"
    else:
        report.note(invariant, len(broken), tuple(sorted(broken)[:SHOWN]))


def _unreadable(found: list[Any]) -> list[str]:
    """Of the outputs looked at, those of another tenant and those that are neither in the spool nor in MongoDB."""
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
    """Slots in use without a live run, and live runs without their slot. A grant on its way to a worker is neither.

    The slot of a run that is over may be in use as long as its agent is still being called.
    """
    slots = {(slot.activity_id, slot.grant) for slot in scripts.audit(withdraw_orphans=False) if slot.started}
    must = {(run.activity_id, run.grant) for run in live if not run.over}
    may = {(run.activity_id, run.grant) for run in live if run.over}
    return [str(activity_id) for activity_id, _ in (slots ^ must) - may]


# What is checked, and what a check says.


#: These hold at every moment.
SAFETY = {
    "I01": "An activity has one live run while an agent has it, and none otherwise",
    "I02": "Runs of one activity never overlap",
    "I03": "Statuses change along declared transitions only",
    "I04": "The history of an activity is unbroken and ends in its status",
    "I05": "At most one result is accepted per wake, never one of a superseded run",
    "I06": "Fencing numbers only grow",
    "I08": "What is ready, or held before it has started, has a wake that asks for it",
    "I09": "What waits has somebody to wait for, and nobody is asked in vain",
    "I10": "Pipelines go on, and what was rejected or reassigned has one successor",
    "I11": "No more runs at once than the caps allow",
    "I14": "Every terminal failure has one dead letter, and people are asked about it once",
    "I15": "Each decision counts once, and all that hung on it knows",
    "I18": "Parent and child belong to the same tenant",
    "I20": "Row-level security is forced on every tenant's table",
    "I22": "Accepted outputs can be read",
    "I25": "What agents ask for with tools stays within the limits, and each call has one effect",
    "I29": "A pipeline run's counter and status agree with its steps",
    "I30": "Deadlines act once, in time and in order, and not after the answer",
    "I31": "Each time of a schedule fires once, and its jobs agree with the work that they stand for",
    "I41": "Budgets keep money for live runs alone, and as much as their reservations say",
    "I42": "The ledger holds of each run what the run has reported, and that it began",
    "I43": "What is spent and kept is within each budget's cap, unless an overshoot is on record",
}

#: These hold about a minute after the last fault, once things have come to rest.
LIVENESS = {
    "I07": "Nothing is with an agent without a sign of life",
    "I19": "Nothing that is due waits: work for a free worker, deadlines, failures to tell of",
    "I23": "The slots held in Redis are those of the live runs and of calls that go on",
    "I32": "Nothing of a schedule waits: no time that has come, no job to be made, no end to be told",
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
            self.violations.append(Violation(invariant, count, sample_ids, (SAFETY | LIVENESS)[invariant]))
        else:
            self.held.append(invariant)


# The outcome of the last check, kept in Redis for the metrics. Losing it loses nothing: the next check writes it again.


KEPT_SECONDS = 86_400  # an older outcome says nothing about now


def remember(report: Report) -> None:
    """Keep what was found. Raises `redis.RedisError`."""
    counts = dict.fromkeys(report.held, 0) | {
        violation.invariant: violation.count for violation in report.violations
    }
    concerned = {violation.invariant: tenants_of(violation.sample_ids) for violation in report.violations}
    outcome = {"at": clock.now().timestamp(), "violations": counts, "tenants": concerned}
    client().set(keys.invariants_outcome(), orjson.dumps(outcome), ex=KEPT_SECONDS)


def last_known() -> tuple[float, Mapping[str, int]] | None:
    """When the last check ran (Unix seconds), and its violations by invariant. Raises `redis.RedisError`."""
    document = _read_last_report()
    return (document["at"], document["violations"]) if document else None


def tenants_concerned(invariant: str) -> list[UUID]:
    """Whose rows are among the first that broke the invariant at the last check. Raises `redis.RedisError`."""
    return [UUID(tenant) for tenant in _read_last_report().get("tenants", {}).get(invariant, [])]


def _read_last_report() -> dict[str, Any]:
    """Empty when there was no check lately."""
    stored: Any = client().get(keys.invariants_outcome())
    document: dict[str, Any] = orjson.loads(stored) if stored else {}
    return document


# Whose rows a violation is about, from the ids in its sample. Tables differ, so all tables of tenants are asked, each by its key.


_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWNERS = sql.SQL("SELECT tenant_id FROM {table} WHERE {key} = ANY(%(ids)s)")


def tenants_of(sample_ids: Sequence[str]) -> list[UUID]:
    """The tenants in whose rows these ids are keys. None for what belongs to no tenant."""
    ids = [UUID(found) for text in sample_ids for found in _ID.findall(text)]
    if not ids:
        return []
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_question(), {"ids": ids})
        return [tenant for (tenant,) in cursor.fetchall()]


@cache
def _question() -> str:
    fenced = set(tenant_tables())
    parts = [
        _OWNERS.format(
            table=sql.Identifier(model._meta.db_table), key=sql.Identifier(str(model._meta.pk.column))
        )
        for model in apps.get_models()
        if model._meta.db_table in fenced
        and isinstance(model._meta.pk, models.UUIDField)
        and any(field.column == "tenant_id" for field in model._meta.concrete_fields)
    ]
    return sql.SQL(" UNION ").join(parts).as_string()
