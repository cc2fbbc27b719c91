from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        from tenants import bounds, retention, row_security  # noqa: F401  # its check registers itself

        bounds.connect()
        retention.register_own_kinds()
