"""Acknowledging: somebody has seen an alert. The first to say so is the one who is named."""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from activities.exceptions import ActivityError
from activities.models import Alert
from tenants.context import tenant_scope


class AlertNotFound(ActivityError):
    """No such alert in this tenant."""

    code = "not_found"
    status = 404


def acknowledge(tenant_id: UUID, alert_id: UUID, *, actor: str) -> Alert:
    """Idempotent. Raises `AlertNotFound`."""
    with tenant_scope(tenant_id):
        own = Alert.objects.for_tenant(tenant_id).filter(pk=alert_id)
        own.filter(acknowledged_at=None).update(acknowledged_at=Now(), acknowledged_by=actor)
        found: Alert | None = own.first()
    if found is None:
        raise AlertNotFound(f"There is no alert {alert_id}.")
    return found
