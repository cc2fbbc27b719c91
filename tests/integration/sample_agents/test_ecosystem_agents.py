"""The sample agents that are written with other frameworks, each as the role of a tenant, with a local provider.

They need their own environment from `make ecosystem-check`, because one of the frameworks has a package `agents`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from activities.models import ActivityRun
from agents import outbound
from benchmarks.fake_provider import FakeProvider, Turn
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, eventually

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("ORCHESTRATOR_ECOSYSTEM_PYTHON", ROOT / ".venv-ecosystem/bin/python"))
KEY = "providers-own-key-0123456789"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make ecosystem-check installs the frameworks")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(key=KEY) as run_agents:
        yield run_agents


@pytest.fixture
def start_agent(provider: FakeProvider, tmp_path: Path, settings: Any) -> Iterator[Callable[[str], str]]:
    """Return a function that starts one of them and returns its address."""
    programs = []

    def start(name: str) -> str:
        ready = tmp_path / "ready"
        environment = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "IS_SANDBOX": "1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": provider.openai_url,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": provider.anthropic_url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [
            PYTHON,
            ROOT / f"examples/agents/ecosystem/{name}.py",
            "--port",
            "0",
            "--ready-file",
            ready,
        ]
        programs.append(subprocess.Popen(command, env=environment, cwd=tmp_path))
        eventually(lambda: ready.exists() and ready.read_text())
        address = ready.read_text()
        settings.ORCHESTRATOR_EGRESS_ALLOW = (address.removeprefix("http://"),)
        return address

    yield start
    outbound.close_connections()
    for program in programs:
        program.kill()
        program.wait()


@pytest.mark.parametrize("name", ["openai_agents", "langgraph_agent", "claude_agent"])
def test_an_agent_with_another_framework_does_the_work_of_a_role(
    name: str,
    provider: FakeProvider,
    start_agent: Callable[[str], str],
    engine: Engine,
    tenant: Tenant,
    api: Any,
) -> None:
    provider.script(Turn("Bees fly far.", input_tokens=11, output_tokens=5))
    engine.serve(tenant, "qa", endpoint=start_agent(name), adapter="http", model="m-1")

    (activity_id,) = engine.submit(tenant, params={"topic": "bees"})
    engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    output = api("viewer").get(f"/api/v1/activities/{activity_id}/output/").json()
    assert output["content"] == "Bees fly far."
    with tenant_scope(tenant.pk):
        usage = ActivityRun.objects.get(activity_id=activity_id).usage
    assert (usage["input_tokens"], usage["output_tokens"]) == (11, 5)
    assert "bees" in str(provider.recorder.calls[-1].body["messages"])


@pytest.mark.parametrize("name", ["langgraph_agent", "claude_agent"])
def test_its_session_continues_with_more_work_for_the_same_deliverable(
    name: str, provider: FakeProvider, start_agent: Callable[[str], str], engine: Engine, tenant: Tenant
) -> None:
    provider.script(Turn("Bees fly far."), Turn("They bring honey."))
    engine.serve(tenant, "qa", endpoint=start_agent(name), adapter="http", model="m-1")
    report = uuid4()

    for topic in ("bees", "honey"):
        engine.submit(tenant, params={"topic": topic}, deliverable_id=report)
        engine.drain()

    roles = [
        turn["role"] for turn in provider.recorder.calls[-1].body["messages"] if turn["role"] != "system"
    ]
    assert roles == ["user", "assistant", "user"]
    assert "Bees fly far." in str(provider.recorder.calls[-1].body["messages"])
