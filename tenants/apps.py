import threading

from django.apps import AppConfig
from django.db import connections


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        from tenants import bounds, retention, row_security  # noqa: F401  # its check registers itself

        # Each thread has its own connections, as before. asgiref's local, which also knows tasks of an event loop, takes ten times as long,
        # and requests look up connections a hundred times. Django allows no queries in such tasks.
        connections._connections = threading.local()  # type: ignore[attr-defined]
        bounds.connect()
        retention.register_own_kinds()
