"""`manage.py link_slack --tenant SLUG --user NAME --slack T.../U...`: links a Slack user, whose buttons then decide for a member."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import audit, members, registration
from tenants.context import tenant_scope
from tenants.management.base import ManagementCommand


class Command(ManagementCommand):
    help = "Let the decisions of a Slack user count as those of a member of the tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, metavar="SLUG", help="the tenant in which they decide")
        parser.add_argument("--user", required=True, metavar="NAME", help="the member")
        parser.add_argument(
            "--slack",
            required=True,
            metavar="T.../U...",
            help="Slack's ids of the workspace and the user; '' removes the link",
        )

    def handle(self, *args: Any, tenant: str, user: str, slack: str, **options: Any) -> None:
        owner = registration.find(tenant)
        with tenant_scope(owner.pk):
            member = members.link_slack(owner.pk, user, slack)
            audit.record_command(
                "link_slack",
                tenant_id=owner.pk,
                about=(members.KIND, member.pk),
                detail={"user": user, "slack_user": slack},
            )
        self.stdout.write(
            f"{slack} decides as {user} in {tenant}."
            if slack
            else f"Nobody in Slack decides as {user} in {tenant}."
        )
