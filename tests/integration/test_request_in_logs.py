"""Log lines carry the id of the request through web, worker and callbacks."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from activities.models import Wake
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from orchestrator.settings.logging import LOGGING
from pipelines import versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

LIBRARY = logging.getLogger("some.library")


@pytest.fixture
def lines() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """`lines(event)`: the JSON lines of this event, formatted as for stderr."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    settings: dict[str, Any] = deepcopy(LOGGING["formatters"]["json"])
    handler.setFormatter(settings.pop("()")(**settings))
    LIBRARY.addHandler(handler)
    LIBRARY.setLevel(logging.INFO)
    yield lambda event: [
        line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == event
    ]
    LIBRARY.removeHandler(handler)


def log_and_complete(request: AgentRequest) -> AgentResult:
    LIBRARY.info("Working")
    return Completed(Output(content="done", data=None))


def submit(client: Any, request_id: str, **body: Any) -> str:
    answer = client.post(
        "/api/v1/activities/",
        {"name": "Work", "agent_role": "qa", **body},
        headers={"X-Request-Id": request_id},
    )
    assert (answer.status_code, answer["X-Request-Id"]) == (201, request_id)
    return str(answer.json()["id"])


def test_the_lines_of_a_run_carry_the_id_of_the_request_that_submitted_it(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = log_and_complete
    from activities.api import activities

    real = activities.submit

    def log_and_call(*arguments: Any, **options: Any) -> Any:
        LIBRARY.info("Submitting")
        return real(*arguments, **options)

    monkeypatch.setattr(activities, "submit", log_and_call)
    client = api()
    first, second = submit(client, "r-1"), submit(client, "r-2")
    engine.drain()

    assert [(line["request_id"], line["tenant"]) for line in lines("Submitting")] == [
        ("r-1", str(tenant.pk)), ("r-2", str(tenant.pk)),
    ]  # fmt: skip
    in_worker = {line["activity"]: line for line in lines("Working")}
    assert {activity: line["request_id"] for activity, line in in_worker.items()} == {
        first: "r-1",
        second: "r-2",
    }
    (run,) = engine.runs(tenant, in_worker[first]["activity"])
    assert (in_worker[first]["run"], in_worker[first]["tenant"]) == (str(run.pk), str(tenant.pk))


def test_the_lines_of_every_step_carry_the_id_of_the_request_that_started_the_pipeline(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, lines: Any
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = log_and_complete
    steps = [{"id": "one", "agent_role": "qa"}, {"id": "two", "agent_role": "qa", "depends_on": ["one"]}]
    versions.save(tenant.pk, {"key": "chain", "name": "Chain", "steps": steps}, actor="test")

    started = api().post("/api/v1/pipelines/chain/runs/", {}, headers={"X-Request-Id": "r-7"})
    assert started.status_code == 201
    engine.drain()

    assert [line["request_id"] for line in lines("Working")] == ["r-7", "r-7"]


def test_the_lines_of_a_callback_carry_its_own_id_and_that_of_the_submitting_request(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    from activities.api import run_callbacks

    real = run_callbacks.reports.complete

    def log_and_call(*arguments: Any, **options: Any) -> Any:
        LIBRARY.info("Reported")
        return real(*arguments, **options)

    monkeypatch.setattr(run_callbacks.reports, "complete", log_and_call)
    client = api()
    activity = submit(client, "r-1")
    engine.drain()
    callback = engine.agent.calls[-1].callback
    agent = type(client)()
    agent.credentials(HTTP_AUTHORIZATION=f"Bearer {callback.token}")
    answer = agent.post(
        f"{callback.url.partition('8000')[2]}complete/",
        {"output": {"content": "done"}},
        headers={"X-Request-Id": "r-9"},
    )

    assert answer.status_code == 200, answer.content
    (line,) = lines("Reported")
    assert (line["request_id"], line["caused_by"], line["activity"]) == ("r-9", "r-1", activity)


def test_the_lines_of_work_without_a_request_carry_no_request_id(
    engine: Engine, tenant: Tenant, lines: Any
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = log_and_complete
    engine.submit(tenant)
    with tenant_scope(tenant.pk):
        assert list(Wake.objects.values_list("provenance", flat=True)) == [None]
    engine.drain()

    (line,) = lines("Working")
    assert "request_id" not in line
    assert line["run"]
