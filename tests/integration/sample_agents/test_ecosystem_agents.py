"""The sample agents made with other people's frameworks, each as the role of a tenant, with a provider on this machine behind it.

They live in an environment of their own, made by `make ecosystem-check`: one of the frameworks brings a package `agents`.
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
    with FakeProvider(key=KEY) as running:
        yield running


@pytest.fixture
def started(provider: FakeProvider, tmp_path: Path, settings: Any) -> Iterator[Callable[[str], str]]:
    """Start one of them; where it is reached."""
    programs = []

    def start(name: str) -> str:
        ready = tmp_path / "ready"
        own = {
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
        programs.append(subprocess.Popen(command, env=own, cwd=tmp_path))
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
def test_an_agent_of_the_ecosystem_does_the_work_of_a_role(
    name: str, provider: FakeProvider, started: Callable[[str], str], engine: Engine, tenant: Tenant, api: Any
) -> None:
    provider.script(Turn("Bees fly far.", input_tokens=11, output_tokens=5))
    engine.serve(tenant, "qa", endpoint=started(name), adapter="http", model="m-1")

    (activity_id,) = engine.submit(tenant, params={"topic": "bees"})
    engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    told = api("viewer").get(f"/api/v1/activities/{activity_id}/output/").json()
    assert told["content"] == "Bees fly far."
    with tenant_scope(tenant.pk):
        usage = ActivityRun.objects.get(activity_id=activity_id).usage
    assert (usage["input_tokens"], usage["output_tokens"]) == (11, 5)
    assert "bees" in str(provider.recorder.calls[-1].body["messages"])


@pytest.mark.parametrize("name", ["langgraph_agent", "claude_agent"])
def test_its_conversation_goes_on_with_more_work_about_the_same_deliverable(
    name: str, provider: FakeProvider, started: Callable[[str], str], engine: Engine, tenant: Tenant
) -> None:
    provider.script(Turn("Bees fly far."), Turn("They bring honey."))
    engine.serve(tenant, "qa", endpoint=started(name), adapter="http", model="m-1")
    report = uuid4()

    for topic in ("bees", "honey"):
        engine.submit(tenant, params={"topic": topic}, deliverable_id=report)
        engine.drain()

    said = [turn["role"] for turn in provider.recorder.calls[-1].body["messages"] if turn["role"] != "system"]
    assert said == ["user", "assistant", "user"]
    assert "Bees fly far." in str(provider.recorder.calls[-1].body["messages"])
