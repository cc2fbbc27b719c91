"""The WSGI application of the web processes.

A web process refuses to start on a database that does not isolate tenants. If the database does not answer, the process starts, reports it
at `/readyz`, and works when the database is back.

Garbage collection is off while modules are loaded, because it would scan them again and again, for a fifth of the start time. Loaded
modules are never collected, so they are excluded from later scans too.
"""

from __future__ import annotations

import gc
import logging
import os

from django.core.wsgi import get_wsgi_application
from django.db import DatabaseError, connections

gc.disable()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
# Set before the settings are read. A single hanging backend can only be noticed by a timeout, because the server still answers.
os.environ.setdefault("ORCHESTRATOR_STATEMENT_SECONDS", "7")

application = get_wsgi_application()

from orchestrator import urls  # noqa: E402, F401  # so that views are loaded at the start, and not by the first request
from tenants import row_security  # noqa: E402  # models need the app registry from above

try:
    row_security.refuse_unsafe_database(row_security.tenant_tables())
except DatabaseError as error:
    logging.getLogger(__name__).warning(
        "Row-level security not verified",
        extra={"action": "row_security_unverified", "reason": type(error).__name__},
    )
finally:
    # A server that forks after loading must not share this connection with its children.
    connections.close_all()
    gc.freeze()
    gc.enable()
