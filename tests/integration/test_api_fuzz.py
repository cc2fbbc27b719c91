"""Whatever is sent, by whomever: the answer is one that the OpenAPI schema promises, and never a 500."""

from __future__ import annotations

from typing import Any

import pytest

from tenants import tokens
from tenants.models import Tenant
from tests.fuzzing.requests import Findings, examples_wanted, fuzz
from tests.fuzzing.world import Known
from tests.integration.test_api_openapi import schema

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def any_host_and_no_lock_out(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = (
        100_000
    )


def headers_of(tenant: Tenant, role: str, **more: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.create(tenant, role, role, **more)[1]}"}


def nothing_was_found(findings: Findings) -> None:
    print(findings.requests, findings.statuses)  # noqa: T201  # shown when it fails
    assert not findings.found, "\n\n".join(findings.found.values())


def test_responses_to_a_viewer_and_an_admin_match_the_schema(world: Known, tenant: Tenant) -> None:
    callers = [headers_of(tenant, "viewer"), headers_of(tenant, "admin")]

    findings = fuzz(schema(), callers=callers, known=world, examples=examples_wanted(1))

    nothing_was_found(findings)
    assert {200, 403, 404} <= findings.statuses.keys()


def test_responses_to_a_platform_admin_match_the_schema(world: Known, tenant: Tenant) -> None:
    def is_shared(path: str) -> bool:
        return path.startswith(("/api/v1/agents/", "/api/v1/platform-configs/", "/api/v1/skills/"))

    callers = [headers_of(tenant, "admin", platform=True)]
    nothing_was_found(
        fuzz(schema(), callers=callers, known=world, examples=examples_wanted(1), wanted=is_shared)
    )
