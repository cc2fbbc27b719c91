"""Versions of agents: promotion and rollback, one version in production at any time, and versions of runs."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier
from typing import Any

import pytest
from django.db import IntegrityError

from activities.execution import request
from agents import configuration, deployments
from agents.contracts import Completed, Output
from agents.exceptions import (
    DeploymentConflict,
    NotFound,
    RegistryError,
    RetryableAgentError,
    VersionInvalid,
)
from agents.models import Agent, AgentVersionDeployment
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.registry import temporary_agent

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def scribe(database: None) -> Iterator[Agent]:
    with temporary_agent("scribe") as agent:
        yield agent


def deploy(version: str, environment: str = "staging", **fields: Any) -> AgentVersionDeployment:
    return deployments.deploy("scribe", version, environment, actor="test", **fields)


def promote(deployment: AgentVersionDeployment, actor: str = "mia") -> AgentVersionDeployment:
    return deployments.promote("scribe", deployment.pk, actor=actor)


def production() -> str | None:
    deployed = deployments.in_production("scribe")
    return deployed.version if deployed else None


def test_promoting_replaces_the_version_in_production_and_keeps_its_history() -> None:
    first = promote(deploy("1.0.0", endpoint="https://one.example"))
    staged = deploy("1.1.0")

    second = promote(staged, actor="mia")

    first.refresh_from_db()
    assert (production(), second.promoted_from_id, second.previous_id) == ("1.1.0", staged.pk, first.pk)
    assert (first.replaced_by, first.replaced_at is not None, first.endpoint) == (
        "mia",
        True,
        "https://one.example",
    )
    staged.refresh_from_db()
    assert staged.replaced_at is None, "the staged version stays in staging"


def test_rolling_back_leads_to_the_previous_version_each_time() -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        promote(deploy(version))

    assert [deployments.roll_back("scribe", actor="mia").version for _ in range(2)] == ["1.1.0", "1.0.0"]
    with pytest.raises(RegistryError, match=r"1\.0\.0 is the first.*promote it"):
        deployments.roll_back("scribe", actor="mia")
    assert production() == "1.0.0"


def test_after_a_rollback_a_promotion_can_be_rolled_back_again() -> None:
    for version in ("1.0.0", "1.1.0"):
        promote(deploy(version))
    deployments.roll_back("scribe", actor="mia")
    promote(deploy("1.2.0"))

    assert deployments.roll_back("scribe", actor="mia").version == "1.0.0"


def test_without_a_version_in_production_there_is_nothing_to_roll_back_to() -> None:
    with pytest.raises(RegistryError, match="there is none yet"):
        deployments.roll_back("scribe", actor="mia")


def test_a_former_version_can_be_promoted_again_but_not_the_current_one() -> None:
    first = promote(deploy("1.0.0"))
    second = promote(deploy("2.0.0"))

    with pytest.raises(RegistryError, match="in production already"):
        promote(second)
    assert (promote(first).version, production()) == ("1.0.0", "1.0.0")


def test_the_same_version_at_another_address_is_a_change() -> None:
    promote(deploy("1.0.0", endpoint="https://one.example"))

    deploy("1.0.0", "production", endpoint="https://two.example")

    deployed = deployments.in_production("scribe")
    assert deployed is not None
    assert deployed.endpoint == "https://two.example"


def test_other_environments_can_have_several_versions_but_each_once() -> None:
    for version in ("1.0.0", "1.1.0", "1.0.0"):
        deploy(version)

    now = [each.version for each in deployments.history("scribe") if each.replaced_at is None]
    assert sorted(now) == ["1.0.0", "1.1.0"]


@pytest.mark.parametrize(
    "version", ["1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0\n", "1.0.0-" + "a" * 60]
)
def test_versions_that_are_not_semantic_are_refused(version: str) -> None:
    with pytest.raises(VersionInvalid, match="semantic version"):
        deploy(version)


def test_a_deployment_of_another_agent_cannot_be_promoted() -> None:
    with temporary_agent("other"):
        theirs = deployments.deploy("other", "1.0.0", "staging", actor="test")

        with pytest.raises(NotFound):
            promote(theirs)
    with pytest.raises(NotFound):
        deployments.promote("scribe", uuid7(), actor="mia")


@pytest.mark.parametrize("former", ["", "0.9.0"])
def test_of_several_promotions_at_once_one_succeeds_and_the_others_are_refused(
    former: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a version in production, where only the constraint of the database decides."""
    if former:
        promote(deploy(former))
    staged = [deploy(version) for version in ("1.0.0", "2.0.0", "3.0.0")]
    barrier, find_in_production = Barrier(3), deployments.in_production

    def find_together(role: str) -> AgentVersionDeployment | None:
        current = find_in_production(role)
        barrier.wait()
        return current

    monkeypatch.setattr(deployments, "in_production", find_together)
    outcomes = simultaneously(*[lambda each=each: promote(each) for each in staged])
    monkeypatch.undo()

    done = [each for each in outcomes if isinstance(each, AgentVersionDeployment)]
    assert [each.version for each in done] == [production()]
    assert [type(each) for each in outcomes].count(DeploymentConflict) == 2
    assert (
        AgentVersionDeployment.objects.filter(
            environment="production", agent_id="scribe", replaced_at=None
        ).count()
        == 1
    )


def test_of_a_promotion_and_a_rollback_at_once_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0.0", "2.0.0"):
        promote(deploy(version))
    staged, barrier, find_in_production = deploy("3.0.0"), Barrier(2), deployments.in_production

    def find_together(role: str) -> AgentVersionDeployment | None:
        current = find_in_production(role)
        barrier.wait()
        return current

    monkeypatch.setattr(deployments, "in_production", find_together)
    outcomes = simultaneously(lambda: promote(staged), lambda: deployments.roll_back("scribe", actor="mia"))
    monkeypatch.undo()

    assert sum(isinstance(each, DeploymentConflict) for each in outcomes) == 1
    assert production() in ("1.0.0", "3.0.0")


def test_the_database_allows_one_version_in_production() -> None:
    deploy("1.0.0", "production")

    with pytest.raises(IntegrityError):
        AgentVersionDeployment.objects.create(agent_id="scribe", version="2.0.0", environment="production")


# Versions of runs


@pytest.fixture
def running(database: None) -> Iterator[Engine]:
    engine = Engine(["scribe"])
    Agent.objects.filter(role="scribe").update(adapter="inline", endpoint="agents.samples:noop")
    yield engine
    engine.close()


def test_a_run_keeps_the_version_and_endpoint_of_its_claim_despite_a_promotion(
    running: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(deploy("1.0.0", endpoint="tests.engine:agent"))
    configuration.forget()
    build = request.build

    def promote_in_between(*args: Any, **kwargs: Any) -> Any:
        if production() == "1.0.0":
            promote(deploy("2.0.0"))
            configuration.forget()
        return build(*args, **kwargs)

    monkeypatch.setattr(request, "build", promote_in_between)
    first, second = running.submit(tenant, "scribe", count=2)
    running.deliver()
    running.drain()

    assert production() == "2.0.0"
    (called,) = running.agent.calls
    assert (called.settings.version, called.settings.endpoint) == ("1.0.0", "tests.engine:agent")
    versions = {running.runs(tenant, each)[0].agent_version for each in (first, second)}
    assert versions == {"1.0.0", "2.0.0"}
    assert running.runs(tenant, called.activity_id)[0].agent_version == "1.0.0"


def test_a_retry_runs_the_version_that_is_in_production_then(running: Engine, tenant: Tenant) -> None:
    promote(deploy("1.0.0", endpoint="tests.engine:agent"))
    configuration.forget()

    def fail_and_be_replaced(call: Any) -> Any:
        if call.settings.version == "1.0.0":
            promote(deploy("2.0.0", endpoint="tests.engine:agent"))
            configuration.forget()
            raise RetryableAgentError("busy")
        return Completed(Output(content="done"))

    running.agent.behaviour = fail_and_be_replaced
    (activity_id,) = running.submit(tenant, "scribe")
    running.drain()
    running.make_due(tenant)
    running.drain()

    runs = sorted(running.runs(tenant, activity_id), key=lambda run: int(run.fence))
    assert [(run.agent_version, run.status) for run in runs] == [("1.0.0", "failed"), ("2.0.0", "completed")]
