"""Creates alerts and notification channels."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from activities.alerts import raise_alert
from tenants.context import tenant_scope
from tenants.models import Tenant

ALERTS, CHANNELS = "/api/v1/alerts/", "/api/v1/notification-channels/"
MAIL = {"kind": "email", "name": "Ops", "target": "ops@example.com"}


def make_alert(tenant: Tenant, kind: str = "dead_letter", title: str = "It failed", **fields: Any) -> UUID:
    with tenant_scope(tenant.pk):
        alert_id = raise_alert(tenant.pk, kind, title, **fields)
    assert alert_id is not None
    return alert_id


def make_channel(client: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post(CHANNELS, {**MAIL, **fields}, format="json")
    assert answer.status_code == 201, answer.content
    return dict(answer.json())
