"""A whole installation for a test, in real processes: servers, web, workers, beats, sample agents.

Times are a tenth of the defaults, so that many processes can be killed in a minute. Tests act only over HTTP and the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import redis
from django.conf import settings

from orchestrator import embedded
from orchestrator.embedded import ServiceHome
from orchestrator.processes import ProcessSpec, Supervisor
from orchestrator.processes.specs import KEEP_ALIVE_SECONDS
from tests import preloaded_manage, servers
from tests.network import free_port
from tests.quick_python import quick_supervisors

ROOT = Path(__file__).resolve().parents[2]
SHORT_TIMES = {
    "ORCHESTRATOR_HEARTBEAT_SECONDS": "0.5",
    "ORCHESTRATOR_LOST_AFTER_SECONDS": "3",
    "ORCHESTRATOR_WATCHDOG_SECONDS": "2.5",
    "ORCHESTRATOR_TICK_SECONDS": "0.3",
    "ORCHESTRATOR_REPUBLISH_SECONDS": "2",
}
# The settings of pytest's own Django must not reach these processes.
FOREIGN = (
    "DATABASE_URL",
    "REDIS_URL",
    "CELERY_BROKER_URL",
    "MONGODB_URI",
    "DJANGO_SETTINGS_MODULE",
    "ORCHESTRATOR_REDIS_PREFIX",
)


@dataclass
class Stack:
    """A running installation."""

    home: ServiceHome
    supervisor: Supervisor
    environment: dict[str, str]
    web: str
    agents: str

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `manage.py`, in the preloaded process if it is running."""
        ready = [sys.executable, "-S", "-E", preloaded_manage.__file__, str(self.commands)]
        alone = [sys.executable, str(ROOT / "manage.py")]
        process = subprocess.run(
            [*(ready if self.commands.exists() else alone), *arguments, "--skip-checks"],
            env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert not check or process.returncode == 0, process.stdout + process.stderr
        return process

    @property
    def commands(self) -> Path:
        """Where `tests.preloaded_manage` listens."""
        return self.home.path / "commands"

    def client(self, tenant: str, role: str = "admin") -> httpx2.Client:
        token = (
            self.manage("create_token", "--tenant", tenant, "--role", role).stdout.strip().splitlines()[-1]
        )
        return httpx2.Client(
            base_url=f"{self.web}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
        )

    def _as(self, kind: str) -> dict[str, str]:
        """Return the environment of a process that uses Redis as the user of its kind, as in production."""
        return {
            "REDIS_URL": embedded.redis_url_for(self.home, self.environment["REDIS_URL"], kind),
            "CELERY_BROKER_URL": embedded.redis_url_for(self.home, self.environment["REDIS_URL"], kind),
        }

    def refused_by_redis(self) -> list[dict[str, object]]:
        """Return the commands that Redis refused since its start."""
        with redis.Redis.from_url(self.environment["REDIS_URL"]) as client:
            return [dict(entry) for entry in client.acl_log()]

    def start_worker(self, name: str) -> None:
        self.supervisor.start(
            ProcessSpec(
                name,
                celery("worker", "--pool=threads", "-c", "6", "-n", f"{name}@test"),
                self._as("worker"),
                stop_seconds=10,
            )
        )

    def start_beat(self, name: str) -> None:
        schedule = str(self.home.path / f"{name}.schedule")
        self.supervisor.start(
            ProcessSpec(
                name, celery("beat", "--pidfile=", "--schedule", schedule), self._as("beat"), stop_seconds=5
            )
        )

    def recorder(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx2.get(f"{self.agents}/recorder", timeout=10, trust_env=False).json()
        return answer


def celery(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "celery", "-A", "orchestrator", *arguments, "--loglevel", "WARNING")


@contextmanager
def running(*, workers: int, beats: int) -> Iterator[Stack]:
    """Start everything on free ports, and stop it at the end. Needs the database of this process, which it copies (`django_db_setup`)."""
    # Not pytest's tmp_path, because pytest makes its parents private, and PostgreSQL runs as another account when we are root.
    with tempfile.TemporaryDirectory(prefix="orchestrator-stack-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with _running(ServiceHome(Path(folder) / "home"), workers=workers, beats=beats) as stack:
            yield stack


@contextmanager
def _running(home: ServiceHome, *, workers: int, beats: int) -> Iterator[Stack]:
    endpoints = embedded.start(home)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= SHORT_TIMES | servers.QUICK_START | endpoints.as_environment() | {
        "ORCHESTRATOR_HOME": str(home.path), "PORT": str(port), "LOG_LEVEL": "WARNING",
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    try:
        with quick_supervisors(), Supervisor(home, environment=environment) as supervisor:
            web, ready = f"http://127.0.0.1:{port}", home.path / "agents.url"
            stack = Stack(home, supervisor, environment, web, "")
            if not servers.copy_database(settings.DATABASES["owner"]["NAME"], environment["DATABASE_URL"]):
                stack.manage("migrate", "-v0")
            serving = f"from tests import preloaded_manage; preloaded_manage.serve({str(stack.commands)!r}, checks_first=False)"
            supervisor.start(ProcessSpec("commands", (sys.executable, "-c", serving)))
            agents = (
                sys.executable,
                "-m",
                "examples.agents.text_agents",
                "--port",
                "0",
                "--ready-file",
                str(ready),
            )
            supervisor.start(ProcessSpec("agents", agents))
            gunicorn = (
                "gunicorn",
                "orchestrator.wsgi:application",
                "--worker-class=orchestrator.web_worker.StreamingWorker",
                "--threads=8",
                f"--keep-alive={KEEP_ALIVE_SECONDS}",
                f"--bind=127.0.0.1:{port}",
            )
            supervisor.start(
                ProcessSpec("web", (sys.executable, "-m", *gunicorn, "--no-control-socket"), stack._as("web"))
            )
            for number in range(workers):
                stack.start_worker(f"worker-{number}")
            for number in range(beats):
                stack.start_beat(f"beat-{number}")
            supervisor.wait_until_ready(f"{web}/readyz", 60)
            eventually(ready.exists, 30)
            eventually(stack.commands.exists, 30)
            stack.agents = ready.read_text()
            yield stack
    finally:
        embedded.stop(home)


def eventually(
    condition: Callable[[], Any],
    seconds: float,
    details: Callable[[], str] = lambda: "",
    *,
    pause: float = 0.1,
) -> None:
    """Wait until the condition is true. `pause`: seconds between two checks; more where a check costs the installation much."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {seconds} s {details()}"
        time.sleep(pause)


def invariants(stack: Stack) -> tuple[int, Any]:
    """Return the exit status of `check_invariants` and its result, or its output if that is no JSON."""
    check = stack.manage("check_invariants", "--json", check=False)
    is_json = check.stdout.strip().startswith(("{", "["))
    return check.returncode, json.loads(check.stdout) if is_json else check.stdout + check.stderr
