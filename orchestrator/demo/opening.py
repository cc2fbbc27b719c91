"""Base of the demonstrations: the input text, a running stack, and tenants with their people."""

from __future__ import annotations

import socket
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

from orchestrator.demo.input_text import DEFAULT_INPUT, InputRefused, read_input
from orchestrator.demo.story import Agency, ApiClient, ApiRefused, DemoFailed
from orchestrator.embedded import EmbeddedError, ServiceHome
from orchestrator.embedded.server import is_free
from orchestrator.example_files import EXAMPLES
from orchestrator.local import ADMIN, Addresses, LocalStack, stop_servers
from orchestrator.processes import Supervisor
from orchestrator.processes.supervisor import SupervisorError
from pipelines import definition
from tenants import tokens
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, Role, Tenant


class Demonstration(BaseCommand):
    """A command that starts the stack, plays on a text, and always stops the stack."""

    requires_system_checks: list[str] = []
    farewell = ""
    verbose = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--input", type=Path, default=DEFAULT_INPUT, help="the text to work on")
        parser.add_argument(
            "--verbose", action="store_true", help="print every output and every table, not one screen"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        console, began = Console(), time.monotonic()
        self.verbose = options["verbose"]
        home = ServiceHome(settings.ORCHESTRATOR_HOME)
        stack = LocalStack(
            home=home,
            port=find_free_port(settings.PORT),
            flower_port=find_free_port(settings.FLOWER_PORT),
            report=lambda line: console.print(f"[dim]{line}[/]"),
        )
        try:
            text = read_input(options["input"])
            with self.running(stack) as (supervisor, addresses):
                self.play(console, stack, supervisor, addresses, text)
        except (InputRefused, DemoFailed, ApiRefused, EmbeddedError, SupervisorError) as error:
            raise CommandError(str(error)) from error
        finally:
            stop_servers(home, stack.report)
        console.print(f"[bold green]Done in {time.monotonic() - began:.1f} s.[/] {self.farewell}".rstrip())

    @contextmanager
    def running(self, stack: LocalStack) -> Iterator[tuple[Supervisor, Addresses]]:
        """Run the stack during `play`. Subclasses extend it with what they need."""
        with stack.running() as started:
            yield started

    @abstractmethod
    def play(
        self, console: Console, stack: LocalStack, supervisor: Supervisor, addresses: Addresses, text: str
    ) -> None:
        """Play the demonstration. Raises `DemoFailed` if something unexpected happens."""


def content_brief() -> dict[str, Any]:
    path = EXAMPLES / "pipelines" / "content-brief.yaml"
    return definition.load(path.read_text(encoding="utf-8"), filename=path.name)


def agency_of(name: str, slug: str, addresses: Addresses, *, note: str | None) -> Agency:
    """Return a tenant, new or from an earlier demonstration, with an operator and an editor. With a `note`, the editor first requests
    these changes."""
    with system_scope():
        tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": name})
    admin = get_user_model().objects.filter(username=ADMIN).first()
    if admin is not None:  # so that the printed login may see this tenant
        with tenant_scope(tenant.pk):
            Membership.objects.get_or_create(tenant=tenant, user=admin, defaults={"role": Role.ADMIN})
    _, operator = tokens.create(tenant, Role.ADMIN, "demo operator")
    _, editor = tokens.create(tenant, Role.REVIEWER, "demo editor")
    return Agency(name, ApiClient(addresses.web, operator), ApiClient(addresses.web, editor), note)


def find_free_port(first_choice: int) -> int:
    """Return this port if it is free, or any free port. 0: any."""
    if first_choice and is_free(first_choice):
        return first_choice
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
