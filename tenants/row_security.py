"""Row-level security: how it is switched on, and how a process makes sure that it is.

`IsolateTenant` and `TenantKey` are migration operations. Every tenant-owned table gets a forced policy, and every key
between two of them carries the tenant, since PostgreSQL's own checks of plain foreign keys bypass policies and would tell
one tenant what exists at another.
"""

from __future__ import annotations

from django.db import connections
from django.db.migrations import RunSQL

from tenants.context import APP
from tenants.exceptions import RowSecurityMissing

# An empty string is what a transaction leaves behind that had set the tenant locally; it must read as "no tenant".
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"


class IsolateTenant(RunSQL):
    """Force row-level security on a table: rows of other tenants can neither be seen nor written."""

    def __init__(self, table: str, column: str = "tenant_id", *, or_visible: str = "") -> None:
        """`or_visible` is a further SQL condition under which a row may be read, e.g. by who presents its hash."""
        own = f"{column} = {CURRENT_TENANT}"
        visible = f"{own} OR {or_visible}" if or_visible else own
        super().__init__(
            [
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
                f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
                f"CREATE POLICY tenant_isolation ON {table} USING ({visible}) WITH CHECK ({own})",
            ],
            [
                f"DROP POLICY tenant_isolation ON {table}",
                f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
                f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
            ],
        )


class TenantKey(RunSQL):
    """A foreign key that carries the tenant: (tenant_id, column) -> parent (tenant_id, id)."""

    def __init__(self, table: str, column: str, parent: str, *, on_delete: str = "CASCADE") -> None:
        name = f"{table}_{column}_tenant_fk"[:63]
        super().__init__(
            f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY (tenant_id, {column}) "
            f"REFERENCES {parent} (tenant_id, id) ON DELETE {on_delete}",
            f"ALTER TABLE {table} DROP CONSTRAINT {name}",
        )


_UNPROTECTED = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%s)
      AND NOT (c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (
        SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polwithcheck IS NOT NULL))
"""


def faults(tables: list[str]) -> list[str]:
    """What would let one tenant see another: a bypassing role, or tables without a forced policy."""
    found = []
    with connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT current_user, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user",
        )
        user, bypasses = cursor.fetchone()
        if bypasses:
            found.append(
                f"the role {user} bypasses row-level security; processes must run as orchestrator_app"
            )
        cursor.execute(_UNPROTECTED, [tables])
        found += [f"table {name} has no forced row-level security" for (name,) in cursor.fetchall()]
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND pg_has_role(current_user, relowner, 'USAGE')",
            [tables],
        )
        found += [
            f"the application's role owns table {name} and could switch its policy off"
            for (name,) in cursor.fetchall()
        ]
    return found


def refuse_unsafe_database(tables: list[str]) -> None:
    """Raise `RowSecurityMissing` with every fault. Called when a web or worker process starts."""
    if found := faults(tables):
        raise RowSecurityMissing("; ".join(found))
