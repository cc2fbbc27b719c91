"""The base of commands for people: help with examples, `--json`, `--tenant`, and errors that say what next.

Exit codes: 0 done or shown, 1 refused, not found, or a server is away, 2 wrongly called.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import Any, ClassVar
from uuid import UUID

import orjson
import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from activities.exceptions import ActivityError
from pipelines.definition import DefinitionError
from pipelines.exceptions import PipelineError
from tenants import wide_json
from tenants.exceptions import TenantError

from . import tables

CODES = "exit codes: 0 done or shown; 1 refused, not found, or a server is away; 2 wrongly called"
AWAY = "Start the servers with `manage.py up`, or say with {variable} where they are. Details: `manage.py check --database default`."


class TerminalCommand(BaseCommand, ABC):
    """`look` gives what is to be shown as JSON; `show` shows it to a person."""

    requires_system_checks = []
    examples: ClassVar[tuple[str, ...]] = ()
    tenant_help: ClassVar[str] = "whose; may be left out if there is one tenant"

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        examples = "".join(f"  manage.py {example}\n" for example in self.examples)
        return super().create_parser(
            prog_name,
            subcommand,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"examples:\n{examples}\n{CODES}",
            **options,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", metavar="SLUG", help=self.tenant_help)
        parser.add_argument("--json", action="store_true", help="write JSON, for programs")

    def handle(self, *args: Any, json: bool, **options: Any) -> None:
        try:
            found = self.look(**options)
        except (TenantError, ActivityError, PipelineError, DefinitionError) as error:
            raise CommandError(str(error)) from error
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(
                f"PostgreSQL does not answer. {AWAY.format(variable='DATABASE_URL')}"
            ) from error
        except redis.RedisError as error:
            raise CommandError(f"Redis does not answer. {AWAY.format(variable='REDIS_URL')}") from error
        if json:
            self.stdout.write(wide_json.dumps(found, default=str, option=orjson.OPT_INDENT_2).decode())
        else:
            self.show(found)

    @abstractmethod
    def look(self, *args: Any, **options: Any) -> Any:
        """What was asked for, as it is written as JSON."""

    @abstractmethod
    def show(self, found: Any) -> None:
        """Write it for a person."""

    def table(self, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        tables.table(self.stdout, head, rows)

    def facts(self, *told: tuple[str, Any]) -> None:
        tables.facts(self.stdout, told)


def identifier(text: str) -> UUID:
    """An id on the command line."""
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an id such as 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90"
        ) from error


def count_up_to(most: int) -> Any:
    """A number on the command line, from 1 to `most`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}")
        return int(text)

    return read
