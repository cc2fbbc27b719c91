"""The environment of a benchmark: servers in a temporary folder, worker and web processes, and the processor time and memory they use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from orchestrator.embedded import server
from orchestrator.processes import standard_processes

ROOT = Path(__file__).resolve().parent.parent
THREADS = 16  # of a worker process on two cores, by default


@contextmanager
def servers() -> Iterator[Path]:
    """Start PostgreSQL (durable), Redis and MongoDB, point the process's environment to them, set up Django and migrate.

    Yields the folder of the servers, which is deleted at the end.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
    os.environ["ORCHESTRATOR_INLINE_CALLABLES"] = "agents.samples,benchmarks"
    os.environ["LOG_LEVEL"] = "ERROR"
    from orchestrator import embedded

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs under another account when we are root
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


class Processes:
    """Runs a process for each command while the `with` block lasts. Measures include child processes."""

    def __init__(
        self,
        *commands: Sequence[str],
        log: Path,
        cwd: Path = ROOT,
        environment: dict[str, str] | None = None,
        interpreter: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        self.commands, self.log, self.cwd, self.environment = commands, log, cwd, environment
        self.interpreter = interpreter
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
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

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all with SIGKILL, including their children."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    def count_threads(self) -> int:
        return sum(psutil.Process(process.pid).num_threads() for process in self.processes)

    def count_connections(self, port: int) -> int:
        """Count the established connections of the processes to this port."""
        return sum(
            1
            for process in self.processes
            for each in psutil.Process(process.pid).net_connections("tcp")
            if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
        )

    def usage_when_idle(self) -> tuple[float, float]:
        """Wait until all together use less than a twentieth of a core for two seconds.

        Returns the processor time since their start, in seconds, and their proportional memory, in MiB.
        """
        wait_until(lambda: self._usage()[0] > 0.2)
        before = -1.0
        while (seconds := self._usage()[0]) - before > 0.1:
            before = seconds
            time.sleep(2.0)
        return self._usage()

    def _usage(self) -> tuple[float, float]:
        seconds = memory = 0.0
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(f"A process has ended: {process.args!r}\n{self.log.read_text()[-2000:]}")
            first = psutil.Process(process.pid)
            for each in (first, *first.children(recursive=True)):
                times = each.cpu_times()
                seconds += times.user + times.system
                memory += each.memory_full_info().pss / 2**20
        return seconds, memory


def workers(
    folder: Path, *, processes: int = 2, threads: int = THREADS, roles: str = "agent__qa"
) -> Processes:
    """Worker processes of this project for these queues."""
    command = [
        "celery", "-A", "orchestrator", "worker", "-Q", roles, "--pool", "threads", "-c", str(threads), "--loglevel", "ERROR",
    ]  # fmt: skip
    return Processes(
        *[[*command, "-n", f"w{number}@%h"] for number in range(processes)], log=folder / "workers.log"
    )


@contextmanager
def web(folder: Path, *, port: int | None = None, processes: int = 2) -> Iterator[int]:
    """Run the standard web server with this number of processes. Yields its port as soon as it answers."""
    port = port or free_port()
    # Each process derives its share of the machine from this number.
    os.environ["WEB_CONCURRENCY"] = str(processes)
    with Processes(standard_commands(port)["web"], log=folder / "web.log"):
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), 60)
        yield port


def standard_commands(port: int, *, concurrency: int | None = None) -> dict[str, Sequence[str]]:
    """The arguments of the standard processes after the interpreter, by their names."""
    specs = standard_processes(port=port, flower_port=0, concurrency=concurrency)
    return {spec.name: spec.argv[2:] for spec in specs}


def free_port() -> int:
    return server.keep_or_choose_port(None)


def answers(url: str) -> bool:
    """Whether a server answers there, with any status."""
    try:
        requests.get(url, timeout=30)
    except requests.RequestException:
        return False
    return True


def cpu_seconds(folder: Path) -> float:
    """Processor time that the servers, the workers and this process have used so far, in seconds."""
    return sum(cpu_by_component(folder).values())


def cpu_by_component(folder: Path) -> dict[str, float]:
    """As `cpu_seconds`, by component. `submission` is this process, which submits and polls."""
    seconds = {"PostgreSQL": 0.0, "Redis": 0.0, "workers": 0.0, "submission": 0.0}
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
            seconds[component] += times.user + times.system
        except psutil.Error:
            continue
    return seconds


def memory_mebibytes(folder: Path) -> float:
    """Proportional memory of the servers and the workers."""
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


def wait_until(condition: Callable[[], object], seconds: float = 300.0, *, pause: float = 0.02) -> None:
    """Return as soon as the condition holds. Raises `TimeoutError`."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > seconds:
            raise TimeoutError
        time.sleep(pause)
