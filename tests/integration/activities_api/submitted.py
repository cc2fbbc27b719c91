"""Bodies of submissions, and the faults that a response names."""

from __future__ import annotations

from typing import Any

from activities.models import Activity
from tenants.context import tenant_scope
from tests.answers import problem

ACTIVITIES = "/api/v1/activities/"


def body(**members: Any) -> dict[str, Any]:
    return {"name": "Find keywords", "agent_role": "keyword-researcher", **members}


def faults(response: Any) -> dict[str, str]:
    return {
        fault["path"]: fault["message"] for fault in problem(response, 400, "validation_failed")["errors"]
    }


def count(tenant: Any) -> int:
    with tenant_scope(tenant.pk):
        return Activity.objects.count()
