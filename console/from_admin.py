"""The way from a row of the admin to the console's page that shows it, and back."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

#: By model: the name of the console's address, and the attribute of the row that it takes; none for a page of the tenant.
_PAGES: dict[str, tuple[str, str]] = {
    "activities.activity": ("activity", "pk"),
    "activities.activityrun": ("activity", "activity_id"),
    "activities.wake": ("activity", "activity_id"),
    "activities.deadletter": ("dead_letters_alike", "fingerprint"),
    "agents.agent": ("agent", "pk"),
    "agents.agentconfig": ("agent", "agent_id"),
    "pipelines.pipelinerun": ("run", "pk"),
    "pipelines.steprun": ("run", "run_id"),
    "pipelines.schedule": ("schedule", "pk"),
    "pipelines.scheduleexecution": ("schedule", "schedule_id"),
    "tenants.tenant": ("home", ""),
    "tenants.membership": ("settings", ""),
    "tenants.apitoken": ("settings_tokens", ""),
    "tenants.auditentry": ("audit", ""),
    "tenants.budget": ("usage", ""),
}


def console_page(row: Model | None) -> str:
    """Where the console shows a row of the admin; empty when nowhere."""
    found = _PAGES.get(row._meta.label_lower) if row is not None else None
    if row is None or found is None:
        return ""
    name, attribute = found
    key = getattr(row, attribute, None) if attribute else None
    if attribute and key is None:
        return ""
    try:
        address = reverse(f"console:{name}", args=[key] if attribute else [])
    except NoReverseMatch:  # a key that is none of ours: the console could not show it either
        return ""
    slug = _slug_of(row)
    return f"{address}?{urlencode({'tenant': slug})}" if slug else address


def admin_page(row: Model) -> str:
    """Where the admin shows a row."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def may_enter(user: Any, row: Model) -> bool:
    """Whether the person gets to a row's page in the admin: superusers do, and staff to what is a tenant's."""
    is_owned = getattr(row, "tenant_id", None) is not None
    return bool(user.is_active and (user.is_superuser or (user.is_staff and is_owned)))


def _slug_of(row: Any) -> str:
    if row._meta.label_lower == "tenants.tenant":
        return str(row.slug)
    return str(row.tenant.slug) if getattr(row, "tenant_id", None) else ""
