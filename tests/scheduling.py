"""Schedules for tests: created, fired at times that the test chooses, and read again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from activities import relay
from pipelines import versions
from pipelines.models import Dataset, DatasetRow, Firing, Pipeline, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import beat, firing, system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def make_schedule(tenant: Tenant, name: str = "refresh", **fields: Any) -> Schedule:
    """Create an hourly schedule of the agent `qa` whose times until `looked_until`, by default `NOON`, have been handled."""
    if fields.get("repeat") != "once" and not fields.keys() & {"cron", "interval_ms"}:
        fields["cron"] = "0 * * * *"
    if "pipeline" in fields:
        fields["target_type"] = "pipeline"
    else:
        fields = {"target_type": "agent", "agent_role": "qa", **fields}
    looked_until = fields.pop("looked_until", NOON)
    defaults = {"timezone": "UTC", "overlap": "allow", "catch_up": {"up_to": 1}}
    with tenant_scope(tenant.pk):
        schedule = Schedule(tenant=tenant, name=name, looked_until=looked_until, **(defaults | fields))
        schedule.next_run_at = schedule.next_time(after=looked_until)
        schedule.save(force_insert=True)
        beat.sync(schedule, tenant.slug)
    return schedule


def make_pipeline(tenant: Tenant, key: str = "flow", steps: Iterable[dict[str, Any]] = ()) -> Pipeline:
    """Create a pipeline of these steps, or of one step of `qa`."""
    definition = {"key": key, "name": key.title(), "steps": list(steps) or [{"id": "a", "agent_role": "qa"}]}
    versions.save(tenant.pk, definition, actor="test")
    with tenant_scope(tenant.pk):
        return Pipeline.objects.get(key=key)


def make_rows(tenant: Tenant, name: str, rows: Iterable[dict[str, Any]], **kinds: str) -> Dataset:
    """Create a dataset with these rows. Its fields are strings unless `kinds` names another type."""
    data = list(rows)
    with tenant_scope(tenant.pk):
        dataset, _ = Dataset.objects.get_or_create(
            tenant=tenant,
            name=name,
            defaults={"fields": {field: kinds.get(field, "string") for row in data for field in row}},
        )
        DatasetRow.objects.bulk_create(
            [DatasetRow(tenant=tenant, dataset=dataset, key=row["id"], data=row) for row in data],
            batch_size=1_000,
        )
    return dataset


def tickers(tenant: Tenant, count: int, **fields: Any) -> Dataset:
    """Create the dataset `ticker` with so many enabled rows."""
    rows = [{"id": f"T{number:05}", "enabled": True, **fields} for number in range(count)]
    return make_rows(tenant, "ticker", rows, enabled="boolean")


def fire(schedule: Schedule, now: datetime) -> list[UUID]:
    """Fire the schedule at this time and expand the executions that begin; return their ids."""
    begun = firing.fire(schedule.tenant_id, schedule.pk, now=now)
    system_jobs.advance_executions()
    relay.flush()
    return begun


def firings(schedule: Schedule) -> list[tuple[datetime, str]]:
    """Return the recorded firings in the order of their nominal times."""
    with tenant_scope(schedule.tenant_id):
        rows = Firing.objects.filter(schedule_id=schedule.pk).order_by("nominal_at")
        return list(rows.values_list("nominal_at", "state"))


def states(schedule: Schedule) -> list[str]:
    return [state for _, state in firings(schedule)]


def fired_times(schedule: Schedule) -> list[datetime]:
    return [nominal for nominal, state in firings(schedule) if state == "fired"]


def executions(tenant: Tenant) -> list[ScheduleExecution]:
    """Return all executions, oldest first."""
    with tenant_scope(tenant.pk):
        return list(ScheduleExecution.objects.for_tenant(tenant.pk).order_by("pk"))


def execution(tenant: Tenant) -> ScheduleExecution:
    (only,) = executions(tenant)
    return only


def jobs(tenant: Tenant) -> list[ScheduleJob]:
    with tenant_scope(tenant.pk):
        return list(ScheduleJob.objects.for_tenant(tenant.pk).order_by("execution_id", "ordinal"))


def statuses(tenant: Tenant) -> list[str]:
    """Advance all executions and return their statuses, oldest first."""
    system_jobs.advance_executions()
    relay.flush()
    return [each.status for each in executions(tenant)]


def reload(schedule: Schedule) -> Schedule:
    """Return the current row."""
    with tenant_scope(schedule.tenant_id):
        return Schedule.objects.get(pk=schedule.pk)
