"""How providers stand, on the API and in the admin: everybody sees what concerns them, and nobody a credential."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agents import configuration, credentials
from agents.contracts import AdapterSettings
from agents.governor import Call, Outcome, providers
from agents.governor.providers import Provider, provider_of
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.integration.test_api_access import problem

PROVIDERS = "/api/v1/providers/"
PLACE = "models.example:443"
ENDPOINT = f"https://{PLACE}/v1"


@pytest.fixture(autouse=True)
def a_fresh_memory(database: None) -> Iterator[None]:
    configuration.forget()
    yield
    configuration.forget()


@pytest.fixture
def shared() -> Iterator[Provider]:
    """The role seo calls a provider with the platform's credential."""
    auth = {"type": "bearer", "token": "platforms-key"}
    sealed = credentials.seal(auth, context=credentials.agent_context("seo"))
    before = Agent.objects.filter(role="seo").values("adapter", "endpoint", "model", "auth_sealed").get()
    Agent.objects.filter(role="seo").update(
        adapter="openai", endpoint=ENDPOINT, model="m", auth_sealed=sealed
    )
    yield called(provider_of(AdapterSettings("openai", ENDPOINT, auth)))
    Agent.objects.filter(role="seo").update(**before)


def called(provider: Provider) -> Provider:
    """It was called once, and went well."""
    providers._noted.clear()
    providers.note_call(provider)
    call = Call("one", 60.0)
    provider.governor.acquire(call)
    provider.governor.report(call, Outcome.OK)
    return provider


def own_credential(tenant: Tenant, key: str) -> Provider:
    auth = {"type": "bearer", "token": key}
    with tenant_scope(tenant.pk):
        sealed = credentials.seal(auth, context=credentials.config_context(tenant.pk, "qa"))
        AgentConfig.objects.create(
            tenant=tenant,
            agent_id="qa",
            adapter="anthropic",
            endpoint="https://models.example",
            model="m",
            auth_sealed=sealed,
        )
    return called(provider_of(AdapterSettings("anthropic", "https://models.example", auth)))


def listed(client: Any) -> list[dict[str, Any]]:
    answer = client.get(PROVIDERS)
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def test_a_tenant_sees_of_a_shared_provider_how_it_stands_and_no_figures(
    api: Any, tenant: Tenant, shared: Provider
) -> None:
    (found,) = listed(api("viewer"))

    assert (found["adapter"], found["place"], found["roles"], found["state"]) == (
        "openai",
        PLACE,
        ["seo"],
        "ready",
    )
    assert [found[name] for name in ("under_way", "slots", "used", "limits", "counts")] == [None] * 5


def test_a_tenant_sees_the_figures_of_its_own_credential_and_others_see_nothing_of_it(
    api: Any, tenant: Tenant, other_tenant: Tenant
) -> None:
    own_credential(tenant, "tenants-own-key")

    (found,) = listed(api("viewer"))

    assert (found["roles"], found["counts"]) == (["qa"], {"ok": 1})
    assert listed(api("admin", other_tenant)) == []


def test_an_open_breaker_is_seen_by_whoever_calls_the_provider(
    api: Any, tenant: Tenant, shared: Provider
) -> None:
    for number in range(5):
        call = Call(f"fault-{number}", 60.0)
        shared.governor.acquire(call)
        shared.governor.report(call, Outcome.FAULT)

    (found,) = listed(api("viewer"))

    assert found["state"] == "breaker_open"
    assert 50 < found["breaker_seconds"] <= 60


def test_the_platform_sees_all_of_them_with_their_figures_and_no_credential(
    api: Any, tenant: Tenant, other_tenant: Tenant, shared: Provider
) -> None:
    own_credential(other_tenant, "tenants-own-key")

    found = listed(api("admin", tenant, platform=True))

    assert [(each["adapter"], each["counts"]) for each in found] == [
        ("anthropic", {"ok": 1}),
        ("openai", {"ok": 1}),
    ]
    assert "key" not in str(found).replace("tokens", "")


def test_an_unknown_parameter_is_refused(api: Any, tenant: Tenant) -> None:
    problem(api("viewer").get(f"{PROVIDERS}?adapter=openai"), 400, "validation_failed")


def test_a_role_that_leads_nowhere_is_not_listed(api: Any, tenant: Tenant, settings: Any) -> None:
    settings.ANTHROPIC_API_KEY = ""
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="qa", adapter="anthropic")

    assert listed(api("viewer")) == []


def test_the_platforms_credential_does_not_follow_a_tenant_to_another_adapter(
    tenant: Tenant, shared: Provider
) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="seo", adapter="anthropic")
    configuration.forget()

    chosen = configuration.settings_for(tenant.pk, "seo").adapter

    assert (chosen.adapter, chosen.endpoint, chosen.auth) == ("anthropic", None, {})


def test_a_tenant_may_choose_a_models_adapter_without_an_endpoint(api: Any, tenant: Tenant) -> None:
    answer = api("admin").put("/api/v1/agent-configs/qa/", {"adapter": "anthropic", "model": "m-1"})

    assert answer.status_code == 200, answer.content


def test_the_admin_shows_them_to_superusers_alone(shared: Provider) -> None:
    root, staff = Client(), Client()
    root.force_login(User.objects.create_superuser("root", "root@example.com", "a long password"))
    staff.force_login(User.objects.create_user("staff", is_staff=True))

    page = root.get("/admin/providers/")

    assert page.status_code == 200
    assert PLACE in page.content.decode()
    assert "platforms-key" not in page.content.decode()
    assert staff.get("/admin/providers/").status_code == 403
    assert Client().get("/admin/providers/").status_code == 302
