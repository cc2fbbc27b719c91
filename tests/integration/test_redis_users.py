"""Each kind of process has a user of Redis that is limited to the commands and keys it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from agents.routing import SYSTEM_QUEUES, queue_of
from orchestrator import embedded
from orchestrator.embedded.valkey import REDIS_USERS

FORBIDDEN = [
    ("KEYS", "*"), ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("MONITOR",), ("SHUTDOWN",),
    ("ACL", "LIST"), ("CLIENT", "LIST"), ("SCRIPT", "FLUSH"), ("FUNCTION", "LIST"), ("REPLICAOF", "NO", "ONE"), ("SWAPDB", "0", "1"),
    ("SET", "of_somebody_else", "1"), ("GET", "of_somebody_else"),
]  # fmt: skip

Connect = Callable[[str], redis.Redis]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """`connect(user)`: a client of a Redis server with our users."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-users-"))
    home = embedded.ServiceHome(folder / "home")
    url = embedded.start(home, services=["redis"], durable=False).redis_url
    yield lambda user: redis.Redis.from_url(embedded.redis_url_for(home, url, user))
    embedded.stop(home)
    shutil.rmtree(folder)


@pytest.mark.parametrize("user", REDIS_USERS)
@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
def test_no_user_can_run_commands_on_the_whole_server_or_foreign_keys(
    connect: Connect, user: str, command: tuple[str, ...]
) -> None:
    with connect(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


@pytest.mark.parametrize("user", ["web", "worker", "beat"])
def test_processes_that_grant_and_publish_can_write_their_keys(connect: Connect, user: str) -> None:
    with connect(user) as client:
        assert client.eval("return redis.call('SET', KEYS[1], '1')", 1, "orchestrator:admission:x:caps")
        assert client.lpush("agent__seo", "a message") >= 1


def test_only_workers_can_change_the_messages_that_they_have_taken(connect: Connect) -> None:
    with connect("worker") as client:
        client.hset("unacked", "tag", "a message")
    for user in ("web", "beat", "flower"):
        with connect(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
            client.hdel("unacked", "tag")


def test_flower_can_count_messages_but_neither_send_them_nor_read_admission(connect: Connect) -> None:
    with connect("flower") as client:
        assert client.llen("agent__qa") == 0
        for command in [
            ("LPUSH", "agent__qa", "a message"),
            ("DEL", "agent__qa"),
            ("GET", "orchestrator:admission"),
        ]:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_a_script_has_the_rights_of_its_user(connect: Connect) -> None:
    with (
        connect("flower") as client,
        pytest.raises(redis.exceptions.ResponseError, match=r"NOPERM|permission|ACL"),
    ):
        client.eval("return redis.call('SET', 'orchestrator:admission', 'mine')", 0)


def test_an_unknown_kind_of_process_has_no_user(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        embedded.redis_url_for(embedded.ServiceHome(tmp_path), "redis://127.0.0.1:1/0", "somebody")


def test_the_url_of_a_server_without_users_is_unchanged(tmp_path: Path) -> None:
    url = f"redis://:secret@127.0.0.1:{os.getpid()}/0"

    assert embedded.redis_url_for(embedded.ServiceHome(tmp_path), url, "web") == url


@pytest.mark.parametrize("queue", [*SYSTEM_QUEUES, queue_of("seo")])
def test_every_queue_is_accessible_to_the_processes_that_publish_and_consume(
    connect: Connect, queue: str
) -> None:
    for user in ("web", "worker", "beat"):
        with connect(user) as client:
            assert client.lpush(queue, "a message") >= 1
    with connect("flower") as client:
        assert client.llen(queue) >= 3
