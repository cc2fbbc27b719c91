"""Rules for every table of a tenant, read from PostgreSQL's catalogue, so that new tables are tested as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, transaction

from tenants import row_security
from tenants.context import APP, OWNER, SYSTEM, tenant_scope
from tenants.exceptions import RowSecurityMissing
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.integration.isolation import traces
from tests.integration.isolation.conftest import Other

# Tables in which the tenants of the sweep have no row, with the reason.
WITHOUT_ROWS: dict[str, str] = {}
# Unique indexes without a tenant, with the reason why nobody outside can choose the value.
UNIQUE_WITHOUT_TENANT = {
    "tenants_apitoken_secret_hash_key": "the digest of 256 random bits of ours",
    "job_of_activity": "the id of the activity that was made for the job",
    "job_of_pipeline_run": "the id of the run that was made for the job",
    "audit_number_once_per_chain": "a chain is one tenant's, by its id",
    "one_open_dead_letter_of_item": "the id of the item of a mailbox, which is ours",
    "one_effect_per_call": "the run is the one whose token was presented",
}

#: Functions with the owner's rights, each with what it lets the application do beyond its own rights.
WORKS_AS_OWNER = {
    "audit_append": "numbers and chains the entry that is being written, and nothing else",
    "audit_forget": "takes the chain of a tenant that has left away; the role of requests may not call it",
    "audit_purge": "takes the beginning of a chain away; the role of requests may not call it",
    "tenants_note_configuration": "notes whose configuration a row was that has changed, and takes old notes away",
    "tenants_forget_usage": "takes entries out of the ledger that no budget counts any more",
}


def rows(sql: str, alias: str = SYSTEM, **values: Any) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def test_the_sweep_has_a_row_in_every_table_of_a_tenant(other: Other) -> None:
    empty = [table for table in traces.tables() if not other.before[table]]

    assert [table for table in empty if table not in WITHOUT_ROWS] == []
    assert [table for table in WITHOUT_ROWS if table not in empty] == []
    assert len(traces.tables()) > 35


def test_unique_indexes_on_chosen_values_include_the_tenant(database: None) -> None:
    """Otherwise an error about a taken value would reveal what another tenant has. A column with a reference to another table of
    the tenant implies the tenant.
    """
    indexes = rows(
        """SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum),
             bool_or(a.attname = 'tenant_id' OR EXISTS (SELECT FROM pg_constraint f
               WHERE f.contype = 'f' AND f.conrelid = i.indrelid AND a.attnum = ANY(f.conkey)
                 AND array_length(f.conkey, 1) > 1))
           FROM pg_index i
           JOIN pg_class c ON c.oid = i.indexrelid
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
           WHERE i.indisunique AND NOT i.indisprimary AND i.indrelid::regclass::text = ANY(%(tables)s)
           GROUP BY 1""",
        tables=traces.tables(),
    )

    open_to_all = {index: columns for index, columns, is_own in indexes if not is_own}
    assert {
        index: columns for index, columns in open_to_all.items() if index not in UNIQUE_WITHOUT_TENANT
    } == {}
    assert set(UNIQUE_WITHOUT_TENANT) == set(open_to_all)
    assert len(indexes) > 30


def test_primary_keys_of_a_tenants_tables_are_generated_ids(database: None) -> None:
    kinds = rows(
        """SELECT i.indrelid::regclass::text, a.attname, a.atttypid::regtype::text FROM pg_index i
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
           WHERE i.indisprimary AND i.indrelid::regclass::text = ANY(%(tables)s)""",
        tables=traces.tables(),
    )

    assert [row for row in kinds if row[2] not in {"uuid", "bigint"}] == []


def test_the_applications_role_has_no_way_around_the_policies(database: None) -> None:
    (role,) = rows(
        """SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb,
             pg_has_role('orchestrator_app', 'orchestrator_system', 'MEMBER')
           FROM pg_roles WHERE rolname = 'orchestrator_app'"""
    )
    assert role == (False, False, False, False, False)
    assert rows("SELECT current_user::text", APP) == [("orchestrator_app",)]
    for table in (*traces.tables(), "tenants_tenant"):
        (rights,) = rows(
            """SELECT has_table_privilege('orchestrator_app', c.oid, 'TRUNCATE'),
                 has_table_privilege('orchestrator_app', c.oid, 'TRIGGER'),
                 has_table_privilege('orchestrator_app', c.oid, 'REFERENCES'),
                 pg_has_role('orchestrator_app', c.relowner, 'USAGE')
               FROM pg_class c WHERE c.oid = %(table)s::regclass""",
            table=table,
        )
        assert rights == (False, False, False, False), table
    assert rows("SELECT has_schema_privilege('orchestrator_app', 'public', 'CREATE')") == [(False,)]


def test_only_listed_functions_and_no_views_run_with_the_owners_rights(database: None) -> None:
    """Views and functions could run as their owner, to whom the policies of the application do not apply."""
    views = rows(
        """SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'm')
             AND NOT coalesce(reloptions::text ~ 'security_invoker=(true|on)', false)"""
    )
    functions = rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef ORDER BY 1"
    )

    assert views == []
    assert {name for (name,) in functions} == WORKS_AS_OWNER.keys()
    open_to_all = rows(
        """SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef
             AND has_function_privilege('public', oid, 'EXECUTE')"""
    )
    assert open_to_all == [("audit_append",)]  # which only its trigger can use


def test_functions_with_the_owners_rights_search_temporary_tables_last(database: None) -> None:
    """Otherwise a temporary table with the name of a real one, and a trigger on it, would run with the owner's rights. PostgreSQL
    searches temporary tables first unless the path names `pg_temp`.
    """
    paths = {
        name: [part.strip() for part in (path or "").split(",")]
        for name, path in rows(
            """SELECT p.oid::regprocedure::text,
                 (SELECT substr(setting, 13) FROM unnest(p.proconfig) setting WHERE starts_with(setting, 'search_path='))
               FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE p.prosecdef AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
        )
    }

    assert {name: path for name, path in paths.items() if path[-1] != "pg_temp"} == {}
    assert len(paths) == len(WORKS_AS_OWNER)


def test_a_function_with_the_owners_rights_does_not_use_a_temporary_table_of_the_caller(
    tenant: Tenant,
) -> None:
    with tenant_scope(tenant.pk), transaction.atomic(using=APP), connections[APP].cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE tenants_usageentry (LIKE public.tenants_usageentry) ON COMMIT DROP")
        cursor.execute("GRANT ALL ON tenants_usageentry TO PUBLIC")
        cursor.execute(
            """INSERT INTO pg_temp.tenants_usageentry
               (id, at, tenant_id, day, agent_role, activity_id, run_id, model, input_tokens, output_tokens, dollars, runs, unpriced)
               VALUES (1, now(), %(tenant)s, '2020-01-01', 'seo', %(any)s, %(any)s, '', 1, 1, 1, 1, false)""",
            {"tenant": tenant.pk, "any": uuid7()},
        )
        cursor.execute("SELECT tenants_forget_usage(%s, current_date, 10)", [tenant.pk])

        assert cursor.fetchone() == (0,)


ISOLATED = f"USING (tenant_id = {row_security.CURRENT_TENANT}) WITH CHECK (tenant_id = {row_security.CURRENT_TENANT})"
FORCED = "ALTER TABLE newcomer ENABLE ROW LEVEL SECURITY; ALTER TABLE newcomer FORCE ROW LEVEL SECURITY;"


@contextmanager
def newcomer(rules: str) -> Iterator[None]:
    """A table of tenants that no model and no list contains."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute(f"CREATE TABLE newcomer (id uuid, tenant_id uuid); {rules}")
        try:
            yield
        finally:
            cursor.execute("DROP TABLE newcomer")


@pytest.mark.parametrize(
    "rules",
    [
        "",
        FORCED,
        f"ALTER TABLE newcomer ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON newcomer {ISOLATED}",
        f"{FORCED} CREATE POLICY p ON newcomer USING (tenant_id = {row_security.CURRENT_TENANT})",
        f"{FORCED} CREATE POLICY p ON newcomer USING (true) WITH CHECK (true)",
        f"{FORCED} CREATE POLICY p ON newcomer {ISOLATED}; CREATE POLICY q ON newcomer USING (true) WITH CHECK (true)",
        f"{FORCED} CREATE POLICY p ON newcomer {ISOLATED}; GRANT TRUNCATE ON newcomer TO orchestrator_app",
    ],
    ids=["nothing", "no-policy", "not-forced", "no-check", "open-policy", "a-second-open-policy", "truncate"],
)
def test_a_new_table_without_isolation_fails_the_check_and_the_start(database: None, rules: str) -> None:
    with newcomer(rules):
        with pytest.raises(SystemCheckError, match="table newcomer"):
            call_command("check", databases=[APP])
        with pytest.raises(RowSecurityMissing, match="table newcomer"):
            row_security.refuse_unsafe_database(row_security.tenant_tables())


def test_a_new_table_with_isolation_passes(database: None) -> None:
    with newcomer(f"{FORCED} CREATE POLICY p ON newcomer {ISOLATED}"):
        call_command("check", databases=[APP])
        row_security.refuse_unsafe_database(row_security.tenant_tables())


@pytest.mark.parametrize("role", ["orchestrator_system", "the owner"])
def test_no_process_starts_under_a_role_that_bypasses_isolation(database: None, role: str) -> None:
    with connections[APP].cursor() as cursor:
        cursor.execute("RESET ROLE" if role == "the owner" else f"SET ROLE {role}")
        if role == "the owner":
            cursor.execute("SET ROLE NONE")
        try:
            with pytest.raises(RowSecurityMissing):
                row_security.refuse_unsafe_database(row_security.tenant_tables())
            with pytest.raises(SystemCheckError):
                call_command("check", databases=[APP])
        finally:
            cursor.execute("SET ROLE orchestrator_app")
