"""The tenant comes from the credential alone; headers, queries and bodies that name another tenant are ignored or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import Tenant
from tests.api_objects import ApiObjects, create_api_objects
from tests.engine import Engine
from tests.fuzzing.bodies import BODIES
from tests.integration.test_api_openapi import CALLBACKS, operations
from tests.snapshots import changed, snapshot

pytestmark = pytest.mark.long

NAMES = (
    "tenant",
    "tenant_id",
    "tenantId",
    "tenant_slug",
    "organization_id",
    "account",
    "owner",
    "schema",
    "realm",
)


@pytest.fixture
def ours(api: Any, engine: Engine, tenant: Tenant) -> ApiObjects:
    return create_api_objects(engine, tenant, api("admin"))


@pytest.fixture
def theirs(api: Any, engine: Engine, other_tenant: Tenant) -> ApiObjects:
    return create_api_objects(engine, other_tenant, api("admin", other_tenant))


def headers_naming(tenant: Tenant) -> dict[str, str]:
    return {
        "X-Tenant": tenant.slug, "X-Tenant-Id": str(tenant.pk), "X-Organization-Id": str(tenant.pk), "X-Account-Id": str(tenant.pk),
        "X-Forwarded-Host": f"{tenant.slug}.example", "X-Forwarded-User": tenant.slug, "X-Original-Url": f"/{tenant.slug}/",
        "Cookie": f"tenant={tenant.pk}", "Forwarded": f"host={tenant.slug}.example",
    }  # fmt: skip


def test_no_operation_follows_the_tenant_that_a_request_names(
    api: Any, ours: ApiObjects, theirs: ApiObjects
) -> None:
    """Calls each operation with another tenant in the headers, the query and the body."""
    admin, mistakes = api("admin"), []
    before = snapshot(theirs.tenant)

    for method, address, _ in operations():
        if address.startswith(CALLBACKS):
            continue
        query = "&".join(f"{name}={theirs.tenant.pk}" for name in NAMES)
        body = dict.fromkeys(NAMES, str(theirs.tenant.pk)) if method in ("post", "put", "patch") else None
        place, headers = f"{ours.address(address)}?{query}", headers_naming(theirs.tenant)
        answer = getattr(admin, method)(place, body, headers=headers)
        text = b"" if answer.streaming else answer.content
        if answer.status_code >= 500 or str(theirs.agent.activity_id).encode() in text:
            mistakes.append((method, address, answer.status_code))

    assert mistakes == []
    assert changed(before, snapshot(theirs.tenant)) == set()


def test_every_list_gives_the_same_answer_whatever_tenant_the_headers_name(
    api: Any, ours: ApiObjects, other_tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    admin, lists = api("admin"), 0

    for method, address, operation in operations():
        if method != "get" or not operation["operationId"].endswith("_list") or "{" in address:
            continue
        plain = admin.get(address).json()
        with_headers = admin.get(address, headers=headers_naming(other_tenant)).json()
        if address not in (
            "/api/v1/queues/",
            "/api/v1/workers/",
            "/api/v1/subagents/",
        ):  # their answers depend on the moment
            assert with_headers == plain, address
        lists += 1

    assert lists > 15
    warnings = [
        record for record in caplog.records if getattr(record, "action", "") == "foreign_tenant_named"
    ]
    assert len(warnings) == lists
    assert {record.tenant for record in warnings} == {ours.tenant.slug}  # type: ignore[attr-defined]


def test_a_body_that_names_a_tenant_is_refused_with_the_path_of_that_member(
    api: Any, ours: ApiObjects, other_tenant: Tenant
) -> None:
    """Ignoring the member would let the caller believe that it had worked."""
    admin, count = api("admin"), 0

    for method, address, operation in operations():
        body = BODIES.get(operation["operationId"])
        if method != "post" or body is None or "{" in address or operation["operationId"] == "agents_create":
            continue  # the registry of agents is not the tenant's
        for name in ("tenant", "tenant_id", "tenantId"):
            answer = admin.post(address, {**body, name: str(other_tenant.pk)})
            assert answer.status_code == 400, (address, answer.content)
            assert name in [error["path"] for error in answer.json()["errors"]], (address, answer.content)
        count += 1

    assert count >= 14
