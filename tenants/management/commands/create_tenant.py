"""`manage.py create_tenant SLUG [--name N] [--admin USERNAME]`: creates a tenant and prints its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser

from tenants import audit, members, registration
from tenants.context import tenant_scope
from tenants.management.base import ManagementCommand
from tenants.models import Tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class Command(ManagementCommand):
    help = "Create a tenant. The last line of the output is its id. A slug that is in use is an error."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "slug",
            help="short unique name: letters, digits, hyphens, underscores, the first a letter or digit; at most 63",
        )
        parser.add_argument("--name", default="", help="name for people; default: the slug")

        parser.add_argument(
            "--admin",
            metavar="USERNAME",
            help="a person with a login who becomes the tenant's admin and can open it in the console",
        )

    def handle(self, *args: Any, slug: str, name: str, **options: Any) -> None:
        admin = members.person(options["admin"]) if options["admin"] else None
        tenant = registration.register(slug, name)
        self._begin(tenant, admin)
        self.stderr.write(
            f"Created tenant {tenant.slug}. Next: manage.py create_token --tenant {tenant.slug} --role admin"
        )
        self.stdout.write(str(tenant.pk))

    def _begin(self, tenant: Tenant, admin: User | None) -> None:
        detail = {"slug": tenant.slug}
        with tenant_scope(tenant.pk):
            if admin is not None:
                members.first_admin(tenant.pk, admin)
                detail["admin"] = admin.get_username()
            audit.record_command(
                "create_tenant", tenant_id=tenant.pk, about=("tenants", tenant.pk), detail=detail
            )
