"""`manage.py migrate` works as the owner of the tables: the roles of running processes may not change them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands.migrate import Command as Migrate

from tenants.context import OWNER


class Command(Migrate):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(database=OWNER)

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
