"""What can go wrong with supervised processes. Every message says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar


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
