"""The registry of agents and the settings of a tenant, which are merged, validated, sealed and in force at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import configuration, credentials
from agents.models import Agent, AgentConfig, AgentVersionDeployment
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import simultaneously

pytestmark = pytest.mark.usefixtures("database")

AGENTS, CONFIGS = "/api/v1/agents/", "/api/v1/agent-configs/"
HTTP = {"adapter": "http", "endpoint": "http://127.0.0.1:9/agent"}


@pytest.fixture(autouse=True)
def a_fresh_memory(settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9",)
    configuration.forget()
    yield
    configuration.forget()


@pytest.fixture
def deployments(database: None) -> Iterator[None]:
    for version, environment in (("1.0.0", "production"), ("1.1.0", "staging")):
        AgentVersionDeployment.objects.create(
            agent_id="seo", version=version, environment=environment, endpoint="http://127.0.0.1:9/v"
        )
    yield
    AgentVersionDeployment.objects.filter(agent_id="seo").delete()


def config(client: Any, role: str = "seo") -> dict[str, Any]:
    return dict(client.get(f"{CONFIGS}{role}/").json())


def put(client: Any, body: dict[str, Any], role: str = "seo", **headers: str) -> Any:
    return client.put(f"{CONFIGS}{role}/", body, headers=headers)


def paths(response: Any) -> set[str]:
    return {error["path"] for error in problem(response, 400, "validation_failed")["errors"]}


# The registry


def test_the_registry_lists_every_role(api: Any, tenant: Tenant) -> None:
    results = api("viewer").get(f"{AGENTS}?limit=200").json()["results"]

    assert [agent["role"] for agent in results] == sorted(
        Agent.objects.filter().values_list("role", flat=True)
    )
    assert results[0].keys() >= {
        "role",
        "name",
        "description",
        "queue",
        "version",
        "tenant_concurrency",
        "input_schema",
        "enabled",
        "paused",
    }


def test_a_role_is_returned_with_its_queue_and_production_version(
    api: Any, tenant: Tenant, deployments: None
) -> None:
    answer = api("viewer").get(f"{AGENTS}seo/")

    assert (answer.json()["queue"], answer.json()["version"]) == ("agent__seo", "1.0.0")
    assert answer["ETag"]


def test_the_registry_can_be_searched_and_contains_no_addresses_or_secrets(api: Any, tenant: Tenant) -> None:
    results = api().get(f"{AGENTS}?search=keyword&enabled=true").json()["results"]

    assert [agent["role"] for agent in results] == ["keyword-researcher"]
    assert not {"endpoint", "auth", "auth_sealed", "options"} & results[0].keys()
    problem(api().get(f"{AGENTS}?colour=red"), 400, "validation_failed")


def test_the_versions_of_a_role_are_listed_newest_first(api: Any, tenant: Tenant, deployments: None) -> None:
    results = api("viewer").get(f"{AGENTS}seo/deployments/").json()["results"]

    assert [(item["version"], item["environment"]) for item in results] == [
        ("1.1.0", "staging"),
        ("1.0.0", "production"),
    ]
    assert [
        item["version"]
        for item in api().get(f"{AGENTS}seo/deployments/?environment=production").json()["results"]
    ] == ["1.0.0"]


@in_one_test("address", [f"{AGENTS}no-such/", f"{AGENTS}no-such/deployments/", f"{CONFIGS}no-such/"])
def test_an_unknown_role_is_404(api: Any, tenant: Tenant, address: str) -> None:
    problem(api().get(address), 404, "not_found")


# Settings


def test_without_settings_of_its_own_a_tenant_sees_those_of_the_registry(api: Any, tenant: Tenant) -> None:
    answer = api("viewer").get(f"{CONFIGS}keyword-researcher/")

    assert answer.json() == {
        "role": "keyword-researcher", "adapter": "http", "endpoint": None, "auth": None, "model": None, "instructions": None,
        "max_concurrency": 2, "max_concurrency_per_group": 1,
        "timeout_seconds": 660, "retry": {}, "rate": None,
        "backlog": {}, "hears_of_failures": False, "may_hold": {}, "enabled": True, "paused": False,
        "own": [], "version": 0,
    }  # fmt: skip
    assert version_of(answer) == "0"
    assert len(api().get(f"{CONFIGS}?limit=200").json()["results"]) == Agent.objects.filter().count()


def test_settings_apply_at_once_and_are_returned_without_their_secrets(api: Any, tenant: Tenant) -> None:
    body = {
        **HTTP, "max_concurrency": 7, "max_concurrency_per_group": 2, "model": "m-1", "timeout_seconds": 90, "retry": {"max_attempts": 5},
        "instructions": "You research keywords.\n", "hears_of_failures": True,
        "may_hold": {"roles": ["qa"], "groups": ["shop"]},
        "rate": {"capacity": 10, "per_second": 0.5}, "auth": {"type": "bearer", "token": "s3cret-token"},
    }  # fmt: skip

    answer = put(api("admin"), body)

    config_read = answer.json()
    assert answer.status_code == 200
    assert {name: config_read[name] for name in body if name != "auth"} == {
        name: value for name, value in body.items() if name != "auth"
    }
    assert config_read["auth"] == {"type": "bearer", "set": True}
    assert set(config_read["own"]) == set(body)
    assert (config_read["version"], version_of(answer)) == (1, "1")
    assert b"s3cret" not in answer.content + api().get(f"{CONFIGS}seo/").content + api().get(CONFIGS).content
    force = configuration.settings_for(tenant.pk, "seo")
    assert force.instructions == body["instructions"]
    assert (force.adapter.endpoint, force.timeout_seconds, force.retry) == (
        body["endpoint"],
        90,
        {"max_attempts": 5},
    )
    assert force.adapter.auth == {"type": "bearer", "token": "s3cret-token"}


def test_put_replaces_all_settings(api: Any, tenant: Tenant) -> None:
    client = api()
    put(
        client,
        {
            **HTTP,
            "max_concurrency": 7,
            "auth": {"type": "bearer", "token": "t"},
            "retry": {"jitter": 0},
            "enabled": False,
        },
    )

    config_read = put(client, {"model": "m-2"}).json()

    assert (
        config_read["own"],
        config_read["model"],
        config_read["max_concurrency"],
        config_read["auth"],
        config_read["enabled"],
    ) == (
        ["model"],
        "m-2",
        5,
        None,
        True,
    )


def test_secrets_are_sealed_for_their_row_and_tenant(api: Any, tenant: Tenant) -> None:
    put(api(), {"auth": {"type": "basic", "username": "ann", "password": "s3cret"}})

    with tenant_scope(tenant.pk):
        sealed = AgentConfig.objects.get(agent_id="seo").auth_sealed
    assert "s3cret" not in sealed
    opened = credentials.unseal(sealed, context=credentials.config_context(tenant.pk, "seo"))
    assert opened == {"type": "basic", "username": "ann", "password": "s3cret"}


def test_settings_that_were_read_can_be_put_back_and_keep_their_secrets(api: Any, tenant: Tenant) -> None:
    client = api()
    put(client, {**HTTP, "auth": {"type": "header", "name": "X-Key", "value": "s3cret"}})

    config_read = put(client, {**HTTP, "auth": config(client)["auth"], "model": "m"}).json()

    assert config_read["auth"] == {"type": "header", "set": True}
    assert configuration.settings_for(tenant.pk, "seo").adapter.auth["value"] == "s3cret"


@in_one_test(
    ("body", "path"),
    [
        ({"max_concurrency": 0}, "max_concurrency"), ({"max_concurrency": "5"}, "max_concurrency"),
        ({"max_concurrency_per_group": 0}, "max_concurrency_per_group"),
        ({"adapter": "carrier-pigeon"}, "adapter"), ({"endpoint": "ftp://x"}, "endpoint"), ({"endpoint": "http://10.0.0.1/"}, "endpoint"),
        ({"endpoint": "http://127.0.0.1:10/"}, "endpoint"), ({"endpoint": "http://169.254.169.254/latest"}, "endpoint"),
        ({"endpoint": ""}, "endpoint"),
        ({"adapter": "inline"}, "endpoint"), ({"adapter": "inline", "endpoint": "os:system"}, "endpoint"),
        ({"adapter": "inline", "endpoint": "agents.samples.noop"}, "endpoint"),
        ({"adapter": "inline", "endpoint": "agents.samplesx:noop"}, "endpoint"),
        ({"instructions": "x" * 50_001}, "instructions"), ({"instructions": ["be brief"]}, "instructions"),
        ({"timeout_seconds": 0}, "timeout_seconds"), ({"timeout_seconds": 86401}, "timeout_seconds"), ({"enabled": "no"}, "enabled"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"), ({"retry": {"strategy": "hope"}}, "retry.strategy"),
        ({"retry": 3}, "retry"),
        ({"retry": {"tries": 3}}, "retry.tries"), ({"retry": {"base_seconds": 9, "max_seconds": 8}}, "retry.max_seconds"),
        ({"rate": {"capacity": 1}}, "rate.per_second"), ({"rate": {"capacity": 0, "per_second": 1}}, "rate.capacity"),
        ({"auth": "token"}, "auth"), ({"auth": {"type": "oauth"}}, "auth.type"), ({"auth": {"type": "bearer"}}, "auth.token"),
        ({"auth": {"type": "bearer", "token": "t", "value": "v"}}, "auth.value"),
        ({"auth": {"type": "bearer", "token": "a\nb"}}, "auth.token"),
        ({"auth": {"type": "header", "name": "X Key", "value": "v"}}, "auth.name"),
        ({"auth": {"type": "header", "name": "X-Job-Id", "value": "v"}}, "auth.name"),
        ({"auth": {"type": "bearer", "set": True}}, "auth.set"),
        ({"auth": {"type": "bearer", "set": True, "token": "t"}}, "auth.set"), ({"max_concurency": 5}, "max_concurency"),
        ({"paused": True}, "paused"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_with_their_path(
    api: Any, tenant: Tenant, body: dict[str, Any], path: str
) -> None:
    assert path in paths(put(api(), body))
    with tenant_scope(tenant.pk):
        assert not AgentConfig.objects.filter().exists()


def test_an_endpoint_that_cannot_be_called_is_named_with_the_other_errors(api: Any) -> None:
    body = {"endpoint": "https://10.0.0.1/", "rate": {"capacity": 1}, "max_concurency": 5}

    assert set(paths(put(api(), body))) == {"endpoint", "rate.per_second", "max_concurency"}


def test_a_repeated_key_is_refused_because_one_of_its_values_would_be_lost(api: Any, tenant: Tenant) -> None:
    answer = api().generic(
        "PUT", f"{CONFIGS}seo/", b'{"model": "a", "model": "b"}', content_type="application/json"
    )

    problem(answer, 400, "invalid_json")


@in_one_test("endpoint", ["agents.samples:noop", "tests.engine:agent"])
def test_allowed_functions_may_be_run_inline(api: Any, tenant: Tenant, endpoint: str) -> None:
    config_read = put(api(), {"adapter": "inline", "endpoint": endpoint}).json()

    assert (config_read["adapter"], config_read["endpoint"]) == ("inline", endpoint)


def test_another_adapter_needs_an_endpoint_of_its_own(api: Any, tenant: Tenant) -> None:
    assert paths(put(api(), {"adapter": "inline", "max_concurrency": 1})) == {"endpoint"}
    assert put(api(), {"adapter": "http"}).status_code == 200


def test_settings_that_have_changed_since_they_were_read_are_not_replaced(api: Any, tenant: Tenant) -> None:
    client = api()

    assert put(client, {"model": "a"}, **{"If-Match": '"0"'}).status_code == 200
    problem(put(client, {"model": "b"}, **{"If-Match": '"0"'}), 412, "precondition_failed")
    assert put(client, {"model": "c"}, **{"If-Match": '"1"'}).json()["version"] == 2
    assert config(client)["model"] == "c"


def test_one_of_two_simultaneous_changes_of_the_same_version_is_refused(api: Any, tenant: Tenant) -> None:
    client = api()
    put(client, {"model": "a"})

    answers = simultaneously(
        *[lambda n=n: put(api(name=f"n{n}"), {"model": f"m{n}"}, **{"If-Match": '"1"'}) for n in range(4)]
    )

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


def test_two_simultaneous_first_settings_are_both_stored_or_one_is_refused(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{n}") for n in range(4)]

    answers = simultaneously(
        *[lambda c=client, n=n: put(c, {"model": f"m{n}"}) for n, client in enumerate(clients)]
    )

    assert {answer.status_code for answer in answers} <= {200, 409}
    assert config(api())["model"] in {f"m{n}" for n in range(4)}


def test_settings_belong_to_their_tenant(api: Any, tenant: Tenant, other_tenant: Tenant) -> None:
    put(api(tenant=other_tenant), {"model": "theirs"})

    assert (config(api(tenant=tenant))["model"], config(api(tenant=tenant))["version"]) == (None, 0)
    assert {item["version"] for item in api(tenant=tenant).get(f"{CONFIGS}?limit=200").json()["results"]} == {
        0
    }


def test_changing_settings_needs_an_admin(api: Any, tenant: Tenant) -> None:
    assert problem(put(api("operator"), {}), 403, "forbidden")["required_role"] == "admin"
    assert api("viewer").get(CONFIGS).status_code == 200


def test_credentials_whose_key_is_gone_can_still_be_replaced(api: Any, tenant: Tenant, settings: Any) -> None:
    client = api()
    put(client, {"auth": {"type": "bearer", "token": "t"}})
    settings.FIELD_ENCRYPTION_KEYS = ["other:" + "1" * 64]

    assert config(client)["auth"] == {"type": "unreadable", "set": True}
    assert put(client, {"auth": {"type": "bearer", "token": "u"}}).json()["auth"]["type"] == "bearer"
