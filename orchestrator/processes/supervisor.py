"""Runs processes on one machine and ends them in order.

Each has a log file `home/log/<name>.log` and is written down in `home/processes.json`: when a supervisor is
killed, the next one of the same home ends what it left before it starts anything. Only one supervisor per
home runs at a time.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestrator.embedded.errors import HomeBusy
from orchestrator.embedded.home import ServiceHome, write_private
from orchestrator.embedded.identity import ProcessIdentity, wait_until
from orchestrator.processes.children import KILL_SECONDS, Child, end_group
from orchestrator.processes.errors import (
    AlreadyRunning,
    AlreadySupervised,
    NotReady,
    ProcessEnded,
    UnknownProcess,
)
from orchestrator.processes.readiness import answers_within
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

    `environment` is laid over ours for every process, under what its spec says. Not thread-safe.
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
        """Have the home for ourselves, and end what a killed supervisor left there. Raises `AlreadySupervised`. Idempotent."""
        if self._holds_lock:
            return
        try:
            self._lock.enter_context(self.home.locked("supervisor.lock", seconds=0))
        except HomeBusy as busy:
            raise AlreadySupervised(self.home.path) from busy
        self._holds_lock = True
        for leader in self._written_down():
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

    def ended(self) -> list[EndedProcess]:
        """Processes that ended by themselves and were not started again."""
        return [
            EndedProcess(name, child.process.returncode, child.output, child.log)
            for name, child in self._children.items()
            if not child.runs and not child.asked_to_end
        ]

    def check(self) -> None:
        """Raise `ProcessEnded` for the first process that ended by itself."""
        for ended in self.ended():
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

    def _written_down(self) -> list[ProcessIdentity]:
        try:
            return [
                ProcessIdentity(int(pid), str(started))
                for pid, started in json.loads(self._file.read_text()).values()
            ]
        except (OSError, ValueError, TypeError, AttributeError):
            return []
