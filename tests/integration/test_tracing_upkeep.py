"""Background tasks and the leader are traced when they did something, and leave nothing behind when they found nothing to do."""

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
from tests.failed_work import failed, letters_of
from tests.tracing import Collected, collected, linked, traceparent
from tests.upkeep import carry_out, leading


@pytest.fixture
def spans(engine: Engine) -> Iterator[Collected]:
    with collected() as found:
        yield found


def _names(spans: Collected) -> set[str]:
    return {span.name for span in spans.exporter.get_finished_spans()}


def test_a_keeper_leaves_spans_of_what_it_did_and_none_of_looking(
    engine: Engine, tenant: Tenant, spans: Collected
) -> None:
    engine.serve(tenant)
    engine.submit(tenant, not_before=datetime.now(UTC) + timedelta(minutes=5))
    keeper = leading()
    keeper.tick()
    with tenant_scope(tenant.pk):
        Wake.objects.filter(due_at__isnull=False).update(due_at=Now())
    spans.exporter.clear()

    keeper.tick()
    keeper.tick()

    delays = spans.one("keeper delays")
    assert (delays.attributes or {})["orchestrator.count"] == 1
    assert delays.parent is None
    assert any(name.startswith("postgresql") for name in spans.inside(delays))
    traces = {span.context.trace_id for span in spans.exporter.get_finished_spans() if span.parent is None}
    assert {span.context.trace_id for span in spans.exporter.get_finished_spans()} == traces
    assert "keeper deadlines" not in _names(spans)


def test_an_errand_is_a_trace_of_its_own_that_is_linked_with_the_hint(
    engine: Engine, tenant: Tenant, spans: Collected
) -> None:
    engine.serve(tenant)
    (activity,) = failed(engine, tenant)
    tracing.attempt("keeper hints", Reminder().remind)
    hint = json.loads(client().lindex(DEAD_LETTERS, 0))  # type: ignore[arg-type]
    tracing.note_arrival(hint["headers"]["traceparent"])

    carry_out("deadletters.handle")
    carry_out("deadletters.handle")

    hints, errand = spans.one("keeper hints"), spans.one("errand deadletters.handle")
    assert hint["headers"]["traceparent"].startswith(traceparent(hints)[:-2])
    assert linked(errand) == {hints.context.span_id}
    assert errand.parent is None
    assert (errand.attributes or {})["orchestrator.count"] == len(letters_of(tenant, activity)) == 1


def test_upkeep_that_fails_is_marked_by_the_kind_of_its_error(engine: Engine, spans: Collected) -> None:
    def breaks() -> int:
        raise ValueError("kanarie")

    with pytest.raises(ValueError, match="kanarie"):
        tracing.attempt("keeper mending", breaks)

    assert (spans.one("keeper mending").attributes or {})["error.type"] == "ValueError"
    assert "kanarie" not in spans.text()


def test_an_attempt_returns_what_its_work_returned_also_while_tracing_is_off() -> None:
    assert tracing.attempt("keeper mending", lambda: ["a"]) == ["a"]
    with collected() as spans:
        assert tracing.attempt("keeper mending", lambda: 0) == 0
        assert tracing.attempt("keeper mending", lambda: ["a", "b"]) == ["a", "b"]

    (span,) = spans.exporter.get_finished_spans()
    assert (span.attributes or {})["orchestrator.count"] == 2
