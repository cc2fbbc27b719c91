"""Leadership is a lease: a frozen leader loses it, its later writes are refused, and a hanging system job delays no other."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db import OperationalError, connections, transaction
from django.db.models.functions import Now

from activities import admission, maintenance, relay
from activities.admission import Closed, keys, rebuilding
from activities.mailboxes import consumer
from activities.mailboxes.producer import NewItem, post
from activities.maintenance import Leader, LeadLost, Scheduler, recovery, system_jobs
from activities.maintenance.job_records import JobReport, read_jobs, write_jobs
from activities.maintenance.leader import confirm
from activities.maintenance.scheduler import Bounds, JobProgress, Round
from activities.maintenance.system_jobs import SystemJob, Term
from activities.models import ActivityRun, LeaderLease, MailboxBatch, MailboxItem, WorkerProcess
from agents.contracts import Accepted, AgentResult, Completed, Output
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests import servers
from tests.engine import Engine, eventually, in_another_thread, simultaneously, somebody_waits_for_a_lock
from tests.forked_processes import Forks, forks
from tests.integration.recovery.losses import Died
from tests.network import proxy_to
from tests.upkeep import new_leader

pytestmark = pytest.mark.long

# A process that gets no processor time keeps its lead; tests let leases expire.
LONG_LEASE_SECONDS = "600"


@pytest.fixture(scope="module")
def leading_processes(django_db_setup: None) -> Iterator[Forks]:
    changes = {
        "ORCHESTRATOR_LEADER_LEASE_SECONDS": LONG_LEASE_SECONDS,
        "ORCHESTRATOR_TICK_SECONDS": "0.1",
        "LOG_LEVEL": "ERROR",
    }
    with forks("lead", servers.environment(django_settings) | changes) as started:
        yield started


@pytest.fixture
def processes(database: None, leading_processes: Forks) -> Iterator[Forks]:
    yield leading_processes
    for pid in list(leading_processes.alive):
        leading_processes.kill(pid)


def lease() -> LeaderLease | None:
    with system_scope():
        return LeaderLease.objects.first()


def leader_of(*pids: int) -> int:
    eventually(lambda: (found := lease()) is not None and found.pid in pids)
    found = lease()
    assert found is not None
    return found.pid


def expire_lease() -> None:
    with system_scope():
        LeaderLease.objects.update(expires_at=Now() - timedelta(seconds=1))


@contextmanager
def locked(table: str) -> Iterator[None]:
    """Lock the table against reads and writes while the block runs."""
    with transaction.atomic(using=OWNER):
        connections[OWNER].cursor().execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


def test_delays_end_and_redis_is_rebuilt_while_the_leader_is_frozen(
    engine: Engine, tenant: Tenant, processes: Forks
) -> None:
    engine.serve(tenant)
    pids = processes.start(), processes.start()
    frozen = leader_of(*pids)
    os.kill(frozen, signal.SIGSTOP)
    expire_lease()

    engine.submit(tenant, not_before=datetime.now(UTC) + timedelta(seconds=0.5))
    client().flushdb()

    eventually(lambda: engine.messages() == 1)
    found = lease()
    assert found is not None
    assert found.pid == next(pid for pid in pids if pid != frozen)

    os.kill(frozen, signal.SIGCONT)
    before = found.epoch
    eventually(lambda: (now := lease()) is not None and now.expires_at > found.expires_at)
    after = lease()
    assert after is not None
    assert (after.pid, after.epoch) == (found.pid, before)


def test_a_leader_whose_network_drops_everything_is_replaced_when_its_lease_ends_and_comes_back(
    engine: Engine, tenant: Tenant, process_environment: dict[str, str]
) -> None:
    """No connection is closed, and what the leader sent arrives in the end. By then its epoch is outdated."""
    engine.serve(tenant)
    server = urlsplit(process_environment["DATABASE_URL"])
    environment = process_environment | {"LOG_LEVEL": "ERROR", "ORCHESTRATOR_TICK_SECONDS": "0.1"}
    with (
        proxy_to(server.hostname or "127.0.0.1", server.port or 5432) as network,
        forks("lead", environment | {"DATABASE_URL": _at(server, network.port)}) as swallowed,
        forks("lead", environment | {"ORCHESTRATOR_LEADER_LEASE_SECONDS": "50"}) as others,
    ):
        first = swallowed.start()
        assert leader_of(first) == first
        before = lease()
        second = others.start()

        network.stall()
        engine.submit(tenant, not_before=datetime.now(UTC) + timedelta(seconds=0.5))
        eventually(lambda: (now := lease()) is not None and now.pid == second)
        eventually(lambda: engine.messages() == 1)

        network.resume()
        for _ in range(3):
            now = lease()
            assert before is not None
            assert now is not None
            assert (now.pid, now.epoch) == (second, before.epoch + 1)
            eventually(
                lambda until=now.expires_at: (found := lease()) is not None and found.expires_at > until
            )  # type: ignore[misc]
        with pytest.raises(LeadLost), transaction.atomic(using=SYSTEM):
            maintenance.confirm(before.epoch)

        others.kill(second)
        expire_lease()
        assert leader_of(first) == first
        last = lease()
        assert last is not None
        assert last.epoch == before.epoch + 2


def _at(server: SplitResult, port: int) -> str:
    return server._replace(netloc=server.netloc.replace(f":{server.port}", f":{port}")).geturl()


def test_the_runs_of_a_killed_worker_are_taken_over_while_the_leader_is_frozen(
    engine: Engine, tenant: Tenant, processes: Forks
) -> None:
    engine.serve(tenant)
    pids = processes.start(), processes.start()
    os.kill(leader_of(*pids), signal.SIGSTOP)
    expire_lease()
    gone = processes.start()
    os.kill(gone, signal.SIGKILL)
    with system_scope():
        WorkerProcess.objects.filter(pk=engine.lease.worker_id).update(pid=gone, pid_started=1)

    eventually(lambda: _ended(engine))


def _ended(engine: Engine) -> bool:
    with system_scope():
        return WorkerProcess.objects.filter(pk=engine.lease.worker_id, end_reason="lost").exists()


def test_a_leader_that_stops_lets_the_next_one_lead_at_once(database: None) -> None:
    first, second = Leader(), Leader()
    assert first.campaign()
    assert not second.campaign()

    first.resign()

    assert second.campaign()
    assert not first.leads()


@pytest.mark.parametrize("whose", ["another's", "an earlier one of its own"])
def test_resigning_ends_only_the_lease_that_the_process_holds(database: None, whose: str) -> None:
    leader = Leader()
    assert leader.campaign()

    late = Leader(epoch=leader.epoch) if whose == "another's" else Leader(holder=leader.holder, epoch=7)
    late.resign()

    assert not Leader().campaign()
    confirm(leader.epoch)


def test_one_of_many_candidates_that_see_the_lease_expire_leads(database: None) -> None:
    assert Leader().campaign()
    expire_lease()
    candidates = [Leader() for _ in range(8)]

    outcomes = simultaneously(*(candidate.campaign for candidate in candidates))

    assert sorted(outcomes) == [False] * 7 + [True]
    found = lease()
    assert found is not None
    assert found.epoch == 2


def test_a_leader_counts_its_lease_from_before_its_request_and_ends_it_without_being_told(
    database: None,
) -> None:
    now = [100.0]
    leader = Leader(clock=lambda: now[0])
    assert leader.campaign()
    assert leader.leads()

    now[0] += 6.0

    assert not leader.leads()  # although nobody has taken over

    moments = [200.0, 206.5, 206.5]  # the answer takes longer than the lease
    slow = Leader(clock=lambda: moments.pop(0))
    expire_lease()
    assert slow.campaign()
    assert not slow.leads()


def test_a_lease_from_a_clock_that_was_hours_ahead_counts_as_expired(database: None) -> None:
    assert Leader().campaign()
    with system_scope():
        LeaderLease.objects.update(expires_at=Now() + timedelta(hours=3))

    assert Leader().campaign()


def test_a_renewed_lease_keeps_its_epoch_and_one_that_was_lost_for_a_moment_does_not(database: None) -> None:
    leader, other = Leader(), Leader()
    assert leader.campaign()
    since = lease().since
    assert leader.campaign()
    assert (leader.epoch, lease().since) == (1, since)

    expire_lease()
    assert other.campaign()
    assert not leader.campaign()
    assert not leader.leads(), "although its own clock would let it"
    expire_lease()
    assert leader.campaign() is True

    assert (other.epoch, leader.epoch) == (2, 3)
    assert lease().since > since


def test_a_leader_that_got_no_answer_to_its_takeover_leads_at_once_under_a_new_epoch(database: None) -> None:
    leader = Leader()
    assert leader.campaign()
    leader.epoch = 0

    assert leader.campaign()

    assert leader.epoch == 2
    with pytest.raises(LeadLost):
        confirm(1)


def test_of_two_processes_that_campaign_for_the_first_lease_one_leads_and_the_other_waits(
    database: None,
) -> None:
    outcomes = list[object]()
    second = threading.Thread(target=lambda: outcomes.extend(simultaneously(Leader().campaign)))
    with transaction.atomic(using=SYSTEM):
        assert Leader().campaign()
        second.start()
        eventually(somebody_waits_for_a_lock)
    second.join()

    assert outcomes == [False]


def test_an_expired_lease_confirms_nothing_even_if_nobody_has_taken_over(database: None) -> None:
    leader = Leader()
    assert leader.campaign()
    confirm(leader.epoch)

    expire_lease()

    with pytest.raises(LeadLost):
        confirm(leader.epoch)


def test_a_confirmed_epoch_stays_in_force_until_the_commit(database: None) -> None:
    """The lease expires between the confirmation and the commit. The next leader waits for the commit."""
    leader, other, order = Leader(), Leader(), list[str]()
    assert leader.campaign()
    with system_scope():
        LeaderLease.objects.update(expires_at=Now() + timedelta(hours=3))  # in force, and free for others

    def takes_over() -> None:
        assert other.campaign()
        order.append("taken over")

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=SYSTEM):
            confirm(leader.epoch)
            taking = pool.submit(in_another_thread, takes_over)
            eventually(lambda: somebody_waits_for_a_lock() or order)
            order.append("committed")
        taking.result()

    assert order == ["committed", "taken over"]


def test_a_runner_skips_jobs_that_were_due_in_an_earlier_term(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.maintenance.scheduler.RUNNER_IDLE_SECONDS", 0.0)
    done: list[int] = []
    job = SystemJob("noted", 1.0, "tests", 5.0, lambda term: done.append(term.epoch))
    scheduler = new_leader()
    epoch = scheduler.leader.epoch
    for of in (epoch - 1, epoch):
        scheduler._ready.append((Round(Term(of), {}), JobProgress(job, 0.0)))

    in_another_thread(scheduler._run_jobs)

    assert done == [epoch]


def test_a_runner_starts_no_job_after_the_lease_of_its_process_has_ended(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.maintenance.scheduler.RUNNER_IDLE_SECONDS", 0.0)
    done: list[int] = []
    scheduler = new_leader()
    round_ = scheduler._round(0.0)
    scheduler._ready.append((round_, JobProgress(job("noted", lambda: done.append(1)), 0.0)))
    scheduler.leader.valid_until = time.monotonic()

    in_another_thread(scheduler._run_jobs)

    assert done == []


def stepping_clock() -> Callable[[], float]:
    """Return a clock that advances by five seconds at each reading."""
    now = itertools.count(0, 5)
    return lambda: float(next(now))


def simulate_outage(seconds: float) -> None:
    """Set the times as after an outage of PostgreSQL of this length. Workers sent heartbeats until it began."""
    since = Now() - timedelta(seconds=seconds)
    lasts = timedelta(seconds=django_settings.ORCHESTRATOR_LEADER_LEASE_SECONDS)
    with system_scope():
        LeaderLease.objects.update(expires_at=since + lasts)
        WorkerProcess.objects.update(beat_at=since - timedelta(seconds=3))


def candidate(lived: float) -> Leader:
    """Return a process that has campaigned for this many seconds."""
    leader = Leader()
    leader.began = leader.clock() - lived
    return leader


def lose_worker_in_outage(engine: Engine, lived: float = 3600.0, seconds: float = 40.0) -> None:
    """Let the watchdog end the engine's worker in an outage, and the leader reclaim its run afterwards."""
    simulate_outage(seconds)
    assert candidate(lived).campaign()
    with system_scope():
        assert recovery.declare_lost(WorkerProcess.objects.get(pk=engine.lease.worker_id))
    recovery.reclaim_runs_of_ended_workers()
    engine.lease.beat()  # its successor
    relay.flush()
    expire_lease()


def dies(request: object) -> AgentResult:
    raise Died


def test_outages_that_end_workers_never_fail_their_work(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    assert Leader().campaign()
    engine.agent.behaviour = dies
    (activity_id,) = engine.submit(tenant)
    for _ in range(5):
        with pytest.raises(Died):
            engine.drain()
        lose_worker_in_outage(engine)
    engine.agent.behaviour = lambda request: Completed(Output(content="after all"))
    engine.drain()

    done = engine.get(tenant, activity_id)
    assert (done.status, done.stalls, done.attempts) == ("done", 0, 1)
    assert [run.status for run in engine.runs(tenant, activity_id)] == ["stalled"] * 5 + ["completed"]


@pytest.mark.parametrize(
    ("lived", "seconds"),
    [(20.0, 40.0), (3600.0, 7.0)],
    ids=["when nobody lived through it", "when a leader died and another one took over"],
)
def test_losing_a_worker_without_an_outage_counts_as_a_stall(
    engine: Engine, tenant: Tenant, lived: float, seconds: float
) -> None:
    engine.serve(tenant)
    assert Leader().campaign()
    engine.agent.behaviour = dies
    (activity_id,) = engine.submit(tenant)
    for _ in range(3):
        with pytest.raises(Died):
            engine.drain()
        lose_worker_in_outage(engine, lived, seconds)

    failed = engine.get(tenant, activity_id)
    assert (failed.status, failed.stalls) == ("failed", 2)


def test_losing_a_worker_to_its_work_after_an_outage_counts_as_a_stall(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    assert Leader().campaign()
    engine.agent.behaviour = dies
    (activity_id,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.drain()
    simulate_outage(40.0)
    assert candidate(3600.0).campaign()
    engine.lease.beat()  # it lives

    with system_scope():
        assert recovery.declare_lost(WorkerProcess.objects.get(pk=engine.lease.worker_id))
    recovery.reclaim_runs_of_ended_workers()

    assert engine.get(tenant, activity_id).stalls == 1


def test_losing_a_worker_before_an_outage_counts_as_a_stall(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    assert Leader().campaign()
    engine.agent.behaviour = dies
    (activity_id,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.drain()
    simulate_outage(40.0)
    with system_scope():
        WorkerProcess.objects.update(beat_at=Now() - timedelta(seconds=60))
    assert candidate(3600.0).campaign()

    with system_scope():
        assert recovery.declare_lost(WorkerProcess.objects.get(pk=engine.lease.worker_id))
    recovery.reclaim_runs_of_ended_workers()

    assert engine.get(tenant, activity_id).stalls == 1


def test_agents_whose_deadline_passed_in_an_outage_have_a_minute_to_report(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    assert Leader().campaign()
    run = accepted(engine, tenant)
    with system_scope():
        ActivityRun.objects.filter(pk=run.pk).update(
            accepted_at=Now() - timedelta(seconds=run.timeout_seconds + 10)
        )
    simulate_outage(40.0)
    assert candidate(3600.0).campaign()

    assert recovery.end_overdue_runs() == 0
    with system_scope():
        LeaderLease.objects.update(outage_ended_at=Now() - timedelta(seconds=61))
    assert recovery.end_overdue_runs() == 1


@pytest.mark.parametrize(
    ("lived", "ended", "kept"),
    [(3600.0, 5, True), (20.0, 5, False), (3600.0, 600, False)],
    ids=["outage", "no outage", "before the outage"],
)
def test_a_consumer_whose_lease_ended_in_an_outage_continues_with_its_batch(
    engine: Engine, tenant: Tenant, lived: float, ended: int, kept: bool
) -> None:
    assert Leader().campaign()
    batch = take_batch(tenant)
    simulate_outage(40.0)
    with system_scope():
        MailboxBatch.objects.update(leased_until=Now() - timedelta(seconds=ended))
    assert candidate(lived).campaign()

    consumer.release_all_expired()

    with tenant_scope(tenant.pk):
        (item,) = MailboxItem.objects.filter(batch_id=batch)
        state = MailboxBatch.objects.get(pk=batch).state
    assert (state, item.state) == (("open", "claimed") if kept else ("expired", "pending"))


def test_an_outage_shortens_no_lease_of_a_batch_and_is_handled_once(engine: Engine, tenant: Tenant) -> None:
    assert Leader().campaign()
    take_batch(tenant)
    simulate_outage(40.0)
    with system_scope():
        MailboxBatch.objects.update(leased_until=Now() + timedelta(minutes=10))
    leader = candidate(3600.0)
    assert leader.campaign()

    with system_scope():
        assert MailboxBatch.objects.filter(leased_until__gt=Now() + timedelta(minutes=9)).exists()
        MailboxBatch.objects.update(leased_until=Now() + timedelta(seconds=5))
        assert WorkerProcess.objects.exclude(outage_at=None).update(outage_at=None)
    assert leader.campaign()

    with system_scope():
        assert MailboxBatch.objects.filter(leased_until__lt=Now() + timedelta(seconds=6)).exists()
        assert not WorkerProcess.objects.exclude(outage_at=None).exists()


def test_a_locked_batch_does_not_delay_the_leader(engine: Engine, tenant: Tenant) -> None:
    assert Leader().campaign()
    batch = take_batch(tenant)
    simulate_outage(40.0)
    with system_scope():
        MailboxBatch.objects.update(leased_until=Now() - timedelta(seconds=5))

    with tenant_scope(tenant.pk):
        MailboxBatch.objects.select_for_update().get(pk=batch)
        assert candidate(3600.0).campaign()


def take_batch(tenant: Tenant) -> UUID:
    """Return the id of a batch of one item that a consumer has taken."""
    with tenant_scope(tenant.pk):
        post(tenant.pk, "letters", NewItem(text="Good morning"), actor="test")
    options = consumer.TakeOptions(consumer="ann", lease=timedelta(seconds=30), window=timedelta(0), limit=1)
    found = consumer.take(tenant.pk, "letters", options)
    assert found is not None
    return found.batch.pk


@pytest.fixture
def thawed(engine: Engine, tenant: Tenant) -> Term:
    """The term of a leader that was frozen while another one took over."""
    engine.serve(tenant)
    scheduler = new_leader()
    expire_lease()
    assert Leader().campaign()
    return Term(scheduler.leader.epoch)


def test_a_thawed_leader_declares_no_worker_lost(engine: Engine, thawed: Term) -> None:
    thawed.watch.time.clock = stepping_clock()
    while not thawed.watch.find_lost():
        pass

    with pytest.raises(LeadLost):
        system_jobs._find_lost_workers(thawed)

    assert not _ended(engine)


def test_a_thawed_leader_releases_no_slot(engine: Engine, tenant: Tenant, thawed: Term) -> None:
    engine.submit(tenant)
    message = engine.take()
    assert message is not None
    admission.start(UUID(message["activity"]), message["grant"])  # its worker died before the claim
    thawed.slots.compare()

    with pytest.raises(LeadLost):
        system_jobs._audit_slots(thawed)

    relay.flush()
    assert [slot.grant for slot in admission.audit(withdraw_orphans=False)] == [message["grant"]]


def test_a_thawed_leader_ends_no_run_of_a_silent_agent(engine: Engine, tenant: Tenant, thawed: Term) -> None:
    run = accepted(engine, tenant)
    thawed.heartbeats.time.clock = stepping_clock()
    while not thawed.heartbeats.find_silent():
        pass

    with pytest.raises(LeadLost):
        system_jobs._find_silent_agents(thawed)

    assert engine.status(tenant, run.activity_id) == "in_progress"


def test_a_run_that_reports_between_the_check_and_its_end_continues(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    run = accepted(engine, tenant)
    watch = recovery.HeartbeatWatch(recovery.WatchedTime(stepping_clock()))
    while not watch.find_silent():
        pass

    def meanwhile() -> None:
        with system_scope():
            ActivityRun.objects.filter(pk=run.pk).update(beats=2)

    assert recovery.reclaim_silent_runs(watch, confirm=meanwhile) == 0
    assert engine.status(tenant, run.activity_id) == "in_progress"


def accepted(engine: Engine, tenant: Tenant) -> ActivityRun:
    """Return a run whose agent accepted the work and sent one heartbeat."""
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    (run,) = engine.runs(tenant, activity_id)
    with system_scope():
        ActivityRun.objects.filter(pk=run.pk).update(beats=1)
    return run


def test_a_thawed_leader_does_not_open_the_generation_that_it_was_rebuilding(thawed: Term) -> None:
    client().delete(keys.pointer())
    thawed.closed_since = -1e9

    with pytest.raises(LeadLost):
        system_jobs._keep_admission_open(thawed)

    assert not rebuilding.is_open()


def test_an_earlier_leader_does_not_replace_the_generation_of_a_later_one(engine: Engine) -> None:
    client().delete(keys.pointer())
    later = rebuilding.rebuild(epoch=7)

    with pytest.raises(Closed):
        rebuilding.rebuild(epoch=6)

    assert client().get(keys.pointer()) == later.encode()


def test_admission_that_is_wiped_while_it_is_rebuilt_is_not_opened_half_empty(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    engine.submit(tenant, count=3)

    with pytest.raises(Closed):
        rebuilding.rebuild(epoch=1, confirm=lambda: client().flushdb())

    assert not rebuilding.is_open()
    relay._relay._waiting = type(relay._relay._waiting)()


def test_a_locked_table_delays_only_the_job_that_needs_it(
    engine: Engine, tenant: Tenant, processes: Forks
) -> None:
    engine.serve(tenant)
    processes.start()
    leader_of(*processes.alive)

    with locked("activities_deadline"):
        client().flushdb()
        engine.submit(tenant, not_before=datetime.now(UTC) + timedelta(seconds=0.5))
        in_another_thread(lambda: eventually(lambda: engine.messages() == 1))
        in_another_thread(
            lambda: eventually(lambda: [job.name for job in read_jobs().unhealthy] == ["deadlines"])
        )
        (stuck,) = in_another_thread(lambda: read_jobs().unhealthy)
        assert (stuck.state, stuck.error) == ("failing", "LockNotAvailable")

    eventually(lambda: not read_jobs().unhealthy)


@contextmanager
def scheduler_with(monkeypatch: pytest.MonkeyPatch, *jobs: SystemJob) -> Iterator[Scheduler]:
    """Yield a scheduler that leads and has only these jobs."""
    monkeypatch.setattr("activities.maintenance.scheduler.table", lambda: jobs)
    scheduler = new_leader()
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stopped.set()
        thread.join()
        for runner in [each for each in threading.enumerate() if each.name.startswith("system-jobs-")]:
            runner.join(30)  # because each must close its connections before the test's database is emptied


def job(name: str, work: Callable[[], object]) -> SystemJob:
    return SystemJob(name, maintenance.TICK, "tests", 5.0, lambda term: work())


def test_hanging_jobs_delay_no_other_job(
    database: None, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    settings.ORCHESTRATOR_TICK_SECONDS = 0.05  # type: ignore[attr-defined]
    free, done = threading.Event(), threading.Semaphore(0)
    hanging = [job(f"hangs {number}", lambda: free.wait(120)) for number in range(3)]

    with scheduler_with(monkeypatch, *hanging, job("continues", done.release)):
        try:
            for _ in range(3):
                assert done.acquire(timeout=30)
        finally:
            free.set()


def test_a_runner_runs_jobs_with_the_same_time_budget_one_after_the_other(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    jobs = [
        SystemJob(name, maintenance.TICK, "tests", budget, lambda term, name=name: done.append(name))
        for name, budget in [("a", 5.0), ("b", 30.0), ("c", 5.0), ("d", 30.0), ("e", 5.0)]
    ]
    monkeypatch.setattr("activities.maintenance.scheduler.table", lambda: jobs)
    scheduler, budgets = new_leader(), list[float]()
    round_ = scheduler._round(0.0)
    scheduler._ready.extend((round_, round_.progress[each.name]) for each in jobs)

    def note(self: Bounds, budget: float) -> None:
        budgets.append(budget)
        if len(budgets) == len(jobs):
            scheduler.stopped.set()

    monkeypatch.setattr(Bounds, "apply", note)
    in_another_thread(scheduler._run_jobs)

    assert done == ["a", "c", "e", "b", "d"]
    assert budgets == [5.0, 5.0, 5.0, 30.0, 30.0]


def test_a_failing_job_is_retried_and_the_others_continue(
    database: None, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    settings.ORCHESTRATOR_TICK_SECONDS = 0.05  # type: ignore[attr-defined]
    tries, done = threading.Semaphore(0), threading.Semaphore(0)

    def fails() -> None:
        tries.release()
        raise ValueError("secret of a tenant")

    with scheduler_with(monkeypatch, job("fails", fails), job("continues", done.release)):
        for _ in range(2):
            assert tries.acquire(timeout=30)
        for _ in range(3):
            assert done.acquire(timeout=30)
        eventually(lambda: any(found.failures for found in read_jobs().jobs))

    (failing,) = [found for found in read_jobs().jobs if found.failures]
    assert (failing.name, failing.error) == ("fails", "ValueError")


def test_a_runner_replaces_a_connection_that_was_lost(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.maintenance.scheduler.RUNNER_IDLE_SECONDS", 0.0)
    outcomes = list[int]()

    def loses() -> None:
        if not outcomes:
            connections[SYSTEM].connection.close()
        outcomes.append(progress.failures)
        connections[SYSTEM].cursor().execute("SELECT 1")

    scheduler = new_leader()
    progress = JobProgress(job("loses", loses), 0.0)
    scheduler._ready.extend([(scheduler._round(0.0), progress)] * 2)

    in_another_thread(scheduler._run_jobs)

    assert (outcomes, progress.failures) == ([0, 1], 0)


def test_a_runner_limits_each_job_by_its_own_budget(database: None) -> None:
    def timeouts() -> list[str]:
        bounds, found = Bounds(), list[str]()
        for budget in (5.0, 30.0):
            bounds.apply(budget)
            with connections[SYSTEM].cursor() as cursor:
                cursor.execute("SHOW statement_timeout")
                found += cursor.fetchone()
        connections.close_all()
        return found

    assert in_another_thread(timeouts) == ["5s", "30s"]


def test_a_job_that_was_late_for_an_hour_is_not_run_once_for_each_period(database: None) -> None:
    scheduler, now = new_leader(), time.monotonic()
    late = JobProgress(job("late", lambda: None), now - 3600)

    scheduler._run_job(scheduler._round(now), late)

    assert late.due_at > now


def test_a_state_that_could_not_be_recorded_is_recorded_the_next_time(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = new_leader()
    delays = scheduler._round(0.0).progress["delays"]
    scheduler._record()
    delays.error, delays.changed = "ValueError", True

    with monkeypatch.context() as outage:
        outage.setattr("activities.maintenance.scheduler.write_jobs", Mock(side_effect=OperationalError))
        with pytest.raises(OperationalError):
            scheduler._record()
    scheduler._record()

    assert [found.name for found in read_jobs().jobs if found.error] == ["delays"]


def test_a_frozen_process_holds_row_locks_for_seconds_only(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the idle transaction of a runner, whatever happened to the process."""
    monkeypatch.setattr("activities.maintenance.scheduler.IDLE_IN_TRANSACTION_SECONDS", 0.3)
    inside, free = threading.Event(), threading.Event()

    def freezes() -> None:
        with transaction.atomic(using=SYSTEM):
            connections[SYSTEM].cursor().execute("SELECT epoch FROM activities_leaderlease FOR UPDATE")
            inside.set()
            free.wait(120)

    with scheduler_with(monkeypatch, job("freezes", freezes)):
        assert inside.wait(30)
        try:
            in_another_thread(expire_lease)  # waits for the row, and raises if it is not released in time
        finally:
            free.set()


def test_what_an_earlier_leader_reports_changes_nothing(database: None) -> None:
    assert Leader().campaign()
    report = JobReport("delays", "activities.outbox", 1.0, 5.0, finished=0.0)
    write_jobs(3, [report, dataclasses.replace(report, name="new")])

    assert write_jobs(2, [report]) == 0
    assert [found.name for found in read_jobs().jobs] == ["delays", "new"]
    assert write_jobs(4, [report]) == 1


def test_the_next_leader_removes_a_job_that_no_longer_exists(database: None) -> None:
    assert Leader().campaign()
    old, kept = (JobReport(name, "tests", 1.0, 5.0, finished=0.0, succeeded=0.0) for name in ("old", "kept"))
    write_jobs(1, [old, kept])

    write_jobs(2, [dataclasses.replace(kept, finished=None, succeeded=None)])

    [found] = read_jobs().jobs
    assert (found.name, found.finished is not None, found.succeeded is not None) == ("kept", True, True), (
        "its last run, although the next leader has not run it yet"
    )


def test_a_process_that_may_not_lead_never_does(
    database: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(maintenance.Maintenance, "start", lambda self: started.append(True))

    settings.ORCHESTRATOR_MAY_LEAD = False  # type: ignore[attr-defined]
    maintenance.begin()
    assert (started, lease()) == ([], None)

    settings.ORCHESTRATOR_MAY_LEAD = True  # type: ignore[attr-defined]
    maintenance.begin()
    maintenance.end()
    assert started == [True]


def test_every_system_job_has_a_unique_name_an_existing_module_a_budget_and_an_interval() -> None:
    names = [each.name for each in maintenance.table()]
    assert len(names) == len(set(names))
    for each in maintenance.table():
        importlib.import_module(each.owner)
        assert each.budget > 0
        assert each.every > 0
