"""Command-line agents in the engine, and with real workers that are overloaded, stopped and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from django.db import connections
from pytest_httpserver import HTTPServer
from rest_framework.test import APIClient
from werkzeug import Request, Response

from activities.admission import limits
from activities.maintenance import recovery
from activities.models import WorkerProcess
from agents import configuration
from agents.command_line import processes, workspaces
from agents.models import Agent
from tenants.models import Tenant
from tests.accepted_work import child
from tests.answers import problem
from tests.engine import Engine, eventually
from tests.integration.sessions.conversations import REPORT
from tests.programs import NOTE_KEEPER, ROOT, processes_of, program
from tests.quick_python import Program

pytestmark = pytest.mark.long

STREAM = {"output": "stream-json"}
SAMPLE = {
    "command": NOTE_KEEPER,
    "resume": ["--resume", "{session_id}"],
    "session_invalid": "no conversation found",
    **STREAM,
}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    return tmp_path / "home"


@pytest.fixture
def set_up(engine: Engine) -> Iterator[Callable[..., None]]:
    """Let a program serve the role qa, as an operator configures it."""

    def serve(role: str = "qa", **options: Any) -> None:
        Agent.objects.filter(role=role).update(adapter="cli", options=options)
        configuration.forget()

    yield serve
    Agent.objects.filter(role="qa").update(adapter="http", options={})
    configuration.forget()


# --- Inside the engine ---


def test_a_program_runs_an_activity_and_its_usage_and_output_are_stored(
    api: Any,
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    set_up: Callable[..., None],
    tmp_path: Path,
) -> None:
    set_up(
        command=program(tmp_path, "say(session_id='s-1'); say(type='result', result=sys.stdin.read()[:20])"),
        **STREAM,
    )
    (activity_id,) = engine.submit(tenant)

    engine.drain()

    (run,) = engine.runs(tenant, activity_id)
    assert (engine.status(tenant, activity_id), run.session_id) == ("done", "s-1")
    # The largest sample may come from the moment when the program had just started.
    assert run.progress["resources"]["peak_rss_bytes"] > 0
    address = f"/api/v1/activities/{activity_id}/runs/{run.pk}/transcript/"
    answer = api("viewer").get(address)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain")
    assert b'"session_id": "s-1"' in b"".join(answer.streaming_content)
    problem(api("viewer", tenant=other_tenant).get(address), 404, "not_found")
    problem(
        api().get(f"/api/v1/activities/{activity_id}/runs/{activity_id}/transcript/"), 404, "no_transcript"
    )


def test_a_program_asks_a_person_with_a_tool_and_continues_its_conversation_with_the_answer(
    api: Any,
    engine: Engine,
    tenant: Tenant,
    set_up: Callable[..., None],
    httpserver: HTTPServer,
    settings: Any,
) -> None:
    def forward(request: Request) -> Response:
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=request.headers["Authorization"])
        try:
            answer = client.post(
                request.path, request.get_json(), HTTP_IDEMPOTENCY_KEY=request.headers["Idempotency-Key"]
            )
            return Response(answer.content, answer.status_code, content_type="application/json")
        finally:
            connections.close_all()

    httpserver.expect_request(re.compile("/api/v1/agent-runs/.*")).respond_with_handler(forward)
    settings.ORCHESTRATOR_PUBLIC_URL = httpserver.url_for("").rstrip("/")
    set_up(**SAMPLE)
    (activity_id,) = engine.submit(tenant, description="Ask: Shall I go on?", deliverable_id=REPORT)

    engine.drain()

    assert engine.status(tenant, activity_id) == "awaiting_review"
    review = f"/api/v1/activities/{child(tenant, activity_id).pk}/review/"
    assert api().post(review, {"approved": True, "feedback": "Yes."}).status_code == 200
    engine.drain()
    runs = engine.runs(tenant, activity_id)
    assert [run.session_id for run in runs] == [runs[0].session_id] * 2
    assert engine.status(tenant, activity_id) == "done"


def test_a_tenant_cannot_choose_a_program(
    api: Any, engine: Engine, tenant: Tenant, set_up: Callable[..., None]
) -> None:
    put = lambda role, body: api().put(f"/api/v1/agent-configs/{role}/", body)  # noqa: E731

    problem(put("dev", {"adapter": "cli"}), 400, "validation_failed")
    problem(put("dev", {"adapter": "cli", "endpoint": "/bin/sh"}), 400, "validation_failed")
    set_up(**SAMPLE)
    problem(put("qa", {"endpoint": "/bin/sh"}), 400, "validation_failed")
    problem(put("qa", {"options": {"command": ["/bin/sh"]}}), 400, "validation_failed")
    assert (
        put("qa", {"model": "note-keeper-2", "auth": {"type": "bearer", "token": "own-key"}}).status_code
        == 200
    )


# --- Real workers ---

#: A worker that reads its load from a file.
BOOTSTRAP = """
import sys
from pathlib import Path
from celery import signals

@signals.celeryd_after_setup.connect
def patch(**kwargs):
    from activities import load_shedding
    from activities.load_shedding import Load
    load_shedding.SMOOTH_SECONDS = 0.001
    load_shedding.PROTECTION.read = lambda: Load(float(Path(load).read_text() or 0), 0.1)

from celery.__main__ import main
load = sys.argv[1]
sys.argv = ["celery", "-A", "orchestrator", "worker", "-Q", "agent__qa", "--concurrency=4", "-n", "protected@test"]
sys.exit(main())
"""


@contextmanager
def worker(environment: dict[str, str], home: Path, load: Path, **more: str) -> Iterator[Program]:
    settings = {
        "ORCHESTRATOR_HOME": str(home), "ORCHESTRATOR_CLI_COMMANDS": sys.executable, "ORCHESTRATOR_LOAD_SECONDS": "0.05",
        "ORCHESTRATOR_TARGET_CPU": "0.8", **more,
    }  # fmt: skip
    with Program(
        [sys.executable, "-c", BOOTSTRAP, str(load)], cwd=ROOT, env=environment | settings,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def registered() -> list[WorkerProcess]:
    return list(WorkerProcess.objects.filter(ended_at=None, roles=["qa"]))


def leave_to_the_worker(engine: Engine) -> None:
    """End the lease of this process, so that only the worker has seats."""
    engine.lease.end()
    limits.refresh()


def test_a_loaded_worker_takes_no_new_work_and_stops_when_its_agent_is_done(
    engine: Engine,
    tenant: Tenant,
    set_up: Callable[..., None],
    process_environment: dict[str, str],
    home: Path,
    tmp_path: Path,
) -> None:
    go_on, load = tmp_path / "go-on", tmp_path / "load"
    load.write_text("0.99")
    code = """
        say(session_id="s-1")
        task = sys.stdin.read()
        while "PATIENTLY" in task and not os.path.exists(sys.argv[1]): time.sleep(0.02)
        say(type="result", result="done")
    """
    set_up(command=[*program(tmp_path, code), str(go_on)], **STREAM)
    with worker(process_environment, home, load) as process:
        eventually(lambda: [one for one in registered() if one.closed], seconds=60)
        leave_to_the_worker(engine)
        (first,) = engine.submit(tenant)
        assert engine.messages() == 0
        assert current_app.control.inspect(["protected@test"], timeout=2).active_queues() in (
            {"protected@test": []},
            None,
        )

        load.write_text("0.1")
        eventually(lambda: engine.status(tenant, first) == "done", seconds=30)

        (running,) = engine.submit(tenant, description="PATIENTLY")
        eventually(
            lambda: engine.runs(tenant, running) and engine.runs(tenant, running)[0].session_id, seconds=30
        )
        os.kill(process.pid, signal.SIGTERM)
        eventually(lambda: registered()[0].closed)
        (later,) = engine.submit(tenant)
        assert process.poll() is None
        go_on.touch()
        assert process.wait(30) == 0

    assert engine.status(tenant, running) == "done"
    assert engine.status(tenant, later) == "created"
    assert registered() == []


def test_nothing_of_an_agent_survives_its_worker_and_the_next_run_continues_its_conversation(
    engine: Engine,
    tenant: Tenant,
    set_up: Callable[..., None],
    process_environment: dict[str, str],
    home: Path,
    tmp_path: Path,
) -> None:
    load = tmp_path / "load"
    load.write_text("0.1")
    code = """
        if len(sys.argv) > 1:
            say(type="result", result=sys.argv[2], session_id="s-1"); sys.exit()
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
        say(session_id="s-1")
        time.sleep(60)
    """
    set_up(command=program(tmp_path, code), resume=["--resume", "{session_id}"], **STREAM)
    (activity_id,) = engine.submit(tenant, deliverable_id=REPORT)
    engine.messages()  # it is on its queue
    with worker(process_environment, home, load) as process:
        eventually(
            lambda: engine.runs(tenant, activity_id) and engine.runs(tenant, activity_id)[0].session_id,
            seconds=60,
        )
        (run,) = engine.runs(tenant, activity_id)
        assert len(processes_of(run.pk)) == 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)

    eventually(lambda: len(processes_of(run.pk)) == 2)  # the kernel has ended the agent itself
    assert workspaces.sweep() == 1  # as the next worker does at its start
    eventually(lambda: not processes_of(run.pk))
    assert list((home / "agents" / "runs").iterdir()) == []
    eventually(lambda: _taken_over(engine, tenant, activity_id))
    engine.drain()
    assert engine.status(tenant, activity_id) == "done"
    assert [one.session_id for one in engine.runs(tenant, activity_id)] == ["s-1", "s-1"]


def _taken_over(engine: Engine, tenant: Tenant, activity_id: UUID) -> bool:
    watch = recovery.LivenessWatch()
    for lost in [watch.find_lost(), watch.find_lost()][-1]:
        recovery.declare_lost(lost)
    recovery.reclaim_runs_of_ended_workers()
    return engine.runs(tenant, activity_id)[0].status == "stalled"
