"""The engine at work: throughput, latency, submission, recovery and idle costs, most of them compared with a plain Celery program."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from django.db import connections, transaction

from activities import outputs, relay, transitions
from activities.admission import Exchange, exchange, limits, rebuilding
from activities.admission.exchange import Offer, Release
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.submission import NewActivity, submit
from agents import configuration
from agents.models import Agent, AgentConfig
from benchmarks import baseline, environment
from benchmarks.baseline import handwritten
from benchmarks.environment import wait_until
from benchmarks.figures import Figures, percentiles, rate
from benchmarks.workload import (
    ROLE,
    chain,
    count_rows,
    forget_workers,
    is_done,
    make_tenant,
    open_admission,
    save_pipeline,
    wait_for_workers,
)  # fmt: skip
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run, start_runs
from tenants import clock
from tenants.caches import ConfigurationCache
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client

# Of the scenario `rows`. Options of the command change them.
WAITING = 100_000
ENDED = 1_000_000
EMPTY_PROJECT = Path(__file__).parent / "empty_project"
COMPILED = "compiled"  # the folder of compiled Python files
# Between two looks whether a single run has ended. With 2 ms all times were multiples of a look, so that medians jumped by 2.3 ms.
LOOK_SECONDS = 0.0005


def steps(folder: Path, scale: float) -> Figures:
    """Measure 1,000 runs of a 3-step pipeline, here and in the plain Celery program.

    On both sides processor time counts from the first finished step to the last, so it does not include the start of processes.
    """
    count = int(1000 * scale)
    by_hand_rate, by_hand = _steps_by_hand(folder, count)
    tenant = make_tenant("steps")
    save_pipeline(tenant, "chain", chain(3))
    start_runs(tenant.pk, "chain", [NewRun() for _ in range(count)], actor="bench")
    with environment.workers(folder):
        wait_for_workers(2)
        ours = cost_per_step(
            folder,
            done=partial(_count_ended, tenant),
            total=3 * count,
            all_done=partial(_have_runs_ended, tenant),
        )
    with tenant_scope(tenant.pk):
        ends = Activity.objects.filter(tenant=tenant).values_list("finished_at", flat=True)
        our_rate = rate(at.timestamp() for at in ends if at)
    return {
        "ours steps/s": our_rate, "by hand steps/s": by_hand_rate, "ratio": our_rate / by_hand_rate,
        "ours CPU ms per step": ours.cpu_ms, "by hand CPU ms per step": by_hand.cpu_ms, "CPU ratio": ours.cpu_ms / by_hand.cpu_ms,
        "ours WAL kB per step": ours.wal_kb, "by hand WAL kB per step": by_hand.wal_kb,
    }  # fmt: skip


def components(folder: Path, scale: float) -> Figures:
    """Measure the processor time of each component at 0, 10 and 100 steps per second, and when all runs are submitted at once."""
    tenant = make_tenant("components")
    save_pipeline(tenant, "chain", chain(3))
    figures: Figures = {}
    with environment.workers(folder):
        wait_for_workers(2)
        for steps_per_second in (0, 10, 100):
            figures |= _use_of_components(folder, tenant, steps_per_second, seconds=20 * scale)
        figures |= _use_of_components(folder, tenant, None, seconds=4 * scale)
    return figures


def _use_of_components(folder: Path, tenant: Tenant, pace: int | None, *, seconds: float) -> Figures:
    """`pace`: steps per second. None submits all runs at once, for about that many seconds of work at 1,000 steps per second."""
    before = _count_ended(tenant)
    runs = int((pace if pace is not None else 1000) * seconds / 3)
    used_before, began = environment.cpu_by_component(folder), time.perf_counter()
    if pace is None:
        start_runs(tenant.pk, "chain", [NewRun() for _ in range(runs)], actor="bench")
    for number in range(runs if pace else 0):
        time.sleep(max(0.0, began + number * seconds / runs - time.perf_counter()))
        start_run(tenant.pk, "chain", NewRun(), actor="bench")
    wait_until(partial(_have_runs_ended, tenant), pause=0.25)
    time.sleep(max(0.0, began + seconds - time.perf_counter()))
    seconds_taken = time.perf_counter() - began
    name = "all at once" if pace is None else f"{pace} steps/s"
    shares = {
        f"{name}: {component} % of a processor": (used - used_before[component]) * 100 / seconds_taken
        for component, used in environment.cpu_by_component(folder).items()
    }
    return {**shares, f"{name}: steps/s": (_count_ended(tenant) - before) / seconds_taken}


def _count_ended(tenant: Tenant) -> int:
    return count_rows(Activity, tenant, finished_at__isnull=False)


def _have_runs_ended(tenant: Tenant) -> bool:
    return count_rows(PipelineRun, tenant, status="running") == 0


def _steps_by_hand(folder: Path, count: int) -> tuple[float, Cost]:
    handwritten.prepare()
    handwritten.submit(count)
    with baseline.workers(folder / "by-hand.log", folder=folder):
        cost = cost_per_step(
            folder,
            done=lambda: baseline.query("SELECT count(*) FROM handwritten_step")[0][0],
            total=3 * count,
            all_done=lambda: (
                baseline.query("SELECT count(*) FROM handwritten_run WHERE finished_at IS NULL")[0][0] == 0
            ),
        )
        baseline.refuse_foreign_code()
    return rate(row[0].timestamp() for row in baseline.query("SELECT at FROM handwritten_step")), cost


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step: milliseconds of processor time of all processes, and kB of PostgreSQL's write-ahead log."""

    cpu_ms: float
    wal_kb: float


def cost_per_step(folder: Path, *, done: Callable[[], int], total: int, all_done: Callable[[], bool]) -> Cost:
    """Return the average cost of a step, without the steps that end before the first look.

    `done`: the number of finished steps; `total`: the number that will finish.
    """
    wait_until(lambda: done() > 0)
    before, cpu, wal = done(), environment.cpu_seconds(folder), _wal_bytes()
    wait_until(all_done, pause=0.25)
    steps = total - before
    return Cost((environment.cpu_seconds(folder) - cpu) * 1000 / steps, (_wal_bytes() - wal) / 1000 / steps)


def _wal_bytes() -> int:
    """Return how much the server has written to its write-ahead log so far."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(cursor.fetchone()[0])


def latency(folder: Path, scale: float) -> Figures:
    """Measure single 3-step runs on an idle system, here and in the plain Celery program, until another connection sees the end.

    Both sides are idle before their first run. A worker process that has just started also runs the system jobs that are due.
    """
    tenant = make_tenant("latency")
    save_pipeline(tenant, "chain", chain(3))
    with environment.workers(folder, processes=1) as started:
        wait_for_workers(1)
        started.usage_when_idle()
        ours = [_one_run(tenant) for _ in range(int(50 * scale) + 5)][5:]
    handwritten.prepare()
    with baseline.workers(folder / "by-hand.log", folder=folder) as started:
        started.usage_when_idle()
        theirs = [_one_run_by_hand() for _ in range(int(50 * scale) + 5)][5:]
        baseline.refuse_foreign_code()
    return {
        **percentiles("ours", ours),
        **percentiles("by hand", theirs),
        "p50 ratio": statistics.median(ours) / statistics.median(theirs),
    }


def _one_run(tenant: Tenant) -> float:
    began = time.perf_counter()
    run = start_run(tenant.pk, "chain", NewRun(), actor="bench")
    with connections[SYSTEM].cursor() as cursor:
        while True:
            cursor.execute("SELECT status FROM pipelines_pipelinerun WHERE id = %s", [run.pk])
            if cursor.fetchone()[0] != "running":
                return (time.perf_counter() - began) * 1000
            time.sleep(LOOK_SECONDS)


def _one_run_by_hand() -> float:
    began = time.perf_counter()
    (run,) = handwritten.submit(1)
    unfinished = "SELECT finished_at IS NULL FROM handwritten_run WHERE id = %s"
    while baseline.query(unfinished, (run,))[0][0]:
        time.sleep(LOOK_SECONDS)
    return (time.perf_counter() - began) * 1000


def call(folder: Path, scale: float) -> Figures:
    """Measure the time from a submission until the agent is called, at 20 submissions per second, without the start of a worker."""
    tenant = make_tenant("call")
    with environment.workers(folder, processes=1) as started:
        wait_for_workers(1)
        started.usage_when_idle()
        for _ in range(int(200 * scale)):
            with tenant_scope(tenant.pk):
                submit([NewActivity(name="call", agent_role=ROLE)], actor="bench")
            time.sleep(0.05)
        wait_until(partial(is_done, tenant))
    with tenant_scope(tenant.pk):
        moments = Activity.objects.filter(tenant=tenant).values_list("created_at", "started_at")
        waits = [(started - created).total_seconds() * 1000 for created, started in moments]
    return percentiles("submit to call", waits)


def submission(folder: Path, scale: float) -> Figures:
    """Measure submissions per second of one process: one by one, in bulks of 1,000, and one by one in the plain Celery program."""
    tenant, count = make_tenant("submission"), int(2000 * scale)
    open_admission()
    began = time.perf_counter()
    for _ in range(count):
        with tenant_scope(tenant.pk):
            submit([NewActivity(name="one", agent_role=ROLE)], actor="bench")
    one_by_one = count / (time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(10):
        with tenant_scope(tenant.pk):
            submit([NewActivity(name="many", agent_role=ROLE) for _ in range(count // 2)], actor="bench")
    bulk = 10 * (count // 2) / (time.perf_counter() - began)
    relay.flush(60)
    _withdraw(tenant)
    handwritten.prepare()
    began = time.perf_counter()
    handwritten.submit(count)
    return {
        "ours one by one /s": one_by_one,
        "ours in bulk /s": bulk,
        "by hand one by one /s": count / (time.perf_counter() - began),
    }


def burst(folder: Path, scale: float) -> Figures:
    """Submit 10,000 activities in bulk while workers run. Measures when all are accepted, and when all are done."""
    tenant, count = make_tenant("burst"), int(10_000 * scale)
    with environment.workers(folder):
        wait_for_workers(2)
        began = time.perf_counter()
        for _ in range(10):
            with tenant_scope(tenant.pk):
                submit(
                    [NewActivity(name="burst", agent_role=ROLE) for _ in range(count // 10)], actor="bench"
                )
        accepted = time.perf_counter() - began
        wait_until(partial(is_done, tenant), pause=0.2)
    return {"accepted s": accepted, "drained s": time.perf_counter() - began}


def fan_out(folder: Path, scale: float) -> Figures:
    """Run a pipeline of one step, 1,000 that depend on it, and one that depends on all of these."""
    tenant, width = make_tenant("fan-out"), int(1000 * scale)
    middle = [{"id": f"m{n}", "agent_role": ROLE, "depends_on": ["first"]} for n in range(width)]
    last = {"id": "join", "agent_role": ROLE, "depends_on": [step["id"] for step in middle]}
    save_pipeline(tenant, "fan", [{"id": "first", "agent_role": ROLE}, *middle, last])
    with environment.workers(folder):
        wait_for_workers(2)
        began = time.perf_counter()
        start_run(tenant.pk, "fan", NewRun(), actor="bench")
        wait_until(partial(_have_runs_ended, tenant))
        return {"fan-out and join s": time.perf_counter() - began}


def for_each(folder: Path, scale: float) -> Figures:
    """As `fan_out`, but with one `for_each` step over the 1,000 items that the first step returns."""
    tenant, width = make_tenant("for-each", endpoint="benchmarks.agents:listing"), int(1000 * scale)
    each = {"id": "each", "agent_role": ROLE, "for_each": "steps.first.data"}
    save_pipeline(
        tenant, "each", [{"id": "first", "agent_role": ROLE}, each, {"id": "join", "agent_role": ROLE}]
    )
    with environment.workers(folder):
        wait_for_workers(2)
        began = time.perf_counter()
        run = start_run(tenant.pk, "each", NewRun(params={"width": width}), actor="bench")
        wait_until(partial(_have_runs_ended, tenant))
        seconds = time.perf_counter() - began
    with tenant_scope(tenant.pk):
        done = Activity.objects.filter(tenant=tenant, pipeline_run_id=run.pk, status="done").count()
    return {"for_each and join s": seconds, "activities done": float(done)}


def keyed(folder: Path, scale: float) -> Figures:
    """Run 100 activities of 50 ms for each of 10 group keys, with at most 2 of a group at the same time. The ideal is 2.5 s."""
    while outputs.copy_waiting():
        pass  # outputs of earlier scenarios, which workers would copy during this one
    tenant, each = (
        make_tenant("keyed", endpoint="benchmarks.agents:fifty_milliseconds", per_group=2),
        int(100 * scale),
    )
    with environment.workers(folder, threads=12):
        wait_for_workers(2)
        began = time.perf_counter()
        with tenant_scope(tenant.pk):
            submit(
                [NewActivity(name="key", agent_role=ROLE, group_key=f"k{n % 10}") for n in range(10 * each)],
                actor="bench",
            )
        wait_until(partial(is_done, tenant))
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "ratio to ideal": seconds / (each * 0.05 / 2),
        "most of a key at once": _peak(tenant),
    }


def _peak(tenant: Tenant) -> float:
    """Return the largest number of runs of one group at the same time."""
    with tenant_scope(tenant.pk):
        runs = ActivityRun.objects.filter(tenant=tenant).values_list(
            "activity__group_key", "started_at", "ended_at"
        )
        changes = sorted(
            [(at, 1, key) for key, at, _ in runs] + [(at, -1, key) for key, _, at in runs],
            key=lambda each: each[:2],
        )
    count: dict[str, int] = {}
    most = 0
    for _, change, key in changes:
        count[key] = count.get(key, 0) + change
        most = max(most, count[key])
    return float(most)


def backlog(folder: Path, scale: float) -> Figures:
    """Measure an admission call that offers, grants and releases, with no other work and with 100,000 waiting activities of 50 tenants."""
    with system_scope():
        WorkerProcess.objects.create(
            host="none", boot="none", pid=0, pid_started=0, roles=[ROLE], concurrency=5
        )
        open_admission()
    tenants = [uuid4() for _ in range(50)]
    empty = _admission_milliseconds(tenants)
    for start in range(0, int(100_000 * scale), 1000):
        exchange(Exchange(offers=[_offer(tenants[n % 50]) for n in range(start, start + 1000)]))
    full = _admission_milliseconds(tenants)
    forget_workers()
    open_admission()
    return {"empty ms": empty, "100,000 waiting ms": full, "ratio": full / empty}


def _offer(tenant: UUID) -> Offer:
    return Offer(uuid4(), tenant, ROLE, 10, datetime.now(UTC), None)


def _admission_milliseconds(tenants: list[UUID], rounds: int = 500) -> float:
    held: list[Release] = []
    began = time.perf_counter()
    for number in range(rounds):
        grants = exchange(Exchange(offers=[_offer(tenants[number % 50])], releases=held))
        held = [Release(grant.activity_id, grant.grant) for grant in grants]
    exchange(Exchange(releases=held))
    return (time.perf_counter() - began) * 1000 / rounds


_WAITING_COPIES = """
CREATE TEMPORARY TABLE made ON COMMIT DROP AS SELECT uuidv7() AS id FROM generate_series(1, %(count)s);
INSERT INTO activities_activity
SELECT (jsonb_populate_record(a, jsonb_build_object('id', made.id))).* FROM activities_activity a, made WHERE a.id = %(pattern)s;
INSERT INTO activities_wake
SELECT (jsonb_populate_record(w, jsonb_build_object('id', uuidv7(), 'activity_id', made.id))).* FROM activities_wake w, made
WHERE w.activity_id = %(pattern)s;
"""
_ENDED_COPIES = (
    _WAITING_COPIES
    + """
INSERT INTO activities_activityrun
SELECT (jsonb_populate_record(r, jsonb_build_object('id', uuidv7(), 'activity_id', made.id))).* FROM activities_activityrun r, made
WHERE r.activity_id = %(pattern)s;
INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
SELECT e.tenant_id, made.id, e.seq, e.verb, e.source, e.target, e.actor, e.run_id, e.detail, e.at FROM activities_activityevent e, made
WHERE e.activity_id = %(pattern)s;
"""
)
_OF_ACTIVITIES = (
    "activities_activityevent", "activities_activityrun", "activities_wake", "activities_outputspool", "tenants_freshevent",
    "tenants_usageentry", "activities_activity",
)  # fmt: skip


def rows(folder: Path, scale: float) -> Figures:
    """Measure a claim and a finish, each with its commit: on empty tables, with many waiting activities, then with many ended ones as well.

    One connection keeps its plans throughout, as a worker's does. Each is measured with old and new table statistics.
    """
    tenant = make_tenant("rows")
    _analyze()
    _claim_and_finish(tenant, 50)
    figures: Figures = {}
    states: list[tuple[str, str, int]] = [
        ("waiting", _WAITING_COPIES, int(WAITING * scale)),
        ("ended", _ENDED_COPIES, int(ENDED * scale)),
    ]
    empty = _claim_and_finish(tenant, 300)
    figures |= {f"{move}, empty ms": milliseconds for move, milliseconds in empty.items()}
    for name, copies, count in states:
        _copy(tenant, copies, count, ended=name == "ended")
        for statistics_of in ("old", "new"):
            if statistics_of == "new":
                _analyze()
            figures |= {
                f"{move}, {count:,} {name}, {statistics_of} statistics, relative to empty": milliseconds
                / empty[move]
                for move, milliseconds in _claim_and_finish(tenant, 300).items()
            }
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for table in _OF_ACTIVITIES:
            cursor.execute(f"DELETE FROM {table} WHERE tenant_id = %s", [tenant.pk])
        cursor.execute("RESET session_replication_role")
        cursor.execute(f"VACUUM {', '.join(_OF_ACTIVITIES)}")
    return figures


def _analyze() -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("ANALYZE")


def _copy(tenant: Tenant, copies: str, count: int, *, ended: bool) -> None:
    """Create copies of one activity that waits, or has ended."""
    (pattern,) = _unoffered(tenant, 1)
    if ended:
        _finish(tenant, pattern, *_claim(tenant, pattern))
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(copies, {"count": count, "pattern": pattern})


def _unoffered(tenant: Tenant, count: int) -> list[UUID]:
    """Submit activities without offering them to admission."""
    items = [NewActivity(name="work", agent_role=ROLE) for _ in range(count)]
    with relay.collecting(), tenant_scope(tenant.pk):
        return [item.id for item in submit(items, actor="bench", bounded=False)]


def _claim_and_finish(tenant: Tenant, count: int) -> Figures:
    """Return the median milliseconds of both."""
    claims, ends = [], []
    for activity in _unoffered(tenant, count):
        began = time.perf_counter()
        run, fence = _claim(tenant, activity)
        claimed = time.perf_counter()
        _finish(tenant, activity, run, fence)
        claims.append(claimed - began)
        ends.append(time.perf_counter() - claimed)
    return {"claim": statistics.median(claims) * 1000, "finish": statistics.median(ends) * 1000}


def _claim(tenant: Tenant, activity: UUID) -> tuple[UUID, int]:
    run = uuid4()
    with tenant_scope(tenant.pk):
        by = transitions.Claimant(
            role=ROLE, worker_id=run, timeout_seconds=600, version="", day=clock.today()
        )
        rows = transitions.claim([transitions.Claim(activity, run, run.hex)], tenant_id=tenant.pk, by=by)
    (claimed,) = rows.fetch()
    return run, claimed.fence


def _finish(tenant: Tenant, activity: UUID, run: UUID, fence: int) -> None:
    with tenant_scope(tenant.pk):
        result = transitions.Result(activity, run, fence, "x" * 1000, None, "text/plain")
        for moved in transitions.finish([result], tenant_id=tenant.pk, needs_approval=False, actor="worker"):
            transitions.announce(moved)


def killed(folder: Path, scale: float) -> Figures:
    """Kill all workers with SIGKILL during 200 runs and start others. Measures when all runs have ended."""
    tenant, count = make_tenant("killed", endpoint="benchmarks.agents:fifty_milliseconds"), int(200 * scale)
    save_pipeline(tenant, "chain", chain(3))
    with environment.workers(folder) as workers:
        wait_for_workers(2)
        start_runs(tenant.pk, "chain", [NewRun() for _ in range(count)], actor="bench")
        relay.flush(30)
        time.sleep(1.0)
        workers.kill()
    with environment.workers(folder):
        began = time.perf_counter()
        wait_until(partial(_have_runs_ended, tenant), pause=0.1)
        seconds = time.perf_counter() - began
    with tenant_scope(tenant.pk):
        again = ActivityRun.objects.filter(tenant=tenant, status="stalled").count()
    return {"all ended s": seconds, "runs begun again": float(again)}


def idle(folder: Path, scale: float) -> Figures:
    """Measure the servers and one worker process while they have nothing to do."""
    with environment.workers(folder, processes=1, threads=16):
        wait_for_workers(1)
        time.sleep(5)
        cpu, seconds = environment.cpu_seconds(folder), max(30 * scale, 5)
        time.sleep(seconds)
        return {
            "CPU of a core, per cent": (environment.cpu_seconds(folder) - cpu) / seconds * 100,
            "memory MiB (servers, one worker)": environment.memory_mebibytes(folder),
        }


def configured(folder: Path, scale: float) -> Figures:
    """Measure the background cost of 1,000 tenants that configure 5 roles each.

    The leader puts the limits in force regularly, and each process checks whether settings have changed. For comparison: calculating the
    limits, and reading the settings of one role, without a cache.
    """
    count, roles = (
        int(1000 * scale),
        [ROLE, *Agent.objects.exclude(role=ROLE).values_list("role", flat=True)[:4]],
    )
    tenants = [Tenant(slug=f"configured-{uuid4().hex[:12]}") for _ in range(count)]
    with system_scope():
        Tenant.objects.bulk_create(tenants)
        AgentConfig.objects.bulk_create(
            AgentConfig(tenant=tenant, agent_id=role, max_concurrency=3)
            for tenant in tenants
            for role in roles
        )
    client().flushdb()  # an earlier leader's epoch would refuse this one
    rebuilding.rebuild()
    owner = tenants[0].pk

    def read_uncached() -> None:
        configuration.forget()
        configuration.settings_for(owner, ROLE)

    cache: ConfigurationCache[bool] = ConfigurationCache(check_seconds=0.0)
    return {
        "limits in force again: ms": _milliseconds(limits.refresh),
        "limits made out anew: ms": _milliseconds(limits.current),
        "a look: ms": _milliseconds(lambda: cache.get(owner, ROLE, bool)),
        "settings of a role anew: ms": _milliseconds(read_uncached),
    }


def _milliseconds(work: Callable[[], object], times: int = 20) -> float:
    work()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1000


def starts(folder: Path, scale: float) -> Figures:
    """Start the web server (with a first request), a worker and beat one after the other, here and of an empty Django project.

    Measures processor time from the start until each is idle, and proportional memory, children included. Each is started once before,
    uncounted, so that Python's compiled files exist, as in an image.
    """
    figures: Figures = {}
    port = environment.free_port()
    own = environment.standard_commands(port, concurrency=environment.THREADS)
    empty = ["celery", "-A", "empty_project"]
    others = {
        "web": ["gunicorn", "empty_project:application", "--workers=1", "--threads=8", f"--bind=127.0.0.1:{port}", "--no-control-socket"],
        "worker": [*empty, "worker", "--pool=threads", "--concurrency=16", "--loglevel=ERROR"],
        "beat": [*empty, "beat", "--loglevel=ERROR", f"--schedule={folder / 'beat-schedule'}"],
    }  # fmt: skip
    is_compiled = (folder / COMPILED).exists()
    for name, other in others.items():
        for who, command in {"ours": own[name], "empty": other}.items():
            page = f"http://127.0.0.1:{port}/{'api/v1/queues/' if who == 'ours' else 'anything'}"
            for _ in range(1 if is_compiled else 2):
                cost = _start(command, who, page if name == "web" else "", folder)
            figures[f"{name} {who}: CPU s"], figures[f"{name} {who}: MiB"] = cost
        figures[f"{name}: CPU ratio"] = figures[f"{name} ours: CPU s"] / figures[f"{name} empty: CPU s"]
    return figures


def _start(command: Sequence[str], who: str, page: str, folder: Path) -> tuple[float, float]:
    """Return the processor time and the memory of one start, with a first request for `page` unless that is empty."""
    variables = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / COMPILED)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if who == "empty":
        variables["PYTHONPATH"] = str(EMPTY_PROJECT)
        variables.pop("DJANGO_SETTINGS_MODULE", None)
    cwd = EMPTY_PROJECT if who == "empty" else environment.ROOT
    with environment.Processes(
        command, log=folder / f"start-{who}.log", cwd=cwd, environment=variables
    ) as started:
        if page:
            wait_until(partial(environment.answers, page), 60)
        return started.usage_when_idle()


def _withdraw(tenant: Tenant) -> None:
    """Remove the waiting activities from admission, and their wakes, so that later scenarios do not run them."""
    with tenant_scope(tenant.pk):
        ids = list(Activity.objects.filter(tenant=tenant, status="created").values_list("pk", flat=True))
        with connections["default"].cursor() as cursor:
            cursor.execute("DELETE FROM activities_wake WHERE tenant_id = %s", [tenant.pk])
    for start in range(0, len(ids), 1000):
        exchange(Exchange(withdrawals=ids[start : start + 1000]))


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "steps": steps,
    "components": components,
    "latency": latency,
    "call": call,
    "submission": submission,
    "burst": burst,
    "fan_out": fan_out,
    "for_each": for_each,
    "keyed": keyed,
    "backlog": backlog,
    "rows": rows,
    "killed": killed,
    "idle": idle,
    "configured": configured,
    "starts": starts,
}
