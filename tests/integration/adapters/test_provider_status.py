"""The status of providers in the API and the admin. Nobody sees a credential."""

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
from tests.answers import problem

PROVIDERS = "/api/v1/providers/"
PLACE = "models.example:443"
ENDPOINT = f"https://{PLACE}/v1"


@pytest.fixture(autouse=True)
def empty_cache(database: None) -> Iterator[None]:
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
    yield record_call(provider_of(AdapterSettings("openai", ENDPOINT, auth)))
    Agent.objects.filter(role="seo").update(**before)


def record_call(provider: Provider) -> Provider:
    """Record one successful call."""
    providers._noted.clear()
    providers.note_call(provider)
    call = Call("one", 60.0)
    provider.governor.acquire(call)
    provider.governor.report(call, Outcome.OK)
    return provider


def call_with_own_credential(tenant: Tenant, key: str) -> Provider:
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
    return record_call(provider_of(AdapterSettings("anthropic", "https://models.example", auth)))


def list_providers(client: Any) -> list[dict[str, Any]]:
    answer = client.get(PROVIDERS)
    assert answer.status_code == 200, answer.content
    rows: list[dict[str, Any]] = answer.json()["results"]
    return rows


def test_a_tenant_sees_the_state_of_a_shared_provider_but_no_figures(
    api: Any, tenant: Tenant, shared: Provider
) -> None:
    (row,) = list_providers(api("viewer"))

    assert (row["adapter"], row["place"], row["roles"], row["state"]) == (
        "openai",
        PLACE,
        ["seo"],
        "ready",
    )
    assert [row[name] for name in ("under_way", "slots", "used", "limits", "counts")] == [None] * 5


def test_a_tenant_sees_the_figures_of_its_own_credential_and_no_other_tenant_does(
    api: Any, tenant: Tenant, other_tenant: Tenant
) -> None:
    call_with_own_credential(tenant, "tenants-own-key")

    (row,) = list_providers(api("viewer"))

    assert (row["roles"], row["counts"]) == (["qa"], {"ok": 1})
    assert list_providers(api("admin", other_tenant)) == []


def test_tenants_that_call_a_provider_see_its_open_breaker(
    api: Any, tenant: Tenant, shared: Provider
) -> None:
    for number in range(5):
        call = Call(f"fault-{number}", 60.0)
        shared.governor.acquire(call)
        shared.governor.report(call, Outcome.FAULT)

    (row,) = list_providers(api("viewer"))

    assert row["state"] == "breaker_open"
    assert 50 < row["breaker_seconds"] <= 60


def test_platform_admins_see_all_providers_with_figures_and_no_credential(
    api: Any, tenant: Tenant, other_tenant: Tenant, shared: Provider
) -> None:
    call_with_own_credential(other_tenant, "tenants-own-key")

    rows = list_providers(api("admin", tenant, platform=True))

    assert [(each["adapter"], each["counts"]) for each in rows] == [
        ("anthropic", {"ok": 1}),
        ("openai", {"ok": 1}),
    ]
    assert "key" not in str(rows).replace("tokens", "")


def test_an_unknown_parameter_is_refused(api: Any, tenant: Tenant) -> None:
    problem(api("viewer").get(f"{PROVIDERS}?adapter=openai"), 400, "validation_failed")


def test_a_role_without_a_provider_is_not_listed(api: Any, tenant: Tenant, settings: Any) -> None:
    settings.ANTHROPIC_API_KEY = ""
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="qa", adapter="anthropic")

    assert list_providers(api("viewer")) == []


def test_the_platforms_credential_does_not_follow_a_tenant_to_another_adapter(
    tenant: Tenant, shared: Provider
) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="seo", adapter="anthropic")
    configuration.forget()

    chosen = configuration.settings_for(tenant.pk, "seo").adapter

    assert (chosen.adapter, chosen.endpoint, chosen.auth) == ("anthropic", None, {})


def test_a_tenant_may_choose_the_adapter_of_a_model_without_an_endpoint(api: Any, tenant: Tenant) -> None:
    answer = api("admin").put("/api/v1/agent-configs/qa/", {"adapter": "anthropic", "model": "m-1"})

    assert answer.status_code == 200, answer.content


def test_the_admin_lists_providers_for_superusers_only(shared: Provider) -> None:
    root, staff = Client(), Client()
    root.force_login(User.objects.create_superuser("root", "root@example.com", "a long password"))
    staff.force_login(User.objects.create_user("staff", is_staff=True))

    page = root.get("/admin/providers/")

    assert page.status_code == 200
    assert PLACE in page.content.decode()
    assert "platforms-key" not in page.content.decode()
    assert staff.get("/admin/providers/").status_code == 403
    assert Client().get("/admin/providers/").status_code == 302
