"""Base of the commands for people: help with examples, `--json`, `--tenant`, and errors that suggest the next step.

Exit codes: 0 success, 1 refused, not found or a server is unreachable, 2 usage error.

A command works on the named tenant, or on the only tenant, or on the one that an id belongs to; commands for the platform, on all tenants.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import orjson
from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.progress import track

from activities.models import Activity
from pipelines.definition import DefinitionError
from pipelines.models import PipelineRun
from tenants import registration, wire_json
from tenants.context import system_scope
from tenants.management.base import ManagementCommand
from tenants.management.tables import write_facts, write_table
from tenants.models import Tenant

EXIT_CODES = "exit codes: 0 success; 1 refused, not found, or a server is unreachable; 2 usage error"


class TerminalCommand(ManagementCommand, ABC):
    """`query` returns the result, which `--json` prints; `render` prints it for people."""

    requires_system_checks = []
    examples: ClassVar[tuple[str, ...]] = ()
    tenant_help: ClassVar[str] = "the tenant; optional if there is only one"

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        examples = "".join(f"  manage.py {example}\n" for example in self.examples)
        return super().create_parser(
            prog_name,
            subcommand,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"examples:\n{examples}\n{EXIT_CODES}",
            **options,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", metavar="SLUG", help=self.tenant_help)
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *args: Any, json: bool, **options: Any) -> None:
        try:
            result = self.query(**options)
        except DefinitionError as error:
            raise CommandError(str(error)) from error
        if json:
            text = wire_json.dumps_stored(result, default=str, option=orjson.OPT_INDENT_2).decode()
            self.stdout.write(text)
        else:
            self.render(result)

    @abstractmethod
    def query(self, *args: Any, **options: Any) -> Any:
        """Return the result, as JSON data."""

    @abstractmethod
    def render(self, result: Any) -> None:
        """Print the result for people."""

    def write_table(self, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        write_table(self.stdout, head, rows)

    def write_facts(self, *rows: tuple[str, Any]) -> None:
        write_facts(self.stdout, rows)


def identifier(text: str) -> UUID:
    """Parse an id (argparse type)."""
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an id such as 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90"
        ) from error


def count_up_to(most: int) -> Any:
    """Return an argparse type for a whole number from 1 to `most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}")
        return int(text)

    return parse


# Progress of long work: a bar on a terminal, and nothing elsewhere, so that logs of scripts stay readable.


T = TypeVar("T")

LEAST_FOR_A_BAR = 20


def show_progress(items: Sequence[T], what: str, stream: Any) -> Iterator[T]:
    """Yield the items, and draw a progress bar on `stream`, the command's stderr."""
    if len(items) < LEAST_FOR_A_BAR or not getattr(stream, "isatty", lambda: False)():
        yield from items
        return
    console = Console(file=getattr(stream, "_out", stream))
    yield from track(items, description=what, console=console, transient=True)


# Tenants and rows named on the command line.


def find_tenants(slug: str | None) -> list[Tenant]:
    """Return the named tenant, or all tenants."""
    if slug is not None:
        return [registration.find(slug)]
    with system_scope():
        return list(Tenant.objects.order_by("slug"))


def tenant_of_activity(slug: str | None, activity_id: UUID) -> Tenant:
    """Return the activity's tenant. Raises `CommandError` if there is no such activity, or the named tenant does not own it."""
    return _owner(
        slug, Activity, activity_id, "activity", "Ids are in the lists of the API and of the admin."
    )


def tenant_of_run(slug: str | None, run_id: UUID) -> Tenant:
    """Return the tenant of a pipeline run, like `tenant_of_activity`."""
    return _owner(
        slug, PipelineRun, run_id, "pipeline run", "Ids are in /api/v1/pipeline-runs/ and in the admin."
    )


def _owner(slug: str | None, model: Any, row_id: UUID, what: str, hint: str) -> Tenant:
    with system_scope():
        rows = (
            model.objects.filter(pk=row_id)
            if slug is None
            else model.objects.filter(pk=row_id, tenant__slug=slug)
        )
        tenant: Tenant | None = Tenant.objects.filter(pk__in=rows.values("tenant_id")).first()
    if tenant is None:
        scope = f" in the tenant {slug!r}" if slug else ""
        raise CommandError(f"There is no {what} {row_id}{scope}. {hint}")
    return tenant
