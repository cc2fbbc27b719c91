"""docs/monitoring.md lists exactly the metrics that /metrics exposes."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

from activities import backlog
from activities.maintenance import invariants, recovery
from activities.maintenance.invariants import Report
from activities.models import WorkerProcess
from activities.submission import NewActivity, submit
from agents.configuration import settings_for
from agents.exceptions import AgentError, AgentRateLimited
from agents.governor import providers
from orchestrator.metrics import CATALOGUE
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.metrics import count_all, scrape
from tests.upkeep import run_due_jobs

_ROW = re.compile(r"^\| `(orchestrator_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


def _documented() -> dict[str, tuple[str, set[str], str, str]]:
    """By name: type, labels, meaning, demand."""
    text = (settings.BASE_DIR / "docs" / "monitoring.md").read_text(encoding="utf-8")
    return {
        name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning, demand)
        for name, kind, labels, meaning, demand in _ROW.findall(text)
    }


@pytest.fixture
def sample_for_every_metric(engine: Engine, tenant: Tenant) -> Tenant:
    """Creates data so that every metric has a sample."""
    engine.serve(tenant)
    engine.submit(tenant, "qa")
    engine.drain()
    engine.agent.behaviour = _fail
    engine.submit(tenant, "qa")
    engine.drain()
    engine.agent.behaviour = _refuse
    engine.submit(tenant, "qa")
    engine.drain()
    engine.submit(tenant, "seo")  # granted, but no worker takes it
    with tenant_scope(tenant.pk):
        submit([NewActivity(name="decide", human_role="editor", is_approval_gate=True)], actor="test")
        duplicate = NewActivity(name="once", agent_role="dev", dedup_key="k")
        submit([duplicate], actor="test")
        submit([duplicate], actor="test")
        backlog.count_refused(tenant.pk, backlog.Reason.SHED, {"dev": 1})
    engine.serve(tenant, "blog-writer", adapter="openai", endpoint="http://127.0.0.1:13/v1")
    providers.note_call(providers.provider_of(settings_for(tenant.pk, "blog-writer").adapter))
    with system_scope():
        lost = WorkerProcess.objects.create(
            host="h", boot="b", pid=1, pid_started=1, roles=["dev"], concurrency=4
        )
    recovery.declare_lost(lost)
    invariants.store_outcome(Report(held=["I01"]))
    count_all()
    run_due_jobs()
    return tenant


def _fail(request: object) -> None:
    raise AgentError("no")


def _refuse(request: object) -> None:
    raise AgentRateLimited("later", retry_after=60.0)


def test_the_table_lists_the_metrics_of_a_scrape_with_type_and_labels(
    sample_for_every_metric: Tenant,
) -> None:
    families = scrape()
    exposed = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
    }

    assert [family.name for family in families if not family.samples] == []
    assert exposed == {name: (kind, labels) for name, (kind, labels, _, _) in _documented().items()}


def test_the_table_has_the_help_text_of_each_metric() -> None:
    assert {name: meaning for name, (_, _, meaning, _) in _documented().items()} == {
        declared.query_name: declared.text for declared in CATALOGUE.values()
    }


def test_every_required_figure_is_covered_by_a_metric() -> None:
    demands = " ".join(demand for *_, demand in _documented().values())

    for demand in (
        "queue pending", "queue delayed", "queue stream length", "tasks enqueued, rate", "tasks completed, rate", "tasks failed, rate",
        "workers active", "workers dead", "task duration", "task wait", "task attempts", "jobs by queue and end state, total",
        "queue wait", "queue processing",
    ):  # fmt: skip
        assert demand in demands


def test_no_metric_has_a_label_for_tenants() -> None:
    assert {label for declared in CATALOGUE.values() for label in declared.labels} == {
        "role", "status", "band", "reason", "kind", "queue", "adapter", "state", "invariant", "version", "python",
        "job", "owner",
    }  # fmt: skip


def test_names_follow_the_conventions_of_prometheus() -> None:
    for declared in CATALOGUE.values():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", declared.name)
        assert not declared.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert not re.search(r"_(ms|milliseconds|minutes|rate)\b", declared.name)
