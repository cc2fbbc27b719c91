"""The local stack: starts the servers, processes and sample agents of one machine in order, and stops all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections

from agents.models import Agent
from agents.registry import UNCHECKED
from orchestrator import embedded
from orchestrator.embedded import ServiceHome
from orchestrator.embedded.errors import HomeBusy
from orchestrator.example_files import EXAMPLES
from orchestrator.processes import ProcessSpec, Supervisor, standard_processes
from orchestrator.processes.supervisor import require_free

SAMPLE_ROLES = (
    "keyword-researcher", "content-brief-writer", "blog-writer", "site-auditor", "report-writer",
    "social-calendar-planner", "social-post-writer",
)  # fmt: skip
ADMIN = "admin"
READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """The URLs of a running stack, and its logins."""

    web: str
    flower: str
    admin_password: str
    flower_login: str
    agents: str


@dataclass(slots=True)
class LocalStack:
    """`running` starts everything and stops it again. `report` prints the progress."""

    home: ServiceHome
    port: int
    flower_port: int
    report: Callable[[str], None]
    concurrency: int | None = None

    @contextmanager
    def running(self) -> Iterator[tuple[Supervisor, Addresses]]:
        """Start everything and yield when it is ready. On exit stop the processes, and the servers if we started them."""
        try:
            flower_login = f"{ADMIN}:{self.home.secret('flower_password')}"
            with Supervisor(self.home, environment=self._environment(flower_login)) as supervisor:
                supervisor.take_over()  # first, because another stack of this home may be running
                ports = {"PORT": self.port, "FLOWER_PORT": self.flower_port}
                require_free(ports)
                self.home.write_ports(**ports)
                password = self._prepare()
                agents = self._start_agents(supervisor)
                self.report("Starting web, worker, beat and Flower")
                for spec in standard_processes(
                    port=self.port, flower_port=self.flower_port, concurrency=self.concurrency
                ):
                    supervisor.start(spec)
                web = f"http://127.0.0.1:{self.port}"
                supervisor.wait_until_ready(f"{web}/readyz", READY_SECONDS)
                yield (
                    supervisor,
                    Addresses(web, f"http://127.0.0.1:{self.flower_port}", password, flower_login, agents),
                )
        finally:
            stop_servers(self.home, self.report)

    def _environment(self, flower_login: str) -> dict[str, str]:
        return {
            "PORT": str(self.port),
            "FLOWER_BASIC_AUTH": flower_login,
            "PYTHONUNBUFFERED": "1",
            "CELERY_WORKER_SEND_TASK_EVENTS": "1",  # so that Flower shows tasks from the beginning
            "ORCHESTRATOR_START_SERVICES": "",  # because this process starts and stops the servers
        }

    def _prepare(self) -> str:
        """Migrate the database, ensure that the admin login exists, and return its password."""
        self.report("Preparing the database")
        call_command("migrate", verbosity=0)
        password = self.home.secret("admin_password")
        users = get_user_model()
        user, created = users.objects.get_or_create(
            username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
        )
        if created or not user.check_password(password):
            user.set_password(password)
            user.save(update_fields=["password"])
        connections.close_all()
        return password

    def _start_agents(self, supervisor: Supervisor) -> str:
        """Start the sample agents, set them as endpoints of their roles, and return their URL."""
        self.report("Starting the sample agents")
        ready = self.home.path / "agents.url"
        ready.unlink(missing_ok=True)
        argv = (sys.executable, "-m", "text_agents", "--port", "0", "--ready-file", str(ready))
        supervisor.start(ProcessSpec("agents", argv, {"PYTHONPATH": str(EXAMPLES / "agents")}))
        url = _wait_for(ready, supervisor)
        path = self.home.path / "agents.last"
        last = path.read_text() if path.exists() else ""
        for role in SAMPLE_ROLES:
            # Only replace an empty endpoint or that of an earlier start, not one that somebody has set.
            named = Agent.objects.filter(role=role, endpoint__in=("", f"{last}/{role}"))
            named.update(endpoint=f"{url}/{role}", **UNCHECKED)
        (self.home.path / "agents.last").write_text(url)
        return url


def owns_servers() -> bool:
    """Return whether this process has started the embedded servers, so that it must stop them."""
    return os.environ.get("ORCHESTRATOR_START_SERVICES") == "1"


def stop_servers(home: ServiceHome, report: Callable[[str], None]) -> None:
    """Stop the embedded servers that this process has started, unless another stack of this home uses them."""
    connections.close_all()
    if not owns_servers() or embedded.find(home) is None:
        return
    with suppress(HomeBusy), home.lock("supervisor.lock", seconds=0):
        report("Stopping the servers")
        embedded.stop(home)


def keep_alive(supervisor: Supervisor, report: Callable[[str], None]) -> None:
    """Restart what ended unexpectedly, such as a killed server, or a worker that its watchdog ended."""
    died = [server.name for server in embedded.status(supervisor.home) if server.state == "died"]
    if died and owns_servers():
        report(f"{' and '.join(died)} ended; restarting")
        embedded.start(supervisor.home)
    for ended in supervisor.list_ended():
        report(f"{ended.name} ended with exit code {ended.exit_code}; restarting it (log: {ended.log})")
        supervisor.restart(ended.name)


def _wait_for(path: Path, supervisor: Supervisor) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while not path.exists():
        supervisor.check()
        if time.monotonic() > deadline:
            raise TimeoutError("the sample agents did not start in time")
        time.sleep(0.05)
    return path.read_text()
