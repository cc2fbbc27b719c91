"""A command whose connection breaks before its answer is an error of Redis, however it breaks."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
import redis

from tenants.redis import SentCommand

#: Closes a connection with RST, as the kernel does for a killed server that has not read everything.
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_connection_that_is_closed_before_the_answer_is_an_error_of_redis(
    server: socket.socket, is_reset: bool
) -> None:
    client = redis.Redis(port=server.getsockname()[1], socket_timeout=5.0, protocol=2, driver_info=None)
    sent = SentCommand(client, "PING")
    connection, _ = server.accept()
    if is_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()

    while not sent.is_answered():
        pass

    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            sent.read()
    assert not client.connection_pool._in_use_connections
