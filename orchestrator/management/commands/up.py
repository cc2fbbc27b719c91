"""`manage.py up`: runs the whole system on this machine, in the foreground until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.embedded import EmbeddedError, ServiceHome
from orchestrator.local import ADMIN, LocalStack, keep_alive
from orchestrator.processes.supervisor import SupervisorError


class Command(BaseCommand):
    help = "Start the servers, web, worker, beat, Flower and the sample agents, and keep them running until Ctrl-C."
    requires_system_checks: list[str] = []  # because the database may not run yet

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, help="threads of the worker (default: 16)")

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        stack = LocalStack(
            home=ServiceHome(settings.ORCHESTRATOR_HOME),
            port=settings.PORT,
            flower_port=settings.FLOWER_PORT,
            report=self._report,
            concurrency=options["concurrency"],
        )
        try:
            with stack.running() as (supervisor, addresses):
                self._report(f"ready: {addresses.web}")
                self._report(
                    f"console: {addresses.web}/ (login {ADMIN}, password {addresses.admin_password})"
                )
                self._report(
                    f"admin: {addresses.web}/admin/ (the same login), API: {addresses.web}/api/v1/docs/"
                )
                self._report(f"Flower: {addresses.flower} (login {addresses.flower_login})")
                self._report(
                    f"sample agents: {addresses.agents}, logs: {supervisor.home.logs}, Ctrl-C stops everything"
                )
                while not stopped.wait(1.0):
                    keep_alive(supervisor, self._report)
                self._report("Stopping; this takes up to ten seconds")
        except (EmbeddedError, SupervisorError) as error:
            raise CommandError(str(error)) from error

    def _report(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
