"""What is written down about the servers of a home, and what callers get to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.embedded.identity import ProcessIdentity

SERVICES = ("postgres", "redis", "mongo")


@dataclass(frozen=True)
class Endpoints:
    """Addresses, with passwords. A server that was never asked for has an empty one."""

    database_url: str = ""
    redis_url: str = ""
    mongodb_uri: str = ""

    def as_environment(self) -> dict[str, str]:
        """The variables by which other processes find the same servers."""
        named = {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "MONGODB_URI": self.mongodb_uri,
        }
        return {name: url for name, url in named.items() if url}


@dataclass(frozen=True)
class ServerRecord:
    """One server as last started.

    `process` is None once it was stopped; its port stays reserved for the next start.
    """

    port: int
    url: str
    durable: bool
    process: ProcessIdentity | None = None

    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def as_json(self) -> dict[str, Any]:
        return {
            "port": self.port,
            "url": self.url,
            "durable": self.durable,
            "pid": self.process and self.process.pid,
            "started": self.process and self.process.started,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ServerRecord:
        process = ProcessIdentity(int(fields["pid"]), str(fields["started"])) if fields["pid"] else None
        return cls(int(fields["port"]), str(fields["url"]), bool(fields["durable"]), process)


def endpoints_of(records: Mapping[str, ServerRecord]) -> Endpoints:
    urls = {name: record.url for name, record in records.items() if record.process is not None}
    return Endpoints(
        database_url=urls.get("postgres", ""),
        redis_url=urls.get("redis", ""),
        mongodb_uri=urls.get("mongo", ""),
    )
