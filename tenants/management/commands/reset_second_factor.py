"""`manage.py reset_second_factor USERNAME`: takes a person's second factor away, who lost the app and the recovery codes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from tenants import audit, members
from tenants.exceptions import TenantError
from tenants.models import SecondFactor


class Command(BaseCommand):
    help = (
        "Take a person's second factor away. Where one is required they set up a new one at the next sign-in."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="whose; make sure that it is they who ask")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        try:
            person = members.person(username)
        except TenantError as error:
            raise CommandError(str(error)) from error
        with transaction.atomic():
            gone, _ = SecondFactor.objects.filter(pk=person.pk).delete()
            if not gone:
                raise CommandError(f"{username} has no second factor.")
            audit.record_command(
                "reset_second_factor", about=("user", person.pk), detail={"username": username}
            )
        self.stdout.write(f"{username} has no second factor any more.")
