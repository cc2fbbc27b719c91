"""Runs processes on one machine and ends them in order.

Each has a log file `home/log/<name>.log` and is written down in `home/processes.json`: when a supervisor is
killed, the next one of the same home ends what it left before it starts anything. Only one supervisor per
home runs at a time.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar
from urllib.parse import urlsplit

from orchestrator.embedded.errors import HomeBusy
from orchestrator.embedded.home import ServiceHome, open_log, tail, write_private
from orchestrator.embedded.identity import ProcessIdentity, wait_until
from orchestrator.embedded.server import is_free
from orchestrator.processes.specs import ProcessSpec

LEFTOVER_SECONDS = 10.0  # what processes of a killed supervisor get to end by themselves
ENDING_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})


@dataclass(frozen=True)
class EndedProcess:
    """A process that ended by itself. A negative exit code is the number of the signal that killed it."""

    name: str
    exit_code: int
    output: str
    log: Path

    def as_error(self) -> ProcessEnded:
        return ProcessEnded(self.name, self.exit_code, self.output, self.log)


class Supervisor:
    """Use it as a context manager: leaving it stops everything it started, last started first.

    `environment` is added to ours for every process; what the process's own spec says wins over both. Not thread-safe.
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
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    def take_over(self) -> None:
        """Lock the home for this supervisor, and end what a killed one left there. Raises `AlreadySupervised`. Idempotent."""
        if self._holds_lock:
            return
        try:
            self._lock.enter_context(self.home.lock("supervisor.lock", seconds=0))
        except HomeBusy as busy:
            raise AlreadySupervised(self.home.path) from busy
        self._holds_lock = True
        for leader in self._read_identities():
            end_group(leader, LEFTOVER_SECONDS)

    def start(self, spec: ProcessSpec) -> None:
        """Launch it and return at once. Raises `AlreadySupervised` when another supervisor has this home."""
        self.take_over()
        if (present := self._children.get(spec.name)) and present.runs:
            raise AlreadyRunning(spec.name, present.process.pid)
        self._children.pop(spec.name, None)  # so that the order of stopping is that of the latest starts
        self._children[spec.name] = Child.launch(
            spec, log=self.home.log(spec.name), environment=self.environment
        )
        self._write_down()

    def start_all(self, specs: Iterable[ProcessSpec]) -> None:
        for spec in specs:
            self.start(spec)

    def stop(self, name: str) -> None:
        """SIGTERM, wait for the spec's bound, SIGKILL to the group.

        Idempotent; `restart` still works afterwards.
        """
        self._child(name).stop()
        self._write_down()

    def restart(self, name: str) -> None:
        """Stop it, if it runs, and launch it again."""
        self.stop(name)
        self.start(self._child(name).spec)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, whole_group: bool = True) -> None:
        """Send a signal, by default SIGKILL to the process and all its children.

        Returns after the end for SIGKILL.

        An end that follows is not reported by `ended`, since it was asked for.
        """
        child = self._child(name)
        child.asked_to_end |= number in ENDING_SIGNALS
        child.send(number, whole_group=whole_group)
        if number == signal.SIGKILL:
            wait_until(lambda: not child.runs, KILL_SECONDS)

    def pid(self, name: str) -> int:
        return self._child(name).process.pid

    def is_running(self, name: str) -> bool:
        return name in self._children and self._children[name].runs

    def list_ended(self) -> list[EndedProcess]:
        """Processes that ended by themselves and were not started again."""
        return [
            EndedProcess(name, child.process.returncode, child.output, child.log)
            for name, child in self._children.items()
            if not child.runs and not child.asked_to_end
        ]

    def check(self) -> None:
        """Raise `ProcessEnded` for the first process that ended by itself."""
        for ended in self.list_ended():
            raise ended.as_error()

    def wait_until_ready(self, url: str, seconds: float = 60.0) -> None:
        """Return once the address answers 200.

        Raises `NotReady` after the bound, `ProcessEnded` at once when one ended.
        """
        last_answer = answers_within(url, seconds, before_each=self.check)
        if last_answer is not None:
            raise NotReady(url, seconds, last_answer, self.home.logs)

    def stop_all(self) -> None:
        """Stop everything, last started first, and let another supervisor have the home. Idempotent."""
        for child in reversed(tuple(self._children.values())):
            child.stop()
        if self._holds_lock:
            self._write_down()
            self._holds_lock = False
            self._lock.close()

    def _child(self, name: str) -> Child:
        if name not in self._children:
            raise UnknownProcess(name, list(self._children))
        return self._children[name]

    def _write_down(self) -> None:
        living = {
            name: ProcessIdentity.of(child.process.pid)
            for name, child in self._children.items()
            if child.runs
        }
        known = {name: [leader.pid, leader.started] for name, leader in living.items() if leader}
        write_private(self._file, json.dumps(known) + "\n")

    def _read_identities(self) -> list[ProcessIdentity]:
        try:
            return [
                ProcessIdentity(int(pid), str(started))
                for pid, started in json.loads(self._file.read_text()).values()
            ]
        except (OSError, ValueError, TypeError, AttributeError):
            return []


# One supervised child: a process in a group of its own, with a log file, ended as a whole.


KILL_SECONDS = 10.0


@dataclass
class Child:
    """With `asked_to_end` its end was caused by us, so it is not reported."""

    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    asked_to_end: bool = False

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
                start_new_session=True,  # Ctrl-C in our terminal must not reach them: we end them in order
            )
        return cls(spec, process, log, start)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """The end of what it wrote since this launch."""
        return tail(self.log, self.log_start)

    def send(self, number: signal.Signals, *, whole_group: bool) -> None:
        if whole_group:
            signal_group(self.process.pid, number)
        elif self.runs:
            self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM to the process, which ends its own children; after the bound SIGKILL to the group.

        Idempotent.
        """
        self.asked_to_end = True
        self.send(signal.SIGTERM, whole_group=False)
        signal_group(self.process.pid, signal.SIGCONT)  # one that is frozen would not see the first signal
        if not wait_until(lambda: not self.runs, self.spec.stop_seconds):
            self.send(signal.SIGKILL, whole_group=True)
            wait_until(lambda: not self.runs, KILL_SECONDS)
        signal_group(self.process.pid, signal.SIGKILL)  # what it left behind


def end_group(leader: ProcessIdentity, seconds: float) -> None:
    """End a group of an earlier supervisor that was killed, if its leader still is the same process."""
    if leader.is_alive():
        leader.send(signal.SIGTERM)
        wait_until(lambda: not leader.is_alive(), seconds)
        signal_group(leader.pid, signal.SIGKILL)
        wait_until(lambda: not leader.is_alive(), KILL_SECONDS)


def signal_group(leader: int, number: signal.Signals) -> None:
    # EPERM is what macOS answers for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


# Waiting until an address on this machine answers 200.


POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0  # a server that accepts and stays silent is asked again


def answers_within(url: str, seconds: float, *, before_each: Callable[[], None]) -> str | None:
    """None once the address answers 200, else what it answered last.

    `before_each` may raise to give up early.
    """
    deadline = time.monotonic() + seconds
    while True:
        before_each()
        answer = _ask(url)
        if answer == "200":
            return None
        if time.monotonic() >= deadline:
            return answer
        time.sleep(POLL_SECONDS)


def _ask(url: str) -> str:
    # http.client, as it knows neither proxies nor redirects: exactly this address is asked.
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", parts.path or "/")
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as fault:
        return f"{type(fault).__name__}: {fault}"
    finally:
        connection.close()


# Ports on which our processes are to listen: looked at before anything is started.
#
# Somebody else's server on our port would answer "ready" in place of ours, with other logins and other data.


STEP = 10  # to the next one that is tried, as people do
HIGHEST = 65_535


def require_free(wanted: Mapping[str, int]) -> None:
    """`wanted` are ports by the variable that sets them. Raises `PortsTaken`, naming free ones that lie near."""
    taken = {variable: port for variable, port in wanted.items() if not is_free(port)}
    if taken:
        raise PortsTaken(taken, {variable: _near(port) for variable, port in taken.items()})


def _near(port: int) -> int:
    return next((each for each in range(port + STEP, HIGHEST, STEP) if is_free(each)), 0)


class SupervisorError(Exception):
    """A process could not be supervised."""

    code: ClassVar[str] = "supervisor_error"


class AlreadySupervised(SupervisorError):
    """Another process supervises this home."""

    code = "already_supervised"

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"The processes of {home} already run under another supervisor. End that one (Ctrl-C), or choose "
            "another folder with ORCHESTRATOR_HOME."
        )


class UnknownProcess(SupervisorError):
    """No process of this name was started by this supervisor."""

    code = "unknown_process"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"There is no process {name!r}. Choose among: {', '.join(known) or 'none, nothing was started'}."
        )


class AlreadyRunning(SupervisorError):
    """A process of this name still runs."""

    code = "already_running"

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(f"The process {name!r} already runs with pid {pid}. Stop it first, or use restart.")


class ProcessEnded(SupervisorError):
    """A process ended although nobody asked it to."""

    code = "process_ended"

    def __init__(self, name: str, exit_code: int, output: str, log: Path) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        super().__init__(f"{name} {how}. The end of {log}:\n{output or '(nothing was written)'}")


class NotReady(SupervisorError):
    """An address did not answer 200 within the bound."""

    code = "not_ready"

    def __init__(self, url: str, seconds: float, last_answer: str, logs: Path) -> None:
        super().__init__(
            f"{url} did not answer 200 within {seconds:.0f} s; last: {last_answer}. Look into {logs}."
        )


class PortsTaken(SupervisorError):
    """Something else listens where one of our processes is to listen."""

    code = "ports_taken"

    def __init__(self, taken: Mapping[str, int], others: Mapping[str, int]) -> None:
        ports = ("port " if len(taken) == 1 else "ports ") + " and ".join(
            str(port) for port in taken.values()
        )
        instead = " ".join(f"{variable}={port}" for variable, port in others.items())
        super().__init__(
            f"Something else listens on {ports} of this machine. Choose another: {instead} make up"
        )
