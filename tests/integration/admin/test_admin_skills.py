"""Skills and sessions in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from activities import sessions
from agents.models import AgentSession, EndReason, Skill
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.browsing import list_url, page_url, visible_text


def form(tenant: Tenant, **changes: Any) -> dict[str, Any]:
    return {
        "tenant": str(tenant.pk), "key": "tone", "name": "Tone", "kind": "skill", "enabled": "on", "roles": "qa,dev",
        "description": "How we sound.", "content": "Be kind.", **changes,
    }  # fmt: skip


@pytest.fixture
def skill(root: Client, tenant: Tenant) -> Skill:
    assert root.post(f"{list_url(Skill)}add/", form(tenant)).status_code == 302
    return the_skill(tenant)


def the_skill(tenant: Tenant) -> Skill:
    with tenant_scope(tenant.pk):
        return Skill.objects.get()


def test_every_change_of_a_skill_is_a_new_version(root: Client, tenant: Tenant, skill: Skill) -> None:
    for content in ("Be kind.", "Be brief.", "Be both."):
        # A browser sends the initial roles as well, because their default is a new list for each form.
        root.post(page_url(skill), form(tenant, content=content) | {"initial-roles": "qa,dev"})

    changed = the_skill(tenant)
    assert (skill.version, skill.roles) == (1, ["qa", "dev"])
    assert (changed.version, changed.content) == (3, "Be both.")
    assert changed.updated_at > skill.updated_at


def test_the_key_of_a_skill_must_be_valid_and_cannot_change(
    root: Client, tenant: Tenant, skill: Skill
) -> None:
    root.post(page_url(skill), form(tenant, key="other", content="Be brief."))
    refused = root.post(f"{list_url(Skill)}add/", form(tenant, key="../tone"))

    assert the_skill(tenant).key == "tone"
    assert "such as tone-of-voice" in visible_text(refused)


def test_a_session_shows_why_it_ended_and_cannot_be_changed(root: Client, tenant: Tenant) -> None:
    deliverable = uuid7()
    with tenant_scope(tenant.pk):
        sessions.begin(tenant.pk, deliverable, "qa", "s-1", briefing="b" * 64)
        sessions.end(tenant.pk, deliverable, "qa", "s-1", EndReason.INVALID)
        sessions.begin(tenant.pk, deliverable, "qa", "s-2")
        ended = AgentSession.objects.get(external_session_id="s-1")

    page = visible_text(root.get(page_url(ended)))

    assert "invalid" in page
    assert "b" * 64 in page
    assert {"s-1", "s-2"} <= set(visible_text(root.get(list_url(AgentSession))).split())
    assert "s-1" not in visible_text(root.get(list_url(AgentSession), {"ended_at__isempty": "1"}))
    assert root.post(page_url(ended), {"end_reason": ""}).status_code == 403
