"""The demonstration with a local model, as far as it can be tested without the model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from agents import configuration
from agents.adapters.dialogue import ModelOptions
from agents.governor.providers import profile_of
from agents.models import Agent
from orchestrator.demo.opening import content_brief
from orchestrator.demo.story import DemoFailed
from orchestrator.management.commands import demo_model


@pytest.fixture
def roles(database: None) -> Any:
    demo_model.register_roles("http://127.0.0.1:9/v1")
    configuration.forget()  # because another test may have cached it
    yield
    Agent.objects.filter(role__startswith=demo_model.PREFIX).delete()


def test_the_api_accepts_the_pipeline_and_roles_of_the_demonstration(
    roles: None, api: Any, tenant: Any
) -> None:
    pipeline = demo_model.with_model_roles(content_brief())

    answer = api("admin").put(f"/api/v1/pipelines/{demo_model.PIPELINE}/", pipeline, format="json")

    assert answer.status_code in (200, 201), answer.content
    assert {step["agent_role"].removeprefix(demo_model.PREFIX) for step in pipeline["steps"]} == set(
        demo_model.INSTRUCTIONS
    )


def test_the_models_options_limit_it_to_one_call_without_tools(roles: None) -> None:
    options = Agent.objects.get(role=f"{demo_model.PREFIX}content-brief-writer").options

    assert not ModelOptions.of(options).tools
    assert profile_of(options["provider"], "openai", "127.0.0.1:9").most_slots == 1


def test_without_the_model_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(DemoFailed, match=r"requirements/model\.txt"):
        demo_model.model_server(1)


def test_the_models_server_listens_on_loopback_at_the_chosen_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "weights", lambda: Path("model.gguf"))

    spec = demo_model.model_server(12345)

    assert (spec.env["HOST"], spec.env["PORT"]) == ("127.0.0.1", "12345")
