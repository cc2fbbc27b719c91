"""Schedules over the API: made, read, changed, deleted, and everything that is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django_celery_beat.models import PeriodicTask

from agents import configuration
from agents.models import AgentConfig
from pipelines import versions
from pipelines.models import Pipeline, Schedule, ScheduleExecution
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, at_once
from tests.scheduling import SCHEDULES, body, tickers


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


def flow(tenant: Tenant, key: str = "flow") -> Pipeline:
    versions.save(
        tenant.pk, {"key": key, "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    with tenant_scope(tenant.pk):
        return Pipeline.objects.get(key=key)


def make(client: Any, **members: Any) -> dict[str, Any]:
    answer = client.post(SCHEDULES, body(**members))
    assert answer.status_code == 201, answer.content
    shown: dict[str, Any] = answer.json()
    return shown


def faults(answer: Any) -> dict[str, str]:
    return {fault["path"]: fault["message"] for fault in problem(answer, 400, "invalid_schedule")["errors"]}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_schedule_is_made_with_every_default_said(api: Any, acme: Tenant) -> None:
    answer = api().post(SCHEDULES, body(params={"topic": "bees"}))

    shown = answer.json()
    assert answer.status_code == 201, answer.content
    told = {
        name: value
        for name, value in shown.items()
        if name not in ("id", "link", "created_at", "updated_at", "next_run_at", "created_by")
    }
    assert told == {
        "name": "Daily", "description": "", "repeat": "repeating", "cron": "0 8 * * *", "interval_ms": None,
        "timezone": "America/New_York", "start_at": None, "end_at": None, "dst_gap": "shift", "dst_fold": "first",
        "jitter_seconds": 0, "target_type": "agent", "agent_role": "qa", "pipeline": None, "params": {"topic": "bees"},
        "retry": {}, "timeout_seconds": None, "priority": 10, "enabled": True, "catch_up": "latest", "overlap": "skip",
        "after_once": "disable", "last_run_at": None, "version": 1,
    }  # fmt: skip
    assert (answer["Location"], answer["ETag"]) == (f"{SCHEDULES}{shown['id']}/", '"1"')
    assert moment(shown["next_run_at"]) > datetime.now(UTC)
    assert api("viewer").get(answer["Location"]).json() == shown
