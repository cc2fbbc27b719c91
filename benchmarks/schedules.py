"""10,000 rows that become jobs, and 1,000 schedules that are due in the same minute. One process does all of it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities import relay
from activities.models import Activity
from benchmarks.figures import Figures
from benchmarks.workload import make_tenant, open_admission
from pipelines import versions
from pipelines.models import Dataset, DatasetRow, Pipeline, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import firing, lifecycle, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant

ROLE = "seo"


def _tenant() -> Tenant:
    tenant = make_tenant("schedules", role=ROLE, endpoint="agents.samples:echo")
    open_admission()
    return tenant


def _create_rows(tenant: Tenant, count: int) -> None:
    with tenant_scope(tenant.pk):
        dataset = Dataset.objects.create(
            tenant=tenant, name="ticker", fields={"id": "string", "enabled": "boolean"}
        )
        DatasetRow.objects.bulk_create(
            (
                DatasetRow(
                    tenant=tenant,
                    dataset=dataset,
                    key=f"T{number:06}",
                    data={"id": f"T{number:06}", "enabled": True},
                )
                for number in range(count)
            ),
            batch_size=1_000,
        )


def _schedule(tenant: Tenant, name: str, **fields: object) -> Schedule:
    """Return an unsaved schedule that is due at the next full minute."""
    target = (
        {"target_type": "pipeline"} if "pipeline" in fields else {"target_type": "agent", "agent_role": ROLE}
    )
    schedule = Schedule(
        tenant=tenant, name=name, cron="* * * * *", timezone="UTC", looked_until=datetime.now(UTC), **target, **fields
    )  # fmt: skip
    schedule.next_run_at = schedule.next_time(after=datetime.now(UTC))
    return schedule


def expand_activities(folder: Path, scale: float) -> Figures:
    """Turn 10,000 rows of a dataset into 10,000 activities, in batches of 10."""
    return _expand(int(10_000 * scale), lambda tenant: {})


def expand_runs(folder: Path, scale: float) -> Figures:
    """Turn 1,000 rows into 1,000 runs of a pipeline of three steps."""
    return _expand(int(1_000 * scale), lambda tenant: {"pipeline": _pipeline(tenant)})


def _expand(
    count: int, target: Callable[[Tenant], dict[str, object]], before: Callable[[], object] = bool
) -> Figures:
    """Expand a schedule over `count` rows. `before` is called when the rows exist and the expansion is about to begin."""
    tenant = _tenant()
    _create_rows(tenant, count)
    schedule = _schedule(
        tenant, "rows", params={"ticker": "db:ticker:all:id?enabled=true", "depth": 1}, **target(tenant)
    )
    with tenant_scope(tenant.pk):
        schedule.save(force_insert=True)
        execution = system_jobs.run_now(tenant.pk, schedule.pk, actor="bench")  # not expanded yet
    before()
    began = time.perf_counter()
    lifecycle.expand(tenant.pk, execution.pk)
    seconds = time.perf_counter() - began
    relay.flush()
    with tenant_scope(tenant.pk):
        jobs = ScheduleJob.objects.for_tenant(tenant.pk).filter(execution_id=execution.pk).count()
    assert jobs == count, f"{jobs} of {count} jobs"
    return {"rows": count, "recorded s": seconds, "rows per s": count / seconds}


def _pipeline(tenant: Tenant) -> Pipeline:
    steps = [
        {"id": "collect", "agent_role": ROLE},
        {"id": "analyze", "agent_role": ROLE, "depends_on": ["collect"]},
        {"id": "generate", "agent_role": ROLE, "depends_on": ["analyze"]},
    ]
    versions.save(tenant.pk, {"key": "newsletter", "name": "Newsletter", "steps": steps}, actor="bench")
    with tenant_scope(tenant.pk):
        return Pipeline.objects.for_tenant(tenant.pk).get(key="newsletter")


def memory(folder: Path, scale: float) -> Figures:
    """Measure the largest memory that the expansion of 2,000 and of 10,000 rows needs."""
    figures: Figures = {}
    for count in (int(2_000 * scale), int(10_000 * scale)):
        _expand(count, lambda tenant: {}, before=tracemalloc.start)
        figures[f"peak MB of {count} rows"] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    return figures


def due_at_once(folder: Path, scale: float) -> Figures:
    """Fire 1,000 schedules that are due in the same minute. Measures until all have fired, and until all activities are submitted."""
    count = int(1_000 * scale)
    tenant = _tenant()
    with tenant_scope(tenant.pk):
        Schedule.objects.bulk_create(
            _schedule(tenant, f"s{number}", params={"number": number}) for number in range(count)
        )
    at = datetime.now(UTC) + timedelta(minutes=1, seconds=1)
    began = time.perf_counter()
    executions = firing.fire_due(at, within=600)
    fired = time.perf_counter() - began
    for execution in lifecycle.expand_all(executions):
        lifecycle.expand(*execution)
    submitted = time.perf_counter() - began
    relay.flush()
    with tenant_scope(tenant.pk):
        assert ScheduleExecution.objects.for_tenant(tenant.pk).count() == count
        assert Activity.objects.for_tenant(tenant.pk).count() == count
        Schedule.objects.for_tenant(tenant.pk).update(enabled=False)
    return {"schedules": count, "all fired s": fired, "all submitted s": submitted}


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "expand_activities": expand_activities,
    "expand_runs": expand_runs,
    "memory": memory,
    "due_at_once": due_at_once,
}
