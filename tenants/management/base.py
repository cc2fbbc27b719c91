"""Base of management commands: a refusal is one line with exit code 1, a wrong argument one with 2; a tenant is named by its slug."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants import registration
from tenants.context import system_scope
from tenants.exceptions import Refusal
from tenants.models import Tenant


class UsageError(CommandError):
    """An argument is wrong or missing, as argparse reports it for what it can check itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=2)


class ManagementCommand(BaseCommand):
    """A command whose refusals are errors for the person who typed it, and not failures of the program."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except Refusal as refusal:
            raise CommandError(str(refusal)) from refusal


def owner_of(slug: str | None) -> Tenant:
    """Return the named tenant, or the only one. Raises `UsageError` and `TenantError`."""
    if slug is not None:
        return registration.find(slug)
    with system_scope():
        tenants = list(Tenant.objects.order_by("slug")[:20])
    if len(tenants) != 1:
        known = (
            ", ".join(tenant.slug for tenant in tenants)
            or "none; create one with: manage.py create_tenant SLUG"
        )
        raise UsageError(f"Say whose it is with --tenant SLUG. There are: {known}")
    return tenants[0]
