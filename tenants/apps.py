from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        from tenants import (
            bounds,
            checks,  # noqa: F401  # registers itself
        )
        from tenants.retention import kinds

        bounds.connect()
        kinds.connect()
