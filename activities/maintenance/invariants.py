"""Invariants: conditions that must always hold, checked against the whole database in one snapshot.

The check changes nothing. It reads PostgreSQL in one read-only transaction, so concurrent work cannot look like a violation. A check
that needs an unreachable server is reported as not checked, never as held. The liveness checks, which find stuck work, hold about a
minute after the last fault; enable them with `quiesced`.
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
from agents.governor import providers
from tenants import clock
from tenants.context import SYSTEM, long_statements
from tenants.lazy_import import lazy_import
from tenants.redis import client
from tenants.row_security import tenant_tables
from tenants.sql import Statement

if TYPE_CHECKING:
    from pymongo import errors as mongodb
else:
    mongodb = lazy_import("pymongo.errors")

# The check: first PostgreSQL in one snapshot, then MongoDB and Redis about the rows of that snapshot.


MOST_IDS = 20  # reported per violation
PATIENCE_SECONDS = 60.0  # a due wake may wait this long before it counts as forgotten
SAMPLE = 500  # outputs to look up in MongoDB

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "invariants"
_STATEMENTS = {path.stem: Statement.load(_FOLDER, path.stem) for path in _FOLDER.glob("*.sql")}

# Large histories need more time and memory than a request may use, and plans for the actual parameters.
MOST_SECONDS = 300
_FOR_THE_CHECK = "; ".join(
    (
        "SET LOCAL work_mem = '64MB'",
        "SET LOCAL enable_seqscan = on",
        "SET LOCAL plan_cache_mode = force_custom_plan",
    )
)


def check(*, quiesced: bool = False, since: datetime | None = None) -> list[Violation]:
    """Return the violations. `quiesced` adds the liveness checks, `since` the check over past runs (I11)."""
    return examine(quiesced=quiesced, since=since).violations


def examine(*, quiesced: bool = False, since: datetime | None = None) -> Report:
    """Check like `check`, and report also what held and what could not be checked. Raises only if PostgreSQL does not answer."""
    began, report = time.monotonic(), Report()
    with transaction.atomic(using=SYSTEM, durable=True):
        _take_snapshot()
        with long_statements(SYSTEM, seconds=MOST_SECONDS):
            for invariant, parameters in _queries(quiesced=quiesced, since=since).items():
                report.note(invariant, *_count_violations(_STATEMENTS[invariant.lower()].text, parameters))
            report.note("I18", *_count_violations(_cross_tenant_query(), {}))
            output_rows = _STATEMENTS["i22"].run({"limit": SAMPLE}, using=SYSTEM)
            live_runs = _STATEMENTS["live_runs"].run({}, using=SYSTEM) if quiesced else []
    if since is None:
        report.not_checked["I11"] = "checks past runs only: needs --since"
    _check_other_server(report, "I22", lambda: _unreadable_outputs(output_rows))
    if quiesced:
        _check_other_server(report, "I23", lambda: _mismatched_slots(live_runs))
    report.held.sort()
    report.violations.sort(key=lambda violation: violation.invariant)
    report.seconds = time.monotonic() - began
    return report


def _take_snapshot() -> None:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_FOR_THE_CHECK)


def _queries(*, quiesced: bool, since: datetime | None) -> dict[str, dict[str, Any]]:
    """Return the parameters of the invariants that are one statement each."""
    declared = [
        (verb, source, step.target) for verb, step in states.TRANSITIONS.items() for source in step.sources
    ]
    declared += [
        (verb, status, status)
        for verb, within in states.REMARKS.items()
        for status in map(states.Status, within)
    ]
    verbs, sources, targets = zip(("submit", "", states.Status.CREATED), *declared, strict=True)
    queries: dict[str, dict[str, Any]] = {
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
        queries["I11"] = {"since": since}
    if quiesced:
        silence = settings.ORCHESTRATOR_LOST_AFTER_SECONDS * 1.5  # recovery needs a tick or two more
        queries["I07"] = {"silence": silence}
        adapters = providers.names_by_adapter()
        queries["I19"] = {"patience": PATIENCE_SECONDS, "silence": silence, **adapters}
        queries["I32"] = {"patience": PATIENCE_SECONDS}
    return queries


#: By kind of link, the only tool that creates it.
_TOOL_OF_LINK = {
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
        "tools": Jsonb({kind.value: tool for kind, tool in _TOOL_OF_LINK.items()}),
    }


def _count_violations(query: str, parameters: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return the number of rows of the query, and the first of their ids."""
    text = f"SELECT id::text AS id, count(*) OVER () AS total FROM ({query}\n) AS broken ORDER BY 1 LIMIT {MOST_IDS}"  # noqa: S608
    rows = Statement(name="invariant", text=text).run(parameters, using=SYSTEM)
    return (rows[0].total if rows else 0), tuple(row.id for row in rows)


_CROSS_TENANT_REFERENCES = sql.SQL(
    "SELECT {name} || c.{reference} AS id FROM {child} c JOIN {parent} p ON p.id = c.{reference} WHERE p.tenant_id <> c.tenant_id"
)


def _cross_tenant_query() -> str:
    """Build one query for I18 over all foreign keys between tables of tenants, as the database's catalogue lists them."""
    parts = [
        _CROSS_TENANT_REFERENCES.format(
            name=sql.Literal(f"{key.child}.{key.reference} "),
            reference=sql.Identifier(key.reference),
            child=sql.Identifier(key.child),
            parent=sql.Identifier(key.parent),
        )
        for key in _STATEMENTS["tenant_keys"].run({}, using=SYSTEM)
    ]
    return sql.SQL(" UNION ALL ").join(parts).as_string()


def _check_other_server(report: Report, invariant: str, find_broken: Callable[[], list[str]]) -> None:
    """Run a check that needs MongoDB or Redis. Must run after the transaction, which may not wait for these servers."""
    try:
        broken = find_broken()
    except mongodb.PyMongoError as error:
        report.not_checked[invariant] = f"MongoDB does not answer ({type(error).__name__})"
    except redis.RedisError as error:
        report.not_checked[invariant] = f"Redis does not answer ({type(error).__name__})"
    except Closed:
        report.not_checked[invariant] = "Redis was wiped and is not rebuilt yet"
    else:
        report.note(invariant, len(broken), tuple(sorted(broken)[:MOST_IDS]))


def _unreadable_outputs(rows: list[Any]) -> list[str]:
    """Return the outputs that belong to another tenant, or are neither in the spool nor in MongoDB."""
    # An output that was not in the spool at the time of the snapshot must be in MongoDB already.
    copied = {str(row.output_ref): row for row in rows if row.spooled_for is None}
    stored: dict[str, str] = {}
    if copied:
        documents = outputs.collection().find({"_id": {"$in": list(copied)}}, {"tenant_id": 1})
        stored = {document["_id"]: document["tenant_id"] for document in documents}
    foreign = [row for row in rows if row.spooled_for is not None and row.spooled_for != row.tenant_id]
    missing = [row for reference, row in copied.items() if stored.get(reference) != str(row.tenant_id)]
    return [str(row.id) for row in foreign + missing]


def _mismatched_slots(live_runs: list[Any]) -> list[str]:
    """Return activities with a slot in use but no live run, or with a live run but no slot. Grants not yet claimed are ignored.

    The slot of an ended run may stay in use while its agent is still being called.
    """
    slots = {(slot.activity_id, slot.grant) for slot in scripts.audit(withdraw_orphans=False) if slot.started}
    required = {(run.activity_id, run.grant) for run in live_runs if not run.over}
    optional = {(run.activity_id, run.grant) for run in live_runs if run.over}
    return [str(activity_id) for activity_id, _ in (slots ^ required) - optional]


# The invariants, and the report of a check.


#: These always hold.
SAFETY = {
    "I01": "An activity has one live run while an agent has it, and none otherwise",
    "I02": "Runs of one activity never overlap",
    "I03": "Statuses change along declared transitions only",
    "I04": "The history of an activity is unbroken and ends in its status",
    "I05": "At most one result is accepted per wake, never one of a superseded run",
    "I06": "Fencing numbers only grow",
    "I08": "Every activity that is ready, or held before its start, has a pending wake",
    "I09": "Every waiting activity has an open item that it waits for, and every open item is needed",
    "I10": "Pipelines continue, and rejected or reassigned work has one successor",
    "I11": "Concurrent runs stay within the caps",
    "I14": "Every terminal failure has one dead letter, and people are asked about it once",
    "I15": "Each decision counts once, and reaches all activities that waited for it",
    "I18": "Parent and child belong to the same tenant",
    "I20": "Row-level security is forced on every tenant's table",
    "I22": "Accepted outputs can be read",
    "I25": "Tool calls of agents stay within the limits, and each takes effect once",
    "I29": "A pipeline run's counter and status agree with its steps",
    "I30": "Deadlines act once, in time and in order, and not after the answer",
    "I31": "Each time of a schedule fires once, and its jobs agree with their work",
    "I41": "Budgets reserve money for live runs only, and exactly as much as the reservations say",
    "I42": "The ledger records the start of each run, and the usage that it has reported",
    "I43": "Spent and reserved money is within each budget's cap, unless an overshoot is recorded",
}

#: These hold about a minute after the last fault, when the system is at rest.
LIVENESS = {
    "I07": "Every run with an agent shows signs of life",
    "I19": "Nothing due is left waiting: work with a free worker, deadlines, failures to report",
    "I23": "The slots in use in Redis are those of live runs and of calls that continue",
    "I32": "Nothing due is left waiting in schedules: times, jobs to create, ends to report",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, with the number of violations and some of their ids."""

    invariant: str
    count: int
    sample_ids: tuple[str, ...]
    description: str


@dataclass(slots=True)
class Report:
    """The outcome of a check. `not_checked` has the reason by invariant."""

    violations: list[Violation] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, invariant: str, count: int, sample_ids: tuple[str, ...]) -> None:
        if count:
            self.violations.append(Violation(invariant, count, sample_ids, (SAFETY | LIVENESS)[invariant]))
        else:
            self.held.append(invariant)


# The outcome of the last check, stored in Redis for the metrics. It may be lost: the next check writes it again.


OUTCOME_SECONDS = 86_400  # an older outcome says nothing about the present


def store_outcome(report: Report) -> None:
    """Store the outcome for metrics and alerts. Raises `redis.RedisError`."""
    counts = dict.fromkeys(report.held, 0) | {
        violation.invariant: violation.count for violation in report.violations
    }
    concerned = {violation.invariant: tenants_of(violation.sample_ids) for violation in report.violations}
    outcome = {"at": clock.now().timestamp(), "violations": counts, "tenants": concerned}
    client().set(keys.invariants_outcome(), orjson.dumps(outcome), ex=OUTCOME_SECONDS)


def last_known() -> tuple[float, Mapping[str, int]] | None:
    """Return the Unix time of the last check, and its number of violations by invariant. Raises `redis.RedisError`."""
    document = _read_last_report()
    return (document["at"], document["violations"]) if document else None


def tenants_concerned(invariant: str) -> list[UUID]:
    """Return the tenants of the reported violations of the last check. Raises `redis.RedisError`."""
    return [UUID(tenant) for tenant in _read_last_report().get("tenants", {}).get(invariant, [])]


def _read_last_report() -> dict[str, Any]:
    stored: Any = client().get(keys.invariants_outcome())
    return orjson.loads(stored) if stored else {}


# The tenants of a violation, looked up by the ids of its sample in all tables of tenants, because the ids do not name their table.


_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWNERS = sql.SQL("SELECT tenant_id FROM {table} WHERE {key} = ANY(%(ids)s)")


def tenants_of(sample_ids: Sequence[str]) -> list[UUID]:
    ids = [UUID(match) for text in sample_ids for match in _ID.findall(text)]
    if not ids:
        return []
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_owners_query(), {"ids": ids})
        return [tenant for (tenant,) in cursor.fetchall()]


@cache
def _owners_query() -> str:
    isolated = set(tenant_tables())
    parts = [
        _OWNERS.format(
            table=sql.Identifier(model._meta.db_table), key=sql.Identifier(str(model._meta.pk.column))
        )
        for model in apps.get_models()
        if model._meta.db_table in isolated
        and isinstance(model._meta.pk, models.UUIDField)
        and any(field.column == "tenant_id" for field in model._meta.concrete_fields)
    ]
    return sql.SQL(" UNION ").join(parts).as_string()
