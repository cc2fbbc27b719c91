"""The registry over the API: only platform admins change it, and no answer contains a credential."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import configuration, credentials
from agents.models import Agent
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.registry import temporary_agent

pytestmark = pytest.mark.usefixtures("database")

AGENTS = "/api/v1/agents/"
SCRIBE = f"{AGENTS}scribe/"
NEW = {"role": "scribe", "name": "Scribe", "endpoint": "http://127.0.0.1:9/scribe"}


@pytest.fixture(autouse=True)
def allow_the_endpoint(database: None, settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9",)
    yield
    Agent.objects.filter(role="scribe").delete()
    configuration.forget()


@pytest.fixture
def platform(api: Any, tenant: Tenant) -> Any:
    return api(platform=True, name="platform")


@pytest.fixture
def scribe(allow_the_endpoint: None) -> Iterator[Agent]:
    with temporary_agent("scribe", endpoint=NEW["endpoint"]) as agent:
        yield agent


def paths(response: Any) -> set[str]:
    return {error["path"] for error in problem(response, 400, "validation_failed")["errors"]}


def test_an_agent_is_added_with_credentials_that_are_never_returned(platform: Any) -> None:
    body = {
        **NEW,
        "auth": {"type": "bearer", "token": "s3cret"},
        "timeout_seconds": 30,
        "retry": {"max_attempts": 2},
    }

    answer = platform.post(AGENTS, body)

    agent_read = answer.json()
    assert (answer.status_code, answer["Location"], version_of(answer)) == (201, SCRIBE, "1")
    assert (agent_read["endpoint"], agent_read["auth"], agent_read["timeout_seconds"]) == (
        NEW["endpoint"],
        {"set": True},
        30,
    )
    assert "s3cret" not in answer.content.decode()
    agent = Agent.objects.get(role="scribe")
    assert (
        credentials.unseal(agent.auth_sealed, context=credentials.agent_context("scribe"))["token"]
        == "s3cret"
    )
    problem(platform.post(AGENTS, NEW), 409, "already_exists")


def test_a_repeated_request_adds_one_agent(platform: Any) -> None:
    answers = [platform.post(AGENTS, NEW, headers={"Idempotency-Key": "k"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1]["Idempotency-Replayed"] == "true"


def test_omitted_members_stay_with_patch_and_are_reset_with_put(platform: Any, scribe: Agent) -> None:
    platform.patch(SCRIBE, {"timeout_seconds": 30, "auth": {"type": "bearer", "token": "t"}})

    result = platform.patch(SCRIBE, {"model": "m"}).json()
    assert (result["timeout_seconds"], result["auth"], result["model"]) == (30, {"set": True}, "m")
    assert platform.patch(SCRIBE, {"timeout_seconds": None}).json()["timeout_seconds"] is None

    result = platform.put(SCRIBE, {"name": "Other"}).json()
    assert (result["name"], result["endpoint"], result["auth"], result["model"]) == (
        "Other",
        "",
        {"set": False},
        "",
    )


def test_credentials_are_kept_when_the_request_says_so(platform: Any, scribe: Agent) -> None:
    platform.patch(SCRIBE, {"auth": {"type": "bearer", "token": "t"}})

    answer = platform.put(SCRIBE, {"name": "Scribe", "auth": {"type": "bearer", "set": True}})

    assert answer.json()["auth"] == {"set": True}
    sent_back = platform.put(SCRIBE, platform.get(SCRIBE).json())
    assert (sent_back.status_code, sent_back.json()["auth"]) == (200, {"set": True})
    assert paths(platform.patch(SCRIBE, {"auth": {"type": "basic", "set": True}})) == {"auth.set"}


@in_one_test(
    ("body", "path"),
    [
        ({"role": "Bad Role"}, "role"), ({"name": ""}, "name"), ({"colour": "red"}, "colour"),
        ({"endpoint": "http://10.0.0.1/"}, "endpoint"), ({"endpoint": "ftp://x"}, "endpoint"),
        ({"health_url": "http://169.254.169.254/"}, "health_url"), ({"adapter": "inline"}, "endpoint"),
        ({"input_schema": {"type": "nonsense"}}, "input_schema"),
        ({"input_schema": {"$ref": "https://example.com/schema"}}, "input_schema"),
        ({"input_schema": {"pattern": "("}}, "input_schema"),
        ({"input_schema": []}, "input_schema"), ({"tenant_concurrency": 0}, "tenant_concurrency"),
        ({"retry": {"tries": 1}}, "retry.tries"), ({"auth": {"type": "bearer"}}, "auth.token"),
        ({"timeout_seconds": "5"}, "timeout_seconds"), ({"health": "healthy"}, "health"),
        ({"options": {"estimate_usd": "lots"}}, "options.estimate_usd"), ({"options": {"estimate_usd": True}}, "options.estimate_usd"),
        ({"options": {"estimate_usd": 1e17}}, "options.estimate_usd"), ({"options": {"estimate_tokens": -4}}, "options.estimate_tokens"),
        ({"options": {"starts_per_minute": "3"}}, "options.starts_per_minute"),
        ({"options": {"signed_callbacks": "true"}}, "options.signed_callbacks"),
    ],
)  # fmt: skip
def test_an_invalid_agent_is_refused_with_its_path(platform: Any, body: dict[str, Any], path: str) -> None:
    assert path in paths(platform.post(AGENTS, {**NEW, **body}))
    assert not Agent.objects.filter(role="scribe").exists()


def test_a_change_needs_the_current_version(platform: Any, scribe: Agent) -> None:
    etag = platform.get(SCRIBE)["ETag"]
    assert platform.patch(SCRIBE, {"model": "a"}, headers={"If-Match": etag}).status_code == 200

    problem(platform.patch(SCRIBE, {"model": "b"}, headers={"If-Match": etag}), 412, "precondition_failed")
    problem(platform.delete(SCRIBE, headers={"If-Match": etag}), 412, "precondition_failed")
    problem(platform.post(f"{SCRIBE}rollback/", headers={"If-Match": etag}), 412, "precondition_failed")


@in_one_test(
    ("method", "address"),
    [
        ("post", AGENTS), ("put", SCRIBE), ("patch", SCRIBE), ("delete", SCRIBE), ("post", f"{SCRIBE}check/"),
        ("post", f"{SCRIBE}deployments/"), ("post", f"{SCRIBE}rollback/"),
        ("post", f"{SCRIBE}deployments/0192f000-0000-7000-8000-000000000000/promote/"),
    ],
)  # fmt: skip
@in_one_test("token", [{}, {"role": "viewer"}, {"platform": True, "role": "operator"}])
def test_only_a_platform_admin_changes_the_registry(
    api: Any, tenant: Tenant, scribe: Agent, method: str, address: str, token: dict[str, Any]
) -> None:
    problem(getattr(api(**token), method)(address, {}), 403, "forbidden")


def test_only_platform_admins_see_addresses(api: Any, platform: Any, scribe: Agent) -> None:
    platform.post(f"{SCRIBE}deployments/", {"version": "1.0.0", "environment": "staging"})

    assert {"endpoint", "health_url", "health_detail"} <= platform.get(SCRIBE).json().keys()
    assert not {"endpoint", "health_url", "health_detail", "auth"} & api("viewer").get(SCRIBE).json().keys()
    (deployment,) = api("viewer").get(f"{SCRIBE}deployments/").json()["results"]
    assert "endpoint" not in deployment


def test_a_version_goes_from_staging_to_production_and_back(platform: Any, scribe: Agent) -> None:
    opened = []
    for version in ("1.0.0", "1.1.0"):
        answer = platform.post(f"{SCRIBE}deployments/", {"version": version, "environment": "staging"})
        assert answer.status_code == 201
        opened.append(platform.post(f"{SCRIBE}deployments/{answer.json()['id']}/promote/").json())

    assert [each["environment"] for each in opened] == ["production", "production"]
    assert platform.get(SCRIBE).json()["version"] == "1.1.0"
    again = platform.post(f"{SCRIBE}deployments/{opened[1]['id']}/promote/")
    problem(again, 409, "already_in_production")

    restored = platform.post(f"{SCRIBE}rollback/").json()

    assert (restored["version"], platform.get(SCRIBE).json()["version"]) == ("1.0.0", "1.0.0")
    assert (
        "Deploy the version"
        in problem(platform.post(f"{SCRIBE}rollback/"), 409, "nothing_to_roll_back_to")["detail"]
    )
    now = platform.get(f"{SCRIBE}deployments/?environment=production&current=true").json()["results"]
    assert [each["version"] for each in now] == ["1.0.0"]
    former = platform.get(f"{SCRIBE}deployments/?environment=production&current=false").json()["results"]
    assert [(each["version"], each["replaced_by"]) for each in former] == [
        ("1.1.0", "token:platform"),
        ("1.0.0", "token:platform"),
    ]


@in_one_test(
    ("body", "path"),
    [
        ({"version": "1.0", "environment": "staging"}, "version"), ({"version": "1.0.0"}, "environment"),
        ({"version": "1.0.0", "environment": "moon"}, "environment"),
        ({"version": "1.0.0", "environment": "staging", "endpoint": "http://10.0.0.1/"}, "endpoint"),
    ],
)  # fmt: skip
def test_an_invalid_deployment_is_refused_with_its_path(
    platform: Any, scribe: Agent, body: dict[str, Any], path: str
) -> None:
    assert paths(platform.post(f"{SCRIBE}deployments/", body)) == {path}


@in_one_test("address", ["deployments/", "rollback/", "check/"])
def test_an_unknown_role_is_404(platform: Any, address: str) -> None:
    body = {"version": "1.0.0", "environment": "staging"} if address == "deployments/" else {}

    problem(platform.post(f"{AGENTS}nobody/{address}", body), 404, "not_found")
    problem(platform.patch(f"{AGENTS}nobody/", {}), 404, "not_found")


def test_a_change_takes_effect_with_the_next_run(platform: Any, tenant: Tenant, scribe: Agent) -> None:
    with tenant_scope(tenant.pk):
        assert configuration.settings_for(tenant.pk, "scribe").timeout_seconds == 660

    platform.patch(SCRIBE, {"timeout_seconds": 20})
    answer = platform.post(f"{SCRIBE}deployments/", {"version": "3.0.0", "environment": "production"})

    assert answer.status_code == 201
    settings_now = configuration.settings_for(tenant.pk, "scribe")
    assert (settings_now.timeout_seconds, settings_now.adapter.version) == (20, "3.0.0")
