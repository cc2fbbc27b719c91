"""Gates, tasks and the addresses under which they are answered."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.test import APIClient

from tenants.models import Tenant
from tests.engine import Engine

ACTIVITIES, INBOX, DECIDE = "/api/v1/activities/", "/api/v1/inbox/", "/api/v1/inbox/decide/"


def gated(engine: Engine, acme: Tenant, count: int = 1) -> list[UUID]:
    """Activities whose results wait for an approval."""
    waiting = engine.submit(acme, "qa", count, requires_approval=True)
    engine.drain()
    return waiting


def gates(client: APIClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{INBOX}?gate=true&ordering=created_at").json()["results"]
    return found


def of(activity_id: Any, verb: str = "") -> str:
    return f"{ACTIVITIES}{activity_id}/{verb + '/' if verb else ''}"


def a_task(client: APIClient, **members: Any) -> str:
    made: str = client.post(ACTIVITIES, {"name": "Read it", "human_role": "editor", **members}).json()["id"]
    return made
