"""Gates, tasks and their addresses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.test import APIClient

from tenants.models import Tenant
from tests.engine import Engine

ACTIVITIES, INBOX, DECIDE = "/api/v1/activities/", "/api/v1/inbox/", "/api/v1/inbox/decide/"


def submit_gated(engine: Engine, acme: Tenant, count: int = 1) -> list[UUID]:
    """Submit activities whose results wait for an approval; return their ids."""
    waiting = engine.submit(acme, "qa", count, requires_approval=True)
    engine.drain()
    return waiting


def gates(client: APIClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(f"{INBOX}?gate=true&ordering=created_at").json()["results"]
    return items


def address_of(activity_id: Any, verb: str = "") -> str:
    return f"{ACTIVITIES}{activity_id}/{verb + '/' if verb else ''}"


def create_task(client: APIClient, **members: Any) -> str:
    task_id: str = client.post(ACTIVITIES, {"name": "Read it", "human_role": "editor", **members}).json()[
        "id"
    ]
    return task_id
