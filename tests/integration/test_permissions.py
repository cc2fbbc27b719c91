"""Each role may call exactly the operations that the table of permissions lists, and changed rights apply soon."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from tenants import tokens
from tenants.context import tenant_scope
from tenants.models import ApiToken, Membership, Role, Tenant
from tests.integration.permission_table import PAGE, ROLES, page, permissions
from tests.integration.test_api_openapi import operations, with_unknown_ids

API = "/api/v1"
ORDER = (*ROLES, "platform")


def _status(client: APIClient, method: str, path: str) -> Any:
    """Call the operation for objects that do not exist, so that a permitted call changes nothing."""
    address = re.sub(r"\{(?:role|agent_role|key|name)\}", "nobody", path)
    body = None if method == "GET" else {}
    return getattr(client, method.lower())(API + with_unknown_ids(address), body, format="json")


def test_the_table_lists_exactly_the_operations_of_the_schema(database: None) -> None:
    declared = {(method.upper(), address.removeprefix(API)) for method, address, _ in operations()}

    assert declared == permissions().keys()


def test_the_page_of_permissions_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.integration.permission_table"


def test_a_role_includes_all_lower_roles() -> None:
    assert [[role for role in ROLES if Role(each).includes(Role(role))] for each in ROLES] == [
        list(ROLES[: number + 1]) for number in range(len(ROLES))
    ]


@pytest.mark.parametrize("role", ORDER)
def test_a_role_may_call_exactly_the_operations_of_the_table(
    role: str, tenant: Tenant, api: Any, settings: Any
) -> None:
    """Tries the lowest permitted and the highest refused role of each operation, because a role includes all lower ones."""
    # A token of the API fails at each address of agent runs, which would exceed the limit of failed logins.
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 1_000
    client = api("admin", platform=True) if role == "platform" else api(role)
    lowest_refused = (*ORDER, "run")[ORDER.index(role) + 1]
    differing = []

    for (method, path), needed in permissions().items():
        if needed not in {role, lowest_refused}:
            continue
        answer = _status(client, method, path)
        refused = answer.status_code == (401 if needed == "run" else 403)
        if refused != (needed == lowest_refused) or answer.status_code >= 500:
            differing.append((method, path, answer.status_code))

    assert differing == []


def test_without_a_credential_every_operation_is_refused(database: None) -> None:
    client = APIClient()

    answers = {(method, path): _status(client, method, path).status_code for method, path in permissions()}

    assert {operation: status for operation, status in answers.items() if status != 401} == {}


def test_a_changed_membership_applies_to_the_next_request(tenant: Tenant) -> None:
    ann = User.objects.create_user("ann")
    with tenant_scope(tenant.pk):
        membership = Membership.objects.create(tenant=tenant, user=ann, role="admin")
    client = APIClient()
    client.force_login(ann)
    assert client.get(f"{API}/audit/").status_code == 200

    with tenant_scope(tenant.pk):
        Membership.objects.filter(pk=membership.pk).update(role="operator")
    assert client.get(f"{API}/audit/").status_code == 403
    with tenant_scope(tenant.pk):
        membership.delete()

    assert client.get(f"{API}/activities/").status_code == 403


@pytest.mark.parametrize(
    "change", [{"role": "viewer"}, {"scopes": ["activities:read"]}, {"revoked_at": "2026-01-01T00:00:00Z"}]
)
def test_a_token_changed_by_another_process_is_reread_within_two_seconds(
    change: dict[str, Any], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, secret = tokens.create(tenant, "admin", "ci")
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get(f"{API}/audit/").status_code == 200

    with tenant_scope(tenant.pk):
        # A change by another process, which does not notify this one.
        ApiToken.objects.filter(pk=token.pk).update(**change)
    now = time.monotonic()
    monkeypatch.setattr("tenants.caches.time", SimpleNamespace(monotonic=lambda: now + 2.0))

    assert client.get(f"{API}/audit/").status_code in (401, 403)
