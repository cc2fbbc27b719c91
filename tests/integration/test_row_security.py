"""What keeps tenants apart when everything else fails: the database itself.

The first part asks PostgreSQL through the application's role, without any filter of ours. The second reads
the catalogue, so that a table or key that somebody adds tomorrow is tested as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, ProgrammingError, connections, transaction

from activities.models import Activity
from tenants import row_security
from tenants.context import APP, OWNER, SYSTEM, current_alias, system_scope, tenant_scope
from tenants.current_tenant import current_tenant
from tenants.exceptions import RowSecurityMissing, TenantScopeConflict
from tenants.identifiers import uuid7
from tenants.models import Tenant

pytestmark = pytest.mark.usefixtures("database")

MakeActivity = Callable[..., Activity]


@pytest.fixture
def activity_of() -> MakeActivity:
    def made(tenant: Tenant, name: str = "work") -> Activity:
        with tenant_scope(tenant.pk):
            return Activity.objects.create(tenant=tenant, name=name, assignee_type="agent", agent_role="seo")

    return made


def rows_seen(sql: str = "SELECT count(*) FROM activities_activity") -> int:
    with connections[APP].cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


def test_without_a_tenant_there_are_no_rows_and_no_error(tenant, activity_of):
    activity_of(tenant)

    assert rows_seen() == 0
    assert Activity.objects.count() == 0
    assert rows_seen("SELECT count(*) FROM tenants_tenant") == 0


def test_a_tenant_sees_its_own_rows_even_where_a_query_forgets_to_filter(tenant, other_tenant, activity_of):
    mine, theirs = activity_of(tenant), activity_of(other_tenant)

    with tenant_scope(tenant.pk):
        assert list(Activity.objects.all()) == [mine]
        assert not Activity.objects.filter(pk=theirs.pk).exists()
        assert list(Tenant.objects.all()) == [tenant]


def test_updating_or_deleting_another_tenants_row_touches_nothing(tenant, other_tenant, activity_of):
    theirs = activity_of(other_tenant)

    with tenant_scope(tenant.pk):
        assert Activity.objects.filter(pk=theirs.pk).update(name="stolen") == 0
        with connections[APP].cursor() as cursor:
            cursor.execute("DELETE FROM activities_activity WHERE id = %s", [theirs.pk])
            assert cursor.rowcount == 0

    with tenant_scope(other_tenant.pk):
        assert Activity.objects.get().name == "work"


def test_inserting_a_row_for_another_tenant_is_refused(tenant, other_tenant, activity_of):
    with pytest.raises(ProgrammingError, match="row-level security"), tenant_scope(tenant.pk):
        Activity.objects.create(tenant=other_tenant, name="planted", assignee_type="agent", agent_role="seo")


def test_giving_a_row_away_to_another_tenant_is_refused(tenant, other_tenant, activity_of):
    mine = activity_of(tenant)

    with pytest.raises(ProgrammingError, match="row-level security"), tenant_scope(tenant.pk):
        Activity.objects.filter(pk=mine.pk).update(tenant=other_tenant)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE activities_activity DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant_isolation ON activities_activity",
        "TRUNCATE activities_activity CASCADE",
    ],
)
def test_the_application_may_not_switch_a_policy_off_or_empty_a_table(statement):
    with pytest.raises(ProgrammingError, match=r"must be owner|permission denied"):
        rows_seen(statement)


def test_the_scope_ends_with_the_transaction_also_when_it_fails(tenant, activity_of):
    activity_of(tenant)
    process = rows_seen("SELECT pg_backend_pid()")

    def fail_inside() -> None:
        with tenant_scope(tenant.pk):
            assert rows_seen() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()

    assert rows_seen() == 0
    assert (current_tenant(), current_alias()) == (None, APP)
    assert rows_seen("SELECT pg_backend_pid()") == process  # it is the same connection that forgot


def test_a_scope_of_another_tenant_cannot_be_opened_inside_one(tenant, other_tenant):
    with tenant_scope(tenant.pk):
        with pytest.raises(TenantScopeConflict), tenant_scope(other_tenant.pk):
            pass
        with pytest.raises(TenantScopeConflict), system_scope():
            pass


def test_the_system_role_sees_all_tenants_and_may_work_for_one_of_them(tenant, other_tenant, activity_of):
    activity_of(tenant)
    activity_of(other_tenant)

    with system_scope():
        assert Activity.objects.count() == 2
        with tenant_scope(tenant.pk):
            assert Activity.objects.count() == 1
        assert Activity.objects.count() == 2


def test_every_table_with_a_tenant_forces_row_security():
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            """SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
               WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace"""
        )
        forced = dict(cursor.fetchall())

    assert [table for table, is_forced in forced.items() if not is_forced] == []
    assert set(row_security.tenant_tables()) <= {*forced, "tenants_tenant"}
    assert row_security.faults(row_security.tenant_tables()) == []


def test_a_process_starts_on_a_database_that_keeps_tenants_apart():
    row_security.refuse_unsafe_database(row_security.tenant_tables())


@contextmanager
def app_works_as(role: str) -> Iterator[None]:
    with connections[APP].cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
        yield
        cursor.execute("RESET ROLE")


def test_a_process_refuses_to_start_as_a_role_that_bypasses_the_policies():
    with (
        app_works_as("orchestrator_system"),
        pytest.raises(RowSecurityMissing, match="bypasses row-level security"),
    ):
        row_security.refuse_unsafe_database(row_security.tenant_tables())


def test_a_process_refuses_to_start_when_a_table_is_open():
    with connections[OWNER].cursor() as cursor:
        cursor.execute("CREATE TABLE forgotten (tenant_id uuid)")
        try:
            with pytest.raises(RowSecurityMissing, match="table forgotten has no forced"):
                row_security.refuse_unsafe_database([*row_security.tenant_tables(), "forgotten"])
        finally:
            cursor.execute("DROP TABLE forgotten")


@dataclass(frozen=True)
class Key:
    """A foreign key between two tables that belong to tenants."""

    name: str
    child: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The child's column that names the parent, besides the tenant, and the parent's column it names."""
        (found,) = (
            pair for pair in zip(self.columns, self.parent_columns, strict=True) if pair[0] != "tenant_id"
        )
        return found


def tenant_keys() -> list[Key]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            """WITH owned AS (SELECT attrelid FROM pg_attribute WHERE attname = 'tenant_id' AND NOT
            attisdropped) SELECT conname, conrelid::regclass::text, confrelid::regclass::text, (SELECT
            array_agg(attname::text ORDER BY n) FROM unnest(conkey) WITH ORDINALITY u(num, n) JOIN
            pg_attribute ON attrelid = conrelid AND attnum = num), (SELECT array_agg(attname::text ORDER BY n)
            FROM unnest(confkey) WITH ORDINALITY u(num, n) JOIN pg_attribute ON attrelid = confrelid AND
            attnum = num) FROM pg_constraint WHERE contype = 'f' AND conrelid IN (TABLE owned) AND confrelid
            IN (TABLE owned) ORDER BY 1
            """
        )
        rows = cursor.fetchall()
    return [Key(name, child, tuple(own), parent, tuple(theirs)) for name, child, parent, own, theirs in rows]


def test_every_key_between_tenants_tables_carries_the_tenant():
    keys = tenant_keys()

    plain = [
        key.name
        for key in keys
        if ("tenant_id", "tenant_id") not in zip(key.columns, key.parent_columns, strict=True)
    ]
    assert plain == []
    assert len(keys) >= 8


def test_every_key_refuses_a_child_of_another_tenant(tenant, other_tenant):
    accepted, broken = [], []
    for key in tenant_keys():
        if not child_is_accepted(key, parents_tenant=tenant.pk, childs_tenant=tenant.pk):
            broken.append(key.name)  # then the next line would prove nothing
        if child_is_accepted(key, parents_tenant=tenant.pk, childs_tenant=other_tenant.pk):
            accepted.append(key.name)

    assert accepted == []
    assert broken == []


def child_is_accepted(key: Key, *, parents_tenant: UUID, childs_tenant: UUID) -> bool:
    """Insert a parent and a child with nothing but ids, on tables freed of other rules for a transaction."""
    column, named = key.pair
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        try:
            for table in {key.parent, key.child}:
                drop_other_rules(cursor, table, key.name)
            insert(cursor, key.parent, parents_tenant, **{named: (parent := uuid7())})
            try:
                with transaction.atomic(using=OWNER):
                    insert(cursor, key.child, childs_tenant, **{column: parent})
                    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except IntegrityError as error:
                if key.name not in str(error):
                    raise
                return False
            return True
        finally:
            transaction.set_rollback(True, using=OWNER)


def drop_other_rules(cursor: Any, table: str, key: str) -> None:
    """Drop checks, NOT NULLs and other keys, so that a row needs no more than its ids. Triggers of ours, which tell of whole rows
    elsewhere, are silent; those of the keys are not.
    """
    cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    cursor.execute(
        """SELECT 'ALTER COLUMN ' || quote_ident(attname) || ' DROP NOT NULL' FROM pg_attribute a
           WHERE attrelid = %(table)s::regclass AND attnum > 0 AND attnotnull AND NOT attisdropped
             AND attname <> 'tenant_id' AND NOT EXISTS (SELECT FROM pg_constraint p
               WHERE p.conrelid = a.attrelid AND p.contype = 'p' AND a.attnum = ANY(p.conkey))
           UNION ALL
           SELECT 'DROP CONSTRAINT ' || quote_ident(conname) FROM pg_constraint
           WHERE conrelid = %(table)s::regclass AND contype IN ('c', 'f') AND conname <> %(key)s""",
        {"table": table, "key": key},
    )
    if changes := [change for (change,) in cursor.fetchall()]:
        cursor.execute(f"ALTER TABLE {table} {', '.join(changes)}")


def insert(cursor: Any, table: str, tenant_id: UUID, **values: object) -> None:
    # The owner may be under the policies as well, if it is no superuser.
    cursor.execute("SELECT set_config('app.tenant_id', %s, true)", [str(tenant_id)])
    cursor.execute(
        """SELECT a.attname, a.atttypid::regtype::text FROM pg_attribute a
           JOIN pg_constraint p ON p.conrelid = a.attrelid AND p.contype = 'p' AND a.attnum = ANY(p.conkey)
           WHERE a.attrelid = %s::regclass AND a.attidentity = ''""",
        [table],
    )
    for name, kind in cursor.fetchall():
        values.setdefault(name, uuid7() if kind == "uuid" else 1)
    values["tenant_id"] = tenant_id
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))


def test_a_failed_statement_leaves_the_connection_usable_and_without_a_tenant(tenant):
    with pytest.raises(DatabaseError), tenant_scope(tenant.pk), connections[APP].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")

    assert rows_seen() == 0
