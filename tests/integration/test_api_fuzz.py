"""Random requests of every operation get answers that match the OpenAPI schema, and never a 500."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenants import tokens
from tenants.models import Tenant
from tests.api_objects import ApiObjects
from tests.integration.test_api_openapi import schema

if TYPE_CHECKING:
    from tests.fuzzing.requests import Findings

#: What a platform admin may do more than the admin of a tenant.
OF_THE_PLATFORM = ("/api/v1/agents/", "/api/v1/platform-configs/", "/api/v1/skills/")

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def any_host_and_no_lock_out(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = (
        100_000
    )


def headers_of(tenant: Tenant, role: str, **more: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.create(tenant, role, role, **more)[1]}"}


def fuzz(**options: Any) -> Findings:
    """Send the requests. Schemathesis is imported only here, because every process of the suite imports this file."""
    from tests.fuzzing import requests

    return requests.fuzz(schema(), examples=requests.number_of_examples(1), **options)


def assert_no_violations(findings: Findings) -> None:
    print(findings.requests, findings.statuses)  # noqa: T201  # displayed when it fails
    assert not findings.violations, "\n\n".join(findings.violations.values())


def test_responses_to_a_viewer_an_admin_and_a_platform_admin_match_the_schema(
    api_objects: ApiObjects, tenant: Tenant
) -> None:
    members = [headers_of(tenant, "viewer"), headers_of(tenant, "admin")]
    platform_admin = headers_of(tenant, "admin", platform=True)

    def callers(path: str) -> list[dict[str, str]]:
        return [*members, platform_admin] if path.startswith(OF_THE_PLATFORM) else members

    findings = fuzz(callers=callers, objects=api_objects)

    assert_no_violations(findings)
    assert {200, 403, 404} <= findings.statuses.keys()
