"""A whole installation in real processes, in which each process has its own link to each server.

Two web processes behind one address, workers, beats, PostgreSQL, Valkey and a MongoDB-protocol server. A process that exits is started
again, as systemd or Kubernetes would do; one that a fault has stopped stays down until the fault ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import redis

from orchestrator import embedded
from orchestrator.embedded import ServiceHome
from orchestrator.processes import ProcessSpec, Supervisor
from tests.acceptance.stack import FOREIGN, ROOT
from tests.chaos.links import Switchboard
from tests.network import free_port

WORKERS = ("worker-0", "worker-1", "worker-2")
BEATS = ("beat-0", "beat-1")
WEBS = ("web-0", "web-1")
SERVERS = ("postgres", "redis", "mongo")

#: A third of the defaults, so that several workers can be lost in two minutes. `shipped` changes nothing.
TIMES = {
    "short": {
        "ORCHESTRATOR_HEARTBEAT_SECONDS": "1.5",
        "ORCHESTRATOR_LOST_AFTER_SECONDS": "10",
        "ORCHESTRATOR_WATCHDOG_SECONDS": "8",
        "ORCHESTRATOR_REPUBLISH_SECONDS": "4",
    },
    "shipped": {},
}
LOST_AFTER = {"short": 10.0, "shipped": 30.0}
FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
)


class HarnessTrouble(Exception):
    """The harness itself failed, which tells nothing about the installation."""


def faketime_library() -> str | None:
    """Return the path of libfaketime, from CHAOS_FAKETIME or where distributions install it."""
    named = os.environ.get("CHAOS_FAKETIME")
    return next((path for path in (named, *FAKETIME) if path and Path(path).is_file()), None)


class Installation:
    """Created by `running`. All methods may be called from any thread."""

    def __init__(self, home: ServiceHome, times: str, tell: Callable[[str], None]) -> None:
        self.home, self.times, self.tell = home, times, tell
        self.switchboard = Switchboard()
        self.lost_after = LOST_AFTER[times]
        self.restarts: list[
            tuple[float, str, int]
        ] = []  # time, name and exit code of each process that exited
        self._lock = threading.RLock()
        self._servers_lock = threading.Lock()
        self._stopped = threading.Event()
        self._specs: dict[str, ProcessSpec] = {}
        self._log_starts: dict[str, int] = {}
        self._direct: dict[str, str] = {}
        self.supervisor: Supervisor
        self.web = ""

    # Servers, reached directly without links.

    def database(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._direct["DATABASE_URL"],
            autocommit=True,
            connect_timeout=10,
            application_name="chaos",
            **options,
        )

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self._direct["REDIS_URL"], socket_timeout=20)

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        process = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env=self._environment | self._direct, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
        if check and process.returncode:
            raise HarnessTrouble(
                f"manage.py {' '.join(arguments)} exited with {process.returncode}: {process.stderr[-800:]}"
            )
        return process

    def pids_of(self, server: str) -> list[int]:
        """Return the ids of the server's main process and its children."""
        for status in embedded.status(self.home):
            if status.name == server and status.pid:
                with suppress(psutil.NoSuchProcess):
                    main = psutil.Process(status.pid)
                    return [status.pid, *(child.pid for child in main.children(recursive=True))]
        return []

    def signal_server(self, server: str, number: signal.Signals) -> None:
        for pid in self.pids_of(server):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_server(self, server: str) -> None:
        pids = self.pids_of(server)
        self.signal_server(server, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10)

    def stop_server(self, server: str) -> None:
        with self._servers_lock:
            embedded.stop(self.home, (server,))

    def start_server(self, server: str) -> None:
        with self._servers_lock:
            embedded.start(self.home, services=(server,))

    def empty_redis_files(self) -> None:
        for leftover in (self.home.path / "redis" / "data").rglob("*"):
            if leftover.is_file():
                leftover.unlink()

    # Processes.

    def start(self, name: str, *, env: dict[str, str] | None = None) -> None:
        """Start the process, unless it runs."""
        spec = self._specs[name]
        if env:
            spec = ProcessSpec(name, spec.argv, {**spec.env, **env}, spec.stop_seconds)
        with self._lock:
            if not self._stopped.is_set() and not self.supervisor.is_running(name):
                self._launch(spec)

    def _launch(self, spec: ProcessSpec) -> None:
        log = self.home.log(spec.name)
        self._log_starts[spec.name] = log.stat().st_size if log.exists() else 0
        self.supervisor.start(spec)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        with self._lock:
            self.supervisor.kill(name, number)

    def terminate(self, name: str, seconds: float = 30.0) -> bool:
        """Send SIGTERM and return whether the process exited in time. The lock is free meanwhile."""
        with self._lock:
            self.supervisor.kill(name, signal.SIGTERM, whole_group=False)
        deadline = time.monotonic() + seconds
        while self.supervisor.is_running(name):
            if time.monotonic() > deadline:
                self.kill(name)
                return False
            time.sleep(0.1)
        return True

    def await_ready(self, name: str, seconds: float = 90.0) -> None:
        """Wait until a web process accepts connections, or a worker messages, or the time is over. Others are ready at once.

        Then the start of processes, which is slow on a busy machine, does not count as recovery time.
        """
        deadline = time.monotonic() + seconds
        while not self._stopped.is_set() and time.monotonic() < deadline and not self._is_ready(name):
            time.sleep(0.1)

    def _is_ready(self, name: str) -> bool:
        if name in WEBS:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._web_ports[name]), 1):
                return True
            return False
        if name in WORKERS:
            with suppress(OSError), self.home.log(name).open("rb") as log:
                log.seek(self._log_starts.get(name, 0))
                return b"@chaos ready" in log.read()
            return False
        return True

    def leader(self) -> str | None:
        """Return the name of the process that holds the leader's lease, or None."""
        with self.database() as connection:
            row = connection.execute(
                "SELECT pid FROM activities_leaderlease WHERE expires_at > clock_timestamp()"
            ).fetchone()
        return next((name for name in (*WORKERS, *BEATS) if row and self._pid(name) == row[0]), None)

    def links_of(self, process: str, *servers: str) -> list[str]:
        return [f"{process}:{server}" for server in servers or SERVERS]

    def _pid(self, name: str) -> int | None:
        with self._lock, suppress(Exception):
            return self.supervisor.pid(name)
        return None

    # From start to stop.

    def begin(self) -> None:
        endpoints = embedded.start(self.home)
        self._direct = endpoints.as_environment()
        ports = {
            server: urlsplit(url).port or 0
            for server, url in zip(SERVERS, self._direct.values(), strict=True)
        }
        for name in (*WEBS, *WORKERS, *BEATS):
            for server in SERVERS:
                self.switchboard.open(f"{name}:{server}", [("127.0.0.1", ports[server])])
        web_ports = {name: free_port() for name in WEBS}
        front = self.switchboard.open("front:web", [("127.0.0.1", port) for port in web_ports.values()])
        self.web = f"http://127.0.0.1:{front.port}"
        self._environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        self._environment |= TIMES[self.times] | {
            "ORCHESTRATOR_HOME": str(self.home.path), "PORT": str(front.port), "LOG_LEVEL": "INFO",
            "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", "PYTHONUNBUFFERED": "1",
            "ORCHESTRATOR_PUBLIC_URL": self.web, "ORCHESTRATOR_UNDO_SECONDS": "0",
        }  # fmt: skip
        self.supervisor = Supervisor(self.home, environment=self._environment)
        self.supervisor.take_over()
        self.manage("migrate", "-v0")
        self._web_ports = web_ports
        for name in WEBS:
            self._specs[name] = ProcessSpec(
                name,
                (
                    sys.executable, "-m", "gunicorn", "orchestrator.wsgi:application", "--threads=8", "--no-control-socket",
                    "--worker-class=orchestrator.web_worker.StreamingWorker", f"--bind=127.0.0.1:{web_ports[name]}",
                    "--logger-class=orchestrator.web_worker.StructuredLogger", "--graceful-timeout=5",
                ), self._environment_of(name, "web"), stop_seconds=10,
            )  # fmt: skip
        for name in WORKERS:
            argv = _celery("worker", "--pool=threads", "-c", "6", "-n", f"{name}@chaos")
            self._specs[name] = ProcessSpec(name, argv, self._environment_of(name, "worker"), stop_seconds=10)
        for name in BEATS:
            argv = _celery("beat", "--pidfile=", "--schedule", str(self.home.path / f"{name}.schedule"))
            self._specs[name] = ProcessSpec(name, argv, self._environment_of(name, "beat"), stop_seconds=5)

    def start_all(self) -> None:
        for name in self._specs:
            self.start(name)
        self.supervisor.wait_until_ready(f"{self.web}/readyz", 120)
        threading.Thread(target=self._restart_exited, name="restarter", daemon=True).start()

    def end(self) -> None:
        """Stop everything. Idempotent, also for an installation that never started."""
        self._stopped.set()
        for server in SERVERS:
            self.signal_server(server, signal.SIGCONT)
        if hasattr(self, "supervisor"):
            with self._lock:
                for name in (*WORKERS, *BEATS, *WEBS):
                    # SIGKILL, because a soft shutdown of each would take long.
                    with suppress(Exception):
                        self.supervisor.kill(name)
                self.supervisor.stop_all()
        embedded.stop(self.home)

    def _environment_of(self, name: str, kind: str) -> dict[str, str]:
        """Return the environment in which a process uses its own links, and the Redis user of its kind."""

        def over(url: str, server: str) -> str:
            return url.replace(
                f":{urlsplit(url).port}", f":{self.switchboard.links[f'{name}:{server}'].port}"
            )

        redis_url = over(embedded.redis_url_for(self.home, self._direct["REDIS_URL"], kind), "redis")
        return {
            "DATABASE_URL": over(self._direct["DATABASE_URL"], "postgres"),
            "REDIS_URL": redis_url,
            "CELERY_BROKER_URL": redis_url,
            "MONGODB_URI": over(self._direct["MONGODB_URI"], "mongo"),
        }

    def _restart_exited(self) -> None:
        while not self._stopped.wait(0.5):
            with self._lock:
                if self._stopped.is_set():
                    return
                for ended in self.supervisor.list_ended():
                    self.restarts.append((time.time(), ended.name, ended.exit_code))
                    self.tell(f"{ended.name} exited with {ended.exit_code} and is restarted")
                    self._launch(self._specs[ended.name])


@contextmanager
def running(folder: Path, *, times: str, tell: Callable[[str], None]) -> Iterator[Installation]:
    """Start the servers and create the tables. `start_all` starts the processes. Everything is stopped at the end."""
    installation = Installation(ServiceHome(folder), times, tell)
    with installation.switchboard:
        try:
            installation.begin()
            yield installation
        finally:
            installation.end()


def check_invariants(installation: Installation, seconds: float, since: float) -> dict[str, Any]:
    """Return the result of `manage.py check_invariants` once it finds nothing, or when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        ago = f"{int(time.time() - since) + 5}s"
        process = installation.manage("check_invariants", "--json", "--quiesced", "--since", ago, check=False)
        try:
            result: dict[str, Any] = json.loads(process.stdout)
        except ValueError as error:
            text = (process.stdout + process.stderr)[-800:]
            raise HarnessTrouble(f"check_invariants printed: {text}") from error
        if result["ok"] or time.monotonic() > deadline:
            return result
        time.sleep(3)


def _celery(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "celery", "-A", "orchestrator", *arguments, "--loglevel", "INFO")
