"""The platform's key is used only for the roles and models that the platform allows a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import configuration
from agents.contracts import Accepted
from agents.models import Agent
from benchmarks.fake_provider import FakeProvider, Turn
from tenants.models import Tenant
from tests.accepted_work import accept_work
from tests.engine import Engine
from tests.subjects import KEY

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


def configure(api: Any, **own: Any) -> None:
    """Override the registry's settings of the role as the tenant's admin."""
    answer = api("admin").put(CONFIG, own)
    assert answer.status_code == 200, answer.content


def test_the_platforms_key_pays_for_the_model_of_the_registry(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider
) -> None:
    assert outcome(engine, tenant, api, provider) == ("done", 1)


@pytest.mark.parametrize(
    "own", [{"model": "m-dear"}, {"adapter": "anthropic", "model": "m-1"}], ids=["a model", "a provider"]
)
def test_the_platforms_key_does_not_pay_for_a_model_that_the_tenant_chose(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, own: dict[str, str]
) -> None:
    configure(api, **own)

    assert outcome(engine, tenant, api, provider) == ("failed", 0)


def test_the_platforms_key_does_not_pay_for_a_model_that_an_agent_chose_for_its_subtask(
    engine: Engine, tenant: Tenant, provider: FakeProvider
) -> None:
    engine.serve(tenant, "qa")
    engine.agent.behaviour = lambda request: Accepted()
    provider.script(Turn("A good title."))
    _, agent = accept_work(engine, tenant)
    subtask = {"name": "Title", "description": "Of a page.", "agent_role": "seo", "blocking": False}

    dear, usual = (
        agent.create_with("create_subtask", **subtask, **more) for more in ({"model": "m-dear"}, {})
    )
    engine.drain()

    assert (engine.status(tenant, dear), engine.status(tenant, usual)) == ("failed", "done")
    assert len(provider.recorder.calls) == 1


def test_a_tenant_with_its_own_key_may_choose_any_model(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, settings: Any
) -> None:
    settings.ORCHESTRATOR_PLATFORM_KEYS_FOR = []
    configure(
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
def test_rules_name_the_tenants_roles_and_models_that_the_platforms_key_pays_for(
    engine: Engine, tenant: Tenant, api: Any, provider: FakeProvider, settings: Any, rules: Any, expected: Any
) -> None:
    settings.ORCHESTRATOR_PLATFORM_KEYS_FOR = rules
    configuration.forget()
    configure(api, model="m-dear")

    assert outcome(engine, tenant, api, provider) == expected
