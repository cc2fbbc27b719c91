"""Base of the embedded servers: folder, processes, port and launch.

A port on loopback is chosen once, and kept as long as no other program takes it.
"""

from __future__ import annotations

import importlib.util
import os
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
    """One command line, and the account that runs it. It must not contain passwords, because `ps` shows it to everybody."""

    argv: Sequence[str]
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


LONGEST_FOLDER = 80  # bytes. The path of a socket in it may have 104, on Linux 108.


class Server(ABC):
    """One server of a home. Its processes have their working directory in `folder`, by which strays are found."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_seconds: ClassVar[float] = 30.0
    stop_seconds: ClassVar[float] = 15.0

    def __init__(self, home: ServiceHome) -> None:
        self.home = home
        self.folder = home.path / self.name
        self.data = self.folder / "data"
        self.log = home.log(self.name)

    def prepare(self, *, durable: bool) -> None:
        """Prepare the folder for a launch. Idempotent. No process of this server may be running."""
        self.home.folder(self.name)
        self.data.mkdir(mode=0o700, exist_ok=True)

    def has_socket(self) -> bool:
        """Return whether the path of a socket in the folder is short enough for the system."""
        return len(os.fsencode(self.folder)) <= LONGEST_FOLDER

    @abstractmethod
    def launch(self, port: int, *, durable: bool) -> Launch:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def url(self, port: int) -> str: ...

    @abstractmethod
    def make_ready(self, port: int) -> bool:
        """Return whether the server answers, and create what its clients need (such as a database).

        Implementations import client libraries inside, because every process imports this package but few start
        servers.
        """

    @abstractmethod
    def owns(self, process: psutil.Process) -> bool:
        """Return whether a process in our folder belongs to the server, and is not for example a shell."""

    def clear_remains(self) -> None:  # noqa: B027 - most servers leave nothing
        """Remove what a killed server leaves outside its data. No process of this server may be running."""


def program(package: str, pattern: str) -> Path:
    """Return the path of a program in a wheel, without importing the package."""
    spec = importlib.util.find_spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(location).glob(pattern)):
            return path
    raise WheelMissing(package, Path(pattern).name)


# Below the range of ports that the kernel assigns to outgoing connections, so that a port is still free at a
# restart.
FIRST, LAST = 20_000, 32_000
TRIES = 200


def keep_or_choose_port(previous: int | None) -> int:
    """Return the previous port if it is free, or else another one."""
    if previous and is_free(previous):
        return previous
    for _ in range(TRIES):
        # Random, so that two homes that start at the same time do not try the same ports.
        port = random.randrange(FIRST, LAST)  # noqa: S311 - not a secret
        if is_free(port):
            return port
    raise EmbeddedError(
        f"There is no free TCP port on 127.0.0.1 between {FIRST} and {LAST}. Stop servers that you do not need.",
        code="no_free_port",
    )


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like the servers, so that a lingering connection does not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
