"""Limits how many objects a tenant may own: schedules, pipelines and their versions, templates, skills, tokens, views, mailboxes.

A bounded model declares `bounded_as`. The check runs whenever a row is created, so it applies to the API, the admin, imports
and commands alike. The bound of a tenant is its own (`Tenant.bounds`), else the platform's (`ORCHESTRATOR_OWNED_PER_TENANT`).
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models.signals import pre_save

from tenants.exceptions import TenantError
from tenants.models import Tenant, TenantOwned
from tenants.sql import lock_name

KINDS = (
    "schedules", "pipelines", "pipeline_versions", "templates", "skills", "tokens", "saved_views", "mailboxes",
)  # fmt: skip


class TooManyOwned(TenantError):
    """The tenant owns the maximum of this kind."""

    code = "too_many_owned"


def connect() -> None:
    """Check every model with a bound before a row is created. Called once, when all models are known."""
    for model in apps.get_models():
        if issubclass(model, TenantOwned) and model.bounded_as:
            pre_save.connect(_before_save, sender=model, dispatch_uid=f"bounds:{model._meta.label}")


def _before_save(instance: Any, using: str, **_: object) -> None:
    if instance._state.adding:
        refuse_beyond(instance, using)


def refuse_beyond(row: Any, using: str) -> None:
    """Raise `TooManyOwned` if the tenant may not create another row of this kind.

    Takes a lock until the transaction ends, so that two transactions cannot pass the bound together.
    """
    model, kind = type(row), row.bounded_as
    own = Tenant.objects.using(using).filter(pk=row.tenant_id).values_list("bounds", flat=True).first() or {}
    most = int(own.get(kind, settings.ORCHESTRATOR_OWNED_PER_TENANT[kind]))
    lock_name(f"owned:{kind}:{row.tenant_id}", using=using)
    counted = model.objects.using(using).for_tenant(row.tenant_id).filter(**model.bounded_among)
    if counted.count() >= most:
        raise TooManyOwned(
            f"There are {most:,} {kind.replace('_', ' ')}, which is the most that the tenant may have."
        )


def check_bounds(bounds: Any) -> None:
    """Raise `ValidationError` for anything except an object of known kinds and whole numbers from 0."""
    if not isinstance(bounds, dict) or not all(
        kind in KINDS and type(most) is int and 0 <= most <= 1_000_000 for kind, most in bounds.items()
    ):
        raise ValidationError(
            f'Enter an object of whole numbers, such as {{"schedules": 50}}. Known kinds are {", ".join(KINDS)}.'
        )
