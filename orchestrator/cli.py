"""The base of commands for people: help with examples, `--json`, `--tenant`, and errors that say what next.

Exit codes: 0 done or shown, 1 refused, not found, or a server is away, 2 wrongly called.

A command is about the work of the named tenant, the only one, or the one that an id belongs to; for the platform, of all tenants.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import orjson
import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from activities import queue_stats
from activities.exceptions import ActivityError
from activities.models import Activity
from pipelines.definition import DefinitionError
from pipelines.exceptions import PipelineError
from pipelines.models import PipelineRun
from tenants import registration, wire_json
from tenants.audit import one_line
from tenants.context import system_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant

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
            self.stdout.write(wire_json.dumps_stored(found, default=str, option=orjson.OPT_INDENT_2).decode())
        else:
            self.show(found)

    @abstractmethod
    def look(self, *args: Any, **options: Any) -> Any:
        """What was asked for, as it is written as JSON."""

    @abstractmethod
    def show(self, found: Any) -> None:
        """Write it for a person."""

    def table(self, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        table(self.stdout, head, rows)

    def facts(self, *rows: tuple[str, Any]) -> None:
        facts(self.stdout, rows)


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


# Tables for people: drawn on a terminal, plain aligned text elsewhere, so that other programs can read them.
#
# What is shown comes from agents and clients: control characters are written as escapes, and nothing in it is taken for markup.


LONGEST_CELL = 120
EMPTY = "-"

Row = Sequence[Any]


def table(stream: Any, head: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table to the stream of a command."""
    cells = [[in_cell(value) for value in row] for row in rows]
    if _is_terminal(stream):
        _draw(stream, head, cells)
    else:
        _align(stream, head, cells)
    if not rows:
        stream.write("(none)")


def facts(stream: Any, rows: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one below the other."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        stream.write(f"{name.ljust(width)}  {in_cell(value, longest=1_000)}".rstrip())


def in_cell(value: Any, longest: int = LONGEST_CELL) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    text = one_line(value, longest + 1)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _draw(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        drawn.add_column(Text(name))
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=getattr(stream, "_out", stream), highlight=False, soft_wrap=False).print(drawn)


def _align(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [[name.upper() for name in head], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        stream.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


# How far long work has come: a bar on a terminal, and nothing elsewhere, so that logs of scripts stay readable.


T = TypeVar("T")

WORTH_A_BAR = 20


def show_progress(items: Sequence[T], what: str, stream: Any) -> Iterator[T]:
    """The items, one after the other. The bar is drawn on `stream`, the command's stderr."""
    if len(items) < WORTH_A_BAR or not getattr(stream, "isatty", lambda: False)():
        yield from items
        return
    console = Console(file=getattr(stream, "_out", stream))
    yield from track(items, description=what, console=console, transient=True)


# The tenants and rows that a command line names.


def all_of_them(slug: str | None) -> list[Tenant]:
    """Every tenant, or the named one."""
    if slug is not None:
        return [registration.find(slug)]
    with system_scope():
        return list(Tenant.objects.order_by("slug"))


def of_activity(slug: str | None, activity_id: UUID) -> Tenant:
    """Raises `CommandError` when nobody has such an activity, or not the named tenant."""
    return _of(slug, Activity, activity_id, "activity", "Ids are in the lists of the API and of the admin.")


def of_run(slug: str | None, run_id: UUID) -> Tenant:
    """As `of_activity`, for a run of a pipeline."""
    return _of(
        slug, PipelineRun, run_id, "pipeline run", "Ids are in /api/v1/pipeline-runs/ and in the admin."
    )


def standing_of_all() -> queue_stats.QueueStats:
    with system_scope():
        return queue_stats.stats_of_queues()


def _of(slug: str | None, model: Any, row_id: UUID, what: str, where: str) -> Tenant:
    with system_scope():
        rows = (
            model.objects.filter(pk=row_id)
            if slug is None
            else model.objects.filter(pk=row_id, tenant__slug=slug)
        )
        found: Tenant | None = Tenant.objects.filter(pk__in=rows.values("tenant_id")).first()
    if found is None:
        whose = f"the tenant {slug!r} has" if slug else "there is"
        raise CommandError(f"No {what} {row_id}: {whose} none of this id. {where}")
    return found
