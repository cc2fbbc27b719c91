"""References to agents are named before one is disabled or deleted, and broken ones are reported."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agents import registry
from agents.models import Agent, AgentConfig
from pipelines import versions
from pipelines.models import Deliverable, Pipeline, Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.registry import temporary_agent

pytestmark = pytest.mark.usefixtures("database")

SCRIBE = "/api/v1/agents/scribe/"


@pytest.fixture(autouse=True)
def scribe(database: None) -> Iterator[Agent]:
    with temporary_agent("scribe", adapter="inline") as agent:
        yield agent


@pytest.fixture
def flow(tenant: Tenant) -> Pipeline:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "scribe"}]
    version = versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": steps}, actor="test")
    return version.pipeline


def schedule(tenant: Tenant, name: str, **fields: Any) -> Schedule:
    with tenant_scope(tenant.pk):
        fields = {"target_type": "agent", "agent_role": "scribe", **fields}
        created: Schedule = Schedule.objects.create(tenant=tenant, name=name, cron="0 8 * * *", **fields)
    return created


def references() -> set[str]:
    return {str(reference) for reference in registry.references_to("scribe")}


def test_schedules_pipelines_and_open_work_of_all_tenants_refer_to_an_agent(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, flow: Pipeline
) -> None:
    schedule(other_tenant, "Weekly refresh")
    schedule(tenant, "Switched off", enabled=False)
    engine.submit(tenant, "scribe", count=2)

    assert references() == {
        "pipeline flow (acme)",
        "schedule Weekly refresh (globex)",
        "2 open activities (acme)",
    }


def test_active_deliverables_refer_to_their_planner(tenant: Tenant, other_tenant: Tenant) -> None:
    for owner, status in ((tenant, "active"), (other_tenant, "ended")):
        with tenant_scope(owner.pk):
            Deliverable.objects.create(tenant=owner, key="report", name="Report", status=status)

    assert [str(reference) for reference in registry.references_to("activity-planner")] == [
        "deliverable report (acme)"
    ]


def test_only_the_newest_version_of_an_enabled_pipeline_counts(tenant: Tenant, flow: Pipeline) -> None:
    versions.save(
        tenant.pk, {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )
    assert references() == set()


def test_a_referenced_agent_cannot_be_deleted(api: Any, tenant: Tenant, flow: Pipeline) -> None:
    schedule(tenant, "Weekly refresh")

    refused = problem(api(platform=True).delete(SCRIBE), 409, "agent_in_use")

    assert "schedule Weekly refresh (acme), pipeline flow (acme)" in refused["detail"]
    assert Agent.objects.filter(role="scribe").exists()


def test_an_unreferenced_agent_is_deleted_with_its_settings_of_tenants(
    api: Any, tenant: Tenant, other_tenant: Tenant
) -> None:
    with tenant_scope(other_tenant.pk):
        AgentConfig.objects.create(tenant=other_tenant, agent_id="scribe", model="m")

    assert api(platform=True).delete(SCRIBE).status_code == 204
    assert not Agent.objects.filter(role="scribe").exists()


def test_disabling_a_referenced_agent_succeeds_with_a_warning(
    api: Any, tenant: Tenant, flow: Pipeline
) -> None:
    platform = api(platform=True)

    disabled = platform.patch(SCRIBE, {"enabled": False}).json()

    assert (disabled["enabled"], disabled["warnings"]) == (False, ["still needed by pipeline flow (acme)"])
    assert platform.patch(SCRIBE, {"enabled": True}).json()["warnings"] == []


def test_broken_references_are_listed(tenant: Tenant, flow: Pipeline) -> None:
    schedule(tenant, "Lost", agent_role="nobody")
    schedule(tenant, "Of the flow", agent_role=None, target_type="pipeline", pipeline=flow)
    assert [str(reference) for reference in registry.list_broken_references()] == [
        "schedule Lost (acme): there is no agent 'nobody'"
    ]

    Agent.objects.filter(role="scribe").update(enabled=False)
    assert {str(reference) for reference in registry.list_broken_references()} == {
        "schedule Lost (acme): there is no agent 'nobody'",
        "pipeline flow (acme): steps[1].agent_role: the agent 'scribe' is switched off",
    }

    with tenant_scope(tenant.pk):
        Pipeline.objects.filter(pk=flow.pk).update(enabled=False)
    assert "schedule Of the flow (acme): its pipeline 'flow' is switched off" in map(
        str, registry.list_broken_references()
    )


def command(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("agents", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_the_command_lists_broken_references_and_exits_with_status_1(tenant: Tenant) -> None:
    assert command("check", "--references")[0] == 0

    schedule(tenant, "Lost", agent_role="nobody")

    status, text = command("check", "--references")
    assert (status, text) == (1, "broken: schedule Lost (acme): there is no agent 'nobody'\n")


def test_the_command_deploys_promotes_and_rolls_back_versions(tenant: Tenant) -> None:
    with pytest.raises(CommandError, match=r"never deployed.*agents deploy scribe 1\.0\.0"):
        command("promote", "scribe", "1.0.0")
    for version in ("1.0.0", "1.1.0"):
        assert command("deploy", "scribe", version)[1] == f"scribe {version} is in staging\n"
        assert command("promote", "scribe", version)[1] == f"scribe {version} is in production\n"
    assert "1.1.0" in next(line for line in command("list")[1].splitlines() if line.startswith("scribe"))

    assert command("rollback", "scribe")[1] == "scribe 1.0.0 is in production\n"
    with pytest.raises(CommandError, match="is the first"):
        command("rollback", "scribe")

    disabled = command("show", "scribe")[1]
    assert "needed by  nothing" in disabled
    assert [line.split()[:2] for line in disabled.splitlines() if line.startswith("1.")] == [
        ["1.0.0", "production"], ["1.1.0", "production"], ["1.1.0", "staging"], ["1.0.0", "production"], ["1.0.0", "staging"],
    ]  # fmt: skip
    for wrong in (
        ("show", "nobody"),
        ("check", "nobody"),
        ("rollback", "nobody"),
        ("deploy", "nobody", "1.0.0"),
        ("deploy", "scribe", "1"),
        ("deploy", "scribe", "2.0.0", "--endpoint", "javascript:1"),
    ):
        with pytest.raises(CommandError):
            command(*wrong)
    Agent.objects.filter(role="scribe").update(adapter="http")
    with pytest.raises(CommandError, match="--endpoint: Ensure this value has at most 500 characters"):
        command("deploy", "scribe", "2.0.0", "--endpoint", f"https://93.184.216.34/{'a' * 500}")
    assert "2.0.0" not in command("show", "scribe")[1]


def test_broken_references_are_logged_at_the_start(tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    schedule(tenant, "Lost", agent_role="nobody")

    with caplog.at_level(logging.WARNING):
        registry.warn_of_broken_references()

    (record,) = [each for each in caplog.records if getattr(each, "action", "") == "reference_broken"]
    assert record.reference == "schedule Lost (acme)"  # type: ignore[attr-defined]
