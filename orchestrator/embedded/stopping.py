"""Ends the processes of one server: asks, waits, kills after a bound, and leaves nothing of them behind."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.embedded.errors import ServerImmortal
from orchestrator.embedded.identity import ProcessIdentity, wait_until
from orchestrator.embedded.server import Server

KILL_SECONDS = 10.0


def stop_server(server: Server, process: ProcessIdentity | None) -> None:
    """Stop the recorded process, then whatever else of this server is left. Idempotent."""
    if process is not None:
        process.send(server.stop_signal)
        process.send(signal.SIGCONT)  # one that is frozen would not see the first signal
        wait_until(lambda: not process.is_alive(), server.stop_seconds)
    end_strays(server)


def end_strays(server: Server) -> None:
    """End every process of this server, recorded or not, and clear what killed ones leave.

    Strays are children of a killed server that are about to notice, or servers whose starter died before it
    could write them down. Raises `ServerImmortal` if some outlive SIGKILL.
    """
    for number, seconds in ((server.stop_signal, server.stop_seconds), (signal.SIGKILL, KILL_SECONDS)):
        if not (strays := strays_of(server)):
            break
        for stray in strays:
            stray.send(number)
            stray.send(signal.SIGCONT)
        wait_until(lambda strays=strays: not any(stray.is_alive() for stray in strays), seconds)  # type: ignore[misc]
    if strays := strays_of(server):
        raise ServerImmortal(server.name, [stray.pid for stray in strays])
    server.clear_remains()


def strays_of(server: Server) -> list[ProcessIdentity]:
    """The server's processes, known by their program and by the folder that they work in."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if _works_in(Path(process.cwd()), server.folder) and server.owns(process):
                found.append(ProcessIdentity.of(process.pid))
    return [identity for identity in found if identity is not None]


def _works_in(directory: Path, folder: Path) -> bool:
    return directory == folder or folder in directory.parents
