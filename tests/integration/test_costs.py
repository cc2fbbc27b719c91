"""Counts the SQL statements, transactions, round trips, Redis calls and messages of one activity, because counts do not flake.

These are the figures of docs/architecture.md. A change that raises one has to raise it here, on purpose.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.models.functions import Now

from activities import backlog, dispatch, publishing, quick_work, relay, transitions
from activities.admission import scripts
from activities.execution import following_step
from activities.models import Activity
from activities.states import INDEXED, Status
from agents import configuration, scheduler_settings
from agents.contracts import Accepted
from pipelines import versions
from pipelines.submission import NewRun, start_run, start_runs
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.redis import SentCommand
from tests.engine import Engine


def keep_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not count settings and times that are read again every few seconds, also on a slow machine."""
    for module in (scheduler_settings, backlog):
        monkeypatch.setattr(module, "CACHE_SECONDS", math.inf)
    monkeypatch.setattr(configuration, "ROLES_CACHE_SECONDS", math.inf)
    monkeypatch.setattr(configuration._cache, "_check_seconds", math.inf)
    monkeypatch.setattr(clock, "RENEW_SECONDS", math.inf)
    monkeypatch.setattr(clock, "_last", None)
    clock.now()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    keep_settings(monkeypatch)
    engine.serve(tenant)
    engine.submit(tenant)
    engine.drain()  # then connections, prepared statements and settings are cached
    return tenant


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the statements, transactions and round trips on `default`, the Redis scripts and the messages."""
    counts: Counter[str] = Counter()
    commit = DatabaseWrapper._commit

    def count_statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        counts["statements"] += 1
        return execute(sql, params, many, context)

    def count_commit(self: DatabaseWrapper) -> Any:
        counts["transactions"] += 1
        return commit(self)

    def count_script(name: str, *arguments: Any) -> Any:
        counts["scripts"] += 1
        return run_script(name, *arguments)

    def count_sent(self: SentCommand, *arguments: Any) -> None:
        counts["scripts"] += 1
        send(self, *arguments)

    def count_messages(grants: Any) -> None:
        counts["messages"] += len(grants)
        publish(grants)

    run_script, publish, send = scripts.run, publishing.publish, SentCommand.__init__
    pgconn = connections["default"].connection.pgconn
    with (
        connections["default"].execute_wrapper(count_statement),
        monkeypatch.context() as patched,
        tempfile.TemporaryFile() as traced,
    ):
        patched.setattr(DatabaseWrapper, "_commit", count_commit)
        patched.setattr(scripts, "run", count_script)
        patched.setattr(SentCommand, "__init__", count_sent)
        patched.setattr(publishing, "publish", count_messages)
        pgconn.trace(traced.fileno())  # libpq's own record of its messages
        try:
            yield counts
            relay.flush()
        finally:
            pgconn.untrace()
        traced.seek(0)
        counts["round trips"] = traced.read().count(b"ReadyForQuery")


def test_an_activity_takes_6_statements_in_3_transactions_3_redis_calls_and_1_message(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as counts:
        engine.submit(acme)
        engine.drain()

    assert dict(counts) == {
        "statements": 6, "transactions": 3, "round trips": 5, "scripts": 3, "messages": 1,
    }  # fmt: skip


def test_an_activity_that_a_worker_continues_with_takes_no_message_and_one_redis_call(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    configuration.settings_for(acme.pk, "qa")
    engine.submit(acme, count=11)

    with counted(monkeypatch) as counts:
        engine.drain()

    # One message and its start for the first; four statements, two transactions and one call for each.
    # A transaction begins together with its first statement. A claim is one round trip with its commit; the end of a run is two.
    assert dict(counts) == {"statements": 44, "transactions": 22, "round trips": 33, "scripts": 12}


@pytest.fixture
def nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer each step, as while other work waits."""
    monkeypatch.setattr(following_step.FollowingStep, "may_begin", lambda self: False)


def cost_of_twelve_steps(engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what a chain of twelve steps takes."""
    steps = [{"id": f"s{number}", "agent_role": "qa"} for number in range(12)]
    versions.save(acme.pk, {"key": "chain", "name": "Chain", "steps": steps}, actor="test")
    start_run(acme.pk, "chain", NewRun(), actor="test")
    relay.flush()

    with counted(monkeypatch) as counts:
        engine.drain()
    return counts


def test_a_step_that_follows_another_takes_3_statements_in_1_transaction_and_2_round_trips(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = cost_of_twelve_steps(engine, acme, monkeypatch)

    # The first is started and claimed separately, and the slot of the last one is released, because no step follows.
    assert dict(counts) == {
        "statements": 12 * 3 + 2, "transactions": 12 + 1, "round trips": 12 * 2 + 1, "scripts": 12 + 2,
    }  # fmt: skip


@pytest.mark.usefixtures("nothing_follows")
def test_a_step_that_is_offered_takes_5_statements_in_2_transactions(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = cost_of_twelve_steps(engine, acme, monkeypatch)

    # A step settles with the end of its activity. The last one starts nothing (one statement less) and ends the run (one more).
    assert dict(counts) == {
        "statements": 12 * 5, "transactions": 24, "round trips": 12 * 3, "scripts": 13,
    }  # fmt: skip


@pytest.mark.usefixtures("nothing_follows")
def test_quick_steps_that_are_granted_together_take_as_many_statements_as_one(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_work, "QUICK_SECONDS", math.inf)
    monkeypatch.setattr(quick_work.QuickWork, "_start_relief", lambda self: None)
    for _ in range(quick_work.SAMPLES):
        dispatch.QUICK_WORK.times.note((acme.pk, "qa"), 0.0)
    steps = [{"id": f"s{number}", "agent_role": "qa"} for number in range(3)]
    versions.save(acme.pk, {"key": "chain", "name": "Chain", "steps": steps}, actor="test")

    def cost(runs: int) -> Counter[str]:
        start_runs(acme.pk, "chain", [NewRun() for _ in range(runs)], actor="test")
        relay.flush()
        messages = [message for _ in range(runs) if (message := engine.take())]
        with counted(monkeypatch) as counts:
            dispatch.QUICK_WORK.leave_to_others(
                quick_work.HeldGrant(dispatch.read_message(**message), monotonic())
                for message in messages[1:]
            )
            dispatch.receive(**messages[0])
        return counts

    cost(1)
    one, five = cost(1), cost(5)

    # As for one step, though following steps are collected run by run before one statement is sent.
    assert (one["transactions"], one["round trips"]) == (6, 9)
    assert (five["transactions"], five["round trips"], five["scripts"]) == (6, 9, one["scripts"])


def test_a_run_starts_with_4_statements_in_2_round_trips_however_many_start_together(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.save(
        acme.pk,
        {"key": "short", "name": "Short", "steps": [{"id": "only", "agent_role": "qa"}]},
        actor="test",
    )
    start_run(acme.pk, "short", NewRun(), actor="test")
    relay.flush()
    for runs in (1, 20):
        with counted(monkeypatch) as counts:
            start_runs(acme.pk, "short", [NewRun() for _ in range(runs)], actor="test")

        # The pipeline's newest version, and the runs with their steps and first activities, sent with the commit.
        assert (counts["statements"], counts["transactions"], counts["round trips"]) == (4, 1, 2)


def test_a_fan_out_is_a_handful_of_statements_and_each_branch_costs_less_than_a_step(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        {"id": "each", "agent_role": "qa", "for_each": "params.numbers"},
        {"id": "join", "agent_role": "qa"},
    ]
    versions.save(acme.pk, {"key": "fan", "name": "Fan", "steps": steps}, actor="test")
    with counted(monkeypatch) as started:
        start_run(acme.pk, "fan", NewRun(params={"numbers": list(range(100))}), actor="test")
    with counted(monkeypatch) as counts:
        engine.drain()

    assert (started["statements"], started["transactions"]) == (6, 1)  # as many for a thousand items
    # Five for each branch, and in addition the join, the run's end, and settings that are read every second.
    assert counts["statements"] < 100 * 5 + 50


def test_a_bulk_of_a_hundred_is_one_transaction_and_one_redis_call(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    configuration.settings_for(acme.pk, "qa")

    with counted(monkeypatch) as counts:
        engine.submit(acme, count=100)

    assert (counts["statements"], counts["transactions"], counts["scripts"]) == (2, 1, 1)


def test_an_accepted_run_costs_one_transaction_more(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(acme)

    with counted(monkeypatch) as counts:
        engine.drain()

    assert (counts["statements"], counts["transactions"]) == (4, 2)


def test_no_index_of_activities_has_a_column_that_a_claim_changes(acme: Tenant) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT a.attname FROM pg_index i"
            " JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refobjid = i.indrelid"
            " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
            " WHERE i.indrelid = 'activities_activity'::regclass"
        )
        indexed = {name for (name,) in cursor.fetchall()}

    changed = {
        "status",
        "version",
        "fence",
        "attempts",
        "assigned_at",
        "started_at",
        "wake_reason",
        "run_now_at",
    }
    assert {"tenant_id", "id", "pipeline_run_id", "dedup_key", "indexed_status"} <= indexed
    assert not indexed & changed


def test_the_indexed_status_follows_the_status(engine: Engine, acme: Tenant) -> None:
    (waiting,) = engine.submit(acme)
    with tenant_scope(acme.pk):
        for status in Status:
            Activity.objects.create(
                tenant=acme,
                name=status,
                status=status,
                assignee_type="human",
                human_role="editor",
                finished_at=Now(),
            )
        rows = Activity.objects.for_tenant(acme).values_list("status", "indexed_status")
        assert set(rows) == set(INDEXED.items())

        transitions.apply(waiting, "cancel", actor="test")
        assert rows.get(pk=waiting) == ("cancelled", "cancelled")
