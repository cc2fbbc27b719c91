"""Background tasks and jobs of the leader leave spans when they did something, and none otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models.functions import Now

from activities.background_tasks import Reminder
from activities.models import Wake
from agents.routing import DEAD_LETTERS
from tenants import tracing
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import Engine
from tests.failed_work import letters_of, submit_failing
from tests.tracing import CollectedSpans, collect_spans, linked_span_ids, traceparent
from tests.upkeep import new_leader, run_task


@pytest.fixture
def spans(engine: Engine) -> Iterator[CollectedSpans]:
    with collect_spans() as spans:
        yield spans


def _names(spans: CollectedSpans) -> set[str]:
    return {span.name for span in spans.exporter.get_finished_spans()}


def test_the_leader_leaves_spans_only_of_jobs_that_did_something(
    engine: Engine, tenant: Tenant, spans: CollectedSpans
) -> None:
    engine.serve(tenant)
    engine.submit(tenant, not_before=datetime.now(UTC) + timedelta(minutes=5))
    leader = new_leader()
    leader.tick()
    with tenant_scope(tenant.pk):
        Wake.objects.filter(due_at__isnull=False).update(due_at=Now())
    spans.exporter.clear()

    leader.tick()
    leader.tick()

    delays = spans.one("keeper delays")
    assert (delays.attributes or {})["orchestrator.count"] == 1
    assert delays.parent is None
    assert any(name.startswith("postgresql") for name in spans.inside(delays))
    traces = {span.context.trace_id for span in spans.exporter.get_finished_spans() if span.parent is None}
    assert {span.context.trace_id for span in spans.exporter.get_finished_spans()} == traces
    assert "keeper deadlines" not in _names(spans)


def test_a_background_task_has_its_own_trace_that_is_linked_to_its_message(
    engine: Engine, tenant: Tenant, spans: CollectedSpans
) -> None:
    engine.serve(tenant)
    (activity,) = submit_failing(engine, tenant)
    tracing.attempt("keeper hints", Reminder().remind)
    hint = json.loads(client().lindex(DEAD_LETTERS, 0))  # type: ignore[arg-type]
    tracing.note_arrival(hint["headers"]["traceparent"])

    run_task("deadletters.handle")
    run_task("deadletters.handle")

    hints, task = spans.one("keeper hints"), spans.one("errand deadletters.handle")
    assert hint["headers"]["traceparent"].startswith(traceparent(hints)[:-2])
    assert linked_span_ids(task) == {hints.context.span_id}
    assert task.parent is None
    assert (task.attributes or {})["orchestrator.count"] == len(letters_of(tenant, activity)) == 1


def test_failed_upkeep_carries_the_type_of_its_error(engine: Engine, spans: CollectedSpans) -> None:
    def fail() -> int:
        raise ValueError("kanarie")

    with pytest.raises(ValueError, match="kanarie"):
        tracing.attempt("keeper mending", fail)

    assert (spans.one("keeper mending").attributes or {})["error.type"] == "ValueError"
    assert "kanarie" not in spans.text()


def test_an_attempt_returns_the_result_of_its_function_with_tracing_on_or_off() -> None:
    assert tracing.attempt("keeper mending", lambda: ["a"]) == ["a"]
    with collect_spans() as spans:
        assert tracing.attempt("keeper mending", lambda: 0) == 0
        assert tracing.attempt("keeper mending", lambda: ["a", "b"]) == ["a", "b"]

    (span,) = spans.exporter.get_finished_spans()
    assert (span.attributes or {})["orchestrator.count"] == 2
