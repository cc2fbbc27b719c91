"""The counters behind the metrics: each event of the timeline is counted once, in the right bucket, off the hot path."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections, transaction

from activities.maintenance import counters, recovery
from activities.models import CountingMark, WorkerProcess
from agents.contracts import AgentRequest, AgentResult
from agents.exceptions import AgentError, RetryableAgentError
from tenants import clock
from tenants.context import OWNER, SYSTEM, system_scope
from tenants.models import Tenant
from tests.engine import Engine, in_another_thread, simultaneously
from tests.metrics import count_all, samples, scrape

INFINITY = float("inf")
#: In seconds. No clock is changed by as much during a test, so that a time before it and one after it can be told apart.
AN_HOUR = 3_600.0


def _totals(name: str) -> dict[tuple[str, str], int]:
    return counters.read_counters().totals.get(name, {})


def _backdate(table: str, column: str, seconds: float) -> None:
    """Subtract seconds from a column of times."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {column} - %s * interval '1 second'", [seconds])


def test_submissions_and_ends_are_counted_by_role(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, "qa", count=3)
    engine.submit(acme, "seo")
    engine.drain()

    count_all()

    assert _totals("submitted") == {("qa", ""): 3, ("seo", ""): 1}
    assert _totals("ended") == {("qa", "done"): 3, ("seo", "done"): 1}


def test_counting_again_counts_no_event_twice(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, count=5)
    engine.drain()
    count_all()
    before = counters.read_counters()

    assert counters.count_fresh() == 0

    after = counters.read_counters()
    assert (after.totals, after.histograms) == (before.totals, before.histograms)


def test_leaders_that_count_at_once_count_each_event_once(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(acme, "seo")
    count_all()  # including events of earlier tests
    monkeypatch.setattr(counters, "BATCH", 7)
    engine.submit(acme, count=40)

    outcomes = simultaneously(*[counters.count_fresh] * 4)
    count_all()

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert _totals("submitted") == {("seo", ""): 1, ("qa", ""): 40}


def test_an_event_that_commits_after_a_later_one_is_still_counted(engine: Engine, acme: Tenant) -> None:
    """Its number is lower than the last counted one, so a mark of the highest number would skip it."""
    written, release = threading.Event(), threading.Event()
    (first,) = engine.submit(acme)

    def slow() -> None:
        with transaction.atomic(using=SYSTEM), connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            cursor.execute(
                "INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, detail, at)"
                " SELECT id, %s, 99, 'submit', NULL, 'created', 'test', '{}', now() FROM tenants_tenant WHERE id = %s",
                [first, acme.pk],
            )
            written.set()
            assert release.wait(60)

    thread = threading.Thread(target=lambda: in_another_thread(slow))
    thread.start()
    assert written.wait(60)
    engine.submit(acme, "seo")
    for _ in range(3):
        counters.count_fresh()
    early = _totals("submitted")
    release.set()
    thread.join(60)
    count_all()

    assert ("seo", "") not in early, "an event waits while an earlier one may still be committed"
    assert _totals("submitted") == {("qa", ""): 2, ("seo", ""): 1}


def test_stalled_counters_are_reported_as_old_although_the_leader_checks_them(
    engine: Engine, acme: Tenant
) -> None:
    """Any writing transaction of the server stalls them, in any of its databases."""
    written, release = threading.Event(), threading.Event()

    def holds_on() -> None:
        with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            written.set()
            assert release.wait(60)

    count_all()
    thread = threading.Thread(target=lambda: in_another_thread(holds_on))
    thread.start()
    assert written.wait(60)
    engine.submit(acme)
    counters.count_fresh()
    for column in ("at", "complete_at"):
        _backdate("activities_countingmark", column, AN_HOUR)
    stalled = counters.read_counters()
    counters.count_fresh()
    held = counters.read_counters()
    release.set()
    thread.join(60)
    count_all()
    sample = samples(scrape())

    assert held.complete_at == stalled.complete_at
    assert held.at > stalled.at
    assert sample["counters_timestamp_seconds",] > held.complete_at
    assert _totals("submitted") == {("qa", ""): 1}


def test_counters_of_an_idle_system_are_up_to_date(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second batch would complete the counters again, whatever the first one wrote.
    monkeypatch.setattr(counters, "BATCHES", 1)
    count_all()
    for column in ("at", "noted_at", "complete_at"):
        _backdate("activities_countingmark", column, AN_HOUR)
    before = counters.read_counters().complete_at

    counters.count_fresh()
    _backdate("activities_countingmark", "noted_at", AN_HOUR)
    engine.submit(acme)
    counters.count_fresh()

    assert counters.read_counters().complete_at > before + AN_HOUR / 2, "also after an older mark"


def test_the_wait_is_measured_from_when_the_work_could_start_to_its_claim(
    engine: Engine, acme: Tenant
) -> None:
    engine.submit(acme)
    _backdate("activities_activityevent", "at", 20.0)
    engine.drain()

    count_all()

    (sample,) = counters.read_counters().histograms["wait"].values()
    assert sample.counts == {30.0: 1}
    assert 20 <= sample.total < 30


def test_the_wait_of_scheduled_work_is_measured_from_its_start_time(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, not_before=clock.now() + timedelta(minutes=5))
    engine.make_due(acme)
    _backdate("activities_activityevent", "at", 3000.0)
    engine.drain()

    count_all()

    (sample,) = counters.read_counters().histograms["wait"].values()
    assert sample.total < 100, "not the 3,000 s since it was submitted"


def test_a_run_is_measured_from_claim_to_end_and_counted_by_its_outcome(engine: Engine, acme: Tenant) -> None:
    def late(request: AgentRequest) -> AgentResult:
        in_another_thread(lambda: _backdate("activities_activityrun", "started_at", 200.0))
        raise AgentError("no")

    engine.agent.behaviour = late
    engine.submit(acme)
    engine.drain()

    count_all()

    ((labels, sample),) = counters.read_counters().histograms["run"].items()
    assert labels == ("qa", "failed")
    assert sample.counts == {300.0: 1}
    assert 200 <= sample.total < 210


def test_the_number_of_attempts_is_counted_when_work_ends(engine: Engine, acme: Tenant) -> None:
    answer = engine.agent.behaviour

    def third_time(request: AgentRequest) -> AgentResult:
        if request.attempt < 3:
            raise RetryableAgentError("not yet")
        return answer(request)

    engine.agent.behaviour = third_time
    engine.submit(acme, max_attempts=3)
    for _ in range(3):
        engine.drain()
        engine.make_due(acme)

    count_all()

    reading = counters.read_counters()
    assert {labels: sample.counts for labels, sample in reading.histograms["attempts"].items()} == {
        ("qa", ""): {3.0: 1}
    }
    runs = {labels: sum(sample.counts.values()) for labels, sample in reading.histograms["run"].items()}
    assert runs == {("qa", "failed"): 2, ("qa", "completed"): 1}


def test_a_lost_worker_is_counted_once(engine: Engine) -> None:
    with system_scope():
        worker = WorkerProcess.objects.create(
            host="elsewhere", boot="b", pid=1, pid_started=1, roles=["dev"], concurrency=4
        )

    first_and_second = [recovery.declare_lost(worker), recovery.declare_lost(worker)]

    assert first_and_second == [True, False]
    assert _totals("workers_lost") == {("", ""): 1}


def test_counters_outlive_the_work_that_they_counted(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, count=2)
    engine.drain()
    count_all()
    with connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM activities_activity WHERE tenant_id = %s", [acme.pk])

    assert _totals("ended") == {("qa", "done"): 2}


def test_a_mark_from_another_cluster_does_not_stop_the_counting(engine: Engine, acme: Tenant) -> None:
    """After a restore, new transaction ids may be lower than the mark."""
    count_all()
    with system_scope():
        CountingMark.objects.update(barrier=2**60)
    engine.submit(acme)

    count_all()

    assert _totals("submitted") == {("qa", ""): 1}


def test_an_idle_system_is_checked_with_one_statement(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme)
    count_all()
    queries: list[str] = []

    def note(execute: object, sql: str, *rest: object) -> object:
        queries.append(sql)
        return execute(sql, *rest)  # type: ignore[operator]

    with connections[SYSTEM].execute_wrapper(note):
        counters.count_fresh()

    assert len(queries) == 1


def test_a_histogram_is_cumulative_and_agrees_with_its_count(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, count=4)
    engine.drain()
    count_all()

    sample = samples(scrape())

    buckets = [value for (name, *_), value in sample.items() if name == "queue_wait_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == sample["queue_wait_seconds_count", "qa"] == 4
    assert sample["queue_wait_seconds_bucket", "+Inf", "qa"] == 4
    assert sample["activity_attempts_bucket", "1.0", "qa"] == 4
