"""The setting of a measurement: servers of its own, worker processes of either kind, and what they cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from orchestrator.processes import standard_processes

ROOT = Path(__file__).resolve().parent.parent
SEATS = 16  # of a worker process on two cores when nobody names a number


@contextmanager
def servers() -> Iterator[Path]:
    """PostgreSQL (durable), Redis and MongoDB in a folder of their own; the environment points to them."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
    os.environ["ORCHESTRATOR_INLINE_CALLABLES"] = "agents.samples,benchmarks"
    os.environ["LOG_LEVEL"] = "ERROR"
    from orchestrator import embedded

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs as another account when we are root
        home = embedded.ServiceHome(Path(folder))
        endpoints = embedded.start(home)
        os.environ.update(endpoints.as_environment(), ORCHESTRATOR_HOME=folder)
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        try:
            yield Path(folder)
        finally:
            embedded.stop(home)


class Workers:
    """Worker processes of one kind; `with` stops them. Processor time is that of all processes on their behalf."""

    def __init__(
        self,
        *commands: list[str],
        log: Path,
        cwd: Path = ROOT,
        environment: dict[str, str] | None = None,
        interpreter: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        self.commands, self.log, self.cwd, self.environment = commands, log, cwd, environment
        self.interpreter = interpreter
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        with self.log.open("ab") as output:
            for command in self.commands:
                self.processes.append(
                    subprocess.Popen(
                        [*self.interpreter, *command],
                        cwd=self.cwd,
                        env=self.environment,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        return self

    def threads(self) -> int:
        """How many threads all of them have together."""
        return sum(psutil.Process(process.pid).num_threads() for process in self.processes)

    def connections_to(self, port: int) -> int:
        """How many connections of theirs lead to this port."""
        return sum(
            1
            for process in self.processes
            for each in psutil.Process(process.pid).net_connections("tcp")
            if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
        )

    def at_rest(self) -> tuple[float, float]:
        """Seconds of processor time since the start and MiB of proportional memory, of all with their children, once they have nothing to
        do: for two seconds less than a twentieth of a core."""
        wait(lambda: self._used()[0] > 0.2)
        before = -1.0
        while (used := self._used()[0]) - before > 0.1:
            before = used
            time.sleep(2.0)
        return self._used()

    def _used(self) -> tuple[float, float]:
        seconds = memory = 0.0
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(
                    f"{' '.join(map(str, process.args))} has ended: {self.log.read_text()[-2000:]}"
                )  # type: ignore[union-attr]
            first = psutil.Process(process.pid)
            for each in (first, *first.children(recursive=True)):
                times = each.cpu_times()
                seconds += times.user + times.system
                memory += each.memory_full_info().pss / 2**20
        return seconds, memory

    def kill(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def our_workers(log: Path, *, processes: int = 2, threads: int = SEATS, roles: str = "agent__qa") -> Workers:
    command = [
        "celery",
        "-A",
        "orchestrator",
        "worker",
        "-Q",
        roles,
        "--pool",
        "threads",
        "-c",
        str(threads),
        "--loglevel",
        "ERROR",
    ]
    return Workers(*[[*command, "-n", f"w{number}@%h"] for number in range(processes)], log=log)


@contextmanager
def web(log: Path, port: int) -> Iterator[None]:
    """The web process, as everywhere, on a port of its own; it answers when this begins."""
    (spec,) = (
        each for each in standard_processes(port=port, flower_port=0, concurrency=None) if each.name == "web"
    )
    with Workers(list(spec.argv[2:]), log=log):
        wait(lambda: _listens(port), 60)
        yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Whether a server answers there, with whatever it says."""
    try:
        requests.get(url, timeout=30)
    except requests.RequestException:
        return False
    return True


def cpu_seconds(folder: Path) -> float:
    """Processor time used so far by every process of ours: servers, workers and this one."""
    return sum(cpu_by_component(folder).values())


def cpu_by_component(folder: Path) -> dict[str, float]:
    """Processor time used so far, in seconds: of each server, of the workers, and of this process, which submits and looks."""
    used = {"PostgreSQL": 0.0, "Redis": 0.0, "workers": 0.0, "submission": 0.0}
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        try:
            if process.pid == os.getpid():
                component = "submission"
            elif _belongs(process, folder):
                name = process.name()
                component = "PostgreSQL" if "postgres" in name else "workers"
                component = "Redis" if "redis" in name or "valkey" in name else component
            else:
                continue
            times = process.cpu_times()
            used[component] += times.user + times.system
        except psutil.Error:
            continue
    return used


def memory_mebibytes(folder: Path) -> float:
    """Proportional memory of servers and workers."""
    total = 0.0
    for process in psutil.process_iter(["pid"]):
        try:
            if process.pid != os.getpid() and _belongs(process, folder):
                total += process.memory_full_info().pss
        except (psutil.Error, OSError):
            continue
    return total / 2**20


def _belongs(process: psutil.Process, folder: Path) -> bool:
    """Servers have the folder in their command line or working directory, workers in their environment."""
    if str(folder) in " ".join(process.cmdline()) or process.cwd().startswith(str(folder)):
        return True
    return process.environ().get("ORCHESTRATOR_HOME") == str(folder)


def wait(condition: object, seconds: float = 300.0, pause: float = 0.02) -> float:
    """Seconds until `condition()` holds."""
    began = time.perf_counter()
    while not condition():  # type: ignore[operator]
        if time.perf_counter() - began > seconds:
            raise TimeoutError
        time.sleep(pause)
    return time.perf_counter() - began


def open_admission() -> None:
    """Put admission in force as a leader would, in the epoch of the last one: an earlier epoch is refused."""
    from activities.admission import rebuilding
    from activities.models import LeaderLease
    from tenants.context import system_scope

    with system_scope():
        last = LeaderLease.objects.values_list("epoch", flat=True).first()
    rebuilding.rebuild(epoch=last or 0)
