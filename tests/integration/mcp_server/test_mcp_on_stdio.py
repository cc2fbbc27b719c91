"""`python -m orchestrator.mcp` as hosts of assistants start it: configured by its environment, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters

from orchestrator.mcp import __main__ as command_line
from orchestrator.mcp import server as serving
from orchestrator.mcp.api import Access, InvalidAccess, access_from_environment
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.engine import Engine, in_another_thread
from tests.integration.mcp_server.assistants import Assistant
from tests.questions import Questions

pytestmark = pytest.mark.long

RUN = "0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90"
MODULE = ["-I", "-m", "orchestrator.mcp"]


def on_stdio(environment: dict[str, str], action: Callable[[Client], Any], *options: str) -> Any:
    parameters = StdioServerParameters(command=sys.executable, args=[*MODULE, *options], env=environment)

    async def run_action() -> Any:
        async with Client(parameters) as client:
            return await action(client)

    return asyncio.run(run_action())


def test_a_person_decides_over_standard_input_and_output(
    site: str, token_of: Callable[..., str], questions: Questions
) -> None:
    gate = questions.gate()
    arguments = {"id": str(gate.pk), "decision": "approve"}

    async def decide(client: Client) -> Any:
        question = await client.call_tool("show_decision", arguments)
        confirmation = question.structured_content["confirmation"]
        return await client.call_tool("confirm_decision", {**arguments, "confirmation": confirmation})

    decision = on_stdio({"ORCHESTRATOR_URL": site, "ORCHESTRATOR_TOKEN": token_of("reviewer")}, decide)

    assert decision.structured_content["status"] == "approved"


def test_an_agent_is_recognised_by_its_callback_url_and_offered_only_the_named_tools(
    site: str, accept_work: Callable[..., tuple[Any, Assistant]], engine: Engine, acme: Tenant
) -> None:
    activity_id, _ = accept_work()
    request = engine.agent.calls[-1]
    address = f"{site}/api/v1/agent-runs/{request.run_id}/"

    async def list_tools_and_complete(client: Client) -> Any:
        offered = [tool.name for tool in (await client.list_tools()).tools]
        return offered, await client.call_tool("complete", {"content": "# Bees"})

    offered, done = on_stdio(
        {"ORCHESTRATOR_CALLBACK_URL": address, "ORCHESTRATOR_CALLBACK_TOKEN": request.callback.token},
        list_tools_and_complete,
        "--tools",
        "get_job,complete",
    )

    assert offered == ["get_job", "complete"]
    assert done.structured_content["accepted"] is True
    assert engine.status(acme, activity_id) == "done"


def test_the_tools_that_end_a_run_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[str] = []

    async def serve(access: Access, *, only: list[str]) -> None:
        offered.extend(only)

    monkeypatch.setattr(command_line, "serve_stdio", serve)
    monkeypatch.setattr(os, "environ", {"ORCHESTRATOR_URL": "https://host", "ORCHESTRATOR_TOKEN": "t"})

    assert command_line.main(["--no-end"]) == 0
    assert "report_blocker" in offered
    assert not {"complete", "fail"} & set(offered)


@pytest.mark.parametrize(
    ("environment", "options", "error"),
    [
        ({}, [], "ORCHESTRATOR_URL and ORCHESTRATOR_TOKEN must be set"),
        ({"ORCHESTRATOR_URL": "https://host"}, [], "ORCHESTRATOR_TOKEN must be set"),
        ({"ORCHESTRATOR_URL": "ftp://host", "ORCHESTRATOR_TOKEN": "t"}, [], "must be an address"),
        ({"ORCHESTRATOR_TOKEN": "t"}, ["--http", "0"], "ORCHESTRATOR_URL must be set"),
        (
            {"ORCHESTRATOR_URL": f"https://host/api/v1/agent-runs/{RUN}/"},
            ["--http", "0"],
            "callback URL of one run",
        ),
        ({"ORCHESTRATOR_URL": "https://host"}, ["--http", "0", "--host", "0.0.0.0"], "--allow-host"),
        (
            {"ORCHESTRATOR_URL": "https://host", "ORCHESTRATOR_TOKEN": "t"},
            ["--no-end", "--tools", "complete"],
            "none of the tools",
        ),
    ],
)
def test_invalid_settings_are_reported_on_standard_error_only(
    environment: dict[str, str],
    options: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This runs in the test's process; the next test starts a real one."""
    monkeypatch.setattr(os, "environ", dict(environment))

    status = command_line.main(options)

    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert error in output.err


@in_one_test(
    ("options", "error"),
    [
        (["--tools", "inbox,inbx"], "there is no tool 'inbx'"),
        (["--allow-host", "https://mcp.example.com"], "must be a host"),
        (["--allow-origin", "https://assistant.example/"], "must be an origin"),
    ],
)
def test_an_option_that_could_have_no_effect_is_a_usage_error(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(options)

    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_neither_django_nor_files_in_the_working_directory_are_imported(tmp_path: Path) -> None:
    (tmp_path / "orchestrator").mkdir()
    for name in ("mcp.py", "orchestrator/__init__.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('hostile code')")

    done = subprocess.run(
        [sys.executable, "-X", "importtime", *MODULE],
        env={"PATH": os.environ["PATH"]}, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be set" in done.stderr
    assert "Traceback" not in done.stderr
    assert "orchestrator.mcp.server" in imported
    assert not {"django", "celery", "redis", "psycopg"} & imported


def test_the_server_runs_over_http_until_it_is_terminated(site: str, token_of: Callable[..., str]) -> None:
    environment = {"PATH": os.environ["PATH"], "ORCHESTRATOR_URL": site, "ORCHESTRATOR_TOKEN": token_of()}
    process = subprocess.Popen(
        [sys.executable, *MODULE, "--http", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("mcp: ").strip()

        without = httpx2.post(address, json={}, timeout=30)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert (address.startswith("http://127.0.0.1:"), without.status_code) == (True, 401)
    assert "not used with --http" in errors


def test_heartbeats_continue_between_calls_after_the_first_report(
    site: str,
    accept_work: Callable[..., tuple[Any, Assistant]],
    engine: Engine,
    acme: Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activity_id, agent = accept_work()
    monkeypatch.setattr(serving, "BEAT_SECONDS", 0.05)

    def beats() -> int:
        return int(engine.runs(acme, activity_id)[-1].beats)

    async def work_slowly() -> None:
        async with anyio.create_task_group() as tasks:
            heartbeat = serving._Heartbeat(tasks.start_soon)
            agent_server = serving.server(
                lambda _: agent.access, instructions="", on_progress=heartbeat.begin
            )
            async with Client(agent_server) as client:
                await client.call_tool("report_progress", {"message": "Thinking"})
                deadline = time.monotonic() + 20
                while await asyncio.to_thread(in_another_thread, beats) < 4:
                    assert time.monotonic() < deadline
                await client.call_tool("complete", {"content": "# Bees"})
                # The task group exits only after the heartbeats have ended with the run.

    asyncio.run(work_slowly())

    assert engine.status(acme, activity_id) == "done"


@pytest.mark.parametrize(
    "address",
    [
        "", "host", "https://", "https://user:secret@host", "https://host/?a=1", "https://host/#a", "https://host:0", "https://ho\nst",
        "https://host:99999", "https://[::1",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_before_the_token_is_sent(address: str) -> None:
    with pytest.raises(InvalidAccess) as caught:
        access_from_environment({"ORCHESTRATOR_URL": address, "ORCHESTRATOR_TOKEN": "orc_secret"})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\nX-Evil: 1", "ä", "x" * 9_000])
def test_an_invalid_token_is_not_sent(token: str) -> None:
    with pytest.raises(InvalidAccess):
        access_from_environment({"ORCHESTRATOR_URL": "https://host", "ORCHESTRATOR_TOKEN": token})


@pytest.mark.parametrize(
    "address", ["https://host", "https://host/", "https://host/api/v1", "https://host/api/v1/"]
)
def test_the_address_may_include_the_path_of_the_api(address: str) -> None:
    access = access_from_environment({"ORCHESTRATOR_URL": address, "ORCHESTRATOR_TOKEN": "t"})

    assert access == Access("https://host/api/v1/", "t")
    assert "t'" not in repr(access)


def test_the_token_of_a_run_precedes_the_token_of_a_person() -> None:
    callback = f"https://host/api/v1/agent-runs/{RUN}/"
    environment = {
        "ORCHESTRATOR_URL": "https://host",
        "ORCHESTRATOR_TOKEN": "person",
        "ORCHESTRATOR_CALLBACK_URL": callback,
    }

    access = access_from_environment({**environment, "ORCHESTRATOR_CALLBACK_TOKEN": "run"})

    assert access == Access(callback, "run", of_run=True)


def test_the_callback_url_of_a_run_may_be_set_as_the_url() -> None:
    callback = f"https://host/api/v1/agent-runs/{RUN}/"

    access = access_from_environment({"ORCHESTRATOR_URL": callback, "ORCHESTRATOR_TOKEN": "run"})

    assert access == Access(callback, "run", of_run=True)
