"""`manage.py create_tenant SLUG [--name N]`: makes a tenant and prints its id."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit, registration
from tenants.exceptions import TenantError


class Command(BaseCommand):
    help = "Make a tenant. The last line of the output is its id. A slug that is taken is an error."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "slug", help="short unique name: letters, digits, hyphens, underscores; at most 63"
        )
        parser.add_argument("--name", default="", help="name shown to people; the slug if left out")

    def handle(self, *args: Any, slug: str, name: str, **options: Any) -> None:
        try:
            tenant = registration.register(slug, name)
            audit.record_command(
                "create_tenant",
                tenant_id=tenant.pk,
                about=("tenants", tenant.pk),
                detail={"slug": tenant.slug},
            )
        except TenantError as error:
            raise CommandError(str(error)) from error
        self.stderr.write(
            f"Made tenant {tenant.slug}. Next: manage.py create_token --tenant {tenant.slug} --role admin"
        )
        self.stdout.write(str(tenant.pk))
