"""Row-level security keeps tenants apart even where the application forgets to.

The first part queries PostgreSQL by the application's role without any filter. The second reads
the catalogue, so that it covers every table and key that is added later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, ProgrammingError, connections, transaction

from activities.models import Activity
from tenants import row_security, tokens
from tenants.context import (
    ADMIN,
    APP,
    OWNER,
    SYSTEM,
    admin_scope,
    current_alias,
    set_person,
    system_scope,
    tenant_scope,
)
from tenants.current_tenant import current_tenant
from tenants.exceptions import RowSecurityMissing, TenantScopeConflict
from tenants.identifiers import uuid7
from tenants.models import ApiToken, Membership, Role, Tenant

pytestmark = pytest.mark.usefixtures("database")

MakeActivity = Callable[..., Activity]


@pytest.fixture
def make_activity() -> MakeActivity:
    def make(tenant: Tenant, name: str = "work") -> Activity:
        with tenant_scope(tenant.pk):
            return Activity.objects.create(tenant=tenant, name=name, assignee_type="agent", agent_role="seo")

    return make


def value_of(sql: str = "SELECT count(*) FROM activities_activity") -> int:
    with connections[APP].cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


def test_without_a_tenant_queries_return_no_rows_and_no_error(tenant, make_activity):
    make_activity(tenant)

    assert value_of() == 0
    assert Activity.objects.count() == 0
    assert value_of("SELECT count(*) FROM tenants_tenant") == 0


def test_an_unfiltered_query_returns_only_rows_of_the_current_tenant(tenant, other_tenant, make_activity):
    mine, theirs = make_activity(tenant), make_activity(other_tenant)

    with tenant_scope(tenant.pk):
        assert list(Activity.objects.all()) == [mine]
        assert not Activity.objects.filter(pk=theirs.pk).exists()
        assert list(Tenant.objects.all()) == [tenant]


def test_updating_or_deleting_a_row_of_another_tenant_changes_nothing(tenant, other_tenant, make_activity):
    theirs = make_activity(other_tenant)

    with tenant_scope(tenant.pk):
        assert Activity.objects.filter(pk=theirs.pk).update(name="stolen") == 0
        with connections[APP].cursor() as cursor:
            cursor.execute("DELETE FROM activities_activity WHERE id = %s", [theirs.pk])
            assert cursor.rowcount == 0

    with tenant_scope(other_tenant.pk):
        assert Activity.objects.get().name == "work"


def test_inserting_a_row_for_another_tenant_is_refused(tenant, other_tenant, make_activity):
    with pytest.raises(ProgrammingError, match="row-level security"), tenant_scope(tenant.pk):
        Activity.objects.create(tenant=other_tenant, name="planted", assignee_type="agent", agent_role="seo")


def test_moving_a_row_to_another_tenant_is_refused(tenant, other_tenant, make_activity):
    mine = make_activity(tenant)

    with pytest.raises(ProgrammingError, match="row-level security"), tenant_scope(tenant.pk):
        Activity.objects.filter(pk=mine.pk).update(tenant=other_tenant)


def test_a_person_without_a_tenant_sees_their_own_memberships_and_their_tenants_only(tenant, other_tenant):
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    for user, owner in ((ann, tenant), (bob, tenant), (bob, other_tenant)):
        with tenant_scope(owner.pk):
            Membership.objects.create(tenant=owner, user=user, role=Role.VIEWER)

    with transaction.atomic(using=APP):
        set_person(ann.pk)
        assert [each.user_id for each in Membership.objects.all()] == [ann.pk]
        assert list(Tenant.objects.all()) == [tenant]


def test_a_presented_token_without_a_tenant_shows_itself_and_its_tenant_only(tenant, other_tenant):
    token, *_ = [tokens.create(owner, Role.VIEWER, "laptop")[0] for owner in (tenant, tenant, other_tenant)]

    with transaction.atomic(using=APP):
        value_of(f"SELECT set_config('app.token_hash', '{token.secret_hash}', true) IS NULL")
        assert list(ApiToken.objects.all()) == [token]
        assert list(Tenant.objects.all()) == [tenant]


def test_the_role_of_the_admin_changes_and_moves_nothing_of_tenants_that_it_may_only_read(
    tenant, other_tenant, make_activity
):
    mine, theirs = make_activity(tenant), make_activity(other_tenant)

    with admin_scope(reads={tenant.pk, other_tenant.pk}, writes={tenant.pk}, platform=False):
        assert set(Activity.objects.all()) == {mine, theirs}
        assert Activity.objects.update(name="changed") == 1
        with connections[ADMIN].cursor() as cursor:
            cursor.execute("DELETE FROM activities_activity WHERE id = %s", [theirs.pk])
            assert cursor.rowcount == 0
        with pytest.raises(ProgrammingError, match="row-level security"):
            Activity.objects.filter(pk=mine.pk).update(tenant=other_tenant)
        with pytest.raises(ProgrammingError, match="row-level security"):
            Activity.objects.create(tenant=other_tenant, name="x", assignee_type="agent", agent_role="seo")


#: Policies that the other tables do not have. `tenant_isolation` of the first two also shows a person's own rows, or that of a token.
OTHER_POLICIES = {
    "tenants_membership": {"tenant_isolation"},
    "tenants_apitoken": {"tenant_isolation"},
    "tenants_tenant": {"member", "platform", "token_presenter"},
    "tenants_auditentry": {"of_the_owner", "platform", "platform_entries"},
}


def test_every_other_table_has_the_policies_of_activities():
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            """SELECT tablename, policyname, permissive, roles::text, cmd, replace(qual, '(id =', '(tenant_id ='),
                 replace(with_check, '(id =', '(tenant_id =')
               FROM pg_policies WHERE schemaname = 'public'"""
        )
        policies: dict[str, set[Any]] = {}
        for table, *policy in cursor.fetchall():
            policies.setdefault(table, set()).add(tuple(policy))
    ordinary = policies["activities_activity"]

    assert {name for name, *_ in ordinary} == {"tenant_isolation", "admin_reads", "admin_writes"}
    assert {
        table: {name for name, *_ in found ^ ordinary}
        for table, found in policies.items()
        if found != ordinary
    } == OTHER_POLICIES


#: What each role may do with tables that it may not select from, insert into, update and delete from.
LIMITED_RIGHTS = {
    "activities_activityevent": ("SI", "SI", "SI"),
    "activities_condition": ("", "S", "SIUD"),
    "activities_counter": ("", "S", "SIUD"),
    "activities_countingmark": ("", "S", "SIUD"),
    "activities_leaderlease": ("", "S", "SIUD"),
    "activities_systemjob": ("", "S", "SIUD"),
    "tenants_auditentry": ("SI", "SI", "SI"),
    "tenants_breakglass": ("SIU", "SIU", "SIU"),
    "tenants_configurationchange": ("S", "S", "S"),
    "tenants_departedtenant": ("S", "S", "SIUD"),
    "tenants_event": ("SID", "SID", "SID"),
    "tenants_retentionpass": ("S", "S", "SIUD"),
    "tenants_usageentry": ("SI", "SI", "SI"),
    "tenants_usagetotal": ("S", "S", "S"),
}


def test_what_has_happened_cannot_be_changed_and_requests_do_not_reach_the_tables_of_the_platform():
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            """SELECT c.relname, array_agg((
                 SELECT coalesce(string_agg(left(verb, 1), '' ORDER BY n), '')
                 FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY u(verb, n)
                 WHERE has_table_privilege('orchestrator_' || role, c.oid, verb)) ORDER BY role)
               FROM pg_class c, unnest(ARRAY['admin', 'app', 'system']) role
               WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace GROUP BY 1"""
        )
        rights = {table: (app, admin, system) for table, (admin, app, system) in cursor.fetchall()}

    assert {table: held for table, held in rights.items() if set(held) != {"SIUD"}} == LIMITED_RIGHTS


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE activities_activity DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant_isolation ON activities_activity",
        "TRUNCATE activities_activity CASCADE",
    ],
)
def test_the_application_can_neither_disable_a_policy_nor_truncate_a_table(statement):
    with pytest.raises(ProgrammingError, match=r"must be owner|permission denied"):
        value_of(statement)


def test_the_scope_ends_with_its_transaction_even_if_that_fails(tenant, make_activity):
    make_activity(tenant)
    process = value_of("SELECT pg_backend_pid()")

    def fail_inside() -> None:
        with tenant_scope(tenant.pk):
            assert value_of() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()

    assert value_of() == 0
    assert (current_tenant(), current_alias()) == (None, APP)
    assert value_of("SELECT pg_backend_pid()") == process  # on the same connection


def test_a_scope_of_another_tenant_cannot_be_opened_inside_one(tenant, other_tenant):
    with tenant_scope(tenant.pk):
        with pytest.raises(TenantScopeConflict), tenant_scope(other_tenant.pk):
            pass
        with pytest.raises(TenantScopeConflict), system_scope():
            pass


def test_the_system_role_sees_all_tenants_and_can_enter_the_scope_of_one(tenant, other_tenant, make_activity):
    make_activity(tenant)
    make_activity(other_tenant)

    with system_scope():
        assert Activity.objects.count() == 2
        with tenant_scope(tenant.pk):
            assert Activity.objects.count() == 1
        assert Activity.objects.count() == 2


def test_every_table_with_a_tenant_forces_row_level_security():
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            """SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
               WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace"""
        )
        forced = dict(cursor.fetchall())

    assert [table for table, is_forced in forced.items() if not is_forced] == []
    assert set(row_security.tenant_tables()) <= {*forced, "tenants_tenant"}
    assert row_security.find_errors(row_security.tenant_tables()) == []


def test_a_process_starts_if_row_level_security_is_complete():
    row_security.refuse_unsafe_database(row_security.tenant_tables())


@contextmanager
def app_works_as(role: str) -> Iterator[None]:
    with connections[APP].cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
        yield
        cursor.execute("RESET ROLE")


def test_a_process_does_not_start_as_a_role_that_bypasses_the_policies():
    with (
        app_works_as("orchestrator_system"),
        pytest.raises(RowSecurityMissing, match="bypasses row-level security"),
    ):
        row_security.refuse_unsafe_database(row_security.tenant_tables())


def test_a_process_does_not_start_if_a_table_lacks_row_level_security():
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
        """The column of the child that refers to the parent, apart from the tenant, and the referenced column."""
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


def test_every_foreign_key_between_tenants_tables_includes_the_tenant():
    keys = tenant_keys()

    plain = [
        key.name
        for key in keys
        if ("tenant_id", "tenant_id") not in zip(key.columns, key.parent_columns, strict=True)
    ]
    assert plain == []
    assert len(keys) >= 8


def test_every_foreign_key_refuses_a_child_of_another_tenant(tenant, other_tenant):
    accepted, refused = [], []
    for key in tenant_keys():
        if not child_is_accepted(key, parents_tenant=tenant.pk, childs_tenant=tenant.pk):
            refused.append(key.name)  # then the next line would prove nothing
        if child_is_accepted(key, parents_tenant=tenant.pk, childs_tenant=other_tenant.pk):
            accepted.append(key.name)

    assert accepted == []
    assert refused == []


def child_is_accepted(key: Key, *, parents_tenant: UUID, childs_tenant: UUID) -> bool:
    """Insert a parent and a child with ids only, in a transaction without the other constraints, and roll back."""
    column, referenced = key.pair
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        try:
            for table in {key.parent, key.child}:
                drop_other_rules(cursor, table, key.name)
            insert(cursor, key.parent, parents_tenant, **{referenced: (parent := uuid7())})
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
    """Drop checks, NOT NULLs and other keys, so that a row needs only its ids. Only triggers of foreign keys stay enabled."""
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
    # The policies apply to the owner as well, unless it is a superuser.
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

    assert value_of() == 0
