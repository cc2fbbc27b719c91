"""Starts, finds, inspects and stops the servers of a home.

All changes happen under the home's lock, so two concurrent starts give the same servers. Each launch is recorded
before we wait for it: if we are killed in between, the next start or stop knows the process.
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
from orchestrator.embedded.errors import EmbeddedError, ServerFailed
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

_SERVERS: dict[str, type[Server]] = {"postgres": PostgresServer, "redis": ValkeyServer, "mongo": MongoServer}


@dataclass(frozen=True)
class ServerStatus:
    """The state of one server. `died`: it ended without being stopped; the next start restarts it."""

    name: str
    state: Literal["running", "stopped", "died"]
    port: int
    pid: int | None
    durable: bool
    log: Path


def start(home: ServiceHome, *, services: Iterable[str] = SERVICES, durable: bool = True) -> Endpoints:
    """Start the named servers, and return when all answer. Idempotent: live ones are reused, dead ones restarted with their data.

    `durable=False` is faster but does not survive a crash of the machine; it is meant for tests. Other servers of
    this home are not changed. If one fails, the others keep running.
    """
    servers = _servers(home, services)
    with home.lock():
        records = home.read_records()
        write_lock = Lock()

        def start_server(server: Server) -> None:
            def save(record: ServerRecord) -> None:
                with write_lock:
                    records[server.name] = record
                    home.write_records(records)

            ensure_running(server, records.get(server.name), durable=durable, save=save)

        with ThreadPoolExecutor(max_workers=len(SERVICES)) as pool:
            list(pool.map(start_server, servers))
        return endpoints_of(records)


def stop(home: ServiceHome, services: Iterable[str] | None = None) -> None:
    """Stop the named servers, or all, and return when their processes are gone. Kills those that do not end. Idempotent."""
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
    """Return the URLs of this home's servers, or None if none is alive. Checks processes only, without connecting.

    The URLs include dead servers, because the next start uses the same port.
    """
    records = home.read_records()
    return endpoints_of(records) if any(record.is_alive() for record in records.values()) else None


def status(home: ServiceHome) -> tuple[ServerStatus, ...]:
    """Return the state of each server that was ever started in this home."""
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
    names = tuple(names)
    for name in names:
        if name not in _SERVERS:
            known = ", ".join(SERVICES)
            raise EmbeddedError(
                f"There is no embedded server {name!r}. Choose among {known}.", code="unknown_service"
            )
    return [_SERVERS[name](home) for name in SERVICES if name in names]


# Starting one server: reuse a live one, or else clean up after a dead one and launch it with its data.


PORT_TRIES = 3  # another program may take a port between our check and the server's start


def ensure_running(
    server: Server, known: ServerRecord | None, *, durable: bool, save: Callable[[ServerRecord], None]
) -> None:
    """Return when the server answers. A live server is reused with the durability that it was started with.

    `save` is called directly after a launch, so that a killed start leaves no unknown process.
    """
    if known is not None and known.is_alive():
        _wait_until_ready(server, known, since=0)
        return
    end_strays(server)
    server.prepare(durable=durable)
    port = keep_or_choose_port(known.port if known else None)
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            _launch(server, port, durable=durable, save=save)
            return
        except ServerFailed:
            if is_free(port) or not tries_left:
                raise
            port = keep_or_choose_port(None)


def _launch(server: Server, port: int, *, durable: bool, save: Callable[[ServerRecord], None]) -> None:
    since = server.log.stat().st_size if server.log.exists() else 0
    launch = server.launch(port, durable=durable)
    with open_log(server.log) as log:
        child = subprocess.Popen(
            launch.argv,
            cwd=server.data,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that Ctrl-C in our terminal does not reach it
            **accounts.switch_to(launch.account),
        )
    # Before we reap our child, its pid cannot be reused.
    identity = ProcessIdentity.of(child.pid) or ProcessIdentity(child.pid, "ended")
    adopt(child)
    record = ServerRecord(port, server.url(port), durable, identity)
    save(record)
    _wait_until_ready(server, record, since)


def _wait_until_ready(server: Server, record: ServerRecord, since: int) -> None:
    ready = False

    def is_ready_or_dead() -> bool:
        nonlocal ready
        # Check the port first, because clients retry slowly after a refused connection.
        ready = is_listening(record.port) and server.make_ready(record.port)
        return ready or not record.is_alive()

    if not wait_until(is_ready_or_dead, server.start_seconds):
        raise EmbeddedError(
            f"{server.name} did not answer within {server.start_seconds:.0f} s. It is still running; stop it with "
            f"`python -m orchestrator.embedded stop` and try again. The end of {server.log}:\n"
            f"{tail(server.log) or '(nothing was written)'}",
            code="server_silent",
        )
    if not ready or not record.is_alive():
        raise ServerFailed(
            server.name, "the server ended while starting", tail(server.log, since), server.log
        )


# Stopping one server: signal it, wait, kill it after a time limit, and clean up.


KILL_SECONDS = 10.0


def stop_server(server: Server, process: ProcessIdentity | None) -> None:
    """Stop the recorded process, then all other processes of this server. Idempotent."""
    if process is not None:
        process.send(server.stop_signal)
        process.send(signal.SIGCONT)  # because a frozen process does not receive the first signal
        wait_until(lambda: not process.is_alive(), server.stop_seconds)
    end_strays(server)


def end_strays(server: Server) -> None:
    """End every process of this server, recorded or not, and clean up after killed ones.

    Strays are children of a killed server that have not noticed it yet, or servers whose starter died before it
    could record them. Raises `EmbeddedError` if some survive SIGKILL.
    """
    for number, seconds in ((server.stop_signal, server.stop_seconds), (signal.SIGKILL, KILL_SECONDS)):
        if not (strays := strays_of(server)):
            break
        for stray in strays:
            stray.send(number)
            stray.send(signal.SIGCONT)
        wait_until(lambda strays=strays: not any(stray.is_alive() for stray in strays), seconds)  # type: ignore[misc]
    if strays := strays_of(server):
        pids = ", ".join(str(stray.pid) for stray in strays)
        raise EmbeddedError(
            f"{server.name}: the processes {pids} did not end after SIGKILL. Look at them with `ps -p`.",
            code="server_immortal",
        )
    server.clear_remains()


def strays_of(server: Server) -> list[ProcessIdentity]:
    """Return the server's processes, recognised by their program and working directory."""
    strays = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(server.folder) and server.owns(process):
                strays.append(ProcessIdentity.of(process.pid))
    return [identity for identity in strays if identity is not None]
