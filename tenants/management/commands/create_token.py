"""`manage.py create_token --tenant SLUG --role ROLE`: creates an API token and prints it, once."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import audit, clock, registration, tokens
from tenants.context import tenant_scope
from tenants.management.base import ManagementCommand, UsageError
from tenants.models import Membership, Role, Tenant
from tenants.plain_names import error_of_name
from tenants.tokens import LONGEST_DAYS


class Command(ManagementCommand):
    help = "Create an API token for a tenant. The last line of the output is the token, which is printed only once."

    def add_arguments(self, parser: CommandParser) -> None:
        roles = "admin configures, operator submits, reviewer decides, viewer reads; each includes the next"
        parser.add_argument(
            "--tenant", required=True, metavar="SLUG", help="the tenant that the token acts for"
        )
        parser.add_argument("--role", required=True, choices=[role.value for role in Role], help=roles)
        parser.add_argument(
            "--name",
            help="a name to recognise the token (default: command line, with --user also the member)",
        )
        parser.add_argument(
            "--user", metavar="NAME", help="the member that the token votes for; default: nobody"
        )
        parser.add_argument("--expires-in-days", type=_days, metavar="N", help="default: never")
        parser.add_argument(
            "--scope",
            action="append",
            default=[],
            help="restrict the token to read, write, <resource>:read, <resource>:write or mailboxes:write:<key>; may be repeated",
        )
        parser.add_argument(
            "--platform",
            action="store_true",
            help="may also change the registry of agents that all tenants share",
        )

    def handle(self, *args: Any, tenant: str, role: str, name: str | None, **options: Any) -> None:
        days, user = options["expires_in_days"], options["user"]
        # Decisions are recorded under the name of the token.
        name = f"command line of {user}" if name is None and user else name or "command line"
        if problem := error_of_name(name):
            raise UsageError(f"The name {problem}.")
        owner = registration.find(tenant)
        with tenant_scope(owner.pk):
            person = _member(owner, user, Role(role)) if user else None
            token, secret = tokens.create(
                owner,
                role,
                name[:100],
                expires_at=clock.now() + timedelta(days=days) if days else None,
                scopes=options["scope"],
                platform=options["platform"],
                user_id=person.user_id if person else None,
            )
            result = {
                "name": token.name,
                "role": role,
                "prefix": token.prefix,
                "platform": token.platform,
                "scopes": token.scopes,
                "user": user,
                "expires_at": token.expires_at,
            }
            audit.record_command(
                "create_token",
                tenant_id=owner.pk,
                about=("tokens", token.pk),
                detail=audit.redact("", result),
            )
        self.stderr.write(
            "Store this token: it is not displayed again. Send it as `Authorization: Bearer <token>`."
        )
        self.stdout.write(secret)


def _member(tenant: Tenant, name: str, role: Role) -> Membership:
    """Return the member. Raises `CommandError` for a person who is not a member, or whose role is lower than the token's."""
    rows = Membership.objects.for_tenant(tenant.pk).select_related("user")
    member: Membership | None = rows.filter(user__username=name, user__is_active=True).first()
    if member is None:
        raise CommandError(f"{name} is not a member of {tenant.slug}: add them first.")
    if not member.acting_role.includes(role):
        raise CommandError(f"{name} is {member.role} in {tenant.slug}; their token cannot be {role.value}.")
    return member


def _days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= LONGEST_DAYS):
        raise argparse.ArgumentTypeError(f"must be a whole number of days from 1 to {LONGEST_DAYS}")
    return int(text)
