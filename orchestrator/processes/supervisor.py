"""Runs processes on one machine and ends them in order.

Each has a log file `home/log/<name>.log` and is recorded in `home/processes.json`. If a supervisor is killed, the
next one of the same home first ends the processes that it left. Only one supervisor per home runs at a time.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from orchestrator.embedded.errors import HomeBusy
from orchestrator.embedded.home import ServiceHome, open_log, tail, write_private
from orchestrator.embedded.identity import ProcessIdentity, wait_until
from orchestrator.embedded.server import is_free
from orchestrator.processes.specs import ProcessSpec

LEFTOVER_SECONDS = 10.0  # for processes of a killed supervisor to end before they are killed
ENDING_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})


@dataclass(frozen=True)
class EndedProcess:
    """A process that ended without being stopped. A negative exit code is the number of the signal that killed it."""

    name: str
    exit_code: int
    output: str
    log: Path

    def as_error(self) -> SupervisorError:
        number = self.exit_code
        how = f"was killed by signal {-number}" if number < 0 else f"ended with exit code {number}"
        return SupervisorError(
            f"{self.name} {how}. The end of {self.log}:\n{self.output or '(nothing was written)'}"
        )


class Supervisor:
    """Use it as a context manager: leaving it stops everything it started, last started first.

    `environment` is added to ours for every process; the process's own spec overrides both. Not thread-safe.
    """

    def __init__(self, home: ServiceHome, *, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.environment = {"ORCHESTRATOR_HOME": str(home.path), **(environment or {})}
        self._file = home.path / "processes.json"
        self._children: dict[str, Child] = {}
        self._lock = ExitStack()
        self._holds_lock = False

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    def take_over(self) -> None:
        """Lock the home, and end the processes of a killed supervisor. Raises `SupervisorError` if another one has this home."""
        if self._holds_lock:
            return
        try:
            self._lock.enter_context(self.home.lock("supervisor.lock", seconds=0))
        except HomeBusy as busy:
            raise SupervisorError(
                f"The processes of {self.home.path} already run under another supervisor. End that one (Ctrl-C), or choose "
                "another folder with ORCHESTRATOR_HOME."
            ) from busy
        self._holds_lock = True
        for leader in self._read_identities():
            end_group(leader, LEFTOVER_SECONDS)

    def start(self, spec: ProcessSpec) -> None:
        """Launch the process and return at once. Raises `SupervisorError` if it runs, or another supervisor has this home."""
        self.take_over()
        if (child := self._children.get(spec.name)) and child.runs:
            raise SupervisorError(
                f"The process {spec.name!r} is already running with pid {child.process.pid}. Stop it first, or use restart."
            )
        self._children.pop(spec.name, None)  # so that the order of stopping follows the latest starts
        self._children[spec.name] = Child.launch(
            spec, log=self.home.log(spec.name), environment=self.environment
        )
        self._save_identities()

    def stop(self, name: str) -> None:
        """Stop the process: SIGTERM, and after the spec's time limit SIGKILL to its group. Idempotent; `restart` still works."""
        self._child(name).stop()
        self._save_identities()

    def restart(self, name: str) -> None:
        """Stop the process, if it is running, and launch it again."""
        self.stop(name)
        self.start(self._child(name).spec)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, whole_group: bool = True) -> None:
        """Send a signal, by default SIGKILL to the process and all its children. For SIGKILL, wait for the end.

        `list_ended` does not report an end that this causes.
        """
        child = self._child(name)
        child.stop_requested |= number in ENDING_SIGNALS
        child.send(number, whole_group=whole_group)
        if number == signal.SIGKILL:
            wait_until(lambda: not child.runs, KILL_SECONDS)

    def pid(self, name: str) -> int:
        return self._child(name).process.pid

    def is_running(self, name: str) -> bool:
        return name in self._children and self._children[name].runs

    def list_ended(self) -> list[EndedProcess]:
        """Return the processes that ended without being stopped, and were not restarted."""
        return [
            EndedProcess(name, child.process.returncode, child.output, child.log)
            for name, child in self._children.items()
            if not child.runs and not child.stop_requested
        ]

    def check(self) -> None:
        """Raise `SupervisorError` for the first process that ended without being stopped."""
        for ended in self.list_ended():
            raise ended.as_error()

    def wait_until_ready(self, url: str, seconds: float = 60.0) -> None:
        """Return when the URL answers 200. Raises `SupervisorError` after `seconds`, or as soon as a process ends."""
        last_answer = wait_for_ok(url, seconds, before_each=self.check)
        if last_answer is not None:
            raise SupervisorError(
                f"{url} did not answer 200 within {seconds:.0f} s; last answer: {last_answer}. See the logs in {self.home.logs}."
            )

    def stop_all(self) -> None:
        """Stop everything, last started first, and release the home. Idempotent."""
        for child in reversed(tuple(self._children.values())):
            child.stop()
        if self._holds_lock:
            self._save_identities()
            self._holds_lock = False
            self._lock.close()

    def _child(self, name: str) -> Child:
        if name not in self._children:
            known = ", ".join(self._children) or "none, nothing was started"
            raise SupervisorError(f"There is no process {name!r}. Choose among: {known}.")
        return self._children[name]

    def _save_identities(self) -> None:
        identities = {
            name: ProcessIdentity.of(child.process.pid)
            for name, child in self._children.items()
            if child.runs
        }
        record = {name: [leader.pid, leader.started] for name, leader in identities.items() if leader}
        write_private(self._file, json.dumps(record) + "\n")

    def _read_identities(self) -> list[ProcessIdentity]:
        try:
            return [
                ProcessIdentity(int(pid), str(started))
                for pid, started in json.loads(self._file.read_text()).values()
            ]
        except (OSError, ValueError, TypeError, AttributeError):
            return []


# One supervised child: a process with its own process group and log file.


KILL_SECONDS = 10.0


@dataclass
class Child:
    """With `stop_requested` its end was requested, so it is not reported."""

    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    stop_requested: bool = False

    @classmethod
    def launch(cls, spec: ProcessSpec, *, log: Path, environment: Mapping[str, str]) -> Child:
        with open_log(log) as file:
            start = file.tell()
            process = subprocess.Popen(
                spec.argv,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, **spec.env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # so that Ctrl-C does not reach them, because we end them in order
            )
        return cls(spec, process, log, start)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """The last lines that it wrote since this launch."""
        return tail(self.log, self.log_start)

    def send(self, number: signal.Signals, *, whole_group: bool) -> None:
        if whole_group:
            signal_group(self.process.pid, number)
        elif self.runs:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Send SIGTERM to the process, which ends its own children, and after the time limit SIGKILL to the group. Idempotent."""
        self.stop_requested = True
        self.send(signal.SIGTERM, whole_group=False)
        signal_group(self.process.pid, signal.SIGCONT)  # because a frozen process does not receive SIGTERM
        if not wait_until(lambda: not self.runs, self.spec.stop_seconds):
            self.send(signal.SIGKILL, whole_group=True)
            wait_until(lambda: not self.runs, KILL_SECONDS)
        signal_group(self.process.pid, signal.SIGKILL)  # for children that it left behind


def end_group(leader: ProcessIdentity, seconds: float) -> None:
    """End a process group of a killed supervisor, if its leader is still the same process."""
    if leader.is_alive():
        leader.send(signal.SIGTERM)
        wait_until(lambda: not leader.is_alive(), seconds)
        signal_group(leader.pid, signal.SIGKILL)
        wait_until(lambda: not leader.is_alive(), KILL_SECONDS)


def signal_group(leader: int, number: signal.Signals) -> None:
    # macOS answers EPERM for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


# Waiting until a URL on this machine answers 200.


POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0  # after which a silent server is called again


def wait_for_ok(url: str, seconds: float, *, before_each: Callable[[], None]) -> str | None:
    """Return None when the URL answers 200, or the last answer after `seconds`. `before_each` may raise to give up early."""
    deadline = time.monotonic() + seconds
    while True:
        before_each()
        answer = _get_status(url)
        if answer == "200":
            return None
        if time.monotonic() >= deadline:
            return answer
        time.sleep(POLL_SECONDS)


def _get_status(url: str) -> str:
    # http.client ignores proxies and redirects, so exactly this URL is called.
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", parts.path or "/")
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


# Ports of our processes, which are checked before anything is started.
#
# Another server on our port would answer "ready" instead of ours, with other logins and other data.


STEP = 10  # between two ports that are tried
HIGHEST = 65_535


def require_free(ports: Mapping[str, int]) -> None:
    """Raise `SupervisorError`, which suggests free ports nearby, unless all ports are free and different.

    `ports` is by environment variable.
    """
    taken = {variable: port for variable, port in ports.items() if not is_free(port)}
    if taken:
        ports_taken = ("port " if len(taken) == 1 else "ports ") + " and ".join(map(str, taken.values()))
        others = " ".join(f"{variable}={_free_port_near(port)}" for variable, port in taken.items())
        raise SupervisorError(
            f"Another program listens on {ports_taken} of this machine. Choose another port: {others} make up"
        )
    for (first, port), (second, other) in combinations(ports.items(), 2):
        if port == other:
            raise SupervisorError(
                f"{first} and {second} are both {port}. Choose another port: {second}={_free_port_near(port)} make up"
            )


def _free_port_near(port: int) -> int:
    return next((each for each in range(port + STEP, HIGHEST, STEP) if is_free(each)), 0)


class SupervisorError(Exception):
    """A process could not be supervised."""
