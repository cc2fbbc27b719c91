"""Real PostgreSQL, Redis-protocol and MongoDB-protocol servers from wheels, for one machine and no Docker.

Everything lives in one folder, the `ServiceHome`. `start` is idempotent: what already runs is found again,
what died is brought up on its old data. The servers outlive the process that started them, until `stop`. They
listen on loopback only. Nothing here imports Django, because settings ask this package where the servers are.
"""

from orchestrator.embedded.errors import EmbeddedError
from orchestrator.embedded.home import SERVICES, Endpoints, ServiceHome
from orchestrator.embedded.lifecycle import ServerStatus, find, start, status, stop
from orchestrator.embedded.valkey import url_for as redis_url_for

__all__ = [
    "SERVICES",
    "EmbeddedError",
    "Endpoints",
    "ServerStatus",
    "ServiceHome",
    "find",
    "redis_url_for",
    "start",
    "status",
    "stop",
]
