"""Documents in the camelCase of other schedulers are accepted; answers and stored data use our spelling."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from agents import configuration
from agents.models import Agent
from pipelines.models import PipelineRun, Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.tickers import SCHEDULES

PIPELINES = "/api/v1/pipelines/"

STEPS: list[dict[str, Any]] = [
    {"stepId": "collect", "agentId": "qa", "parallel": False, "timeout": 90_000},
    {
        "stepId": "analyze",
        "agentId": "dev",
        "dependsOn": ["collect"],
        "parallel": False,
        "params": {"depth": 2},
        "retryConfig": {"maxRetries": 3, "backoff": "linear", "delay": 2500},
    },
]
NEWSLETTER = {"key": "newsletter", "name": "Newsletter Generation Pipeline", "steps": STEPS}
SCHEDULE: dict[str, Any] = {
    "name": "Weekly Entity Graph Refresh",
    "repeat": "repeating",
    "cronExpression": "0 2 * * 0",
    "startAt": "2026-01-04T00:00:00Z",
    "targetType": "agent",
    "agentId": "qa",
    "params": {"refreshEntityGraph": True},
    "retryConfig": {"maxRetries": 3, "backoff": "exponential", "delay": 5000},
    "timeout": 300_500,
    "priority": 0,
    "enabled": True,
}


def faults(answer: Any, code: str) -> dict[str, str]:
    return {fault["path"]: fault["message"] for fault in problem(answer, 400, code)["errors"]}


def test_a_pipeline_in_the_other_spelling_is_stored_and_returned_in_ours(api: Any, acme: Tenant) -> None:
    created = api("admin").post(PIPELINES, NEWSLETTER)

    assert created.status_code == 201, created.content
    collect, analyze = created.json()["definition"]["steps"]
    assert (collect["id"], collect["agent_role"], collect["timeout_seconds"]) == ("collect", "qa", 90)
    assert (analyze["id"], analyze["depends_on"], analyze["params"]) == ("analyze", ["collect"], {"depth": 2})
    assert {name: analyze["retry"][name] for name in ("max_attempts", "strategy", "base_seconds")} == {
        "max_attempts": 4,
        "strategy": "linear",
        "base_seconds": 2.5,
    }
    assert not set(analyze) & {"stepId", "agentId", "dependsOn", "retryConfig", "timeout"}
    again = api("admin").put(f"{PIPELINES}newsletter/", created.json()["definition"]).json()
    assert len({version["digest"] for version in again["versions"]}) == 1


def test_steps_in_the_other_spelling_continue_after_a_failure_unless_they_or_a_template_say_otherwise(
    api: Any, acme: Tenant
) -> None:
    template = {"key": "check", "name": "Check", "agent_role": "qa"}
    assert api("admin").post("/api/v1/templates/", template).status_code == 201
    steps = [
        {"stepId": "a", "agentId": "qa"},
        {"stepId": "b", "agentId": "qa", "on_upstream_failure": "skip"},
        {"stepId": "c", "template": "check"},
        {"stepId": "d", "agentId": "qa", "template": "check"},
        {"stepId": "e", "agent_role": "qa"},
    ]

    created = api("admin").post(PIPELINES, {"key": "flow", "name": "Flow", "steps": steps}).json()

    assert [step["on_upstream_failure"] for step in created["definition"]["steps"]] == [
        "continue",
        "skip",
        "fail",
        "fail",
        "fail",
    ]


def test_faults_have_the_path_that_the_caller_wrote(api: Any, acme: Tenant) -> None:
    steps = [
        {"stepId": "a", "agentId": "nobody", "timeout": -5},
        {"stepId": "a", "agentId": "qa", "dependsOn": ["b"], "retryConfig": {"maxRetries": 90, "delay": "x"}},
        {"id": "c", "agentId": "qa", "retry": {"backoff": "sideways"}, "colour": "red"},
        {"id": "d", "agentId": "qa", "dependsOn": ["e"]},
        {"id": "e", "agentId": "qa", "dependsOn": ["d"]},
    ]

    messages = faults(
        api("admin").post(PIPELINES, {"key": "flow", "name": "Flow", "steps": steps}), "invalid_definition"
    )

    assert set(messages) == {
        "steps[0].agentId",
        "steps[0].timeout",
        "steps[1].stepId",
        "steps[1].dependsOn[0]",
        "steps[1].retryConfig.maxRetries",
        "steps[1].retryConfig.delay",
        "steps[2].retry.backoff",
        "steps[2].colour",
        "steps[3].dependsOn",
    }
    assert (
        "as max_attempts, which counts the first try as well" in messages["steps[1].retryConfig.maxRetries"]
    )
    assert "from milliseconds" in messages["steps[0].timeout"]


def test_both_spellings_of_one_member_are_refused(api: Any, acme: Tenant) -> None:
    step = {"id": "a", "stepId": "a", "agent_role": "qa", "retry": {"max_attempts": 2, "maxRetries": 1}}

    messages = faults(
        api("admin").post(PIPELINES, {"key": "flow", "name": "Flow", "steps": [step]}), "invalid_definition"
    )

    assert messages == {
        "steps[0].stepId": "is another spelling of id, which is present as well",
        "steps[0].retry.maxRetries": "is another spelling of max_attempts, which is present as well",
    }
    twice = api("admin").post(SCHEDULES, {**SCHEDULE, "cron": "0 2 * * 0"})
    assert faults(twice, "invalid_schedule") == {
        "cronExpression": "is another spelling of cron, which is present as well"
    }


def test_a_schedule_in_the_other_spelling_is_stored_and_returned_in_ours(api: Any, acme: Tenant) -> None:
    created = api("admin").post(SCHEDULES, SCHEDULE)

    schedule = created.json()
    assert created.status_code == 201, created.content
    assert (schedule["cron"], schedule["target_type"], schedule["agent_role"]) == ("0 2 * * 0", "agent", "qa")
    assert schedule["start_at"] == "2026-01-04T00:00:00Z"
    assert schedule["retry"] == {"max_attempts": 4, "strategy": "exponential", "base_seconds": 5}
    assert (schedule["timeout_seconds"], schedule["priority"]) == (301, 10)
    assert not set(schedule) & {
        "cronExpression",
        "agentId",
        "retryConfig",
        "timeout",
        "startAt",
        "targetType",
    }


def test_a_change_in_the_other_spelling_replaces_the_stored_values(api: Any, acme: Tenant) -> None:
    client = api("admin")
    created = client.post(SCHEDULES, {**SCHEDULE, "priority": 3}).json()

    changed = client.patch(created["link"], {"interval": 3_600_000, "priority": 0, "timeout": None}).json()

    assert (changed["cron"], changed["interval_ms"]) == (None, 3_600_000)
    assert (changed["priority"], changed["timeout_seconds"], changed["retry"]) == (10, None, created["retry"])
    replaced = client.put(created["link"], {**SCHEDULE, "retryConfig": {"maxRetries": 0}}).json()
    assert (replaced["cron"], replaced["interval_ms"]) == ("0 2 * * 0", None)
    assert replaced["retry"] == {"max_attempts": 1}
    wrong = client.patch(created["link"], {"cronExpression": "no", "retryConfig": {"maxRetries": 50}})
    assert set(faults(wrong, "invalid_schedule")) == {"cronExpression", "retryConfig.maxRetries"}


def test_a_preview_reads_the_other_spelling_as_well(api: Any, acme: Tenant) -> None:
    preview = api("admin").post(f"{SCHEDULES}preview/?count=1", {**SCHEDULE, "agentId": "nobody"})

    assert len(preview.json()["fires_at"]) == 1
    assert [error["path"] for error in preview.json()["errors"]] == ["agentId"]


def test_a_document_of_agents_pipelines_and_schedules_in_the_other_spelling_is_loaded(
    acme: Tenant, tmp_path: Path
) -> None:
    document = {
        "agents": [
            {
                "agentId": "lister-of-entities",
                "name": "Query strategy",
                "adapter": "http",
                "endpoint": "http://127.0.0.1:9/",
                "inputSchema": {"type": "object"},
            }
        ],
        "pipelines": [NEWSLETTER],
        "schedules": [
            {**SCHEDULE, "agentId": "lister-of-entities"},
            {
                "name": "Daily",
                "repeat": "repeating",
                "cronExpression": "0 8 * * *",
                "targetType": "pipeline",
                "pipelineId": "newsletter",
            },
        ],
    }
    (file := tmp_path / "document.json").write_text(json.dumps(document))

    first, second = StringIO(), StringIO()
    call_command("load_schedule", file, tenant=acme.slug, stdout=first)
    call_command("load_schedule", file, tenant=acme.slug, stdout=second)
    configuration.forget()

    assert first.getvalue().splitlines()[-1] == "schedule Daily: created"
    assert second.getvalue().splitlines() == [
        "pipeline newsletter: unchanged",
        "schedule Weekly Entity Graph Refresh: unchanged",
        "schedule Daily: unchanged",
    ]
    assert Agent.objects.get(role="lister-of-entities").input_schema == {"type": "object"}
    with tenant_scope(acme.pk):
        assert Schedule.objects.get(name="Daily").pipeline.key == "newsletter"


def test_a_pipeline_file_in_the_other_spelling_is_loaded(
    engine: Engine, acme: Tenant, tmp_path: Path, api: Any
) -> None:
    (file := tmp_path / "newsletter.json").write_text(json.dumps(NEWSLETTER))
    out = StringIO()

    call_command("load_pipeline", file, tenant=acme.slug, stdout=out)

    assert out.getvalue() == "pipeline newsletter version 1\n"
    with tenant_scope(acme.pk):
        assert not PipelineRun.objects.exists()


@pytest.mark.parametrize("value", [True, "3", [], 2**62, 1.5])
def test_a_number_of_retries_of_the_wrong_type_is_refused(value: Any, api: Any, acme: Tenant) -> None:
    answer = api("admin").post(SCHEDULES, {**SCHEDULE, "retryConfig": {"maxRetries": value}})

    assert set(faults(answer, "invalid_schedule")) == {"retryConfig.maxRetries"}
