"""Traces connect a request with the worker, its agent and the agent's callback, and cost nothing when tracing is off."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from activities.models import Wake
from agents.contracts import Accepted, AgentRequest, AgentResult
from agents.exceptions import PermanentAgentError
from tenants import tracing
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.test_costs import counted
from tests.quick_python import Program
from tests.receivers import HttpReceiver, http_receiver
from tests.tracing import CollectedSpans, collect_spans, linked_span_ids, traceparent

pytestmark = pytest.mark.long

RUN = "run qa"
SUBMISSION = "POST api/v1/activities/"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "kanarie-trace-77c1"


@pytest.fixture
def spans(engine: Engine) -> Iterator[CollectedSpans]:
    with collect_spans() as spans:
        yield spans


def submit(client: Any, **headers: str) -> str:
    body = {"name": "Work", "agent_role": "qa", "description": CANARY, "params": {"secret": CANARY}}
    answer = client.post("/api/v1/activities/", body, headers=headers)
    assert answer.status_code == 201, answer.content
    return str(answer.json()["id"])


def test_one_trace_connects_the_caller_with_the_agent(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, spans: CollectedSpans, receiver: HttpReceiver
) -> None:
    engine.serve(tenant, "qa", adapter="http", endpoint=receiver.url)
    receiver.answer_with((200, {}, b'{"output": {"content": "done"}}'))

    activity = submit(api(), **{"traceparent": CALLER, "X-Request-Id": "r-1"})
    engine.drain()

    assert engine.status(tenant, activity) == "done"
    web, run, agent = spans.one(SUBMISSION), spans.one(RUN), spans.one("agent qa")
    assert web.parent is not None
    assert f"{web.parent.span_id:016x}" in CALLER
    assert (run.parent and run.parent.span_id) == web.context.span_id
    assert {f"{span.context.trace_id:032x}" for span in (web, run, agent)} == {CALLER.split("-")[1]}
    assert (run.attributes or {})["orchestrator.request_id"] == "r-1"
    assert (run.attributes or {})["orchestrator.activity"] == activity
    assert receiver.posted[-1].headers["traceparent"] == traceparent(agent)


def test_the_relay_has_a_span_to_which_the_run_of_its_message_is_linked(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, spans: CollectedSpans
) -> None:
    engine.serve(tenant)

    submit(api())
    engine.messages()
    relay = spans.one("relay")
    engine.drain()

    web, run = spans.one(SUBMISSION), spans.one(RUN)
    assert (relay.parent and relay.parent.span_id) == web.context.span_id
    assert "redis exchange" in spans.inside(relay)
    assert linked_span_ids(run) == {relay.context.span_id}
    assert {"agent qa", "postgresql WITH"} <= spans.inside(run)


def test_work_that_waited_long_starts_a_new_linked_trace(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, spans: CollectedSpans, settings: Any
) -> None:
    engine.serve(tenant)
    settings.ORCHESTRATOR_TRACE_SECONDS = 0

    submit(api())
    engine.drain()

    web, run = spans.one(SUBMISSION), spans.one(RUN)
    assert run.parent is None
    assert run.context.trace_id != web.context.trace_id
    assert web.context.span_id in linked_span_ids(run)
    assert (web.end_time or 0) < (run.end_time or 0), "no span is open while work waits"


def test_a_callback_continues_the_trace_of_the_agent_and_is_linked_to_its_run(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, spans: CollectedSpans
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    client = api()
    submit(client)
    engine.drain()
    callback = engine.agent.calls[-1].callback
    agent = type(client)()
    agent.credentials(HTTP_AUTHORIZATION=f"Bearer {callback.token}")
    path = f"/api{callback.url.partition('/api')[2]}complete/"

    answer = agent.post(path, {"output": {"content": "done"}}, headers={"traceparent": CALLER})

    assert answer.status_code == 200, answer.content
    report = spans.one("POST api/v1/agent-runs/<uuid:run_id>/complete/")
    assert f"{report.context.trace_id:032x}" in CALLER
    assert spans.one(RUN).context.span_id in linked_span_ids(report)


def test_a_failed_run_carries_its_error_code_and_no_span_contains_payloads(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, spans: CollectedSpans
) -> None:
    def refuses(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError(f"No: {CANARY}", code="no_good")

    engine.serve(tenant)
    engine.agent.behaviour = refuses
    submit(api())
    engine.drain()

    run = spans.one(RUN)
    assert (run.attributes or {})["error.type"] == "no_good"
    assert not run.status.is_ok
    assert CANARY not in spans.text()
    assert "postgresql WITH" in spans.text(), "spans of statements were searched as well"


def test_tracing_adds_no_statement_no_call_to_redis_and_no_message(
    api: Callable[..., Any],
    engine: Engine,
    tenant: Tenant,
    spans: CollectedSpans,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.serve(tenant)
    engine.submit(tenant)
    engine.drain()

    with counted(monkeypatch) as counts:
        engine.submit(tenant)
        engine.drain()

    assert dict(counts) == {
        "statements": 6, "transactions": 3, "round trips": 5, "scripts": 3, "messages": 1,
    }  # fmt: skip


def test_while_tracing_is_off_no_trace_is_stored_or_sent(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, receiver: HttpReceiver
) -> None:
    engine.serve(tenant, "qa", adapter="http", endpoint=receiver.url)
    receiver.answer_with((200, {}, b'{"output": {"content": "done"}}'))

    submit(api(), **{"traceparent": CALLER, "X-Request-Id": "r-1"})
    engine.drain()

    with tenant_scope(tenant.pk):
        assert list(Wake.objects.values_list("provenance", flat=True)) == [{"request": "r-1"}]
    assert "traceparent" not in receiver.posted[-1].headers


def test_without_the_extra_tracing_is_off_and_a_log_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the module that is missing here imports the extra, see `tests/architecture/test_imports.py`."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "tenants.tracing.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    tracing.begin()

    assert not tracing.is_on()
    assert "install orchestrator[otel]" in caplog.text


def test_spans_arrive_at_a_collector_over_http(process_environment: dict[str, str]) -> None:
    program = (
        "import django; django.setup(); from django.test import Client;"
        "Client().get('/api/v1/activities/', headers={'traceparent': '" + CALLER + "'})"
    )
    with http_receiver() as collector:
        environment = process_environment | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.place}"}
        assert Program([sys.executable, "-c", program], env=environment).wait(60) == 0

    (posted,) = collector.posted
    assert posted.path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(posted.body).resource_spans
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    (span,) = [span for scope in resource.scope_spans for span in scope.spans if span.name.startswith("GET")]
    assert attributes["service.name"] == "orchestrator"
    assert (span.name, span.trace_id.hex()) == ("GET api/v1/activities/", CALLER.split("-")[1])


def test_an_unreachable_collector_fails_no_request(
    api: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orchestrator")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracing.begin()
    try:
        submit(api())
        providers[0].force_flush()
        submit(api())
    finally:
        tracing.use(None)
        providers[0].shutdown()


assert os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") is None, "the suite itself sends no spans"
