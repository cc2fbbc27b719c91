"""Start, find, look at and stop the servers of a home.

All changes happen under the home's lock, so two starts at once give the same servers. Each launch is written
down before it is waited for: if we are killed in between, the next start or stop knows the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Literal

import psutil

from orchestrator.embedded import accounts
from orchestrator.embedded.errors import ServerFailed, ServerImmortal, ServerSilent, UnknownService
from orchestrator.embedded.home import (
    SERVICES,
    Endpoints,
    ServerRecord,
    ServiceHome,
    endpoints_of,
    open_log,
    tail,
)
from orchestrator.embedded.identity import ProcessIdentity, adopt, wait_until
from orchestrator.embedded.mongo import MongoServer
from orchestrator.embedded.postgres import PostgresServer
from orchestrator.embedded.server import Server, is_free, is_listening, keep_or_choose_port
from orchestrator.embedded.valkey import ValkeyServer

_SERVERS: dict[str, type[Server]] = {
    "postgres": PostgresServer,
    "redis": ValkeyServer,
    "mongo": MongoServer,
}


@dataclass(frozen=True)
class ServerStatus:
    """One server as it is now. `died`: it ended without being stopped; the next start brings it up again."""

    name: str
    state: Literal["running", "stopped", "died"]
    port: int
    pid: int | None
    durable: bool
    log: Path


def start(home: ServiceHome, *, services: Iterable[str] = SERVICES, durable: bool = True) -> Endpoints:
    """Return once all named servers answer.

    Idempotent: living ones are reused, dead ones continue on their data.

    `durable=False` gives up safety against a crash of the machine for speed; it is meant for tests. Servers
    of this home that are not named stay as they are. When one fails, the others stay up.
    """
    servers = _servers(home, services)
    with home.lock():
        records = home.read_records()
        writing = Lock()

        def bring_up(server: Server) -> None:
            def remember(record: ServerRecord) -> None:
                with writing:
                    records[server.name] = record
                    home.write_records(records)

            ensure_running(server, records.get(server.name), durable=durable, remember=remember)

        with ThreadPoolExecutor(max_workers=len(SERVICES)) as pool:
            list(pool.map(bring_up, servers))
        return endpoints_of(records)


def stop(home: ServiceHome, services: Iterable[str] | None = None) -> None:
    """Stop the named servers, or all.

    Returns when their processes are gone; kills those that do not end. Idempotent.
    """
    servers = _servers(home, SERVICES if services is None else services)
    if not home.path.exists():
        return
    with home.lock():
        for server in servers:
            records = home.read_records()
            record = records.get(server.name)
            stop_server(server, record.process if record else None)
            if record:
                home.write_records({**records, server.name: replace(record, process=None)})


def find(home: ServiceHome) -> Endpoints | None:
    """Where the servers of this home are, or None when none of them lives. Looks at processes, sends nothing.

    The address of one that died is given as well: the next start brings it up at the same place.
    """
    records = home.read_records()
    return endpoints_of(records) if any(record.is_alive() for record in records.values()) else None


def status(home: ServiceHome) -> tuple[ServerStatus, ...]:
    """How each server that this home ever started is now."""
    return tuple(
        ServerStatus(
            name=name,
            state="stopped" if record.process is None else "running" if record.is_alive() else "died",
            port=record.port,
            pid=record.process.pid if record.process and record.is_alive() else None,
            durable=record.durable,
            log=home.log(name),
        )
        for name, record in sorted(home.read_records().items())
    )


def _servers(home: ServiceHome, names: Iterable[str]) -> list[Server]:
    chosen = tuple(names)
    for name in chosen:
        if name not in _SERVERS:
            raise UnknownService(name, SERVICES)
    return [_SERVERS[name](home) for name in SERVICES if name in chosen]


# Brings one server up: reuses a living one, else clears what a dead one left and launches it on its data.


PORT_TRIES = 3  # another program may take a port between our look and the server's


def ensure_running(
    server: Server, known: ServerRecord | None, *, durable: bool, remember: Callable[[ServerRecord], None]
) -> None:
    """Return once the server answers.

    `remember` is told of a launch at once, so that a killed start leaves no stray.

    A living server is reused as it is, with the durability it was started with.
    """
    if known is not None and known.is_alive():
        _wait_until_ready(server, known, since=0)
        return
    end_strays(server)
    server.prepare(durable=durable)
    port = keep_or_choose_port(known.port if known else None)
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            _launch(server, port, durable=durable, remember=remember)
            return
        except ServerFailed:
            if is_free(port) or not tries_left:
                raise
            port = keep_or_choose_port(None)


def _launch(server: Server, port: int, *, durable: bool, remember: Callable[[ServerRecord], None]) -> None:
    since = server.log.stat().st_size if server.log.exists() else 0
    process = _spawn(server, port, durable=durable)
    record = ServerRecord(port, server.url(port), durable, process)
    remember(record)
    _wait_until_ready(server, record, since)


def _spawn(server: Server, port: int, *, durable: bool) -> ProcessIdentity:
    launch = server.launch(port, durable=durable)
    with open_log(server.log) as log:
        child = subprocess.Popen(
            launch.argv,
            cwd=server.data,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C in our terminal is not theirs
            **accounts.switch_to(launch.account),
        )
    # While it is our child and not yet reaped, its pid cannot be another's.
    identity = ProcessIdentity.of(child.pid) or ProcessIdentity(child.pid, "ended")
    adopt(child)
    return identity


def _wait_until_ready(server: Server, record: ServerRecord, since: int) -> None:
    ready = False

    def settled() -> bool:
        nonlocal ready
        # Looked at first, as clients are slow to try again after a refused connection.
        ready = is_listening(record.port) and server.make_ready(record.port)
        return ready or not record.is_alive()

    if not wait_until(settled, server.start_seconds):
        raise ServerSilent(server.name, server.start_seconds, tail(server.log), server.log)
    if not ready or not record.is_alive():
        raise ServerFailed(
            server.name, "the server ended while starting", tail(server.log, since), server.log
        )


# Ends the processes of one server: asks, waits, kills after a bound, and leaves nothing of them behind.


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
