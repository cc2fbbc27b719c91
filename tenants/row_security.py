"""Row-level security: migration operations that switch it on, and checks that it is on.

`IsolateTenant` and `TenantKey` are migration operations. Every tenant-owned table gets a forced policy, and every foreign key
between two of them includes the tenant, since PostgreSQL's own checks of plain foreign keys bypass policies and would reveal
to one tenant what exists at another.

`manage.py check --database default` fails for a tenant-owned table without this protection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connections
from django.db.migrations import RunSQL

from tenants.context import APP
from tenants.exceptions import RowSecurityMissing

# A transaction that had set the tenant locally leaves an empty string behind, which must mean "no tenant".
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"

# The tenants that the admin's request may see and change: comma-separated ids, set by `tenants.context.admin_scope`.
ADMIN_READS, ADMIN_WRITES = (
    f"ANY(string_to_array(nullif(current_setting('app.admin_{what}', true), ''), ',')::uuid[])"
    for what in ("reads", "writes")
)


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
                # The admin's role sees and changes rows of its request's tenants.
                f"CREATE POLICY admin_reads ON {table} FOR SELECT TO orchestrator_admin USING ({column} = {ADMIN_READS})",
                f"CREATE POLICY admin_writes ON {table} TO orchestrator_admin "
                f"USING ({column} = {ADMIN_WRITES}) WITH CHECK ({column} = {ADMIN_WRITES})",
            ],
            [
                f"DROP POLICY admin_reads ON {table}",
                f"DROP POLICY admin_writes ON {table}",
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


# Checks the tables that were named, and all others with a column for the tenant, as a table may exist without a model. A row need only
# satisfy one of a table's policies, so each policy must check the tenant, for reads and for writes. Policies of the admin's role must check
# its request's tenants; those of roles that the application does not have, such as the owner, do not matter here.
_TABLES = """
    WITH policies AS (
      SELECT p.polrelid AS relation, p.polpermissive AS opens,
        EXISTS (SELECT FROM unnest(p.polroles) r WHERE CASE r WHEN 0 THEN true ELSE pg_has_role(current_user, r, 'USAGE') END) AS ours,
        EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'orchestrator_admin' AND r.oid = ANY(p.polroles)) AS of_admin,
        CASE p.polcmd WHEN 'a' THEN NULL ELSE coalesce(pg_get_expr(p.polqual, p.polrelid), '') END AS readers,
        CASE WHEN p.polcmd IN ('r', 'd') THEN NULL ELSE coalesce(pg_get_expr(p.polwithcheck, p.polrelid), '') END AS writers
      FROM pg_policy p
    )
    SELECT c.relname,
      c.relrowsecurity AND c.relforcerowsecurity
        AND EXISTS (SELECT FROM policies p WHERE p.relation = c.oid AND p.ours)
        AND NOT EXISTS (SELECT FROM policies p WHERE p.relation = c.oid AND p.opens AND (
          (p.ours AND NOT (coalesce(p.readers ~ %(readers)s, true) AND coalesce(p.writers ~ %(writers)s, true)))
          OR (p.of_admin AND NOT (coalesce(p.readers ~ %(admin)s, true) AND coalesce(p.writers ~ %(admin)s, true))))) AS isolated,
      pg_has_role(current_user, c.relowner, 'USAGE') AS owned,
      has_table_privilege(c.oid, 'TRUNCATE') AS emptied
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
      AND (c.relname = ANY(%(tables)s) OR EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped))
    ORDER BY c.relname
"""
_WRITERS = r"app\.tenant_id|^\(tenant_id IS NULL\)$"  # rows without a tenant reveal nothing about any
_READERS = r"app\.(tenant_id|token_hash|user_id)"  # a request reads its own credential before it has a tenant

_ADMIN = r"app\.admin_"


def find_errors(tables: list[str]) -> list[str]:
    """Return what would let one tenant see another's rows: a role that bypasses policies, or tables without a forced policy."""
    with connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT current_user, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
        )
        user, bypasses = cursor.fetchone()
        cursor.execute(_TABLES, {"tables": tables, "readers": _READERS, "writers": _WRITERS, "admin": _ADMIN})
        rows = cursor.fetchall()
    errors = []
    if bypasses:
        errors.append(f"the role {user} bypasses row-level security; processes must run as orchestrator_app")
    errors += [
        f"table {name} has no forced row-level security" for name, isolated, _, _ in rows if not isolated
    ]
    for name, _, owned, emptied in rows:
        if owned:
            errors.append(f"the application's role owns table {name} and could switch its policy off")
        elif emptied:
            errors.append(f"the application's role may TRUNCATE table {name}, which no policy covers")
    return errors


def refuse_unsafe_database(tables: list[str]) -> None:
    """Raise `RowSecurityMissing` with every fault. Called when a web or worker process starts."""
    if errors := find_errors(tables):
        raise RowSecurityMissing("; ".join(errors))


def tenant_tables() -> list[str]:
    """Return the tables that belong to tenants: those of every concrete model with a field `tenant`, and the tenants themselves."""
    models = [m for m in apps.get_models() if any(f.name == "tenant" for f in m._meta.concrete_fields)]
    return sorted({m._meta.db_table for m in models} | {"tenants_tenant"})


@register(Tags.database)
def row_security_is_forced(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    if APP not in (databases or ()):
        return []
    try:
        errors = find_errors(tenant_tables())
    except DatabaseError as error:
        return [Error(f"The database cannot be asked: {error}", id="tenants.E002")]
    return [
        Error(text, hint="Add IsolateTenant to the table's migration.", id="tenants.E001") for text in errors
    ]
