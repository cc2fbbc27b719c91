"""After a failover of Redis the old server is read-only: clients and workers connect to the new one instead of failing."""

from __future__ import annotations

import logging
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from kombu import Connection, Exchange, Queue

from activities import publishing
from activities.background_tasks import EXPIRY
from orchestrator import broker, embedded
from tenants.redis import client


class _Connection(socketserver.BaseRequestHandler):
    server: Address

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as target:
            peers = {self.request: target, target: self.request}
            while True:
                for end in select.select(list(peers), [], [])[0]:
                    if not (data := end.recv(65536)):
                        return
                    peers[end].sendall(data)


class Address(socketserver.ThreadingTCPServer):
    """A proxy in front of Redis: new connections go to its current target."""

    target = 0


def _command(url: str, *command: str) -> Any:
    with redis.Redis.from_url(url) as connection:
        return connection.execute_command(*command)


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    home = embedded.ServiceHome(folder)
    yield embedded.start(home, services=["redis"], durable=False).redis_url
    embedded.stop(home)


@contextmanager
def _address() -> Iterator[Address]:
    with Address(("127.0.0.1", 0), _Connection) as address:
        thread = threading.Thread(target=address.serve_forever, args=(0.01,))
        thread.start()
        yield address
        address.shutdown()
        thread.join()


@pytest.fixture
def failover(tmp_path: Path, settings: Any) -> Iterator[Callable[[], None]]:
    """Settings with the address of a proxy in front of a primary; `failover()` makes another server the primary."""
    with _address() as address, _server(tmp_path / "old") as old, _server(tmp_path / "new") as new:
        parts = urlsplit(old)
        _command(new, "CONFIG", "SET", "requirepass", parts.password or "")
        new = new.replace(urlsplit(new).password or "", parts.password or "")
        address.target = parts.port or 0
        settings.REDIS_URL = old.replace(f":{parts.port}/", f":{address.server_address[1]}/")
        settings.CELERY_BROKER_URL = settings.REDIS_URL
        publishing._redis_broker.cache_clear()

        def take_over() -> None:
            _command(old, "REPLICAOF", "127.0.0.1", "1")
            address.target = urlsplit(new).port or 0

        yield take_over
        client().close()
        publishing._redis_broker.cache_clear()


def test_a_client_uses_the_new_primary_without_an_error(
    failover: Callable[[], None],
) -> None:
    client().set("before", "1")
    failover()

    client().set("after", "1")
    outcome = client().eval("return redis.call('incr', 'after')", 0)

    assert outcome == 2


def test_a_client_raises_an_error_if_there_is_no_new_primary(
    failover: Callable[[], None], settings: Any
) -> None:
    _command(settings.REDIS_URL, "REPLICAOF", "127.0.0.1", "1")

    with pytest.raises(redis.ReadOnlyError):
        client().set("after", "1")


def test_messages_go_to_the_new_primary(failover: Callable[[], None], settings: Any) -> None:
    assert publishing.hint("tests.hint", {}, queue="system", expires_after=EXPIRY)
    failover()

    assert publishing.hint("tests.hint", {}, queue="digest", expires_after=EXPIRY)

    assert _command(settings.REDIS_URL, "EXISTS", "system", "digest") == 1, (
        "the second message is on the new primary"
    )


def test_a_worker_treats_a_read_only_server_as_a_lost_connection(
    failover: Callable[[], None], settings: Any
) -> None:
    """For any other error Celery would end the worker with all its runs."""
    broker.install()
    with Connection(settings.CELERY_BROKER_URL) as connection:
        queue = Queue("agent__qa", Exchange("agent__qa"), "agent__qa", channel=connection.channel())
        _command(settings.REDIS_URL, "REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(connection.connection_errors) as refused:
            queue.declare()

    assert isinstance(refused.value, redis.ReadOnlyError)


@pytest.mark.parametrize("then", ["closed", "acknowledged"])
def test_a_message_held_while_redis_died_does_not_end_the_worker(tmp_path: Path, then: str) -> None:
    """Closing the old channel and a late acknowledgement must both raise the lost connection that Celery expects."""
    with _server(tmp_path / "redis") as url:
        connection = Connection(url)
        channel: Any = connection.default_channel
        queue = connection.SimpleQueue("in-hand")
        queue.put({"a": "message"})
        message = channel.basic_get("in-hand")
        lost = connection.connection_errors
        connection.transport.client = None  # as Celery does after a lost connection
        channel._close_clients()
        channel._pool = None

        if then == "closed":
            connection.maybe_close_channel(channel)
        else:
            message.ack_log_error(logging.getLogger(), lost)

        assert channel.closed is (then == "closed")
        channel.qos._on_collect.cancel()  # kombu would return the message to the dead server when the process ends
