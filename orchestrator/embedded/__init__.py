"""Real PostgreSQL, Redis-protocol and MongoDB-protocol servers from wheels, for one machine without Docker.

All files are in one folder, the `ServiceHome`. `start` is idempotent: it reuses running servers, and restarts
dead ones with their data. The servers outlive the process that started them, until `stop`. They listen on
loopback only. Nothing here imports Django, because the settings ask this package where the servers are.
"""

from orchestrator.embedded.errors import EmbeddedError
from orchestrator.embedded.home import SERVICES, Endpoints, ServiceHome
from orchestrator.embedded.lifecycle import ServerStatus, find, start, status, stop
from orchestrator.embedded.valkey import url_for as redis_url_for
