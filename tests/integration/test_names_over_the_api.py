"""The API refuses names and keys with invisible characters."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import Tenant
from tests.tickers import body as schedule


@pytest.mark.parametrize(
    ("method", "place", "body", "path"),
    [
        ("post", "activities/", {"name": "in\u202efdp.exe", "agent_role": "seo"}, "name"),
        ("post", "activities/", {"name": "x", "agent_role": "seo", "dedup_key": "a\nb"}, "dedup_key"),
        ("put", "pipelines/p/", {"name": "P", "steps": [{"id": "a", "name": "a\rb", "agent_role": "seo"}]}, "steps[0].name"),
        ("post", "skills/", {"key": "tone", "name": "\u2066x", "description": "d", "content": "c"}, "name"),
        ("post", "schedules/", schedule(name="a\x07b"), "name"),
    ],
    ids=["activity", "key", "step", "skill", "schedule"],
)  # fmt: skip
def test_a_name_with_invisible_characters_is_refused_with_its_path(
    api: Any, tenant: Tenant, method: str, place: str, body: dict[str, Any], path: str
) -> None:
    refused = getattr(api("admin"), method)(f"/api/v1/{place}", body, format="json")

    assert refused.status_code == 400, refused.json()
    assert [
        (fault["path"], "visible characters" in fault["message"]) for fault in refused.json()["errors"]
    ] == [(path, True)]
