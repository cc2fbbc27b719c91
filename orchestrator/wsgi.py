"""The WSGI application of the web processes.

A web process refuses to start on a database that would not keep tenants apart. One that does not answer is another matter: the
process starts, says so at `/readyz`, and works once the database is back.

Python's collector of garbage rests while modules are loaded: it would look at all of them again and again, for a fifth of the time that
the start takes. What was loaded stays for good, so it is never looked at later either.
"""

from __future__ import annotations

import gc
import logging
import os

from django.core.wsgi import get_wsgi_application
from django.db import DatabaseError, connections

gc.disable()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
# Before the settings are read. A process of PostgreSQL that hangs alone is no silence of the server, so only the time tells.
os.environ.setdefault("ORCHESTRATOR_STATEMENT_SECONDS", "7")

application = get_wsgi_application()

from orchestrator import urls  # noqa: E402, F401  # its views are loaded with the process, and not by its first request
from tenants import row_security  # noqa: E402  # models need the applications that the lines above have set up

try:
    row_security.refuse_unsafe_database(row_security.tenant_tables())
except DatabaseError as error:
    logging.getLogger(__name__).warning(
        "Row-level security not verified",
        extra={"action": "row_security_unverified", "reason": type(error).__name__},
    )
finally:
    # A server that loads the application before it forks must not share this connection with its children.
    connections.close_all()
    gc.freeze()
    gc.enable()
