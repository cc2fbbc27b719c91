"""A key of the platform is spent on the roles and models that the platform allows to a tenant, and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import configuration
from agents.contracts import Accepted
from agents.models import Agent
from benchmarks.fake_provider import FakeProvider, Turn
from tenants.models import Tenant
from tests.engine import Engine
from tests.subjects import KEY
from tests.toolbox import at_work

pytestmark = pytest.mark.usefixtures("one_at_a_time")
CONFIG = "/api/v1/agent-configs/seo/"
TASK = {"name": "Title", "agent_role": "seo", "max_attempts": 1}


@pytest.fixture(autouse=True)
def platform(settings: Any, provider: FakeProvider, engine: Engine, tenant: Tenant) -> Iterator[None]:
    """The platform has a key for both providers; the registry gives the role seo one model of one of them."""
    pytest.importorskip("openai", reason="pip install orchestrator[llm] for the adapter openai")
    settings.OPENAI_API_KEY = settings.ANTHROPIC_API_KEY = KEY
    settings.OPENAI_BASE_URL, settings.ANTHROPIC_BASE_URL = provider.openai_url, provider.anthropic_url
    fields = ("adapter", "endpoint", "model", "auth_sealed")
    before = Agent.objects.filter(role="seo").values(*fields).get()
    Agent.objects.filter(role="seo").update(adapter="openai", endpoint="", model="m-1", auth_sealed="")
    configuration.forget()
    yield
    Agent.objects.filter(role="seo").update(**before)
    configuration.forget()


def outcome(engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, **more: Any) -> tuple[str, int]:
    """How a task of the role ends, and how often the provider was called for it."""
    provider.script(Turn("A good title."))
    answer = api("operator").post("/api/v1/activities/", {**TASK, **more})
    assert answer.status_code == 201, answer.content
    engine.drain()
    return engine.status(tenant, answer.json()["id"]), len(provider.recorder.calls)


def chooses(api: Any, **own: Any) -> None:
    """The tenant's admin has it otherwise than the registry."""
    answer = api("admin").put(CONFIG, own)
    assert answer.status_code == 200, answer.content


def test_what_the_registry_says_is_paid_for(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider
) -> None:
    assert outcome(engine, tenant, api, provider) == ("done", 1)


@pytest.mark.parametrize(
    "own", [{"model": "m-dear"}, {"adapter": "anthropic", "model": "m-1"}], ids=["a model", "a provider"]
)
def test_what_a_tenant_chooses_is_not(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, own: dict[str, str]
) -> None:
    chooses(api, **own)

    assert outcome(engine, tenant, api, provider) == ("failed", 0)


def test_nor_is_what_an_agent_chooses_for_its_subtask(
    engine: Engine, tenant: Tenant, provider: FakeProvider
) -> None:
    engine.serve(tenant, "qa")
    engine.agent.behaviour = lambda request: Accepted()
    provider.script(Turn("A good title."))
    _, agent = at_work(engine, tenant)
    part = {"name": "Title", "description": "Of a page.", "agent_role": "seo", "blocking": False}

    dear, usual = (agent.used("create_subtask", **part, **more) for more in ({"model": "m-dear"}, {}))
    engine.drain()

    assert (engine.status(tenant, dear), engine.status(tenant, usual)) == ("failed", "done")
    assert len(provider.recorder.calls) == 1


def test_a_tenant_with_a_key_of_its_own_chooses_as_it_likes(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, settings: Any
) -> None:
    settings.ORCHESTRATOR_PLATFORM_KEYS_FOR = []
    chooses(
        api, model="m-dear", endpoint=provider.openai_url, auth={"type": "bearer", "token": KEY}
    )  # fmt: skip

    assert outcome(engine, tenant, api, provider) == ("done", 1)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], ("failed", 0)),
        ([{}], ("done", 1)),
        ([{"tenants": ["acme"], "roles": ["seo"], "models": ["m-*"]}], ("done", 1)),
        ([{"models": ["m-1"]}, {"models": ["m-dear"]}], ("done", 1)),
        ([{"tenants": ["globex"]}], ("failed", 0)),
        ([{"roles": ["qa"]}], ("failed", 0)),
        ([{"models": ["m-1"]}], ("failed", 0)),
        ([{"roles": ["seo"], "models": ["m-1"]}, {"tenants": ["globex"]}], ("failed", 0)),
    ],
    ids=[
        "no rule", "all", "by all three", "one of two", "another tenant", "another role", "another model", "no rule in full",
    ],
)  # fmt: skip
def test_the_operators_say_for_which_tenants_roles_and_models(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, settings: Any, rules: Any, expected: Any
) -> None:
    settings.ORCHESTRATOR_PLATFORM_KEYS_FOR = rules
    configuration.forget()
    chooses(api, model="m-dear")

    assert outcome(engine, tenant, api, provider) == expected
