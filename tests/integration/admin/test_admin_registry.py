"""The registry in the admin: agents are validated as in the API, versions are deployed by buttons, and agents in use stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from agents import deployments
from agents.exceptions import AgentInUse
from agents.models import Agent, AgentVersionDeployment
from pipelines import versions
from tenants.context import system_scope
from tenants.models import Membership, Tenant
from tests.browsing import list_url, messages_of, no_inlines, page_url, run_action, visible_text
from tests.cases import in_one_test
from tests.forms import forms_of
from tests.registry import temporary_agent


@pytest.fixture(autouse=True)
def scribe(database: None) -> Iterator[Agent]:
    with temporary_agent("scribe", health="healthy", health_failures=1) as agent:
        yield agent


@pytest.fixture
def flow(tenant: Tenant) -> None:
    steps = [{"id": "a", "agent_role": "scribe"}]
    versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": steps}, actor="test")


def now() -> Agent:
    with system_scope():
        return Agent.objects.get(role="scribe")


def save(browser: Client, agent: Agent, **fields: str) -> HttpResponse:
    form = browser.get(page_url(agent)).context["adminform"].form
    sent = {name: value for name, value in form.initial.items() if value is not None and value is not False}
    sent |= {"options": "{}", "retry": "{}", "input_schema": "null"} | no_inlines("deployments")
    return browser.post(
        page_url(agent), {name: value for name, value in (sent | fields).items() if value != ""}
    )


def deploy(version: str, environment: str = "staging") -> AgentVersionDeployment:
    return deployments.deploy("scribe", version, environment, actor="test")


def in_production() -> str:
    deployment = deployments.in_production("scribe")
    return deployment.version if deployment else ""


def test_changing_an_agent_keeps_its_health(scribe: Agent, root: Client) -> None:
    assert save(root, scribe, name="Better", retry='{"max_attempts": 2}').status_code == 302

    changed = now()
    assert (changed.name, changed.retry, changed.revision) == ("Better", {"max_attempts": 2}, 2)
    assert (changed.health, changed.health_failures) == ("healthy", 1)


def test_a_new_endpoint_resets_the_health_to_unknown(scribe: Agent, root: Client, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9",)

    assert save(root, scribe, endpoint="http://127.0.0.1:9/").status_code == 302

    assert (now().health, now().health_failures, now().health_due_at) == ("unknown", 0, None)


@in_one_test(
    ("field", "value", "fault"),
    [
        ("retry", '{"tries": 3}', "tries: is not a member of this object"),
        ("retry", '{"max_attempts": 0}', "max_attempts: must be at least 1"),
        ("input_schema", '{"type": "nonsense"}', "is not a valid JSON Schema: type"),
        ("input_schema", '{"$ref": "https://example.com/s"}', "is not a usable JSON Schema"),
        ("endpoint", "http://10.0.0.1/", "https"),
        ("health_url", "http://169.254.169.254/", "https"),
        ("auth", '{"type": "bearer", "token": ""}', "token: "),
        ("auth", '{"type": "oauth"}', "type: must be one of"),
        (
            "auth",
            '{"type": "header", "name": "Host", "value": "v"}',
            "name: is a header that the protocol itself sets",
        ),
    ],
)
def test_invalid_settings_are_refused_at_their_field(
    field: str, value: str, fault: str, scribe: Agent, root: Client
) -> None:
    page = save(root, scribe, **{field: value})

    assert page.status_code == 200
    assert any(fault in error for error in page.context["adminform"].form.errors[field]), page.context[
        "errors"
    ]
    assert now().revision == 1


def test_a_version_can_be_deployed_promoted_and_rolled_back(scribe: Agent, root: Client) -> None:
    fields = {"agent": "scribe", "version": "1.0.0", "environment": "production"}
    assert root.post(f"{list_url(AgentVersionDeployment)}add/", fields).status_code == 302
    fields |= {"version": "1.1.0", "environment": "staging"}
    assert root.post(f"{list_url(AgentVersionDeployment)}add/", fields).status_code == 302
    staged = deployments.history("scribe")[0]
    assert (staged.deployed_by, in_production()) == ("user:root", "1.0.0")

    page = root.get(page_url(scribe)).content.decode()
    promote = f"/admin/agents/agentversiondeployment/{staged.pk}/promote/"
    assert promote in page
    assert "This version will serve all tenants" in visible_text(root.get(promote))
    assert in_production() == "1.0.0", "opening the page changes nothing"
    run_action(root, AgentVersionDeployment, "promote_selected", staged, confirmed="1")
    assert in_production() == "1.1.0"
    again = run_action(root, AgentVersionDeployment, "promote_selected", staged, confirmed="1")
    assert "1.1.0 is in production already" in messages_of(again)[-1]

    assert "Roll back" in visible_text(root.get("/admin/agents/agent/scribe/roll-back/"))
    run_action(root, Agent, "roll_back_selected", scribe, confirmed="1")
    assert in_production() == "1.0.0"
    refused = run_action(root, Agent, "roll_back_selected", scribe, confirmed="1")
    assert "No version of 'scribe' was in production before" in messages_of(refused)[-1]
    shown = visible_text(root.get(page_url(scribe)))
    assert re.search(r"1\.1\.0 formerly production .* by user:root Promote to production", shown)


@in_one_test("version", ["1.0", "latest", "01.0.0"])
def test_only_a_semantic_version_can_be_deployed(version: str, scribe: Agent, root: Client) -> None:
    page = root.post(
        f"{list_url(AgentVersionDeployment)}add/",
        {"agent": "scribe", "version": version, "environment": "staging"},
    )

    assert "must be a semantic version" in page.content.decode()


def test_a_deployment_cannot_be_changed_or_deleted(scribe: Agent, root: Client) -> None:
    row = deploy("1.0.0")

    assert root.post(page_url(row), {"version": "9.9.9"}).status_code == 403
    assert root.post(f"{page_url(row).removesuffix('change/')}delete/", {"post": "yes"}).status_code == 403
    assert root.get(f"{list_url(Agent)}scribe/deploy/")["Location"].endswith(
        "/agentversiondeployment/add/?agent=scribe"
    )


def test_check_now_makes_the_health_check_due(scribe: Agent, root: Client) -> None:
    with system_scope():
        Agent.objects.filter(role="scribe").update(health_due_at="2030-01-01T00:00:00Z")

    run_action(root, Agent, "check_now_selected", scribe, confirmed="1")

    assert (now().health_due_at, now().health) == (None, "healthy")


def test_an_agent_in_use_cannot_be_deleted_and_is_disabled_with_a_warning(
    scribe: Agent, flow: None, root: Client
) -> None:
    address = f"{list_url(Agent)}scribe/delete/"
    assert "pipeline flow (acme)" in visible_text(root.get(address))
    root.post(address, {"post": "yes"})
    assert now().enabled

    assert "pipeline flow acme" in visible_text(root.get(page_url(scribe)))
    form = root.get(page_url(scribe)).context["adminform"].form
    sent = {
        "name": "Scribe",
        "adapter": "http",
        "tenant_concurrency": "5",
        "options": "{}",
        "retry": "{}",
        "input_schema": "null",
    }
    answer = root.post(page_url(scribe), sent | no_inlines("deployments"))
    assert form.instance.enabled
    assert answer.status_code == 302
    assert "scribe is switched off and still needed by pipeline flow (acme)." in messages_of(answer)
    assert not now().enabled


def test_an_agent_that_came_into_use_meanwhile_stays_and_the_list_says_why(
    scribe: Agent, root: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(role: str, *, revision: int) -> None:
        raise AgentInUse(f"The agent {role} cannot be deleted.")

    monkeypatch.setattr("agents.registry.remove", refuse)
    selected = {"action": "delete_selected", "_selected_action": [scribe.pk], "post": "yes"}

    answer = root.post(list_url(Agent), selected)

    assert answer.status_code == 302
    assert "The agent scribe cannot be deleted." in messages_of(answer)
    assert now().enabled


def test_an_unused_agent_is_deleted_with_its_versions(scribe: Agent, root: Client) -> None:
    deploy("1.0.0", "production")

    answer = root.post(f"{list_url(Agent)}scribe/delete/", {"post": "yes"})

    assert answer.status_code == 302
    with system_scope():
        assert not Agent.objects.filter(role="scribe").exists()
        assert not AgentVersionDeployment.objects.filter(agent_id="scribe").exists()


def test_the_list_shows_version_and_health(scribe: Agent, root: Client) -> None:
    deploy("2.0.0", "production")

    assert "scribe Scribe HTTP 2.0.0 unknown" in visible_text(root.get(f"{list_url(Agent)}?q=scribe"))


@pytest.mark.parametrize(
    "address", ["scribe/change/", "scribe/roll-back/", "scribe/check-now/", "scribe/delete/", ""]
)
def test_staff_of_a_tenant_cannot_open_the_registry(address: str, scribe: Agent, tenant: Tenant) -> None:
    mia = User.objects.create_user("mia", is_staff=True)
    with system_scope():
        Membership.objects.create(tenant=tenant, user=mia, role="admin")
    browser = Client()
    browser.force_login(mia)

    assert browser.get(f"{list_url(Agent)}{address}").status_code == 403
    assert browser.post(f"{list_url(Agent)}{address}", {}).status_code == 403


@pytest.mark.parametrize(("adapter", "limit"), [("cli", "10"), ("inline", "no limit")])
def test_the_bound_of_the_runaway_guard_is_shown(
    scribe: Agent, root: Client, adapter: str, limit: str
) -> None:
    Agent.objects.filter(pk=scribe.pk).update(adapter=adapter, options={})

    assert f"Starts a minute for each worker {limit}" in visible_text(root.get(page_url(scribe)))


@in_one_test("entered", ["", "null", '""'], ids=["empty", "null", "empty text"])
def test_an_emptied_json_setting_is_stored_as_empty(scribe: Agent, root: Client, entered: str) -> None:
    with system_scope():
        Agent.objects.filter(role="scribe").update(retry={"max_attempts": 2}, options={"effort": "high"})
    form = forms_of(root.get(page_url(scribe)))["agent_form"]
    form.action = page_url(scribe)

    answer = form.send(root, retry=entered, backlog=entered, options=entered)

    assert answer.status_code == 302, visible_text(answer)
    assert (now().retry, now().backlog, now().options) == ({}, {}, {})
