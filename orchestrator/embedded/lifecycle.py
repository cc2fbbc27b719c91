"""Start, find, look at and stop the servers of a home.

All changes happen under the home's lock, so two starts at once give the same servers. Each launch is written
down before it is waited for: whoever is killed in between, the next start or stop knows the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from orchestrator.embedded.errors import UnknownService
from orchestrator.embedded.home import ServiceHome
from orchestrator.embedded.launching import ensure_running
from orchestrator.embedded.mongo import MongoServer
from orchestrator.embedded.postgres import PostgresServer
from orchestrator.embedded.records import SERVICES, Endpoints, ServerRecord, endpoints_of
from orchestrator.embedded.server import Server
from orchestrator.embedded.valkey import ValkeyServer

from .launching import stop_server

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
    with home.locked():
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
    with home.locked():
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
