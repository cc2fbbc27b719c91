"""What is measured. Each scenario takes the folder of the servers and a scale, and returns its figures."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction

from activities import outputs, relay, transitions
from activities.admission import Exchange, exchange, limits, rebuilding
from activities.admission.exchange import Offer
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.submission import NewActivity, submit
from agents import configuration
from agents.models import Agent, AgentConfig
from benchmarks import baseline, setting
from benchmarks.baseline import handwritten
from orchestrator.processes import standard_processes
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run, start_runs
from tenants import clock
from tenants.caches import ConfigurationCache
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client

Figures = dict[str, float]
ROLE = "qa"
# Of the scenario `rows`; options of the command change them.
WAITING = 100_000
ENDED = 1_000_000
_PREPARED: set[Path] = set()
EMPTY_PROJECT = Path(__file__).parent / "empty_project"


def _tenant(
    slug: str = "bench", *, agent: str = "one_kilobyte", cap: int = 100, per_group: int | None = None
) -> Tenant:
    with system_scope():
        tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": slug})
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update_or_create(
            tenant=tenant, agent_id=ROLE,
            defaults={
                "adapter": "inline", "endpoint": f"benchmarks.agents:{agent}", "max_concurrency": cap,
                "max_concurrency_per_group": per_group,
            },
        )  # fmt: skip
    return tenant


def _pipeline(tenant: Tenant, key: str, steps: list[dict[str, Any]]) -> None:
    versions.save(tenant.pk, {"key": key, "name": key, "steps": steps}, actor="bench")


def _chain(length: int) -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "agent_role": ROLE} for n in range(length)]


def _wait_for_workers(count: int) -> None:
    def up() -> bool:
        with system_scope():
            return WorkerProcess.objects.filter(ended_at=None).count() >= count and rebuilding.is_open()

    setting.wait(up, 60)


def _nobody_runs() -> None:
    with system_scope():
        WorkerProcess.objects.filter(ended_at=None).update(ended_at=datetime.now(UTC))


def _left(model: Any, tenant: Tenant, statuses: list[str]) -> int:
    with tenant_scope(tenant.pk):
        return int(model.objects.filter(tenant=tenant, status__in=statuses).count())


def rate(moments: list[float]) -> float:
    """Per second, from the seconds at which steps ended: between the first and the last tenth, so that start and end do not count."""
    moments.sort()
    low, high = len(moments) // 10, len(moments) - len(moments) // 10 - 1
    return (high - low) / max(moments[high] - moments[low], 1e-9)


def steps(folder: Path, scale: float) -> Figures:
    """Steps per second of 1,000 runs of a 3-step pipeline, and of the same by Celery by hand.

    Processor time counts from the first finished step to the last, on both sides alike, so that the start of processes is in neither.
    """
    count = int(1000 * scale)
    by_hand_rate, by_hand = _steps_by_hand(folder, count)
    tenant = _tenant(f"steps-{uuid4().hex[:8]}")
    _pipeline(tenant, "chain", _chain(3))
    start_runs(tenant.pk, "chain", [NewRun() for _ in range(count)], actor="bench")
    with setting.our_workers(folder / "ours.log"):
        _wait_for_workers(2)
        ours = cost_per_step(
            folder,
            done=lambda: _ended(tenant),
            total=3 * count,
            all_done=lambda: _left(PipelineRun, tenant, ["running"]) == 0,
        )
    with tenant_scope(tenant.pk):
        ended = Activity.objects.filter(tenant=tenant).values_list("finished_at", flat=True)
        our_rate = rate([at.timestamp() for at in ended if at])
    return {
        "ours steps/s": our_rate, "by hand steps/s": by_hand_rate, "ratio": our_rate / by_hand_rate,
        "ours CPU ms per step": ours.cpu_ms, "by hand CPU ms per step": by_hand.cpu_ms, "CPU ratio": ours.cpu_ms / by_hand.cpu_ms,
        "ours WAL kB per step": ours.wal_kb, "by hand WAL kB per step": by_hand.wal_kb,
    }  # fmt: skip


def components(folder: Path, scale: float) -> Figures:
    """What each component uses of a processor while so many steps a second go through, and when all runs are submitted at once."""
    tenant = _tenant(f"components-{uuid4().hex[:8]}")
    _pipeline(tenant, "chain", _chain(3))
    figures: Figures = {}
    with setting.our_workers(folder / "ours.log"):
        _wait_for_workers(2)
        for steps_per_second in (0, 10, 100):
            figures |= _use_of_components(folder, tenant, steps_per_second, seconds=20 * scale)
        figures |= _use_of_components(folder, tenant, None, seconds=4 * scale)
    return figures


def _use_of_components(folder: Path, tenant: Tenant, pace: int | None, *, seconds: float) -> Figures:
    """`pace`: steps a second; None for all at once, as many as make about so many seconds."""
    ended = _ended(tenant)
    runs = int((pace if pace is not None else 1000) * seconds / 3)
    used, began = setting.cpu_by_component(folder), time.perf_counter()
    if pace is None:
        start_runs(tenant.pk, "chain", [NewRun() for _ in range(runs)], actor="bench")
    for number in range(runs if pace else 0):
        time.sleep(max(0.0, began + number * seconds / runs - time.perf_counter()))
        start_run(tenant.pk, "chain", NewRun(), actor="bench")
    setting.wait(lambda: _left(PipelineRun, tenant, ["running"]) == 0, pause=0.25)
    time.sleep(max(0.0, began + seconds - time.perf_counter()))
    lasted = time.perf_counter() - began
    name = "all at once" if pace is None else f"{pace} steps/s"
    shares = {
        f"{name}: {component} % of a processor": (after - used[component]) * 100 / lasted
        for component, after in setting.cpu_by_component(folder).items()
    }
    return {**shares, f"{name}: steps/s": (_ended(tenant) - ended) / lasted}


def _ended(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return int(Activity.objects.filter(tenant=tenant, finished_at__isnull=False).count())


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
    return rate([row[0].timestamp() for row in baseline.query("SELECT at FROM handwritten_step")]), cost


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs: milliseconds of processor time of all processes, and kB that PostgreSQL writes ahead."""

    cpu_ms: float
    wal_kb: float


def cost_per_step(folder: Path, *, done: Callable[[], int], total: int, all_done: Callable[[], bool]) -> Cost:
    """Of each step after the first ones."""
    setting.wait(lambda: done() > 0)
    before, cpu, written = done(), setting.cpu_seconds(folder), _written_ahead()
    setting.wait(all_done, pause=0.25)
    steps = total - before
    return Cost(
        (setting.cpu_seconds(folder) - cpu) * 1000 / steps, (_written_ahead() - written) / 1000 / steps
    )


def _written_ahead() -> int:
    """Bytes, from the beginning of the server's log on."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(cursor.fetchone()[0])


def latency(folder: Path, scale: float) -> Figures:
    """One 3-step run at a time on an idle system, from the call to the end that another connection sees; Celery by hand beside it."""
    tenant = _tenant("latency")
    _pipeline(tenant, "chain", _chain(3))
    with setting.our_workers(folder / "ours.log", processes=1):
        _wait_for_workers(1)
        ours = [_one_run(tenant) for _ in range(int(50 * scale) + 5)][5:]
    handwritten.prepare()
    with baseline.workers(folder / "by-hand.log", folder=folder):
        theirs = [_one_run_by_hand() for _ in range(int(50 * scale) + 5)][5:]
        baseline.refuse_foreign_code()
    return {
        **_percentiles("ours", ours),
        **_percentiles("by hand", theirs),
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
            time.sleep(0.002)


def _one_run_by_hand() -> float:
    began = time.perf_counter()
    (run,) = handwritten.submit(1)
    unfinished = "SELECT finished_at IS NULL FROM handwritten_run WHERE id = %s"
    while baseline.query(unfinished, (run,))[0][0]:
        time.sleep(0.002)
    return (time.perf_counter() - began) * 1000


def _percentiles(who: str, milliseconds: list[float]) -> Figures:
    cuts = statistics.quantiles(milliseconds, n=100) if len(milliseconds) > 1 else milliseconds * 99
    return {f"{who} p50 ms": cuts[49], f"{who} p95 ms": cuts[94], f"{who} p99 ms": cuts[98]}


def call(folder: Path, scale: float) -> Figures:
    """From the submission to the moment the agent is called, at 20 a second."""
    tenant = _tenant(f"call-{uuid4().hex[:8]}")
    with setting.our_workers(folder / "ours.log", processes=1):
        _wait_for_workers(1)
        for _ in range(int(200 * scale)):
            with tenant_scope(tenant.pk):
                submit([NewActivity(name="call", agent_role=ROLE)], actor="bench")
            time.sleep(0.05)
        setting.wait(lambda: _left(Activity, tenant, ["created", "assigned", "in_progress"]) == 0)
    with tenant_scope(tenant.pk):
        moments = Activity.objects.filter(tenant=tenant).values_list("created_at", "started_at")
        waits = [(started - created).total_seconds() * 1000 for created, started in moments]
    return _percentiles("submit to call", waits)


def submission(folder: Path, scale: float) -> Figures:
    """Submissions per second by one client process: one by one and in bulks of 1,000; Celery by hand one by one."""
    tenant, count = _tenant(f"submission-{uuid4().hex[:8]}"), int(2000 * scale)
    setting.open_admission()
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
    _forget(tenant)
    handwritten.prepare()
    began = time.perf_counter()
    handwritten.submit(count)
    return {
        "ours one by one /s": one_by_one,
        "ours in bulk /s": bulk,
        "by hand one by one /s": count / (time.perf_counter() - began),
    }


def burst(folder: Path, scale: float) -> Figures:
    """10,000 submissions in bulk while workers run: until all are accepted, and until all are done."""
    tenant, count = _tenant(f"burst-{uuid4().hex[:8]}"), int(10_000 * scale)
    with setting.our_workers(folder / "ours.log"):
        _wait_for_workers(2)
        began = time.perf_counter()
        for _ in range(10):
            with tenant_scope(tenant.pk):
                submit(
                    [NewActivity(name="burst", agent_role=ROLE) for _ in range(count // 10)], actor="bench"
                )
        accepted = time.perf_counter() - began
        setting.wait(lambda: _left(Activity, tenant, ["created", "assigned", "in_progress"]) == 0, pause=0.2)
    return {"accepted s": accepted, "drained s": time.perf_counter() - began}


def fan_out(folder: Path, scale: float) -> Figures:
    """A step, 1,000 that depend on it, and one that joins them."""
    tenant, width = _tenant("fan-out"), int(1000 * scale)
    middle = [{"id": f"m{n}", "agent_role": ROLE, "depends_on": ["first"]} for n in range(width)]
    last = {"id": "join", "agent_role": ROLE, "depends_on": [step["id"] for step in middle]}
    _pipeline(tenant, "fan", [{"id": "first", "agent_role": ROLE}, *middle, last])
    with setting.our_workers(folder / "ours.log"):
        _wait_for_workers(2)
        began = time.perf_counter()
        start_run(tenant.pk, "fan", NewRun(), actor="bench")
        setting.wait(lambda: _left(PipelineRun, tenant, ["running"]) == 0)
        return {"fan-out and join s": time.perf_counter() - began}


def for_each(folder: Path, scale: float) -> Figures:
    """As `fan_out`, but one step over the 1,000 items of the first one's list."""
    tenant, width = _tenant("for-each", agent="listing"), int(1000 * scale)
    each = {"id": "each", "agent_role": ROLE, "for_each": "steps.first.data"}
    _pipeline(tenant, "each", [{"id": "first", "agent_role": ROLE}, each, {"id": "join", "agent_role": ROLE}])
    with setting.our_workers(folder / "ours.log"):
        _wait_for_workers(2)
        began = time.perf_counter()
        run = start_run(tenant.pk, "each", NewRun(params={"width": width}), actor="bench")
        setting.wait(lambda: _left(PipelineRun, tenant, ["running"]) == 0)
        seconds = time.perf_counter() - began
    with tenant_scope(tenant.pk):
        done = Activity.objects.filter(tenant=tenant, pipeline_run_id=run.pk, status="done").count()
    return {"for_each and join s": seconds, "activities done": float(done)}


def keyed(folder: Path, scale: float) -> Figures:
    """10 keys of 100 activities of 50 ms, at most 2 of a key at once. The ideal is 2.5 s.

    Outputs of earlier scenarios are moved before, or that would be part of this one.
    """
    while outputs.copy_waiting():
        pass
    tenant, each = (
        _tenant(f"keyed-{uuid4().hex[:8]}", agent="fifty_milliseconds", per_group=2),
        int(100 * scale),
    )
    with setting.our_workers(folder / "ours.log", threads=12):
        _wait_for_workers(2)
        began = time.perf_counter()
        with tenant_scope(tenant.pk):
            submit(
                [NewActivity(name="key", agent_role=ROLE, group_key=f"k{n % 10}") for n in range(10 * each)],
                actor="bench",
            )
        setting.wait(lambda: _left(Activity, tenant, ["created", "assigned", "in_progress"]) == 0)
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "ratio to ideal": seconds / (each * 0.05 / 2),
        "most of a key at once": _peak(tenant),
    }


def _peak(tenant: Tenant) -> float:
    with tenant_scope(tenant.pk):
        runs = ActivityRun.objects.filter(tenant=tenant).values_list(
            "activity__group_key", "started_at", "ended_at"
        )
        moments = sorted(
            [(at, 1, key) for key, at, _ in runs] + [(at, -1, key) for key, _, at in runs],
            key=lambda m: (m[0], m[1]),
        )
    count: dict[str, int] = {}
    most = 0
    for _, change, key in moments:
        count[key] = count.get(key, 0) + change
        most = max(most, count[key])
    return float(most)


def backlog(folder: Path, scale: float) -> Figures:
    """One admission call that offers, grants and gives back, with nothing waiting and with 100,000 waiting over 50 tenants."""
    with system_scope():
        WorkerProcess.objects.create(
            host="none", boot="none", pid=0, pid_started=0, roles=[ROLE], concurrency=5
        )
        setting.open_admission()
    tenants = [uuid4() for _ in range(50)]
    empty = _admission_milliseconds(tenants)
    for start in range(0, int(100_000 * scale), 1000):
        exchange(Exchange(offers=[_offer(tenants[n % 50]) for n in range(start, start + 1000)]))
    full = _admission_milliseconds(tenants)
    _nobody_runs()
    setting.open_admission()
    return {"empty ms": empty, "100,000 waiting ms": full, "ratio": full / empty}


def _offer(tenant: UUID) -> Offer:
    return Offer(uuid4(), tenant, ROLE, 10, datetime.now(UTC), None)


def _admission_milliseconds(tenants: list[UUID], rounds: int = 500) -> float:
    from activities.admission.exchange import Release

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
    """Claim and finish, each with its commit, on empty tables, with many waiting, and with many that have ended besides.

    One connection keeps its plans all the time, as a worker's does; then once more with the statistics of the full tables.
    """
    tenant = _tenant(f"rows-{uuid4().hex[:8]}")
    _analyze()
    _claim_and_finish(tenant, 50)
    figures: Figures = {}
    states: list[tuple[str, str, int]] = [
        ("waiting", _WAITING_COPIES, int(WAITING * scale)),
        ("ended", _ENDED_COPIES, int(ENDED * scale)),
    ]
    empty = _claim_and_finish(tenant, 300)
    figures |= {f"{move}, empty ms": found for move, found in empty.items()}
    for name, copies, count in states:
        _copy(tenant, copies, count, ended=name == "ended")
        for statistics_of in ("old", "new"):
            if statistics_of == "new":
                _analyze()
            found = _claim_and_finish(tenant, 300)
            figures |= {
                f"{move}, {count:,} {name}, {statistics_of} statistics, relative to empty": found[move]
                / empty[move]
                for move in found
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
    """So many like one activity that waits, or has ended."""
    (pattern,) = _unoffered(tenant, 1)
    if ended:
        _finish(tenant, pattern, *_claim(tenant, pattern))
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(copies, {"count": count, "pattern": pattern})


def _unoffered(tenant: Tenant, count: int) -> list[UUID]:
    """New activities of which admission does not know."""
    items = [NewActivity(name="work", agent_role=ROLE) for _ in range(count)]
    with relay.collecting(), tenant_scope(tenant.pk):
        return [item.id for item in submit(items, actor="bench", bounded=False)]


def _claim_and_finish(tenant: Tenant, count: int) -> Figures:
    """Milliseconds in the middle."""
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
        found = transitions.claim([transitions.Claim(activity, run, run.hex)], tenant_id=tenant.pk, by=by)
    (claimed,) = found.fetch()
    return run, claimed.fence


def _finish(tenant: Tenant, activity: UUID, run: UUID, fence: int) -> None:
    with tenant_scope(tenant.pk):
        result = transitions.Result(activity, run, fence, "x" * 1000, None, "text/plain")
        for moved in transitions.finish([result], tenant_id=tenant.pk, needs_approval=False, actor="worker"):
            transitions.announce(moved)


def killed(folder: Path, scale: float) -> Figures:
    """200 runs under way, all workers killed with SIGKILL, others started: until all runs have ended."""
    tenant, count = _tenant(f"killed-{uuid4().hex[:8]}", agent="fifty_milliseconds"), int(200 * scale)
    _pipeline(tenant, "chain", _chain(3))
    with setting.our_workers(folder / "ours.log") as workers:
        _wait_for_workers(2)
        start_runs(tenant.pk, "chain", [NewRun() for _ in range(count)], actor="bench")
        relay.flush(30)
        time.sleep(1.0)
        workers.kill()
    with setting.our_workers(folder / "ours.log"):
        began = time.perf_counter()
        setting.wait(lambda: _left(PipelineRun, tenant, ["running"]) == 0, pause=0.1)
        seconds = time.perf_counter() - began
    with tenant_scope(tenant.pk):
        again = ActivityRun.objects.filter(tenant=tenant, status="stalled").count()
    return {"all ended s": seconds, "runs begun again": float(again)}


def idle(folder: Path, scale: float) -> Figures:
    """Servers and one worker process with nothing to do."""
    with setting.our_workers(folder / "ours.log", processes=1, threads=16):
        _wait_for_workers(1)
        time.sleep(5)
        cpu, seconds = setting.cpu_seconds(folder), max(30 * scale, 5)
        time.sleep(seconds)
        return {
            "CPU of a core, per cent": (setting.cpu_seconds(folder) - cpu) / seconds * 100,
            "memory MiB (servers, one worker)": setting.memory_mebibytes(folder),
        }


def configured(folder: Path, scale: float) -> Figures:
    """What 1,000 tenants with settings of their own for 5 roles cost a process: the leader's turn that puts the limits in force, and a look
    at what has changed, beside making the limits out and reading the settings of one role anew.
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
    client().flushdb()  # what a leader has written, which would refuse another
    rebuilding.rebuild()
    owner = tenants[0].pk

    def anew() -> None:
        configuration.forget()
        configuration.settings_for(owner, ROLE)

    kept: ConfigurationCache[bool] = ConfigurationCache(check_seconds=0.0)
    return {
        "limits in force again: ms": _milliseconds(limits.refresh), "limits made out anew: ms": _milliseconds(limits.current),
        "a look: ms": _milliseconds(lambda: kept.get(owner, ROLE, bool)), "settings of a role anew: ms": _milliseconds(anew),
    }  # fmt: skip


def _milliseconds(work: Callable[[], object], times: int = 20) -> float:
    work()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1000


def starts(folder: Path, scale: float) -> Figures:
    """Web with its first page, worker and beat, one after the other, each until it is at rest; beside it that of an empty Django project.

    Processor time is that of the process and its children from their start, memory their proportional set. What Python compiles is there
    already, as it is in an image or after a first start: each is started once before, which is not counted.
    """
    figures: Figures = {}
    port = setting.free_port()
    own = {
        spec.name: list(spec.argv[2:])
        for spec in standard_processes(port=port, flower_port=0, concurrency=16)
    }
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


COMPILED = "compiled"


def _start(command: list[str], who: str, page: str, folder: Path) -> tuple[float, float]:
    """Processor time and memory of one start, with the first request for `page` if there is one."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / COMPILED)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if who == "empty":
        environment["PYTHONPATH"] = str(EMPTY_PROJECT)
        environment.pop("DJANGO_SETTINGS_MODULE", None)
    where = EMPTY_PROJECT if who == "empty" else setting.ROOT
    with setting.Workers(
        command, log=folder / f"start-{who}.log", cwd=where, environment=environment
    ) as started:
        if page:
            setting.wait(partial(setting.answers, page), 60)
        return started.at_rest()


def _forget(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        ids = list(Activity.objects.filter(tenant=tenant, status="created").values_list("pk", flat=True))
        with connections["default"].cursor() as cursor:
            cursor.execute("DELETE FROM activities_wake WHERE tenant_id = %s", [tenant.pk])
    for start in range(0, len(ids), 1000):
        exchange(Exchange(withdrawals=ids[start : start + 1000]))


ALL: dict[str, Callable[[Path, float], Figures]] = {
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
