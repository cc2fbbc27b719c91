"""Authentication of the API, the rights of each role, and access to the platform's admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from tenants import tokens
from tenants.context import current_alias, tenant_scope
from tenants.models import Membership, Role
from tests.answers import problem
from tests.cases import in_one_test
from tests.integration import notes_api
from tests.integration.notes_api import names_of
from tests.superusers import create_superuser

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


def test_without_a_credential_the_answer_is_401_and_says_what_is_wanted(tenant):
    response = APIClient().get(NOTES)

    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"] == "Bearer"


@in_one_test("header", ["Bearer orc_" + "a" * 43, "Bearer", "Bearer two words", "bearer x", "Bearer \xff"])
def test_a_wrong_bearer_token_is_401(tenant, header):
    response = APIClient().get(NOTES, HTTP_AUTHORIZATION=header)

    problem(response, 401, "invalid_token")
    assert response["WWW-Authenticate"] == "Bearer"


def test_another_scheme_counts_as_no_credential(tenant):
    problem(APIClient().get(NOTES, HTTP_AUTHORIZATION="Basic YTpi"), 401, "not_authenticated")


@in_one_test("query", ["token=abc", "access_token=abc", "API_KEY=abc", "q=orc_" + "a" * 43])
def test_a_secret_in_the_address_is_refused_even_with_a_valid_header(api, query):
    problem(api().get(f"{NOTES}?{query}"), 400, "token_in_query")
    problem(APIClient().get(f"{NOTES}?{query}"), 400, "token_in_query")


def test_a_token_gives_access_to_its_own_tenant_only(api, tenant, other_tenant):
    client = api(tenant=tenant)

    answer = client.post(
        NOTES,
        {"name": "mine", "tenant": str(other_tenant.pk), "tenant_id": str(other_tenant.pk)},
        headers={"X-Tenant": "globex", "X-Tenant-Id": str(other_tenant.pk)},
    )

    assert answer.status_code == 201
    assert (names_of(tenant), names_of(other_tenant)) == (["mine"], [])


@pytest.fixture
def ann(tenant) -> User:
    user = User.objects.create_user("ann")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=Role.OPERATOR)
    return user


def signed_in(user: User, **options) -> Client:
    client = APIClient(**options)
    client.force_login(user)
    return client


def test_a_member_who_signed_in_reads_their_tenant(ann, tenant):
    assert signed_in(ann).get(NOTES).json()["results"] == []


def test_a_session_may_change_something_only_with_a_csrf_token(ann, tenant):
    client = signed_in(ann, enforce_csrf_checks=True)

    problem(client.post(NOTES, {"name": "forged"}), 403, "csrf_failed")
    client.cookies["csrftoken"] = "a" * 32
    allowed = client.post(NOTES, {"name": "wanted"}, headers={"X-CSRFToken": "a" * 32})

    assert allowed.status_code == 201
    assert names_of(tenant) == ["wanted"]


def test_a_member_cannot_choose_a_tenant_without_membership(ann, other_tenant):
    problem(signed_in(ann).get(NOTES, headers={"X-Tenant": "globex"}), 403, "not_a_member")


def test_a_member_of_several_tenants_must_name_one(ann, other_tenant):
    with tenant_scope(other_tenant.pk):
        Membership.objects.create(tenant=other_tenant, user=ann, role=Role.VIEWER)
    client = signed_in(ann)

    refused = problem(client.get(NOTES), 403, "tenant_not_named")

    assert "acme, globex" in refused["detail"]
    assert client.get(NOTES, headers={"X-Tenant": "globex"}).status_code == 200


def test_a_superuser_must_name_a_tenant_and_may_name_any(tenant):
    client = signed_in(create_superuser())

    problem(client.get(NOTES), 403, "tenant_not_named")
    problem(client.get(NOTES, headers={"X-Tenant": "nowhere"}), 403, "not_a_member")
    assert client.get(NOTES, headers={"X-Tenant": "acme"}).status_code == 200


# Rights of roles


@in_one_test(
    ("role", "statuses"),
    [
        ("viewer", {"get": 200, "decide": 403, "post": 403, "delete": 403}),
        ("reviewer", {"get": 200, "decide": 200, "post": 403, "delete": 403}),
        ("operator", {"get": 200, "decide": 200, "post": 201, "delete": 403}),
        ("admin", {"get": 200, "decide": 200, "post": 201, "delete": 204}),
    ],
)
def test_each_role_includes_the_ones_below_it(api, role, statuses):
    note = api("admin").post(NOTES, {"name": "work"}).json()["id"]
    client = api(role)

    assert client.get(f"{NOTES}{note}/").status_code == statuses["get"]
    assert client.post(f"{NOTES}{note}/decide/").status_code == statuses["decide"]
    assert client.post(NOTES, {"name": "more"}).status_code == statuses["post"]
    assert client.delete(f"{NOTES}{note}/").status_code == statuses["delete"]


def test_a_refusal_names_the_role_that_is_needed(api):
    refused = problem(api("viewer").post(NOTES, {"name": "more"}), 403, "forbidden")

    assert refused["required_role"] == "operator"
    assert "operator" in refused["detail"]


@in_one_test(
    ("scopes", "read", "write"),
    [
        ([], 200, 201),
        (["read"], 200, 403),
        (["write"], 200, 201),
        (["notes:read"], 200, 403),
        (["notes:write"], 200, 201),
    ],
)
def test_scopes_restrict_what_the_role_allows(api, scopes, read, write):
    client = api("operator", scopes=scopes)

    assert client.get(NOTES).status_code == read
    assert client.post(NOTES, {"name": "more"}).status_code == write


def test_scopes_of_other_resources_allow_nothing(api, monkeypatch):
    monkeypatch.setattr(tokens, "_resources", lambda resolver: ["other"])
    client = api("operator", scopes=["other:write"])

    assert client.get(NOTES).status_code == client.post(NOTES, {"name": "more"}).status_code == 403


def test_scopes_never_add_to_a_role(api):
    problem(api("viewer", scopes=["write"]).post(NOTES, {"name": "more"}), 403, "forbidden")


def test_a_missing_scope_is_named(api):
    refused = problem(api("admin", scopes=["notes:read"]).post(NOTES, {"name": "more"}), 403, "forbidden")

    assert refused["required_scope"] == "notes:write"


def test_only_platform_admins_change_what_all_tenants_share(api):
    assert api("viewer").get("/api/registry/").status_code == 200
    problem(api("admin").put("/api/registry/", {}), 403, "forbidden")
    assert api("admin", platform=True).put("/api/registry/", {}).status_code == 200


# The platform's admin


def test_the_admin_sees_all_tenants_only_during_requests_of_superusers(client, monkeypatch):
    aliases = []
    inside = notes_api.HttpResponse("inside")
    monkeypatch.setattr(
        notes_api.urlpatterns[-2], "callback", lambda request: aliases.append(current_alias()) or inside
    )
    client.force_login(create_superuser())

    assert client.get("/admin/").status_code == 200

    assert aliases == ["system"]
    assert current_alias() == "default"


def test_staff_without_superuser_rights_get_no_further_than_the_login_of_the_admin(client):
    client.force_login(User.objects.create_user("clerk", is_staff=True))

    assert client.get("/admin/").status_code == 403
    assert client.get("/admin/login/").status_code == 200


def test_anonymous_requests_are_left_to_the_login_of_the_admin(client):
    assert client.get("/admin/").status_code == 200  # the admin itself redirects; this stand-in does not
