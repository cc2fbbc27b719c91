"""A session is known as soon as its agent names it, and survives the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from pytest_httpserver import HTTPServer
from rest_framework.test import APIClient
from werkzeug import Request, Response

from activities import suspension
from activities.execution import results
from activities.maintenance import recovery
from activities.run_tokens import RunToken
from agents import outbound
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.models import AgentSession
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient
from tests.engine import Engine, eventually, in_another_thread
from tests.integration.recovery.losses import Died, lose
from tests.integration.sessions.conversations import REPORT, heartbeat, history, live, naming, run
from tests.quick_python import Program
from tests.servers import celery_command

pytestmark = pytest.mark.usefixtures("one_at_a_time")
ROOT = Path(__file__).resolve().parents[3]


def test_a_session_named_in_a_heartbeat_survives_the_worker(engine: Engine, acme: Tenant) -> None:
    def name_session_and_die(request: AgentRequest) -> AgentResult:
        assert heartbeat(request, session_id="s-1").status_code == 200
        raise Died

    engine.agent.behaviour = name_session_and_die
    engine.submit(acme, deliverable_id=REPORT)
    with pytest.raises(Died):
        engine.deliver()
    engine.agent.behaviour = naming("s-1")

    lose(engine)
    recovery.reclaim_runs_of_ended_workers()
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "s-1"]
    assert history(acme) == [("s-1", "")]


@pytest.mark.usefixtures("tenant")
def test_after_sigkill_the_next_run_continues_the_session(
    engine: Engine, acme: Tenant, httpserver: HTTPServer, process_environment: dict[str, str], settings: Any
) -> None:
    jobs: list[dict[str, Any]] = []
    session_named, finished = threading.Event(), threading.Event()

    def answer(request: Request) -> Response:
        jobs.append(dict(request.get_json()))
        if len(jobs) > 1:
            return Response('{"output": {}, "session_id": "s-1"}')
        _post(jobs[0]["callback"], "heartbeat", {"session_id": "s-1"})
        session_named.set()
        finished.wait(30)
        return Response(status=500)

    httpserver.expect_request("/agent").respond_with_handler(answer)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}",)
    engine.serve(acme, "qa", adapter="http", endpoint=httpserver.url_for("/agent"))
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT)
    engine.messages()  # publishes it
    command = celery_command("worker", "-Q", "agent__qa", "--concurrency=1")
    environment = {**process_environment, "AGENT_EGRESS_ALLOW": settings.ORCHESTRATOR_EGRESS_ALLOW[0]}

    with Program(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        assert session_named.wait(60)
        os.kill(worker.pid, signal.SIGKILL)
    finished.set()
    eventually(lambda: _declare_lost(engine, acme, activity_id))
    engine.drain()

    assert [job["session_id"] for job in jobs] == [None, "s-1"]
    assert engine.status(acme, activity_id) == "done"
    outbound.close_connections()


def _post(callback: dict[str, str], verb: str, body: Any) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {callback['token']}")
    address = callback["url"].partition("//")[2].partition("/")[2]
    try:
        assert client.post(f"/{address}{verb}/", body).status_code == 200
    finally:
        connections.close_all()


def _declare_lost(engine: Engine, tenant: Tenant, activity_id: UUID) -> bool:
    """Let recovery see that the process is gone; return whether its run is stalled."""
    watch = recovery.LivenessWatch()
    for worker in [watch.find_lost(), watch.find_lost()][-1]:
        recovery.declare_lost(worker)
    recovery.reclaim_runs_of_ended_workers()
    return engine.runs(tenant, activity_id)[0].status == "stalled"


@pytest.mark.parametrize("early", [False, True], ids=["before the callback", "after the callback"])
def test_a_session_named_with_the_acceptance_is_known(engine: Engine, acme: Tenant, early: bool) -> None:
    def accept(request: AgentRequest) -> AgentResult:
        if early:
            in_another_thread(lambda: AgentClient(request).post("complete", RESULT))
        return Accepted("s-1")

    engine.agent.behaviour = accept
    request = run(engine, acme)

    assert live(acme) == ["s-1"]
    (row,) = engine.runs(acme, request.activity_id)
    assert (row.session_id, row.status) == ("s-1", "completed" if early else "running")


def test_a_session_named_by_the_callback_is_known(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()

    AgentClient(run(engine, acme)).post("complete", {**RESULT, "session_id": "s-1"})

    assert run(engine, acme).session_id == "s-1"


@pytest.mark.parametrize("how", ["in its answer", "in a callback", "in a heartbeat"])
def test_suspended_work_continues_with_the_session_named_after_the_suspension(
    engine: Engine, acme: Tenant, how: str
) -> None:
    def report_blocker(request: AgentRequest) -> AgentResult:
        blocker = {"type": "missing_integration", "message": "The blog refuses our token."}
        assert (
            in_another_thread(lambda: AgentClient(request).post("tools/report_blocker", blocker)).status_code
            < 300
        )
        if how == "in its answer":
            return Completed(Output("not wanted"), session_id="s-1")
        body = {"session_id": "s-1"} if how == "in a heartbeat" else {**RESULT, "session_id": "s-1"}
        verb = "heartbeat" if how == "in a heartbeat" else "complete"
        assert in_another_thread(lambda: AgentClient(request).post(verb, body)).status_code == 200
        return Completed(Output("not wanted"))

    engine.agent.behaviour = report_blocker
    request = run(engine, acme)
    engine.agent.behaviour = naming("s-1")

    suspension.resolve_blocker(acme.pk, request.activity_id, actor="test", note="Renewed.")
    engine.drain()

    resumed = engine.agent.calls[-1]
    assert (resumed.wake_reason, resumed.session_id) == ("unblocked", "s-1")
    assert "Renewed." in resumed.prompt
    assert [each.session_id for each in engine.runs(acme, request.activity_id)] == ["s-1", "s-1"]


@pytest.mark.parametrize("how", ["in its answer", "with its acceptance", "in a heartbeat", "in a callback"])
def test_a_superseded_run_cannot_name_a_session(engine: Engine, acme: Tenant, how: str) -> None:
    def lose_run_meanwhile(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) > 1:
            return Completed(Output("done"), session_id="s-2")
        in_another_thread(
            lambda: results.record_stalled(RunToken(acme.pk, request.activity_id, request.run_id, 1))
        )
        if how == "in a heartbeat":
            assert heartbeat(request, session_id="s-late").status_code == 409
        if how == "in a callback":
            in_another_thread(
                lambda: AgentClient(request).post("complete", {**RESULT, "session_id": "s-late"})
            )
        late = "s-late" if how in ("in its answer", "with its acceptance") else None
        return Accepted(late) if how == "with its acceptance" else Completed(Output("late"), session_id=late)

    engine.agent.behaviour = lose_run_meanwhile
    run(engine, acme)

    assert history(acme) == [("s-2", "")]


@pytest.mark.parametrize("session_id", ["", 5, "x" * 201, ["s-1"]])
def test_an_invalid_session_id_is_refused(engine: Engine, acme: Tenant, session_id: Any) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = AgentClient(run(engine, acme))

    refused = agent.post("heartbeat", {"session_id": session_id})

    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "session_id")
    assert history(acme) == []


def test_naming_the_same_session_again_changes_nothing(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = AgentClient(run(engine, acme))
    agent.post("heartbeat", {"session_id": "s-1"})
    with tenant_scope(acme.pk):
        before = AgentSession.objects.get().updated_at

    answers = [agent.post("heartbeat", {"session_id": "s-1"}) for _ in range(3)]

    assert [answer.json()["stop"] for answer in answers] == [False] * 3
    with tenant_scope(acme.pk):
        assert AgentSession.objects.get().updated_at == before
