"""`manage.py reset_second_factor USERNAME`: removes the second factor of a person who lost the app and the recovery codes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from tenants import audit, members
from tenants.management.base import ManagementCommand
from tenants.models import SecondFactor


class Command(ManagementCommand):
    help = "Remove a person's second factor. If one is required, they set up a new one at the next sign-in."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="the person; make sure that the request really comes from them")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        person = members.person(username)
        with transaction.atomic():
            deleted, _ = SecondFactor.objects.filter(pk=person.pk).delete()
            if not deleted:
                raise CommandError(f"{username} has no second factor.")
            audit.record_command(
                "reset_second_factor", about=("user", person.pk), detail={"username": username}
            )
        self.stdout.write(f"The second factor of {username} was removed.")
