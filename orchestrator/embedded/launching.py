"""Brings one server up: reuses a living one, else clears what a dead one left and launches it on its data."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from orchestrator.embedded import accounts, ports, stopping
from orchestrator.embedded.errors import ServerFailed, ServerSilent
from orchestrator.embedded.identity import ProcessIdentity, adopt, wait_until
from orchestrator.embedded.logs import open_log, tail
from orchestrator.embedded.records import ServerRecord
from orchestrator.embedded.server import Server

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
    stopping.end_strays(server)
    server.prepare(durable=durable)
    port = ports.keep_or_choose(known.port if known else None)
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            _launch(server, port, durable=durable, remember=remember)
            return
        except ServerFailed:
            if ports.is_free(port) or not tries_left:
                raise
            port = ports.keep_or_choose(None)


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
        ready = ports.is_listening(record.port) and server.make_ready(record.port)
        return ready or not record.is_alive()

    if not wait_until(settled, server.start_seconds):
        raise ServerSilent(server.name, server.start_seconds, tail(server.log), server.log)
    if not ready or not record.is_alive():
        raise ServerFailed(
            server.name, "the server ended while starting", tail(server.log, since), server.log
        )
