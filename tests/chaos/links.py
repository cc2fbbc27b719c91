"""TCP links between processes and servers that can be cut, silenced, slowed or torn, or can lose answers.

There is one link for each process and server, so that each can be disturbed alone. All run on one event loop in a thread; faults
are imposed and lifted from any thread. Behind a proxy the kernel still acknowledges bytes, so keepalives and `tcp_user_timeout` of the
processes see a live peer. The loss of a host is not simulated here.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

#: The faults of a link, worst first. Of several at once the worst takes effect.
CUT = "cut"  # connections are reset, new ones refused
SILENT = "silent"  # nothing passes, without an error; what was sent arrives when the link is back
LOST = "lost"  # requests arrive, answers do not; the connection is reset when the link is back
TORN = "torn"  # every third answer ends in the middle, with a reset
SLOW = "slow"  # each piece is a fifth of a second late
WORST_FIRST = (CUT, SILENT, LOST, TORN, SLOW)

SLOW_SECONDS = 0.2
TORN_SHARE = 0.3
PIECE = 64 * 1024


@dataclass(eq=False)
class Connection:
    """The connection of one client, and ours to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    lost_answer: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is None:
                continue
            with suppress(OSError, AttributeError):
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(Exception):
                writer.transport.abort()


@dataclass(eq=False)
class Link:
    """`name` is "process:server". New connections go to the first of `targets` that accepts, in rotation."""

    name: str
    targets: Sequence[tuple[str, int]]
    port: int = 0
    imposed: list[str] = field(default_factory=list)
    connections: set[Connection] = field(default_factory=set)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: int = 0

    @property
    def state(self) -> str | None:
        return next((fault for fault in WORST_FIRST if fault in self.imposed), None)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _impose(self, fault: str) -> None:
        self.imposed.append(fault)
        if fault == CUT:
            for connection in tuple(self.connections):
                connection.reset()
        self._wake()

    def _lift(self, fault: str) -> None:
        with suppress(ValueError):
            self.imposed.remove(fault)
        for connection in tuple(self.connections):
            if connection.lost_answer and self.state != LOST:
                connection.reset()
        self._wake()

    async def _passable(self) -> str | None:
        """Wait until bytes may pass, and return the state of the link."""
        while self.state == SILENT:
            await self.changed.wait()
        return self.state

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self.connections.add(connection)
        try:
            if await self._passable() == CUT:
                return
            answers, connection.server = await self._connect()
            # When one side ends, both do, because none of the three protocols uses half-closed connections.
            pumps = [
                asyncio.ensure_future(self._pump(reader, connection.server, connection, answer=False)),
                asyncio.ensure_future(self._pump(answers, writer, connection, answer=True)),
            ]
            _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
        except OSError:
            pass
        finally:
            self.connections.discard(connection)
            connection.reset()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.turn += 1
        order = [self.targets[(self.turn + step) % len(self.targets)] for step in range(len(self.targets))]
        for host, port in order[:-1]:
            with suppress(OSError):
                return await asyncio.open_connection(host, port)
        return await asyncio.open_connection(*order[-1])

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        connection: Connection,
        *,
        answer: bool,
    ) -> None:
        with suppress(OSError):
            while piece := await source.read(PIECE):
                state = await self._passable()
                if state == CUT:
                    return
                if state == SLOW:
                    await asyncio.sleep(SLOW_SECONDS)
                elif state == LOST and answer:
                    connection.lost_answer = True
                    continue
                elif state == TORN and answer and self.chance.random() < TORN_SHARE:
                    sink.write(piece[: len(piece) // 2])
                    with suppress(OSError):
                        await sink.drain()
                    connection.reset()
                    return
                sink.write(piece)
                await sink.drain()


class Switchboard:
    """All links, in a thread of their own. Use it as a context manager."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> Switchboard:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def open(self, name: str, targets: Sequence[tuple[str, int]], port: int = 0) -> Link:
        """Open a link that listens on loopback, on `port` or a free one."""

        async def begin() -> Link:
            link = Link(name, targets)
            server = await asyncio.start_server(link.serve, "127.0.0.1", port)
            link.port = server.sockets[0].getsockname()[1]
            return link

        link = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)
        self.links[name] = link
        return link

    def impose(self, fault: str, names: Sequence[str]) -> None:
        self._each(names, lambda link: link._impose(fault))

    def lift(self, fault: str, names: Sequence[str]) -> None:
        self._each(names, lambda link: link._lift(fault))

    def _each(self, names: Sequence[str], action: object) -> None:
        done = threading.Event()

        def act() -> None:
            for name in names:
                action(self.links[name])  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait(10)
